"""The light Enum behaves as the standard one, as far as the queue's words need it."""

from __future__ import annotations

import copy
import enum
import json
import pickle

import pytest

from spoolctl.core import words
from spoolctl.core.states import State


class Light(str, words.Enum):
    """Words."""

    UP = "up"
    HALF_WAY = "half_way"


class Heavy(str, enum.Enum):
    """Words."""

    UP = "up"
    HALF_WAY = "half_way"


class Plain(words.Enum):
    """Words that are no text."""

    UP = "up"


def test_members_are_found_and_shown_as_the_standard_ones() -> None:
    for light, heavy in zip(Light, Heavy, strict=True):
        assert (light.name, light.value) == (heavy.name, heavy.value)
        assert repr(light) == repr(heavy).replace("Heavy", "Light")
        assert str(light) == str(heavy).replace("Heavy", "Light")
        assert json.dumps(light) == json.dumps(heavy)
        assert light == heavy.value
        assert Light(heavy.value) is Light(light) is light
        assert Light[heavy.name] is Light.__members__[heavy.name] is light
        assert isinstance(light, Light)
        assert isinstance(light, str)
    assert len(Light) == len(Heavy)
    assert list(Light) == [Light.UP, Light.HALF_WAY]
    assert Light.__doc__ == "Words."


def test_each_is_alone_of_its_kind_through_every_copy() -> None:
    for member in (*State, Plain.UP):
        assert pickle.loads(pickle.dumps(member)) is member
        assert copy.copy(member) is member
        assert copy.deepcopy([member])[0] is member


def test_unknown_values_are_refused_and_none_can_be_changed() -> None:
    for value in ("down", "UP", None, []):
        with pytest.raises(ValueError, match="is not a valid Light"):
            Light(value)
    with pytest.raises(KeyError):
        Light["up"]
    with pytest.raises(AttributeError):
        Light.UP = "x"  # type: ignore[misc,assignment]


def test_only_text_is_equal_to_its_value() -> None:
    assert {Light.UP: 1}["up"] == 1  # type: ignore[index]
    assert Plain.UP != "up"
    assert Plain("up") is Plain.UP
    assert {Plain.UP: 1}[Plain.UP] == 1

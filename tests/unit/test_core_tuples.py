"""The light NamedTuple behaves as the standard one."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from spoolctl.core import tuples
from spoolctl.core.records import Instant


class Light(tuples.NamedTuple):
    """Words."""

    a: int
    b: str = "b"

    @property
    def both(self) -> str:
        """Both."""
        return f"{self.a}{self.b}"


class Heavy(typing.NamedTuple):
    """Words."""

    a: int
    b: str = "b"


def test_it_is_made_read_and_shown_as_the_standard_one() -> None:
    for args, kwargs in [((1,), {}), ((1, "x"), {}), ((), {"a": 1, "b": "x"}), ((1,), {"b": "x"})]:
        light, heavy = Light(*args, **kwargs), Heavy(*args, **kwargs)  # type: ignore[arg-type]
        assert tuple(light) == tuple(heavy)
        assert (light.a, light.b) == (heavy.a, heavy.b)
        assert repr(light) == repr(heavy).replace("Heavy", "Light")
        assert light._asdict() == heavy._asdict()
        assert tuple(light._replace(a=7)) == tuple(heavy._replace(a=7))
    assert Light._fields == Heavy._fields
    assert Light._field_defaults == Heavy._field_defaults
    assert tuple(Light._make([1, "x"])) == (1, "x")
    assert Light(1).both == "1b"
    assert Light.__doc__ == "Words."


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, "b", 2), {}), ((1,), {"a": 1}), ((1,), {"c": 1})]
)
def test_wrong_arguments_are_refused(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    for kind in (Light, Heavy):
        with pytest.raises(TypeError):
            kind(*args, **kwargs)  # type: ignore[arg-type]


def test_unknown_fields_cannot_be_replaced_nor_any_be_set() -> None:
    with pytest.raises(TypeError):
        Light(1)._replace(c=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Light(1).a = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Light(1).c = 2  # type: ignore[attr-defined]


def test_it_matches_unpacks_compares_and_hashes() -> None:
    light = Light(1, "x")
    match light:
        case Light(a, b):
            assert (a, b) == (1, "x")
    first, second = light
    assert (first, second) == (1, "x")
    assert light == (1, "x")
    assert hash(light) == hash((1, "x"))
    assert sorted([Light(2), Light(1)]) == [Light(1), Light(2)]


def test_it_copies_and_pickles() -> None:
    now = Instant(1.0, 2.0, 3.0, "boot")
    for other in (copy.copy(now), copy.deepcopy(now), pickle.loads(pickle.dumps(now))):
        assert other == now
        assert type(other) is Instant

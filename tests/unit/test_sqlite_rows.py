"""JSON text that is written without the module `json`."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spoolctl.core.records import Context
from spoolctl.store.sqlite import rows

SCALARS = st.none() | st.integers() | st.floats() | st.text() | st.booleans()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def reference(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(VALUES)
@example(["\x7f"])
@example(["\u2028"])
@example(["\ud800"])
@example(-0.0)
@example(1e300)
def test_is_what_json_writes_or_left_to_it(value: object) -> None:
    try:
        text = rows.simple_json(value)
    except rows.NotSimple:
        return
    assert text == reference(value)


@pytest.mark.parametrize(
    "value",
    [
        ("make", "-j", "4", "prüfen", ""),
        Context("/tmp/a b", 0o22, (("LANG", "C.UTF-8"),)),
        {"timeout_s": 1.5, "policy": {"delays_s": (1.0, 1e300)}, "max_retries": -3},
    ],
)
def test_what_jobs_usually_consist_of_is_simple(value: object) -> None:
    assert rows.simple_json(value) == reference(value)


@pytest.mark.parametrize("value", ['"', "\\", "a\n", "\0", True, float("nan"), {1: 2}, {"a": {3}}])
def test_the_rest_is_not(value: object) -> None:
    with pytest.raises(rows.NotSimple):
        rows.simple_json(value)


@given(st.lists(st.text(st.characters(exclude_categories=()))).map(tuple))
@example(("\ud800", "\x00", '"', "\\", "\u2028"))
def test_words_are_stored_as_whatever_else(words: tuple[str, ...]) -> None:
    rows.import_json()
    text = rows.words_to_json(words)
    assert text == rows.to_json(words)
    assert rows.words_of(text.encode().decode()) == words

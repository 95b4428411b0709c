"""What a worker and its clerk tell each other arrives as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spoolctl.core.records import Capture, Claimed, Cycle, Outcome, Recorded, Want
from spoolctl.core.states import AttemptState, Reason, State
from spoolctl.engine.letters import (
    FAILED,
    READY,
    Answer,
    answer,
    read_answer,
    read_request,
    request,
)

# Lone surrogates stand for bytes of the command line that are not valid UTF-8.
TEXTS = st.text(st.characters(codec=None, categories=("L", "N", "P", "Cs", "Cc")), max_size=8)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
TIMES = st.floats(allow_nan=False)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


CAPTURES = st.builds(
    Capture, NUMBERS, maybe(st.binary()), NUMBERS, NUMBERS, st.booleans(), st.booleans()
)
OUTCOMES = st.builds(
    Outcome,
    NUMBERS,
    st.sampled_from(list(AttemptState)),
    maybe(st.sampled_from(list(Reason))),
    maybe(NUMBERS),
    maybe(TEXTS),
    TIMES,
    maybe(NUMBERS),
    CAPTURES,
    CAPTURES,
    st.booleans(),
)
WANTS = st.builds(
    Want, NUMBERS, maybe(st.lists(TEXTS).map(tuple)), maybe(NUMBERS), maybe(NUMBERS), NUMBERS
)
RECORDED = st.builds(Recorded, NUMBERS, NUMBERS, maybe(st.sampled_from(list(State))), maybe(TIMES))
CLAIMED = st.builds(
    Claimed,
    NUMBERS,
    TEXTS,
    NUMBERS,
    NUMBERS,
    st.lists(TEXTS).map(tuple),
    TEXTS,
    maybe(TEXTS),
    maybe(TEXTS),
    maybe(NUMBERS),
    PAIRS,
    maybe(NUMBERS),
    maybe(st.binary()),
)
CYCLES = st.builds(
    Cycle,
    st.lists(RECORDED, max_size=3).map(tuple),
    st.lists(CLAIMED, max_size=3).map(tuple),
    maybe(TIMES),
    st.booleans(),
)


def kinds(value: object) -> object:
    """Of what types all parts are: equal tuples may be different records."""
    parts = tuple(map(kinds, value)) if isinstance(value, (tuple, list)) else ()
    return type(value), parts


@given(st.lists(OUTCOMES, max_size=3).map(tuple), maybe(WANTS))
def test_requests(outcomes: tuple[Outcome, ...], want: Want | None) -> None:
    read = read_request(request(outcomes, want))
    assert read == (outcomes, want)
    assert kinds(read) == kinds((outcomes, want))


@given(CYCLES, TIMES)
def test_answers(cycle: Cycle, took_s: float) -> None:
    read = read_answer(answer(Answer(cycle, took_s)))
    assert read == Answer(cycle, took_s)
    assert kinds(read) == kinds(Answer(cycle, took_s))


@pytest.mark.parametrize("word", [READY, FAILED])
def test_words(word: str) -> None:
    assert read_answer(answer(word)) == word

"""When a worker claims jobs that it has no slot for yet."""

from __future__ import annotations

import pytest

from spoolctl.engine.ahead import MOST_AHEAD, SHORT_S, STREAK, Ahead


def after_short_ones(slots: int = 1) -> Ahead:
    ahead = Ahead(slots)
    for _ in range(STREAK):
        assert ahead.limit == 0
        ahead.ended(SHORT_S)
    return ahead


@pytest.mark.parametrize(("slots", "limit"), [(0, 0), (1, 1), (4, 4), (50, MOST_AHEAD)])
def test_after_enough_short_commands_as_many_as_there_are_slots(slots: int, limit: int) -> None:
    assert after_short_ones(slots).limit == limit


def test_one_that_lasts_ends_it() -> None:
    ahead = after_short_ones()
    ahead.ended(SHORT_S * 1.01)
    assert ahead.limit == 0
    ahead.ended(0.0)
    assert ahead.limit == 0


def test_a_wait_for_a_slot_ends_it() -> None:
    ahead = after_short_ones()
    ahead.waited()
    assert ahead.limit == 0

"""When a worker claims jobs that it has no slot for yet."""

from __future__ import annotations

import pytest

from spoolctl.engine.ahead import (
    CROWD,
    MOST_AHEAD,
    MOST_FOR_ONE_SLOT,
    SHORT_S,
    STREAK,
    Ahead,
)


def after_short_ones(slots: int = 1, duration_s: float = SHORT_S) -> Ahead:
    ahead = Ahead(slots)
    for _ in range(STREAK):
        assert ahead.limit == 0
        ahead.ended(duration_s)
    return ahead


@pytest.mark.parametrize(("slots", "limit"), [(0, 0), (1, 1), (4, 4), (50, MOST_AHEAD)])
def test_after_enough_short_commands_as_many_as_there_are_slots(slots: int, limit: int) -> None:
    ahead = after_short_ones(slots)
    assert ahead.limit == limit <= ahead.most


@pytest.mark.parametrize("slots", [2, 4, 8, 50])
@pytest.mark.parametrize("duration_s", [0.0, 0.0003, 0.001, 0.004, SHORT_S])
def test_as_many_as_get_a_slot_within_the_length_of_a_short_command(
    slots: int, duration_s: float
) -> None:
    ahead = after_short_ones(slots, duration_s)
    for _ in range(100):  # what came before is forgotten
        ahead.ended(duration_s)
    limit = ahead.limit
    assert limit * duration_s / slots <= SHORT_S * 1.01
    assert limit == MOST_AHEAD or (limit + 1) * duration_s / slots > SHORT_S * 0.99


def test_with_one_slot_more_than_one_only_while_others_are_in_the_way() -> None:
    ahead = after_short_ones(1, 0.0)
    assert ahead.limit == 1
    for _ in range(2):
        ahead.recorded(met_others=True)
        for _ in range(CROWD):
            assert ahead.limit == MOST_FOR_ONE_SLOT == ahead.most
            ahead.recorded(met_others=False)
        assert ahead.limit == 1


@pytest.mark.parametrize(("slots", "limit"), [(0, 0), (2, MOST_AHEAD)])
def test_otherwise_who_else_is_there_makes_no_difference(slots: int, limit: int) -> None:
    ahead = after_short_ones(slots, 0.0)
    ahead.recorded(met_others=True)
    assert ahead.limit == limit


def test_what_it_has_seen_before_one_that_lasted_does_not_count() -> None:
    ahead = after_short_ones(4, 0.0)
    assert ahead.limit == MOST_AHEAD
    ahead.ended(SHORT_S * 2)
    for _ in range(STREAK):
        assert ahead.limit == 0
        ahead.ended(SHORT_S)
    assert ahead.limit == 4


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

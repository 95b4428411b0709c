"""When a worker claims jobs that it has no slot for yet."""

from __future__ import annotations

import pytest

from spoolctl.engine.ahead import (
    CROWD,
    GATHER_S,
    HOLD_S,
    LONGEST_RECORD_S,
    MOST_AHEAD,
    MOST_FOR_ONE_SLOT,
    MOST_IF_HELPED,
    MOST_IF_SLOW,
    SHORT_S,
    SLOW_S,
    STEADY,
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
        ahead.recorded(met_others=True, took_s=0.0)
        for _ in range(CROWD):
            assert ahead.limit == MOST_FOR_ONE_SLOT <= ahead.most
            ahead.recorded(met_others=False, took_s=0.0)
        assert ahead.limit == 1


@pytest.mark.parametrize(("slots", "limit"), [(0, 0), (2, MOST_AHEAD)])
def test_otherwise_who_else_is_there_makes_no_difference(slots: int, limit: int) -> None:
    ahead = after_short_ones(slots, 0.0)
    ahead.recorded(met_others=True, took_s=2 * SLOW_S)
    assert ahead.limit == limit


@pytest.mark.parametrize("took_s", [2 * SLOW_S, 3.0])
def test_on_a_slow_disk_one_slot_claims_more_ahead_too(took_s: float) -> None:
    ahead = after_short_ones(1, 0.0)
    for _ in range(16):
        ahead.recorded(met_others=False, took_s=took_s)
    assert ahead.limit == MOST_IF_SLOW <= ahead.most
    for _ in range(100):
        ahead.recorded(met_others=False, took_s=SLOW_S / 2)
    assert ahead.limit == 1


@pytest.mark.parametrize("slots", [1, 4])
def test_with_a_clerk_there_is_enough_to_start_while_it_is_at_work(slots: int) -> None:
    ahead = after_short_ones(slots, 0.0)
    for _ in range(100):
        ahead.ended(0.0)
    assert ahead.reserve == 0
    ahead.helped = True
    for took_s in (0.0, 2 * SLOW_S):
        for _ in range(100):
            ahead.recorded(met_others=False, took_s=took_s)
        assert ahead.limit == MOST_IF_HELPED == ahead.most
        assert ahead.reserve == MOST_IF_HELPED // 2
    for _ in range(20):
        ahead.recorded(met_others=True, took_s=0.0)
    assert not ahead.helps  # in a crowd it is not asked, and changes nothing
    assert ahead.limit == (MOST_FOR_ONE_SLOT if slots == 1 else MOST_AHEAD)
    assert ahead.reserve == 0
    for _ in range(100):
        ahead.recorded(met_others=False, took_s=0.0)
    ahead.helped = False
    assert ahead.limit <= MOST_AHEAD
    ahead.helped = True
    ahead.waited()
    assert (ahead.limit, ahead.reserve) == (0, 0)


def test_a_clerk_is_worth_it_after_many_short_commands_and_with_nobody_in_the_way() -> None:
    ahead = Ahead(1)
    for _ in range(STEADY):
        assert not ahead.steady
        ahead.ended(0.0)
    assert ahead.steady
    assert ahead.helps
    ahead.recorded(met_others=True, took_s=0.0)
    assert ahead.steady  # once is nothing
    while ahead.steady:
        ahead.recorded(met_others=True, took_s=0.0)
    assert ahead.helps  # one that is there goes on for a while
    for _ in range(8):
        ahead.recorded(met_others=True, took_s=0.0)
    assert not ahead.helps
    for _ in range(30):
        ahead.recorded(met_others=False, took_s=0.0)
    assert ahead.steady
    assert ahead.helps
    ahead.ran_dry()  # it keeps up with what is added
    assert not ahead.steady
    assert ahead.limit
    for _ in range(STEADY):
        ahead.ended(0.0)
    assert ahead.steady
    ahead.ended(SHORT_S * 2)
    assert not ahead.steady


def test_without_slots_there_is_no_clerk() -> None:
    ahead = Ahead(0)
    for _ in range(STEADY):
        ahead.ended(0.0)
    assert not ahead.steady


def test_what_a_transaction_takes_is_waited_for_ends_and_not_counted_as_a_wait() -> None:
    ahead = Ahead(1)
    assert (ahead.gather_s, ahead.hold_s) == (GATHER_S, HOLD_S)
    for took_s in (0.012, LONGEST_RECORD_S):
        for _ in range(100):
            ahead.recorded(met_others=False, took_s=took_s)
        assert ahead.gather_s == pytest.approx(min(took_s, HOLD_S), rel=0.01)
        assert ahead.hold_s == pytest.approx(HOLD_S + 2 * took_s, rel=0.01)


def test_a_lock_that_somebody_held_for_an_hour_is_not_what_is_usual() -> None:
    ahead = Ahead(1)
    ahead.recorded(met_others=True, took_s=3600.0)
    assert ahead.hold_s <= HOLD_S + LONGEST_RECORD_S
    for _ in range(100):
        ahead.recorded(met_others=False, took_s=0.0)
    assert ahead.hold_s == pytest.approx(HOLD_S, rel=0.01)


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

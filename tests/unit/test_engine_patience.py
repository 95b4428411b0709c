"""What a worker says of the things that do not work yet."""

from __future__ import annotations

import errno

import pytest

from spoolctl.engine.patience import (
    FORGET_AFTER_S,
    FULL_PAUSE_S,
    LONGEST_S,
    TELL_AFTER_S,
    Patience,
)
from spoolctl.errors import StoreBusy, StoreFull

WAITING = "spoolctl: waiting: q.db is locked"
GOING_ON = "spoolctl: going on"
LOCKED = StoreBusy("q.db is locked")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def patience(said: list[str]) -> Patience:
    return Patience(said.append)


def stall(patience: Patience, *whats: str, since: float = 0.0) -> None:
    """None of these works for as long as it takes to say so."""
    for mono in (since, since + TELL_AFTER_S):
        for what in whats:
            patience.pause(what, LOCKED, mono)


def test_what_is_in_the_way_of_several_things_is_said_once(
    patience: Patience, said: list[str]
) -> None:
    stall(patience, "heartbeat", "cycle", "scan")
    assert said == [WAITING]
    patience.over("cycle")
    patience.over("heartbeat")
    assert said == [WAITING]
    patience.over("scan")
    assert said == [WAITING, GOING_ON]
    stall(patience, "cycle", since=100.0)
    assert said == [WAITING, GOING_ON, WAITING]


def test_it_knows_since_when_a_thing_does_not_work(patience: Patience) -> None:
    stall(patience, "cycle", since=7.0)
    assert (patience.since("cycle"), patience.since("scan")) == (7.0, None)
    patience.over("cycle")
    assert patience.since("cycle") is None


def test_each_thing_in_the_way_is_said(patience: Patience, said: list[str]) -> None:
    stall(patience, "heartbeat")
    patience.pause("cycle", StoreFull("no room"), TELL_AFTER_S)
    assert said == [WAITING, "spoolctl: waiting: no room"]
    patience.over("heartbeat")
    patience.over("cycle")
    assert said[2:] == [GOING_ON, GOING_ON]


def test_what_is_not_tried_any_more_silences_nothing(patience: Patience, said: list[str]) -> None:
    stall(patience, "note")
    stall(patience, "cycle", since=FORGET_AFTER_S + TELL_AFTER_S)
    assert said == [WAITING, WAITING]
    patience.over("cycle")
    assert said == [WAITING, WAITING, GOING_ON]


def test_what_comes_and_goes_is_said_once_a_minute(patience: Patience, said: list[str]) -> None:
    short = OSError(errno.EMFILE, "Too many open files")
    waiting = "spoolctl: waiting: Too many open files"
    for hundredth in range(6000):
        patience.pause("start", short, hundredth / 100)
        patience.over("start")
    assert said == [waiting, GOING_ON]
    patience.pause("start", short, FORGET_AFTER_S)
    patience.over("start")
    assert said == [waiting, GOING_ON] * 2


def test_what_comes_again_and_lasts_is_said_again(patience: Patience, said: list[str]) -> None:
    full = StoreFull("no room")
    for since in (0.0, 10.0):
        for mono in (since, since + TELL_AFTER_S):
            patience.pause("cycle", full, mono)
        patience.over("cycle")
    assert said == ["spoolctl: waiting: no room", GOING_ON] * 2


def test_what_comes_and_goes_beside_something_that_lasts_ends_no_wait(
    patience: Patience, said: list[str]
) -> None:
    full = StoreFull("no room")
    for tenth in range(100):
        patience.pause("cycle", full, tenth / 10)
        patience.pause("heartbeat", full, tenth / 10)
        patience.over("heartbeat")
    assert said == ["spoolctl: waiting: no room"]
    patience.over("cycle")
    assert said == ["spoolctl: waiting: no room", GOING_ON]


def test_another_reason_is_said(patience: Patience, said: list[str]) -> None:
    stall(patience, "cycle")
    for second in range(10, 40):
        patience.pause("cycle", StoreFull("no room"), second)
        patience.pause("cycle", LOCKED, second + 0.5)
    assert said == [WAITING, "spoolctl: waiting: no room"]
    patience.over("cycle")
    assert said[2:] == [GOING_ON]


def test_in_a_crowd_it_looks_rarely_at_first_and_more_often_with_time(patience: Patience) -> None:
    """So many looks that have no chance would take the processor from who holds the lock."""
    usual_s = 0.2
    pauses = {}
    for waited_s in (0.0, 0.2, 1.0, 4.0):
        tries = [patience.pause("cycle", LOCKED, waited_s, usual_s) for _ in range(50)]
        pauses[waited_s] = tries
        assert min(tries) * (1 + waited_s / usual_s) / usual_s >= 0.5
    assert max(pauses[0.0]) <= 1.5 * usual_s
    assert max(pauses[4.0]) < min(pauses[0.2])


def test_without_a_crowd_it_looks_soon(patience: Patience) -> None:
    assert patience.pause("cycle", LOCKED, 0.0) <= LONGEST_S
    assert patience.pause("cycle", LOCKED, 0.0, 0.001) <= LONGEST_S


def test_a_full_disk_is_no_crowd(patience: Patience) -> None:
    assert patience.pause("cycle", StoreFull("no room"), 0.0, 0.2) == FULL_PAUSE_S

"""The transition table: what it allows, what it refuses, what it writes."""

from __future__ import annotations

import itertools

import pytest

from spoolctl.core.states import (
    SETTLED,
    TRANSITIONS,
    AttemptState,
    Event,
    Ledger,
    Move,
    Reason,
    State,
    move,
)
from spoolctl.errors import IllegalTransition

EVERY_PAIR = list(itertools.product(State, Event))


@pytest.mark.parametrize(("state", "event"), sorted(TRANSITIONS))
def test_a_legal_move_is_the_one_in_the_table(state: State, event: Event) -> None:
    assert move(state, event) == TRANSITIONS[state, event]


@pytest.mark.parametrize(
    ("state", "event"), [pair for pair in EVERY_PAIR if pair not in TRANSITIONS]
)
def test_every_other_move_is_refused(state: State, event: Event) -> None:
    with pytest.raises(IllegalTransition) as caught:
        move(state, event, job_id=7)
    assert (caught.value.state, caught.value.event) == (state.value, event.value)
    assert caught.value.job_id == 7
    assert "7" in str(caught.value)


def test_nothing_leads_out_of_done() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is State.DONE]


def test_settled_jobs_leave_only_by_a_manual_retry() -> None:
    leaving = {event for state, event in TRANSITIONS if state in SETTLED}
    assert leaving == {Event.RETRIED}
    assert {State.QUEUED, State.RUNNING} == set(State) - SETTLED


def test_only_a_claim_makes_a_job_run() -> None:
    into = {pair for pair, way in TRANSITIONS.items() if way.to is State.RUNNING}
    assert into == {(State.QUEUED, Event.CLAIMED)}


def test_every_state_can_be_reached_and_every_event_happens() -> None:
    reached = {State.QUEUED}
    while True:
        more = {way.to for (state, _event), way in TRANSITIONS.items() if state in reached}
        if more <= reached:
            break
        reached |= more
    assert reached == set(State)
    assert {event for _state, event in TRANSITIONS} == set(Event)


def test_every_kind_of_entry_is_written_by_some_move() -> None:
    written = {entry for way in TRANSITIONS.values() for entry in way.writes}
    assert written | {Ledger.ADDED} == set(Ledger)


@pytest.mark.parametrize("way", TRANSITIONS.values())
def test_every_move_leaves_a_trace(way: Move) -> None:
    assert way.writes
    assert (way.to is State.DEAD) == (Ledger.DEAD in way.writes)
    assert (way.to is State.FAILED) == (Ledger.FAILED_FINAL in way.writes)


def test_the_trails_that_are_promised() -> None:
    stories = {
        (Event.CLAIMED, Event.SUCCEEDED): "claimed succeeded",
        (Event.CLAIMED, Event.EXHAUSTED): "claimed failed dead",
        (Event.CLAIMED, Event.FINAL): "claimed failed failed_final",
        (Event.CLAIMED, Event.FAILED, Event.CLAIMED, Event.SUCCEEDED): (
            "claimed failed claimed succeeded"
        ),
        (Event.CLAIMED, Event.REAPED): "claimed reaped",
        (Event.CLAIMED, Event.REAPED_EXHAUSTED): "claimed reaped dead",
        (Event.CLAIMED, Event.RELEASED, Event.CLAIMED): "claimed released claimed",
        (Event.CLAIMED, Event.EXHAUSTED, Event.RETRIED, Event.CLAIMED, Event.SUCCEEDED): (
            "claimed failed dead retried claimed succeeded"
        ),
        (Event.CANCELED,): "canceled",
    }
    for events, trail in stories.items():
        state, written = State.QUEUED, []
        for event in events:
            way = move(state, event)
            state = way.to
            written += [entry.value for entry in way.writes]
        assert " ".join(written) == trail


def test_the_vocabularies_that_scripts_see() -> None:
    assert sorted(State) == ["canceled", "dead", "done", "failed", "queued", "running"]
    assert [state.value for state in AttemptState] == [
        "running",
        "succeeded",
        "failed",
        "timed_out",
        "abandoned",
        "canceled",
    ]
    assert " ".join(reason.value for reason in Reason) == (
        "process_exit timeout spawn_failed worker_crash canceled worker_shutdown output_limit"
        " dependency_failed unknown"
    )
    assert " ".join(entry.value for entry in Ledger) == (
        "added claimed succeeded failed timed_out reaped released dead failed_final retried"
        " canceled"
    )

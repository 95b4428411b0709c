"""Cancel and retry, in every state and in every order."""

from __future__ import annotations

import pytest

from spoolctl.core.records import EventRow
from spoolctl.core.states import AttemptState, Reason, State
from spoolctl.errors import IllegalTransition, SafetyBlock
from tests.conformance.kit import Desk, failure, stopped, success

SETTLED = [State.DONE, State.DEAD, State.CANCELED, State.FAILED]


def last_event(desk: Desk, job_id: int) -> EventRow:
    events, _last, _first = desk.store.events(since_id=0, job_id=job_id, limit=None)
    return events[-1]


@pytest.mark.parametrize("running", [False, True])
def test_cancel_a_queued_job(desk: Desk, running: bool) -> None:
    desk.add(delay_s=60.0)
    assert desk.cancel(1, running=running) is False
    job = desk.get(1)
    assert (job.state, job.finished_at, job.ready) == (State.CANCELED, desk.clock.at, False)
    assert (job.last_error, job.last_failure_reason) == (None, None)
    assert last_event(desk, 1)[3:] == ("canceled", None, None)
    desk.clock.advance(100)
    assert desk.claim() == ()
    assert desk.counts() == {"canceled": 1}


def test_cancel_a_job_in_backoff(desk: Desk) -> None:
    desk.add()
    desk.run(failure)
    assert desk.cancel(1) is False
    job = desk.get(1)
    assert (job.last_error, job.last_failure_reason) == ("canceled", Reason.CANCELED)
    assert (job.last_exit_code, job.attempts) == (None, 1)


def test_cancel_a_running_job(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    with pytest.raises(SafetyBlock) as caught:
        desk.cancel(1, running=False)
    assert (caught.value.action, caught.value.job_id) == ("cancel", 1)
    assert desk.get(1).state is State.RUNNING
    desk.clock.advance(1.0)
    assert desk.cancel(1) is True
    job = desk.get(1)
    assert (job.state, job.attempts, job.finished_at) == (State.CANCELED, 0, desk.clock.at)
    assert (job.last_error, job.last_failure_reason) == ("canceled", Reason.CANCELED)
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert (attempt.state, attempt.failure_reason) == (AttemptState.CANCELED, Reason.CANCELED)
    assert (attempt.error, attempt.exit_code) == ("canceled", None)
    assert attempt.finished_at == desk.clock.at
    assert attempt.gone_at is None
    assert desk.store.lost(desk.me) == {claimed.attempt_id}
    assert desk.store.owner_token(1) == "token-of-host-1"
    desk.report(stopped(claimed))
    assert desk.store.lost(desk.me) == frozenset()
    assert desk.store.owner_token(1) is None
    assert last_event(desk, 1)[3:] == ("canceled", None, "forced (was running)")


@pytest.mark.parametrize("state", SETTLED)
def test_a_settled_job_cannot_be_canceled(desk: Desk, state: State) -> None:
    job_id = desk.reach(state)
    before = desk.store.detail(job_id)
    with pytest.raises(IllegalTransition) as caught:
        desk.cancel(job_id)
    assert (caught.value.state, caught.value.job_id) == (state.value, job_id)
    assert desk.store.detail(job_id) == before


@pytest.mark.parametrize("state", [State.DEAD, State.CANCELED, State.FAILED])
def test_retry_gives_a_fresh_budget(desk: Desk, state: State) -> None:
    job_id = desk.reach(state)
    desk.clock.advance(50.0)
    assert desk.retry(job_id) is state
    job = desk.get(job_id)
    assert (job.state, job.attempts, job.crashes) == (State.QUEUED, 0, 0)
    assert job.last_error is job.last_exit_code is job.last_failure_reason is None
    assert job.finished_at is None
    assert (job.next_run_at, job.ready) == (desk.clock.at, True)
    assert last_event(desk, job_id)[3:] == ("retried", None, None)
    assert desk.run(success) is State.DONE


@pytest.mark.parametrize("state", [State.QUEUED, State.DONE])
@pytest.mark.parametrize("force", [False, True])
def test_what_cannot_be_retried(desk: Desk, state: State, force: bool) -> None:
    job_id = desk.reach(state)
    before = desk.store.detail(job_id)
    with pytest.raises(IllegalTransition):
        desk.retry(job_id, force=force)
    assert desk.store.detail(job_id) == before


@pytest.mark.parametrize("state", [State.DEAD, State.CANCELED, State.FAILED])
def test_force_is_for_running_jobs_only(desk: Desk, state: State) -> None:
    job_id = desk.reach(state)
    with pytest.raises(IllegalTransition):
        desk.retry(job_id, force=True)
    assert desk.get(job_id).state is state


def test_retry_of_a_running_job_needs_force(desk: Desk) -> None:
    desk.reach(State.RUNNING)
    with pytest.raises(SafetyBlock) as caught:
        desk.retry(1)
    assert (caught.value.action, caught.value.job_id) == ("retry", 1)
    assert desk.get(1).state is State.RUNNING


def test_a_forced_job_waits_for_the_end_of_the_old_attempt(desk: Desk) -> None:
    desk.add(max_retries=0)
    claimed = desk.claim_one()
    assert desk.retry(1, force=True) is State.RUNNING
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert (attempt.state, attempt.failure_reason) == (AttemptState.ABANDONED, Reason.CANCELED)
    assert attempt.error == "force-retried"
    assert last_event(desk, 1)[3:] == ("retried", None, "forced")
    job = desk.get(1)
    assert (job.state, job.ready, job.next_run_at) == (State.QUEUED, False, desk.clock.at)
    assert desk.scheduled() == 0
    assert desk.store.lost(desk.me) == {claimed.attempt_id}
    desk.clock.advance(10_000)
    assert desk.claim(9) == ()
    assert desk.store.holds_drain(None, now=desk.clock.now())
    desk.report(stopped(claimed))
    assert desk.get(1).ready
    assert desk.claim_one().attempt_no == 2


@pytest.mark.parametrize("steps", ["cr", "crc", "crcr", "f", "ff-", "fcr", "crf-"])
def test_no_second_copy_in_any_order_of_cancel_and_retry(desk: Desk, steps: str) -> None:
    desk.add()
    claimed = desk.claim_one()
    for step in steps:
        if step == "c":
            desk.cancel(1)
        elif step == "r":
            desk.retry(1)
        elif step == "f" and desk.get(1).state is State.RUNNING:
            desk.retry(1, force=True)
        assert desk.claim(9) == ()
    assert desk.store.lost(desk.me) == {claimed.attempt_id}
    desk.report(stopped(claimed))
    if desk.get(1).state is State.QUEUED:
        assert desk.claim_one().attempt_no == 2
    else:
        assert desk.claim(9) == ()


def test_a_held_job_can_be_canceled_and_stays_so(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.cancel(1)
    desk.retry(1)
    assert desk.cancel(1) is False
    desk.report(stopped(claimed))
    assert desk.get(1).state is State.CANCELED
    assert desk.claim(9) == ()
    desk.retry(1)
    assert desk.get(1).ready


def test_a_held_job_is_not_stranded_by_a_clock_that_is_set_back(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.retry(1, force=True)
    desk.clock.step(-86_400.0)
    desk.report(stopped(claimed))
    assert desk.claim_one().job_id == 1


def test_of_two_cancels_one_succeeds(desk: Desk) -> None:
    desk.add()
    desk.cancel(1)
    with pytest.raises(IllegalTransition):
        desk.cancel(1)
    assert desk.trail(1) == ["added", "canceled"]

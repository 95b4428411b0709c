"""Reports: what each end of an attempt does to attempt, job and ledger."""

from __future__ import annotations

import pytest

from spoolctl.core.records import Capture, Recorded
from spoolctl.core.retry import RetryPolicy, backoff_s
from spoolctl.core.states import AttemptState, Reason, State
from tests.conformance.kit import (
    Desk,
    failure,
    final_exit,
    outcome,
    released,
    stopped,
    success,
    timeout,
)


def test_success(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.clock.advance(3.0)
    assert desk.report_one(success(claimed, survivors=2, duration_s=2.9)) == Recorded(
        claimed.attempt_id, 1, State.DONE, None
    )
    job = desk.get(1)
    assert (job.state, job.attempts, job.crashes) == (State.DONE, 0, 0)
    assert (job.last_exit_code, job.last_error, job.last_failure_reason) == (0, None, None)
    assert job.finished_at == desk.clock.at
    assert job.started_at == desk.clock.at - 3.0
    attempt = desk.store.attempt(1, None)
    assert attempt is not None
    assert (attempt.state, attempt.exit_code, attempt.error) == (AttemptState.SUCCEEDED, 0, None)
    assert attempt.failure_reason is None
    assert attempt.finished_at == attempt.gone_at == desk.clock.at
    assert (attempt.duration_s, attempt.survivors) == (2.9, 2)
    assert desk.trail(1) == ["added", "claimed", "succeeded"]
    assert desk.store.detail(1).owner is None


def test_failure_goes_back_with_backoff(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    recorded = desk.report_one(failure(claimed))
    assert (recorded.job_state, recorded.next_run_at) == (State.QUEUED, desk.clock.at + 2.0)
    job = desk.get(1)
    assert (job.state, job.attempts, job.crashes) == (State.QUEUED, 1, 0)
    assert (job.last_exit_code, job.last_error) == (3, "exit 3")
    assert job.last_failure_reason is None
    assert job.finished_at == desk.clock.at
    assert job.next_run_at == desk.clock.at + 2.0
    assert not job.ready
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert (attempt.state, attempt.failure_reason) == (AttemptState.FAILED, Reason.PROCESS_EXIT)
    assert (attempt.exit_code, attempt.error) == (3, "exit 3")
    assert desk.trail(1) == ["added", "claimed", "failed"]


def test_backoff_doubles_up_to_a_minute(desk: Desk) -> None:
    desk.add(max_retries=8)
    for number in range(1, 9):
        recorded = desk.report_one(failure(desk.claim_one()))
        assert recorded.next_run_at == desk.clock.at + backoff_s(number)
        desk.clock.advance(backoff_s(number) - 0.01)
        assert desk.claim() == ()
        desk.clock.advance(0.01)
    assert desk.run(failure) is State.DEAD


def test_failure_without_tries_left(desk: Desk) -> None:
    desk.add(max_retries=0)
    recorded = desk.report_one(failure(desk.claim_one(), 7))
    assert (recorded.job_state, recorded.next_run_at) == (State.DEAD, None)
    job = desk.get(1)
    assert (job.state, job.attempts, job.last_exit_code) == (State.DEAD, 1, 7)
    assert (job.last_error, job.last_failure_reason) == ("exit 7", Reason.PROCESS_EXIT)
    events, _last, _first = desk.store.events(since_id=0, job_id=1, limit=None)
    assert [event.event.value for event in events] == ["added", "claimed", "failed", "dead"]
    assert [event.worker_name for event in events] == [None, "host-1", "host-1", "host-1"]
    assert [event.detail for event in events] == [None, None, "exit 7", "exit 7"]


def test_it_runs_as_often_as_retries_allow_and_once_more(desk: Desk) -> None:
    desk.add(max_retries=3)
    assert desk.run_to_the_end(failure) is State.DEAD
    assert desk.get(1).attempts == 4
    assert desk.trail(1).count("claimed") == 4


def test_a_final_exit_is_not_retried(desk: Desk) -> None:
    desk.add(policy=final_exit(3))
    assert desk.run(failure) is State.FAILED
    job = desk.get(1)
    assert (job.attempts, job.last_failure_reason) == (1, Reason.PROCESS_EXIT)
    assert desk.trail(1) == ["added", "claimed", "failed", "failed_final"]


def test_timeouts(desk: Desk) -> None:
    desk.add(max_retries=1)
    assert desk.run_to_the_end(timeout) is State.DEAD
    job = desk.get(1)
    assert (job.attempts, job.last_exit_code) == (2, None)
    assert job.last_error == "timed out after 300s"
    assert job.last_failure_reason is Reason.TIMEOUT
    assert desk.trail(1) == ["added", "claimed", "timed_out", "claimed", "timed_out", "dead"]


def test_spawn_failures_are_failures(desk: Desk) -> None:
    desk.add(max_retries=0)
    claimed = desk.claim_one()
    desk.report(
        outcome(
            claimed,
            AttemptState.FAILED,
            reason=Reason.SPAWN_FAILED,
            error="spawn failed: no such program: x",
        )
    )
    job = desk.get(1)
    assert (job.state, job.last_exit_code) == (State.DEAD, None)
    assert job.last_failure_reason is Reason.SPAWN_FAILED
    assert job.last_error == "spawn failed: no such program: x"


def test_a_released_job_is_due_at_once_with_its_budget_untouched(desk: Desk) -> None:
    desk.add(max_retries=0)
    claimed = desk.claim_one()
    desk.clock.advance(5.0)
    recorded = desk.report_one(released(claimed))
    assert (recorded.job_state, recorded.next_run_at) == (State.QUEUED, desk.clock.at)
    job = desk.get(1)
    assert (job.attempts, job.crashes, job.ready) == (0, 0, True)
    assert job.last_error is None
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert attempt.state is AttemptState.ABANDONED
    assert attempt.failure_reason is Reason.WORKER_SHUTDOWN
    assert desk.trail(1) == ["added", "claimed", "released"]
    assert desk.claim_one().attempt_no == 2


def test_small_streams_are_kept_in_the_database(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    data = bytes(range(256)) * 3
    desk.report(success(claimed, stdout=Capture(len(data), data)))
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert (attempt.stdout.stored, attempt.stdout.path) == ("database", None)
    assert (attempt.stdout.size_bytes, attempt.stderr.size_bytes) == (len(data), 0)
    assert attempt.stderr.stored == "database"
    assert desk.store.stream(claimed.attempt_id, "stdout") == data
    assert desk.store.stream(claimed.attempt_id, "stderr") == b""
    assert desk.store.stream_names() == frozenset()


def test_large_streams_stay_files(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    out = Capture(5_000_000, None, dropped_bytes=17, gap_start=9, shortened=True)
    desk.report(success(claimed, stdout=out, stderr=Capture(2, b"hi")))
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert attempt.stdout.stored == "file"
    assert attempt.stdout.path is not None
    assert claimed.token in attempt.stdout.path
    assert attempt.stdout.size_bytes == 5_000_000
    assert (attempt.stdout.dropped_bytes, attempt.stdout.gap_start) == (17, 9)
    assert attempt.stdout.shortened
    assert (attempt.stderr.stored, attempt.stderr.shortened) == ("database", False)
    # The other one's file, if its worker died before it could remove it, is nobody's.
    assert desk.store.stream_names() == {f"{claimed.token}.stdout"}


def test_a_stream_whose_file_is_gone_is_missing(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.report(success(claimed, stdout=Capture(0, None, missing=True)))
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert attempt.stdout.stored == "missing"
    assert attempt.stdout.path is not None
    assert attempt.stderr.stored == "database"


def test_streams_of_running_attempts_count_as_files(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    names = {f"{claimed.token}.{each}" for each in ("stdin", "stdout", "stderr")}
    assert desk.store.stream_names() == names


def test_every_attempt_keeps_its_own_output(desk: Desk) -> None:
    desk.add()
    for number in range(3):
        claimed = desk.claim_one()
        desk.report(failure(claimed, stdout=Capture(1, b"%d" % number)))
        desk.clock.advance(100)
    streams = [desk.store.stream(one.id, "stdout") for one in desk.store.detail(1).attempts]
    assert streams == [b"0", b"1", b"2"]


@pytest.mark.parametrize("taken_by", ["cancel", "force"])
def test_a_report_on_a_taken_attempt_is_discarded_but_its_output_kept(
    desk: Desk, taken_by: str
) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.take_away(1, taken_by)
    before = desk.trail(1)
    recorded = desk.report_one(success(claimed, stdout=Capture(2, b"hi")))
    assert recorded == Recorded(claimed.attempt_id, 1, None, None)
    assert desk.trail(1) == before
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert attempt.state is (
        AttemptState.CANCELED if taken_by == "cancel" else AttemptState.ABANDONED
    )
    assert attempt.exit_code is None
    assert attempt.gone_at == desk.clock.at
    assert attempt.duration_s == 0.25
    assert desk.store.stream(claimed.attempt_id, "stdout") == b"hi"


@pytest.mark.parametrize("survivors", [1, None])
def test_a_taken_attempt_is_gone_only_when_nothing_of_it_is_left(
    desk: Desk, survivors: int | None
) -> None:
    """A success may leave processes running; a canceled or forced attempt may not."""
    desk.add()
    claimed = desk.claim_one()
    desk.retry(1, force=True)
    assert desk.report_one(success(claimed, survivors=survivors)).job_state is None
    assert desk.store.lost(desk.me) == {claimed.attempt_id}
    assert desk.claim() == ()
    desk.report(success(claimed, survivors=0))
    assert desk.claim_one().attempt_no == 2


def test_a_report_is_recorded_once_however_often_it_is_made(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    report = failure(claimed, stdout=Capture(2, b"hi"))
    first = desk.report_one(report)
    trail = desk.trail(1)
    desk.clock.advance(1.0)
    assert desk.report_one(report) == first
    assert desk.trail(1) == trail
    assert desk.get(1).attempts == 1


def test_a_late_report_after_a_newer_attempt_changes_nothing(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.let_owner_die()
    other = desk.register("host-2")
    (suspect,) = desk.suspects()
    assert desk.reap(suspect, by=other) is not None
    desk.clock.advance(100)
    newer = desk.claim_one(by=other)
    assert desk.report_one(success(claimed)).job_state is None
    assert desk.get(1).state is State.RUNNING
    assert desk.report_one(success(newer), by=other).job_state is State.DONE


def test_only_the_owner_may_report(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    other = desk.register("host-2")
    assert desk.report_one(success(claimed), by=other).job_state is None
    assert desk.get(1).state is State.RUNNING
    assert desk.store.detail(1).attempts[0].gone_at is None
    assert desk.report_one(success(claimed)).job_state is State.DONE


def test_an_unknown_attempt_is_discarded(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    ghost = success(claimed)._replace(attempt_id=999)
    assert desk.report_one(ghost).job_state is None


def test_several_reports_in_one_transaction(desk: Desk) -> None:
    for _ in range(4):
        desk.add(max_retries=0)
    one, two, three, four = desk.claim(4)
    desk.cancel(4)
    recorded = desk.report(success(one), failure(two), released(three), stopped(four))
    states = [entry.job_state for entry in recorded]
    assert states == [State.DONE, State.DEAD, State.QUEUED, None]
    assert desk.counts() == {"done": 1, "dead": 1, "queued": 1, "canceled": 1}


MANY = 75
"""More than any statement takes at a time."""


def test_many_successes_in_one_transaction(desk: Desk) -> None:
    """Each with its own attempt, output, duration and ledger, in whatever order they come."""
    for _ in range(MANY):
        desk.add()
    claimed = desk.claim(MANY)
    assert [one.job_id for one in claimed] == list(range(1, MANY + 1))
    desk.clock.advance(5.0)
    texts = {one.job_id: str(one.job_id).encode() for one in claimed}
    reports = [
        success(
            one,
            duration_s=float(one.job_id),
            stdout=Capture(len(texts[one.job_id]), texts[one.job_id]),
        )
        for one in reversed(claimed)
    ]
    recorded = desk.report(*reports)
    assert recorded == tuple(
        Recorded(one.attempt_id, one.job_id, State.DONE, None) for one in reversed(claimed)
    )
    for one in claimed:
        attempt = desk.store.attempt(one.job_id, None)
        assert attempt is not None
        assert (attempt.id, attempt.token) == (one.attempt_id, one.token)
        assert (attempt.state, attempt.gone_at) == (AttemptState.SUCCEEDED, desk.clock.at)
        assert attempt.duration_s == one.job_id
        assert desk.store.stream(attempt.id, "stdout") == texts[one.job_id]
        assert desk.trail(one.job_id) == ["added", "claimed", "succeeded"]
        job = desk.get(one.job_id)
        assert (job.state, job.last_exit_code) == (State.DONE, 0)
        assert (job.started_at, job.finished_at) == (desk.clock.at - 5.0, desk.clock.at)
    assert len({one.token for one in claimed}) == MANY
    assert desk.counts() == {"done": MANY}


def test_successes_among_others_that_look_like_them(desk: Desk) -> None:
    """Told twice, told again later, somebody else's, canceled, forced, unheard of."""
    for _ in range(6):
        desk.add()
    once, twice, again, canceled, forced = desk.claim(5)
    other = desk.register("host-2")
    (foreign,) = desk.claim(by=other)
    assert desk.report_one(success(again)).job_state is State.DONE
    desk.take_away(canceled.job_id, "cancel")
    desk.take_away(forced.job_id, "force")
    ghost = success(once)._replace(attempt_id=999)
    told = [twice, again, canceled, forced, foreign, once, twice]
    recorded = desk.report(*map(success, told), ghost)
    states = [one.job_state for one in recorded]
    done = State.DONE
    assert states == [done, done, None, None, None, done, done, None]
    assert [one.job_id for one in recorded] == [one.job_id for one in told] + [0]
    assert desk.counts() == {"done": 3, "canceled": 1, "queued": 1, "running": 1}
    for job in (once, twice, again):
        assert desk.trail(job.job_id) == ["added", "claimed", "succeeded"]
    assert desk.trail(foreign.job_id) == ["added", "claimed"]
    assert desk.get(forced.job_id).ready, "its processes are known to be gone"


def test_of_what_is_told_twice_the_first_counts(desk: Desk) -> None:
    for _ in range(3):
        desk.add(max_retries=0)
    one, two, three = desk.claim(3)
    recorded = desk.report(
        *(success(one, stdout=Capture(5, b"first")), failure(two), success(three)),
        *(success(one, stdout=Capture(6, b"second")), success(two), failure(three)),
    )
    states = [entry.job_state for entry in recorded]
    assert states == [State.DONE, State.DEAD, State.DONE, State.DONE, None, None]
    assert desk.store.stream(one.attempt_id, "stdout") == b"first"
    assert desk.trail(2) == ["added", "claimed", "failed", "dead"]
    assert desk.trail(3) == ["added", "claimed", "succeeded"]


def test_the_ledger_has_the_order_of_the_report(desk: Desk) -> None:
    for _ in range(5):
        desk.add(max_retries=0)
    one, two, three, four, five = desk.claim(5)
    _events, last, _first = desk.store.events(since_id=0, job_id=None, limit=None)
    desk.report(success(four), success(one), failure(two), success(five), success(three))
    events, _last, _first = desk.store.events(since_id=last, job_id=None, limit=None)
    assert [event.job_id for event in events] == [4, 1, 2, 2, 5, 3]


def test_a_retry_window_counts_by_the_boot_clock(desk: Desk) -> None:
    desk.add(policy=RetryPolicy(delays_s=(10.0,), retry_for_s=25.0), max_retries=0)
    assert desk.run(failure) is State.QUEUED
    desk.clock.step(-3600.0)
    desk.clock.advance(10.0)
    assert desk.run(failure) is State.QUEUED
    desk.clock.step(7200.0)
    desk.clock.advance(10.0)
    assert desk.run(failure) is State.DEAD
    desk.retry(1)
    assert desk.run(failure) is State.QUEUED, "a manual retry opens the window again"


def test_explicit_delays(desk: Desk) -> None:
    desk.add(policy=RetryPolicy(delays_s=(1.0, 7.0)))
    waits = []
    for _ in range(3):
        recorded = desk.report_one(failure(desk.claim_one()))
        assert recorded.next_run_at is not None
        waits.append(recorded.next_run_at - desk.clock.at)
        desk.clock.advance(10)
    assert waits == [1.0, 7.0, 7.0]


def test_jitter_spreads_the_waits(desk: Desk) -> None:
    policy = RetryPolicy(delays_s=(100.0,), jitter=0.5)
    for _ in range(30):
        desk.add(policy=policy)
    recorded = desk.report(*[failure(one) for one in desk.claim(30)])
    waits = {one.next_run_at - desk.clock.at for one in recorded if one.next_run_at is not None}
    assert len(waits) > 20
    assert min(waits) >= 50.0
    assert max(waits) <= 150.0

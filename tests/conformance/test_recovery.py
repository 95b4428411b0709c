"""Recovery: silence, taking back, forgetting, healing."""

from __future__ import annotations

import pytest

from spoolctl.core.records import LEFT, Capture, Reaped, Recovery
from spoolctl.core.states import AttemptState, Reason, State
from spoolctl.errors import SafetyBlock
from tests.conformance.kit import Desk, stopped, success, worker


def test_silence_is_measured_on_the_boot_clock(desk: Desk) -> None:
    desk.add()
    desk.claim_one()
    desk.clock.step(1e7)
    assert desk.suspects() == []
    desk.clock.step(-2e7)
    desk.clock.advance(30.0)
    assert desk.suspects() == []
    desk.clock.advance(0.1)
    (suspect,) = desk.suspects()
    assert (suspect.job_id, suspect.attempt_no) == (1, 1)
    assert suspect.attempt_state is AttemptState.RUNNING
    assert suspect.worker is not None
    assert suspect.worker.id == desk.me


def test_a_heartbeat_ends_the_silence(desk: Desk) -> None:
    desk.add()
    desk.claim_one()
    desk.clock.advance(1000.0)
    assert len(desk.suspects()) == 1
    assert desk.store.heartbeat(desk.me, now=desk.clock.now())
    assert desk.suspects() == []
    detail = desk.store.detail(1)
    assert detail.owner is not None
    assert detail.owner.heartbeat_at == desk.clock.at


def test_a_heartbeat_of_nobody_is_refused(desk: Desk) -> None:
    assert not desk.store.heartbeat(999, now=desk.clock.now())
    desk.store.unregister(desk.me, now=desk.clock.now())
    assert not desk.store.heartbeat(desk.me, now=desk.clock.now())


def test_the_threshold_follows_the_owners_interval_or_is_overridden(desk: Desk) -> None:
    slow = desk.register("slow", interval_s=60.0)
    desk.add()
    desk.claim_one(by=slow)
    desk.clock.advance(200.0)
    assert desk.suspects() == []
    assert len(desk.suspects(threshold_s=199.0)) == 1
    desk.clock.advance(41.0)
    assert len(desk.suspects()) == 1
    assert desk.suspects(threshold_s=1000.0) == []


def test_a_worker_of_another_boot_is_silent_at_once(desk: Desk) -> None:
    desk.add()
    desk.claim_one()
    desk.clock.reboot()
    assert len(desk.suspects(threshold_s=1e9)) == 1


def test_a_worker_hears_how_much_there_is_for_it_and_whether_it_is_alone(desk: Desk) -> None:
    for queue in ("a", "b", "b", "c"):
        desk.add(queue=queue)
    desk.add(queue="a", delay_s=10)
    held = desk.claim_one(lanes=("c",))

    def heard(*lanes: str) -> tuple[int, bool]:
        new = worker("w", clock=desk.clock, lanes=lanes or None)
        told = desk.store.register(new, now=desk.clock.now())
        desk.store.unregister(told.worker_id, now=desk.clock.now())
        return told.ready, told.alone

    assert [heard(), heard("b"), heard("b", "a", "nowhere"), heard("c")] == [
        (3, False),
        (2, False),
        (3, False),
        (0, False),
    ]
    desk.report_one(success(held))
    desk.store.unregister(desk.me, now=desk.clock.now())
    assert heard() == (3, True)


def test_the_identity_of_a_worker_comes_back(desk: Desk) -> None:
    new = worker("w", clock=desk.clock, lanes=("a", "b"), slots=7, interval_s=2.5)
    number = desk.store.register(new, now=desk.clock.now()).worker_id
    (row,) = [one for one in desk.store.workers() if one.id == number]
    assert row.identity == new.identity
    assert (row.token, row.name, row.lanes) == (new.token, "w", ("a", "b"))
    assert (row.slots, row.interval_s) == (7, 2.5)
    assert row.started_at == row.heartbeat_at == desk.clock.at
    assert row.heartbeat_boot == desk.clock.boot


def test_reaping_counts_a_crash_and_waits(desk: Desk) -> None:
    desk.add(max_retries=0)
    claimed = desk.claim_one()
    desk.let_owner_die()
    other = desk.register("host-2")
    (suspect,) = desk.suspects()
    assert suspect.token == claimed.token
    reaped = desk.reap(suspect, by=other, stdout=Capture(3, b"par"))
    assert reaped == Reaped(1, 1, 4242, State.QUEUED)
    job = desk.get(1)
    assert (job.attempts, job.crashes) == (1, 1)
    assert (job.last_error, job.last_exit_code) == ("worker died", None)
    assert (job.finished_at, job.next_run_at) == (desk.clock.at, desk.clock.at + 2.0)
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert (attempt.state, attempt.failure_reason) == (
        AttemptState.ABANDONED,
        Reason.WORKER_CRASH,
    )
    assert (attempt.error, attempt.exit_code, attempt.survivors) == ("worker died", None, 0)
    assert attempt.gone_at == desk.clock.at
    assert desk.store.stream(claimed.attempt_id, "stdout") == b"par"
    events, _last, _first = desk.store.events(since_id=0, job_id=1, limit=None)
    assert events[-1][3:] == ("reaped", "host-2", "dead worker pid 4242")
    desk.clock.advance(2.0)
    assert desk.claim_one(by=other).attempt_no == 2


@pytest.mark.parametrize(("max_crashes", "lives"), [(0, 1), (1, 2), (None, 9)])
def test_a_job_that_kills_its_workers_ends(desk: Desk, max_crashes: int | None, lives: int) -> None:
    desk.add(max_crashes=max_crashes, max_retries=0)
    for _life in range(lives):
        desk.clock.advance(100)
        desk.claim_one()
        desk.let_owner_die()
        (suspect,) = desk.suspects()
        reaped = desk.reap(suspect)
    assert reaped is not None
    if max_crashes is None:
        assert reaped.job_state is State.QUEUED
        assert desk.get(1).crashes == 9
        return
    assert reaped.job_state is State.DEAD
    job = desk.get(1)
    assert job.last_failure_reason is Reason.WORKER_CRASH
    assert desk.trail(1)[-2:] == ["reaped", "dead"]
    events, _last, _first = desk.store.events(since_id=0, job_id=1, limit=None)
    assert events[-1].worker_name == "host-1"


def test_reaping_is_refused_once_the_worker_has_beaten_again(desk: Desk) -> None:
    desk.add()
    desk.claim_one()
    desk.let_owner_die()
    (suspect,) = desk.suspects()
    desk.store.heartbeat(desk.me, now=desk.clock.now())
    before = desk.store.detail(1)
    assert desk.reap(suspect) is None
    assert desk.store.detail(1) == before


def test_reaping_is_refused_once_the_attempt_has_ended(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.let_owner_die()
    (suspect,) = desk.suspects()
    desk.report(success(claimed))
    assert desk.reap(suspect) is None
    assert desk.get(1).state is State.DONE


def test_an_attempt_is_reaped_once(desk: Desk) -> None:
    desk.add()
    desk.claim_one()
    desk.let_owner_die()
    (suspect,) = desk.suspects()
    assert desk.reap(suspect) is not None
    assert desk.reap(suspect) is None
    assert desk.get(1).crashes == 1
    assert desk.trail(1).count("reaped") == 1


@pytest.mark.parametrize("force", [False, True])
def test_of_a_taken_attempt_only_the_end_is_confirmed(desk: Desk, force: bool) -> None:
    desk.add()
    claimed = desk.claim_one()
    if force:
        desk.retry(1, force=True)
    else:
        desk.cancel(1)
    desk.let_owner_die()
    (suspect,) = desk.suspects()
    assert suspect.attempt_state is not AttemptState.RUNNING
    trail, job = desk.trail(1), desk.get(1)
    assert desk.reap(suspect, stdout=Capture(1, b"x")) == Reaped(1, 1, 4242, None)
    assert desk.trail(1) == trail
    assert desk.get(1)._replace(ready=False) == job
    assert desk.store.attempt(1, 1).gone_at == desk.clock.at  # type: ignore[union-attr]
    assert desk.store.stream(claimed.attempt_id, "stdout") == b"x"
    if force:
        assert desk.claim_one().attempt_no == 2


def test_why_an_attempt_is_left_alone_is_shown_until_it_changes(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    ids = [claimed.attempt_id, 999]

    def note(verdict: str, reason: str) -> None:
        desk.store.note_recovery(ids, verdict=verdict, reason=reason, now=desk.clock.now())

    assert desk.store.detail(1).recovery is None
    note("unclear", "cannot see")
    note("unclear", "still cannot see")
    assert desk.store.detail(1).recovery == Recovery("unclear", "still cannot see")
    desk.clock.advance(1.0)
    desk.store.heartbeat(desk.me, now=desk.clock.now())
    assert desk.store.detail(1).recovery is None, "the owner has shown that it lives"
    note("alive", "stopped")
    assert desk.store.detail(1).recovery == Recovery("alive", "stopped")
    desk.report(success(claimed))
    assert desk.store.detail(1).recovery is None


def test_a_worker_that_deserts_its_attempts_is_there_as_one_that_has_left(desk: Desk) -> None:
    desk.add()
    desk.claim_one()
    desk.store.desert(desk.me)
    (left,) = desk.store.workers()
    assert (left.identity.start, left.lanes) == (LEFT, ())
    assert desk.store.heartbeat(desk.me, now=desk.clock.now())
    assert desk.suspects() == []
    desk.clock.advance(31.0)
    assert [one.worker and one.worker.identity.start for one in desk.suspects()] == [LEFT]


def test_a_worker_leaves_in_good_order(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    with pytest.raises(SafetyBlock):
        desk.store.unregister(desk.me, now=desk.clock.now())
    desk.cancel(1)
    with pytest.raises(SafetyBlock):
        desk.store.unregister(desk.me, now=desk.clock.now())
    desk.report(stopped(claimed))
    desk.store.unregister(desk.me, now=desk.clock.now())
    assert desk.store.workers() == []
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert (attempt.worker_name, attempt.worker_pid) == ("host-1", 4242)
    events, _last, _first = desk.store.events(since_id=0, job_id=1, limit=None)
    assert events[1].worker_name == "host-1"


def test_silent_workers_without_attempts_can_be_forgotten(desk: Desk) -> None:
    idle = desk.register("idle")
    desk.add()
    desk.claim_one()
    assert desk.store.silent_workers(threshold_s=None, now=desk.clock.now()) == []
    desk.let_owner_die()
    now = desk.clock.now()
    assert [one.id for one in desk.store.silent_workers(threshold_s=None, now=now)] == [idle]
    desk.store.forget([idle, desk.me], now=now)
    assert [one.id for one in desk.store.workers()] == [desk.me], "it owns a living attempt"
    assert len(desk.suspects()) == 1
    assert desk.suspects()[0].worker is not None


def test_ids_of_workers_are_not_used_again(desk: Desk) -> None:
    first = desk.register("first")
    desk.store.unregister(first, now=desk.clock.now())
    assert desk.register("second") > first


def test_a_worker_that_is_not_registered_gets_nothing(desk: Desk) -> None:
    """Its attempts would belong to nobody, and be taken for those of a dead one."""
    desk.add()
    desk.store.unregister(desk.me, now=desk.clock.now())
    assert desk.claim() == ()
    assert desk.claim(by=999) == ()
    assert desk.claim_one(by=desk.register("next")).job_id == 1


def test_bells_of_those_who_serve_a_queue(desk: Desk) -> None:
    desk.register("a", lanes=("x", "y"))
    desk.register("b", lanes=("y",))
    everywhere = "token-of-host-1"
    assert desk.store.bells("x") == [everywhere, "token-of-a"]
    assert desk.store.bells("y") == [everywhere, "token-of-a", "token-of-b"]
    assert desk.store.bells("z") == [everywhere]
    assert len(desk.store.bells(None)) == 3


def test_a_healthy_queue_needs_no_healing(desk: Desk) -> None:
    for _ in range(4):
        desk.add()
    desk.claim(3)
    desk.cancel(1)
    desk.retry(1)
    desk.cancel(2)
    desk.retry(3, force=True)
    before = [desk.store.detail(number) for number in range(1, 5)]
    assert desk.store.heal(now=desk.clock.now()) == []
    assert [desk.store.detail(number) for number in range(1, 5)] == before


def test_drain_goes_on_while_there_is_something_to_wait_for(desk: Desk) -> None:
    def holds(*lanes: str) -> bool:
        return desk.store.holds_drain(lanes or None, now=desk.clock.now())

    assert not holds()
    desk.add(queue="a", delay_s=3600.0)
    assert not holds(), "never tried and not due: does not hold it"
    desk.clock.advance(3600.0)
    assert holds()
    assert holds("a")
    assert not holds("b")
    claimed = desk.claim_one()
    assert holds("a")
    desk.report(stopped(claimed)._replace(state=AttemptState.FAILED, reason=Reason.PROCESS_EXIT))
    assert desk.get(1).attempts == 1
    assert holds("a"), "in backoff"
    desk.clock.advance(2.0)
    claimed = desk.claim_one()
    desk.cancel(1)
    assert holds("a"), "its processes are not gone"
    desk.report(stopped(claimed))
    assert not holds()

"""Claiming: order, lanes, ceilings, promotion, and what a claim changes."""

from __future__ import annotations

import pytest

from spoolctl.core.records import Want
from spoolctl.core.retry import RetryPolicy
from spoolctl.core.states import AttemptState, State
from tests.conformance.kit import CONTEXT, Desk, failure, job, never_started, success


def claimed_ids(desk: Desk, *args: object, **rest: object) -> list[int]:
    return [one.job_id for one in desk.claim(*args, **rest)]  # type: ignore[arg-type]


def test_priority_then_time_then_id(desk: Desk) -> None:
    at = desk.clock.at
    desk.add("late", run_at=at + 2)
    desk.add("early", run_at=at + 1)
    desk.add("low", priority=-1)
    desk.add("high", priority=5)
    desk.add("same as early", run_at=at + 1)
    desk.add("now")
    desk.clock.advance(10)
    assert claimed_ids(desk, 10) == [4, 6, 2, 5, 1, 3]


def test_a_claim_takes_at_most_its_limit(desk: Desk) -> None:
    for _ in range(5):
        desk.add()
    assert claimed_ids(desk, 2) == [1, 2]
    assert claimed_ids(desk, 0) == []
    assert claimed_ids(desk, 9) == [3, 4, 5]
    assert claimed_ids(desk, 9) == []


def test_lanes_in_order_of_preference(desk: Desk) -> None:
    desk.add(queue="a", priority=1)
    desk.add(queue="b", priority=9)
    desk.add(queue="c", priority=99)
    assert claimed_ids(desk, 9, ("a", "b")) == [1, 2]
    assert claimed_ids(desk, 9, ("nowhere",)) == []


def test_all_queues_by_one_order(desk: Desk) -> None:
    desk.add(queue="a", priority=1)
    desk.add(queue="b", priority=9)
    desk.add(queue="c", priority=5)
    assert claimed_ids(desk, 2, None) == [2, 3]
    assert claimed_ids(desk, 2, None, ceiling=3) == [1]


def the_one(desk: Desk, job_id: int) -> list[int]:
    """What a claim of this job alone gives."""
    want = Want(1, (desk.get(job_id).queue,), None, job_id)
    return [one.job_id for one in desk.store.claim(desk.me, want, now=desk.clock.now())]


def test_a_job_that_is_wanted_by_its_number_is_taken_out_of_turn(desk: Desk) -> None:
    desk.add(priority=9)
    last = desk.add(queue="default")
    assert the_one(desk, last) == [last]
    assert the_one(desk, last) == []
    assert desk.get(1).state is State.QUEUED


def test_a_job_that_is_wanted_by_its_number_waits_like_any_other(desk: Desk) -> None:
    desk.add()
    later = desk.add(delay_s=10)
    assert the_one(desk, later) == []
    desk.clock.advance(11)
    assert the_one(desk, later) == [later]
    desk.cancel(later)
    desk.retry(later)
    # Its processes may still live.
    assert the_one(desk, later) == []


def test_a_held_job_is_not_taken_by_its_number_on_the_way_of_a_report(desk: Desk) -> None:
    other, mine = desk.add(), desk.add()
    first, _ = desk.claim(2)
    desk.cancel(mine)
    desk.retry(mine)
    want = Want(1, ("default",), None, mine)
    cycle = desk.store.cycle(desk.me, [success(first)], want, now=desk.clock.now())
    assert (cycle.recorded[0].job_id, cycle.claimed) == (other, ())


def test_a_result_and_the_next_attempt_of_a_wanted_job_are_one_step(desk: Desk) -> None:
    desk.add(priority=9)
    mine = desk.add(policy=RetryPolicy(delays_s=(0.0,)))
    want = Want(1, ("default",), None, mine)
    (claimed,) = desk.store.claim(desk.me, want, now=desk.clock.now())
    cycle = desk.store.cycle(desk.me, [failure(claimed)], want, now=desk.clock.now())
    assert [one.attempt_no for one in cycle.claimed] == [2]


def test_the_ceiling_counts_living_attempts_of_each_lane(desk: Desk) -> None:
    for queue in ("a", "a", "a", "b", "b"):
        desk.add(queue=queue)
    assert claimed_ids(desk, 9, ("a", "b"), ceiling=1) == [1, 4]
    assert claimed_ids(desk, 9, ("a", "b"), ceiling=2) == [2, 5]
    assert claimed_ids(desk, 9, None, ceiling=2) == []
    assert claimed_ids(desk, 9, None, ceiling=3) == [3]


def test_the_ceiling_counts_canceled_attempts_until_they_are_gone(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.cancel(1)
    desk.add()
    assert claimed_ids(desk, 1, None, ceiling=1) == []
    desk.report(failure(claimed))
    assert claimed_ids(desk, 1, None, ceiling=1) == [2]


def test_what_a_claim_gives_and_changes(desk: Desk) -> None:
    desk.add("x", queue="q", key="k", timeout_s=7, run_at=desk.clock.at + 5)
    desk.clock.advance(9)
    claimed = desk.claim_one(lanes=("q",))
    assert (claimed.job_id, claimed.attempt_no, claimed.queue, claimed.key) == (1, 1, "q", "k")
    assert (claimed.timeout_s, claimed.stdin) == (7, None)
    assert len(claimed.token) == 32
    assert int(claimed.token, 16) >= 0
    got = desk.get(1)
    assert (got.state, got.started_at, got.ready) == (State.RUNNING, desk.clock.at, False)
    assert got.next_run_at == desk.clock.at - 4
    detail = desk.store.detail(1)
    assert detail.owner is not None
    assert detail.owner.locked_by == "host-1"
    assert detail.owner.locked_pid == 4242
    assert detail.owner.locked_at == desk.clock.at
    assert detail.owner.heartbeat_at == desk.clock.at - 9
    (attempt,) = detail.attempts
    assert (attempt.id, attempt.token) == (claimed.attempt_id, claimed.token)
    assert (attempt.state, attempt.attempt_no) == (AttemptState.RUNNING, 1)
    assert (attempt.worker_name, attempt.worker_pid) == ("host-1", 4242)
    assert attempt.finished_at is attempt.gone_at is attempt.exit_code is None
    assert attempt.stdout.stored == attempt.stderr.stored == "file"
    assert attempt.stdout.path is not None
    assert claimed.token in attempt.stdout.path
    assert attempt.stdout.path != attempt.stderr.path
    assert desk.trail(1) == ["added", "claimed"]


def test_attempt_numbers_never_restart(desk: Desk) -> None:
    desk.add(max_retries=1)
    assert desk.run_to_the_end(failure) is State.DEAD
    desk.retry(1)
    assert desk.claim_one().attempt_no == 3


def test_tokens_differ(desk: Desk) -> None:
    for _ in range(20):
        desk.add()
    assert len({one.token for one in desk.claim(20)}) == 20


def test_future_jobs_are_not_claimed_whatever_their_priority(desk: Desk) -> None:
    desk.add("later", priority=99, delay_s=60.0)
    desk.add("now", priority=-99)
    assert claimed_ids(desk, 9) == [2]
    assert claimed_ids(desk, 9) == []
    desk.clock.advance(60.0)
    assert claimed_ids(desk, 9) == [1]


def test_a_cycle_records_and_claims_in_one_go(desk: Desk) -> None:
    desk.add("a")
    desk.add("b")
    first = desk.claim_one()
    cycle = desk.store.cycle(desk.me, [success(first)], Want(1, None), now=desk.clock.now())
    assert [one.job_state for one in cycle.recorded] == [State.DONE]
    assert [one.job_id for one in cycle.claimed] == [2]
    assert cycle.next_due_s is None


def test_a_failed_job_without_delay_may_be_claimed_in_the_same_cycle(desk: Desk) -> None:
    from spoolctl.core.retry import RetryPolicy

    desk.add("a", policy=RetryPolicy(delays_s=(0.0,)))
    first = desk.claim_one()
    cycle = desk.store.cycle(desk.me, [failure(first)], Want(1, None), now=desk.clock.now())
    assert [(one.job_id, one.attempt_no) for one in cycle.claimed] == [(1, 2)]


def test_next_due_tells_how_long_to_sleep(desk: Desk) -> None:
    desk.add(queue="a", delay_s=60.0)
    desk.add(queue="a", run_at=desk.clock.at + 40.0)
    desk.add(queue="b", delay_s=5.0)

    def next_due_s(lanes: tuple[str, ...] | None) -> float | None:
        return desk.store.cycle(desk.me, [], Want(1, lanes), now=desk.clock.now()).next_due_s

    assert next_due_s(None) == 5.0
    assert next_due_s(("a",)) == 40.0
    assert next_due_s(("a", "b")) == 5.0
    assert next_due_s(("c",)) is None
    desk.clock.advance(39.0)
    assert next_due_s(("a",)) == 1.0
    desk.clock.advance(2.0)
    cycle = desk.store.cycle(desk.me, [], Want(0, ("a",)), now=desk.clock.now())
    assert (cycle.claimed, cycle.next_due_s) == ((), 19.0)


@pytest.mark.parametrize("lanes", [None, ("q",)])
def test_many_jobs_due_at_once_are_promoted_in_steps_by_priority(
    desk: Desk, lanes: tuple[str, ...] | None
) -> None:
    moment = desk.clock.at + 60.0
    jobs = [job(str(n), queue="q", run_at=moment) for n in range(2900)]
    # The most important ones come last by every other order.
    jobs += [job("soon", queue="q", priority=6, run_at=moment + 1.0) for _ in range(60)]
    jobs += [job("soon", queue="q", priority=6, delay_s=61.0) for _ in range(40)]
    jobs += [job("not yet", queue="q", priority=1000 + n, delay_s=9999.0) for n in range(50)]
    desk.store.add(jobs, now=desk.clock.now())
    assert desk.claim(1, lanes) == ()
    desk.clock.advance(61.0)
    steps, found = 0, []
    while True:
        cycle = desk.store.cycle(desk.me, [], Want(10, lanes), now=desk.clock.now())
        found += [desk.get(one.job_id) for one in cycle.claimed]
        steps += 1
        if cycle.next_due_s != 0.0:
            break
    assert steps > 3, "one step marked thousands of jobs while it held the lock"
    assert desk.scheduled() == 50
    important = min(len(found), 100)
    assert [one.priority for one in found[:important]] == [6] * important
    total = len(found)
    while claimed := desk.claim(1000, lanes):
        total += len(claimed)
    assert total == 3000


def test_promotion_in_one_lane_leaves_the_others(desk: Desk) -> None:
    jobs = [job(queue="b", priority=9, delay_s=1.0) for _ in range(1000)]
    desk.store.add([*jobs, job("mine", queue="a", delay_s=1.0)], now=desk.clock.now())
    desk.clock.advance(1.0)
    assert claimed_ids(desk, 5, ("a",)) == [1001]


def test_contexts_do_not_mix(desk: Desk) -> None:
    from spoolctl.core.records import Context

    other = Context("/other", 0o077, (("X", "1"),))
    desk.add(context=other)
    desk.add()
    one, two = desk.claim(2)
    assert (one.cwd, one.umask, one.env) == other
    assert (two.cwd, two.umask, two.env) == CONTEXT


# -- claims ahead of a slot ----------------------------------------------------------------


def ahead_ids(desk: Desk, limit: int, ahead: int) -> list[int]:
    want = Want(limit, None, ahead=ahead)
    return [one.job_id for one in desk.store.claim(desk.me, want, now=desk.clock.now())]


@pytest.mark.parametrize("crashes", [0, 9])
def test_a_job_with_few_crashes_left_is_not_claimed_ahead(desk: Desk, crashes: int) -> None:
    """Its worker's death would count, though the job had no part in it."""
    desk.add()
    desk.add()
    desk.add(max_crashes=crashes)
    desk.add()
    assert ahead_ids(desk, 3, 2) == [1, 2]
    assert ahead_ids(desk, 2, 2) == []
    assert ahead_ids(desk, 2, 1) == [3, 4]


def test_one_with_enough_of_them_is(desk: Desk) -> None:
    desk.add(max_crashes=10)
    desk.add(max_crashes=None)
    assert ahead_ids(desk, 2, 2) == [1, 2]


def test_crashes_that_happened_count(desk: Desk) -> None:
    desk.add(max_crashes=10)
    desk.claim_one()
    desk.let_owner_die()
    assert desk.reap(desk.suspects()[0]) is not None
    desk.clock.advance(100.0)
    assert ahead_ids(desk, 1, 1) == []
    assert ahead_ids(desk, 1, 0) == [1]


def test_a_claim_that_is_taken_back_has_never_been(desk: Desk) -> None:
    desk.add(priority=1)
    desk.add(priority=1)
    desk.clock.advance(10.0)
    before = desk.get(1)
    (claimed,) = desk.claim()
    desk.clock.advance(0.02)
    recorded = desk.report_one(never_started(claimed))
    assert (recorded.job_state, recorded.next_run_at) == (State.QUEUED, before.next_run_at)
    assert desk.get(1) == before
    assert desk.store.detail(1).attempts == ()
    assert desk.trail(1) == ["added", "claimed", "released"]
    again = desk.claim_one()
    assert (again.job_id, again.attempt_no) == (1, 1)
    assert again.token != claimed.token
    assert again.attempt_id != claimed.attempt_id


def test_taken_back_after_a_failure_it_is_what_the_failure_left(desk: Desk) -> None:
    desk.add()
    desk.run(failure)
    desk.clock.advance(100.0)
    desk.store.cycle(desk.me, (), Want(0, None), now=desk.clock.now())  # promotes
    before = desk.get(1)
    desk.clock.advance(1.0)
    desk.report(never_started(desk.claim_one()))
    assert desk.get(1) == before
    assert [one.attempt_no for one in desk.store.detail(1).attempts] == [1]


def test_taken_back_after_the_clock_was_set_back(desk: Desk) -> None:
    """The last start is that of the last attempt, whatever the clock said at earlier ones."""
    desk.add()
    desk.run(failure)
    desk.clock.advance(100.0)
    desk.clock.step(-50_000.0)
    desk.run(failure)
    desk.clock.advance(1000.0)
    desk.store.cycle(desk.me, (), Want(0, None), now=desk.clock.now())  # promotes
    before = desk.get(1)
    desk.report(never_started(desk.claim_one()))
    assert desk.get(1) == before


def test_taken_back_twice_is_taken_back_once(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.report(never_started(claimed))
    trail = desk.trail(1)
    newer = desk.claim_one()
    assert desk.report_one(never_started(claimed)).job_state is None
    assert desk.trail(1) == [*trail, "claimed"]
    assert desk.report_one(success(newer)).job_state is State.DONE


@pytest.mark.parametrize("taken_by", ["cancel", "force"])
def test_canceled_or_forced_before_it_is_taken_back(desk: Desk, taken_by: str) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.take_away(1, taken_by)
    after = desk.get(1)
    assert desk.report_one(never_started(claimed)).job_state is None
    assert desk.get(1).state is after.state
    (attempt,) = desk.store.detail(1).attempts
    assert attempt.gone_at is not None
    assert (desk.claim() == ()) is (taken_by == "cancel")


def test_what_is_claimed_ahead_fills_its_lanes_ceiling(desk: Desk) -> None:
    for _ in range(3):
        desk.add()
    assert len(desk.claim(3, ceiling=2)) == 2
    assert desk.claim(3, ceiling=2) == ()

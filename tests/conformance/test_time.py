"""Time: relative delays follow the boot clock, appointments the wall clock, nothing is lost."""

from __future__ import annotations

import pytest

from spoolctl.core.records import Want
from spoolctl.core.states import State
from tests.conformance.kit import YEAR_S, Desk, failure, job, success

STEPS = [YEAR_S, -YEAR_S, 3600.0, -3600.0]


@pytest.mark.parametrize("step", STEPS)
def test_a_delay_is_kept_when_the_wall_clock_is_set(desk: Desk, step: float) -> None:
    desk.add(delay_s=60.0)
    shown = desk.get(1).next_run_at
    desk.clock.step(step)
    desk.clock.advance(59.0)
    assert desk.claim() == ()
    assert desk.scheduled() == 1
    desk.clock.advance(1.0)
    assert desk.scheduled() == 0
    assert desk.claim_one().job_id == 1
    assert desk.get(1).next_run_at == shown


@pytest.mark.parametrize("step", STEPS)
def test_backoff_is_kept_when_the_wall_clock_is_set(desk: Desk, step: float) -> None:
    desk.add()
    desk.run(failure)
    desk.clock.step(step)
    assert desk.claim() == ()
    desk.clock.advance(2.0)
    assert desk.claim_one().job_id == 1


def test_an_appointment_follows_the_wall_clock(desk: Desk) -> None:
    desk.add(run_at=desk.clock.at + 3600.0)
    desk.clock.advance(1800.0)
    desk.clock.step(-900.0)
    desk.clock.advance(1800.0)
    assert desk.claim() == ()
    desk.clock.step(900.0)
    assert desk.claim_one().job_id == 1


def test_an_appointment_in_the_past_is_now(desk: Desk) -> None:
    added = desk.add(run_at=desk.clock.at - YEAR_S)
    assert desk.get(added).next_run_at == desk.get(added).created_at == desk.clock.at
    assert desk.claim_one().job_id == 1


@pytest.mark.parametrize("lanes", [None, ("default",)])
def test_after_a_reboot_the_wall_clock_rules_delays(
    desk: Desk, lanes: tuple[str, ...] | None
) -> None:
    desk.add(delay_s=100.0)
    desk.clock.advance(10.0)
    desk.clock.reboot(down_s=60.0)
    me = desk.register("after")
    cycle = desk.store.cycle(me, [], Want(1, lanes), now=desk.clock.now())
    assert cycle.claimed == ()
    assert cycle.next_due_s == 30.0
    desk.clock.advance(29.0)
    assert desk.claim(by=me, lanes=lanes) == ()
    desk.clock.advance(1.0)
    assert desk.scheduled() == 0
    assert desk.claim_one(by=me, lanes=lanes).job_id == 1


def test_right_after_a_reboot_counts_are_right_already(desk: Desk) -> None:
    desk.add(delay_s=100.0)
    desk.add(delay_s=9999.0, queue="q")
    desk.clock.reboot(down_s=500.0)
    assert desk.scheduled() == 1
    counts = desk.store.counts(now=desk.clock.now())
    assert {queue: later for queue, (_states, later) in counts.queues.items()} == {
        "default": 0,
        "q": 1,
    }
    assert desk.store.holds_drain(None, now=desk.clock.now())


def test_many_delays_survive_a_reboot_in_steps(desk: Desk) -> None:
    desk.store.add([job(delay_s=50.0 + n) for n in range(1000)], now=desk.clock.now())
    desk.clock.reboot(down_s=10_000.0)
    me, seen = desk.register("after"), []
    while len(seen) < 1000:
        claimed = desk.claim(100, by=me)
        seen += [one.job_id for one in claimed]
    assert sorted(seen) == list(range(1, 1001))


@pytest.mark.parametrize("step", STEPS)
def test_due_jobs_are_not_stranded_when_the_wall_clock_is_set(desk: Desk, step: float) -> None:
    desk.add()
    desk.clock.step(step)
    claimed = desk.claim_one()
    desk.clock.step(-step)
    desk.report(success(claimed))
    assert desk.get(1).state is State.DONE


def test_durations_are_those_reported_whatever_the_wall_clock_does(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.clock.step(-YEAR_S)
    desk.report(success(claimed, duration_s=12.5))
    attempt = desk.store.attempt(1, 1)
    assert attempt is not None
    assert attempt.duration_s == 12.5


def test_waiting_for_a_time_is_not_waiting_for_ever(desk: Desk) -> None:
    desk.add(run_at=desk.clock.at + 2 * YEAR_S)
    desk.clock.step(YEAR_S)
    assert desk.claim() == ()
    cycle = desk.store.cycle(desk.me, [], Want(1, None), now=desk.clock.now())
    assert cycle.next_due_s == pytest.approx(YEAR_S)
    desk.clock.step(YEAR_S)
    assert desk.claim_one().job_id == 1

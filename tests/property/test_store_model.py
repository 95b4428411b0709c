"""Random operations: the store does what the model does, step by step."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spoolctl.core.records import Claimed, JobFilter, Outcome, Want
from spoolctl.core.states import SETTLED, AttemptState, State
from spoolctl.errors import IllegalTransition, SafetyBlock
from spoolctl.store import open_store
from tests.conformance.kit import (
    YEAR_S,
    Clock,
    Desk,
    failure,
    job,
    never_started,
    released,
    stopped,
    success,
    timeout,
)
from tests.property.model import Model, ModelAttempt, ModelJob

QUEUES = st.sampled_from(["a", "b", "c"])
LANES = st.one_of(st.none(), st.lists(QUEUES, min_size=1, max_size=3, unique=True).map(tuple))
ENDS = {"success": success, "failure": failure, "timeout": timeout, "release": released}


class QueueMachine(RuleBasedStateMachine):
    """One store, one model, two workers of which either may fall silent."""

    @initialize()
    def begin(self) -> None:
        fast = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = tempfile.TemporaryDirectory(dir=fast)
        path = os.path.join(self.folder.name, "queue.db")
        self.desk = Desk(open_store(path, create=True, wait_s=5.0), Clock())
        self.reader = sqlite3.connect(path)
        self.model = Model()
        self.workers = [self.desk.me, self.desk.register("second")]
        self.owned: dict[tuple[int, int], Claimed] = {}

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            self.reader.close()
            self.desk.store.close()
            self.folder.cleanup()

    # -- what may happen ------------------------------------------------------------------

    @rule(
        queue=QUEUES,
        priority=st.integers(-2, 2),
        max_retries=st.integers(0, 2),
        max_crashes=st.integers(0, 2),
        key=st.sampled_from([None, None, "k1", "k2"]),
        when=st.sampled_from(["now", "delay", "at", "past"]),
        time=st.sampled_from([0.0, 1.0, 5.0, 60.0, YEAR_S]),
    )
    def add(
        self,
        queue: str,
        priority: int,
        max_retries: int,
        max_crashes: int,
        key: str | None,
        when: str,
        time: float,
    ) -> None:
        now = self.desk.clock.now()
        fields = {
            "queue": "a" if key else queue,
            "priority": 0 if key else priority,
            "max_retries": 1 if key else max_retries,
            "max_crashes": 1 if key else max_crashes,
            "key": key,
            "delay_s": time if when == "delay" else None,
            "run_at": {"at": now.at + time, "past": now.at - time}.get(when),
        }
        known = self.model.active(key) if key else None
        expected = self.model.add(now=now, **fields)  # type: ignore[arg-type]
        added = self.desk.submit(job(**fields))
        assert added.deduplicated is (expected is None)
        assert added.job.id == (expected or known).id  # type: ignore[union-attr]

    @rule(
        seat=st.integers(0, 1),
        limit=st.integers(0, 3),
        lanes=LANES,
        ceiling=st.sampled_from([None, None, 1, 2]),
    )
    def claim(
        self, seat: int, limit: int, lanes: tuple[str, ...] | None, ceiling: int | None
    ) -> None:
        worker = self.workers[seat]
        now = self.desk.clock.now()
        taken = self.desk.store.claim(worker, Want(limit, lanes, ceiling), now=now)
        expected = self.model.claim(worker, limit, lanes, ceiling, now)
        assert [one.job_id for one in taken] == [one.id for one in expected]
        for one in taken:
            assert one.attempt_no == len(self.model.jobs[one.job_id].tries)
            self.owned[one.job_id, one.attempt_no] = one

    @precondition(lambda self: self.some_living())
    @rule(data=st.data(), end=st.sampled_from(sorted(ENDS)), lanes=LANES, also=st.booleans())
    def report(
        self, data: st.DataObject, end: str, lanes: tuple[str, ...] | None, also: bool
    ) -> None:
        """With `also`, in one cycle with a claim."""
        model_job, attempt = data.draw(st.sampled_from(self.some_living()))
        claimed = self.owned[model_job.id, attempt.no]
        taken_away = attempt.state is not AttemptState.RUNNING
        outcome: Outcome = stopped(claimed) if taken_away else ENDS[end](claimed)
        now = self.desk.clock.now()
        want = Want(1, lanes) if also else None
        cycle = self.desk.store.cycle(attempt.worker, [outcome], want, now=now)
        expected = self.model.report(model_job, outcome.state, outcome.reason, now)
        assert [one.job_state for one in cycle.recorded] == [expected]
        if want is None:
            self.model.promote(None, now)
            assert cycle.claimed == ()
            return
        claims = self.model.claim(attempt.worker, 1, lanes, None, now)
        assert [one.job_id for one in cycle.claimed] == [one.id for one in claims]
        for one in cycle.claimed:
            self.owned[one.job_id, one.attempt_no] = one

    @precondition(lambda self: self.some_living())
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        model_job, attempt = data.draw(st.sampled_from(self.some_living()))
        outcome = never_started(self.owned[model_job.id, attempt.no])
        recorded = self.desk.store.finish(attempt.worker, [outcome], now=self.desk.clock.now())
        assert [one.job_state for one in recorded] == [self.model.take_back(model_job)]

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), running=st.booleans())
    def cancel(self, data: st.DataObject, running: bool) -> None:
        model_job = self.some_job(data)
        if model_job.state is State.RUNNING and not running:
            with pytest.raises(SafetyBlock):
                self.desk.cancel(model_job.id, running=False)
            return
        was_running = model_job.state is State.RUNNING
        try:
            self.model.cancel(model_job, self.desk.clock.now())
        except IllegalTransition:
            with pytest.raises(IllegalTransition):
                self.desk.cancel(model_job.id, running=running)
            return
        assert self.desk.cancel(model_job.id, running=running) is was_running

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), force=st.booleans())
    def retry(self, data: st.DataObject, force: bool) -> None:
        model_job = self.some_job(data)
        was = model_job.state
        if was is State.RUNNING and not force:
            with pytest.raises(SafetyBlock):
                self.desk.retry(model_job.id)
            return
        if force and was is not State.RUNNING:
            with pytest.raises(IllegalTransition):
                self.desk.retry(model_job.id, force=True)
            return
        try:
            self.model.retry(model_job, self.desk.clock.now())
        except IllegalTransition:
            with pytest.raises(IllegalTransition):
                self.desk.retry(model_job.id, force=force)
            return
        assert self.desk.retry(model_job.id, force=force) is was

    @rule(silent=st.integers(0, 1))
    def one_dies_and_the_other_reaps(self, silent: int) -> None:
        dead, reaper = self.workers[silent], self.workers[1 - silent]
        self.desk.clock.advance(1000.0)
        now = self.desk.clock.now()
        assert self.desk.store.heartbeat(reaper, now=now)
        suspects = self.desk.suspects()
        expected = [
            (one.id, attempt.no)
            for one in self.model.jobs.values()
            for attempt in one.tries
            if not attempt.gone and attempt.worker == dead
        ]
        assert sorted((one.job_id, one.attempt_no) for one in suspects) == sorted(expected)
        for suspect in suspects:
            reaped = self.desk.reap(suspect, by=reaper)
            model_job = self.model.jobs[suspect.job_id]
            state = self.model.reap(model_job, model_job.tries[suspect.attempt_no - 1], now)
            assert reaped is not None
            assert reaped.job_state is state
        self.desk.store.unregister(dead, now=now)
        self.workers[silent] = self.desk.register("another")

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0, 60.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.desk.clock.advance(seconds)
        for worker in self.workers:
            assert self.desk.store.heartbeat(worker, now=self.desk.clock.now())

    @rule(seconds=st.sampled_from([YEAR_S, -YEAR_S, 3600.0, -3600.0]))
    def somebody_sets_the_clock(self, seconds: float) -> None:
        self.desk.clock.step(seconds)

    @rule()
    def the_machine_restarts(self) -> None:
        self.desk.clock.reboot()
        now = self.desk.clock.now()
        old, self.workers = self.workers, [self.desk.register("w1"), self.desk.register("w2")]
        for suspect in self.desk.suspects(threshold_s=1e9):
            assert suspect.worker is not None
            assert suspect.worker.id in old
            assert self.desk.reap(suspect, by=self.workers[0]) is not None
            model_job = self.model.jobs[suspect.job_id]
            self.model.reap(model_job, model_job.tries[suspect.attempt_no - 1], now)
        assert self.some_living() == []
        self.desk.store.forget(old, now=now)

    @rule(
        states=st.lists(st.sampled_from(sorted(SETTLED)), min_size=1, unique=True).map(tuple),
        older_than_s=st.sampled_from([-1.0, 60.0, 3600.0]),
    )
    def prune(self, states: tuple[State, ...], older_than_s: float) -> None:
        now = self.desk.clock.now()
        before = now.at - older_than_s
        counted = self.desk.store.prune(
            before=before, states=states, dry_run=True, limit=1, now=now
        )
        expected = self.model.prune(before, states)
        assert counted.jobs == len(expected)
        done = 0
        while True:
            step = self.desk.store.prune(
                before=before, states=states, dry_run=False, limit=3, now=now
            )
            done += step.jobs
            if not step.more:
                break
        assert done == len(expected)

    # -- what always holds ----------------------------------------------------------------

    @invariant()
    def the_store_is_what_the_model_is(self) -> None:
        if not hasattr(self, "desk"):
            return
        found = self.desk.store.find(JobFilter(), limit=-1)
        assert [one.id for one in found] == sorted(self.model.jobs, reverse=True)
        for one in found:
            expected = self.model.jobs[one.id]
            assert (one.state, one.attempts, one.crashes, one.ready) == (
                expected.state,
                expected.attempts,
                expected.crashes,
                expected.ready,
            ), one
            assert one.next_run_at == pytest.approx(expected.run_at)
            assert one.finished_at == expected.finished_at
        trails: dict[int, list[str]] = {}
        for event in self.desk.store.events(since_id=0, job_id=None, limit=None)[0]:
            trails.setdefault(event.job_id, []).append(event.event.value)
        assert trails == {one.id: one.trail for one in self.model.jobs.values()}

    @invariant()
    def attempts_agree(self) -> None:
        if not hasattr(self, "desk"):
            return
        rows = self.reader.execute(
            "SELECT job, no, state, gone_at IS NOT NULL FROM attempts ORDER BY job, no"
        ).fetchall()
        assert rows == [
            (one.id, attempt.no, attempt.state.value, int(attempt.gone))
            for one in sorted(self.model.jobs.values(), key=lambda each: each.id)
            for attempt in one.tries
        ]

    @invariant()
    def counters_are_what_counting_gives(self) -> None:
        if not hasattr(self, "desk"):
            return
        now = self.desk.clock.now()
        counts = self.desk.store.counts(now=now)
        jobs = list(self.model.jobs.values())
        assert {state: number for state, number in counts.states.items() if number} == Counter(
            one.state for one in jobs
        )
        later = [one for one in jobs if one.due is not None and not self.model.is_due(one, now)]
        assert counts.scheduled == len(later)
        assert {queue: part for queue, (_states, part) in counts.queues.items() if part} == (
            Counter(one.queue for one in later)
        )
        assert (
            self.reader.execute(BY_COUNTERS).fetchall()
            == self.reader.execute(BY_COUNTING).fetchall()
        )

    @invariant()
    def drain_knows_what_to_wait_for(self) -> None:
        if not hasattr(self, "desk"):
            return
        now = self.desk.clock.now()
        jobs = self.model.jobs.values()
        if any(one.due and one.due[0] not in (None, now.boot_id) for one in jobs):
            return  # right after a restart it may hold a moment longer, until the next cycle
        for lanes in (None, ("a",), ("b", "c")):
            expected = any(
                (lanes is None or one.queue in lanes)
                and (
                    one.living
                    or one.state is State.RUNNING
                    or one.ready
                    or (one.due is not None and (one.attempts or self.model.is_due(one, now)))
                )
                for one in jobs
            )
            assert self.desk.store.holds_drain(lanes, now=now) is bool(expected)

    @invariant()
    def nothing_needs_healing(self) -> None:
        if hasattr(self, "desk"):
            assert self.desk.store.heal(now=self.desk.clock.now()) == []

    # -- help -----------------------------------------------------------------------------

    def some_living(self) -> list[tuple[ModelJob, ModelAttempt]]:
        return [
            (one, attempt)
            for one in self.model.jobs.values()
            for attempt in one.tries[-1:]
            if not attempt.gone
        ]

    def some_job(self, data: st.DataObject) -> ModelJob:
        return self.model.jobs[data.draw(st.sampled_from(sorted(self.model.jobs)))]


BY_COUNTERS = """
SELECT queue, queued, running, done, failed, dead, canceled, ready, waiting, retrying, living
FROM lanes WHERE queued + running + done + failed + dead + canceled > 0 ORDER BY queue
"""
BY_COUNTING = """
SELECT queue, sum(state = 'queued'), sum(state = 'running'), sum(state = 'done'),
  sum(state = 'failed'), sum(state = 'dead'), sum(state = 'canceled'), sum(ready),
  sum(due IS NOT NULL), sum(due IS NOT NULL AND attempts > 0),
  sum((SELECT count(*) FROM attempts WHERE job = jobs.id AND gone_at IS NULL))
FROM jobs GROUP BY queue ORDER BY queue
"""


def test_the_store_agrees_with_the_model() -> None:
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=80,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""A small, pure model of a queue: what a store must do, in the plainest way.

It asks the same table and the same decisions as the product (core/states, core/retry), and
nothing else of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spoolctl.core.records import Instant
from spoolctl.core.retry import DEFAULT_POLICY, Budget, Verdict, after_crash, after_failure
from spoolctl.core.states import AttemptState, Event, Reason, State, move


@dataclass
class ModelAttempt:
    """One execution, as the model sees it."""

    no: int
    worker: int
    state: AttemptState = AttemptState.RUNNING
    gone: bool = False


@dataclass
class ModelJob:
    """One job, as the model sees it. `due` is (boot id or None for the wall clock, time)."""

    id: int
    queue: str
    priority: int
    run_at: float
    max_retries: int
    max_crashes: int
    key: str | None
    due: tuple[str | None, float] | None
    state: State = State.QUEUED
    attempts: int = 0
    crashes: int = 0
    finished_at: float | None = None
    tries: list[ModelAttempt] = field(default_factory=list)
    trail: list[str] = field(default_factory=lambda: ["added"])

    @property
    def living(self) -> bool:
        """Whether processes of it may be there."""
        return any(not one.gone for one in self.tries)

    @property
    def ready(self) -> bool:
        """Whether a worker may take it."""
        return self.state is State.QUEUED and self.due is None and not self.living


class Model:
    """Jobs by id, and what may happen to them."""

    def __init__(self) -> None:
        self.jobs: dict[int, ModelJob] = {}
        self.last_id = 0

    def add(
        self,
        *,
        now: Instant,
        queue: str,
        priority: int,
        max_retries: int,
        max_crashes: int,
        key: str | None,
        delay_s: float | None,
        run_at: float | None,
    ) -> ModelJob | None:
        """The new job, or None where the key belongs to an active one."""
        if key is not None and self.active(key) is not None:
            return None
        self.last_id += 1
        due: tuple[str | None, float] | None = None
        first = now.at
        if delay_s:
            first, due = now.at + delay_s, (now.boot_id, now.boot + delay_s)
        elif run_at is not None and run_at > now.at:
            first, due = run_at, (None, run_at)
        job = ModelJob(self.last_id, queue, priority, first, max_retries, max_crashes, key, due)
        self.jobs[job.id] = job
        return job

    def active(self, key: str) -> ModelJob | None:
        """The newest waiting or running job with the key; a running one first."""
        for state in (State.RUNNING, State.QUEUED):
            found = [job for job in self.jobs.values() if job.key == key and job.state is state]
            if found:
                return max(found, key=lambda job: job.id)
        return None

    def promote(self, lanes: tuple[str, ...] | None, now: Instant) -> None:
        """What is due becomes ready; delays of another boot follow the wall clock, once there
        is anything to wait for in the lanes."""
        waiting = [job for job in self.jobs.values() if job.due is not None]
        if not any(lanes is None or job.queue in lanes for job in waiting):
            return
        for job in waiting:
            assert job.due is not None
            boot_id, time = job.due
            if boot_id not in (None, now.boot_id):
                boot_id, time = job.due = (None, job.run_at)
            reading = now.at if boot_id is None else now.boot
            if time <= reading and (lanes is None or job.queue in lanes):
                job.due = None

    def is_due(self, job: ModelJob, now: Instant) -> bool:
        """Whether a waiting job's time has come."""
        assert job.due is not None
        boot_id, time = job.due
        if boot_id is None:
            return time <= now.at
        return time <= now.boot if boot_id == now.boot_id else job.run_at <= now.at

    def claim(
        self,
        worker: int,
        limit: int,
        lanes: tuple[str, ...] | None,
        ceiling: int | None,
        now: Instant,
    ) -> list[ModelJob]:
        """The jobs that a worker gets, in order."""
        self.promote(lanes, now)
        taken: list[ModelJob] = []
        ready = sorted(
            (job for job in self.jobs.values() if job.ready),
            key=lambda job: (-job.priority, job.run_at, job.id),
        )
        for lane in (None,) if lanes is None else lanes:
            for job in ready:
                if len(taken) >= limit:
                    break
                if lane not in (None, job.queue) or job in taken:
                    continue
                full = ceiling is not None and self.living_in(job.queue) >= ceiling
                if not full:
                    taken.append(job)
                    self._move(job, Event.CLAIMED)
                    job.tries.append(ModelAttempt(len(job.tries) + 1, worker))
        return taken

    def living_in(self, queue: str) -> int:
        """Attempts of a queue whose processes may live."""
        return sum(
            not one.gone for job in self.jobs.values() if job.queue == queue for one in job.tries
        )

    def report(
        self, job: ModelJob, state: AttemptState, reason: Reason | None, now: Instant
    ) -> State | None:
        """The owner says how the latest attempt ended; None if that is discarded."""
        attempt = job.tries[-1]
        attempt.gone = True
        if attempt.state is not AttemptState.RUNNING:
            return None
        attempt.state = state
        job.finished_at = now.at
        if state is AttemptState.SUCCEEDED:
            self._move(job, Event.SUCCEEDED)
        elif reason is Reason.WORKER_SHUTDOWN:
            self._move(job, Event.RELEASED)
            job.run_at = now.at
        else:
            assert reason is not None
            verdict = after_failure(
                self._budget(job), DEFAULT_POLICY, state=state, reason=reason, exit_code=3, age_s=0
            )
            self._follow(job, verdict, now)
        return job.state

    def take_back(self, job: ModelJob) -> State | None:
        """The owner has not started what it claimed; None if that is discarded."""
        attempt = job.tries[-1]
        attempt.gone = True
        if attempt.state is not AttemptState.RUNNING:
            return None
        job.tries.pop()
        self._move(job, Event.RELEASED)
        return job.state

    def reap(self, job: ModelJob, attempt: ModelAttempt, now: Instant) -> State | None:
        """A dead owner's attempt is taken back, its processes gone."""
        attempt.gone = True
        if attempt.state is not AttemptState.RUNNING:
            return None
        attempt.state = AttemptState.ABANDONED
        job.finished_at = now.at
        verdict = after_crash(self._budget(job), DEFAULT_POLICY)
        self._follow(job, verdict, now)
        return job.state

    def cancel(self, job: ModelJob, now: Instant) -> None:
        """Raises IllegalTransition, like the store."""
        self._move(job, Event.CANCELED)
        job.due = None
        job.finished_at = now.at
        if job.tries and job.tries[-1].state is AttemptState.RUNNING:
            job.tries[-1].state = AttemptState.CANCELED

    def retry(self, job: ModelJob, now: Instant) -> None:
        """Raises IllegalTransition, like the store. A running job is forced."""
        self._move(job, Event.FORCED if job.state is State.RUNNING else Event.RETRIED)
        job.attempts = job.crashes = 0
        job.run_at, job.finished_at, job.due = now.at, None, None
        if job.tries and job.tries[-1].state is AttemptState.RUNNING:
            job.tries[-1].state = AttemptState.ABANDONED

    def prune(self, before: float, states: tuple[State, ...]) -> list[int]:
        """Ids of the jobs that go."""
        old = [
            job.id
            for job in self.jobs.values()
            if job.state in states
            and job.finished_at is not None
            and job.finished_at < before
            and not job.living
        ]
        for job_id in old:
            del self.jobs[job_id]
        return old

    def _budget(self, job: ModelJob) -> Budget:
        return Budget(job.attempts, job.crashes, job.max_retries, job.max_crashes)

    def _follow(self, job: ModelJob, verdict: Verdict, now: Instant) -> None:
        self._move(job, verdict.event)
        job.attempts, job.crashes = verdict.attempts, verdict.crashes
        if job.state is State.QUEUED:
            job.run_at = now.at + verdict.delay_s
            job.due = (now.boot_id, now.boot + verdict.delay_s)

    def _move(self, job: ModelJob, event: Event) -> None:
        to, writes = move(job.state, event)
        job.state = to
        job.trail += [entry.value for entry in writes]

"""What the suites of the store share: a staged clock, short ways to make records, one queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spoolctl.core.records import (
    Added,
    Capture,
    Claimed,
    Context,
    Identity,
    Instant,
    Job,
    JobFilter,
    NewJob,
    NewWorker,
    Outcome,
    Reaped,
    Recorded,
    Suspect,
    Want,
)
from spoolctl.core.retry import RetryPolicy
from spoolctl.core.states import AttemptState, Reason, State
from spoolctl.store.protocol import Store

EMPTY = Capture(0, b"")
CONTEXT = Context("/home/someone", 0o022, (("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")))
YEAR_S = 365 * 86400.0
LONG_AGO_S = 10_000.0
"""More than any threshold of silence."""


class Clock:
    """All clocks of one machine, moved by hand."""

    def __init__(self) -> None:
        self.at = 1_800_000_000.0
        self.boot = 5_000.0
        self.mono = 4_000.0
        self.boot_id = "boot-1"

    def now(self) -> Instant:
        return Instant(self.at, self.boot, self.mono, self.boot_id)

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.at += seconds
        self.boot += seconds
        self.mono += seconds

    def step(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.at += seconds

    def reboot(self, *, down_s: float = 60.0) -> None:
        """The machine starts again; its own clocks begin at nothing."""
        number = int(self.boot_id.rpartition("-")[2])
        self.boot_id = f"boot-{number + 1}"
        self.at += down_s
        self.boot = self.mono = 10.0


def job(*argv: str, **fields: Any) -> NewJob:
    """A job of the words, `true` by default."""
    return NewJob(argv or ("true",), fields.pop("context", CONTEXT), **fields)


def worker(
    name: str = "host-1",
    *,
    clock: Clock,
    pid: int = 4242,
    lanes: tuple[str, ...] | None = None,
    slots: int = 1,
    interval_s: float = 5.0,
) -> NewWorker:
    """A worker of this boot."""
    identity = Identity(clock.boot_id, "pid:[4026531836]", pid, "123456", 65024, 1 << 63)
    return NewWorker(f"token-of-{name}", name, identity, lanes, slots, interval_s)


def outcome(
    claimed: Claimed,
    state: AttemptState = AttemptState.SUCCEEDED,
    *,
    reason: Reason | None = None,
    exit_code: int | None = None,
    error: str | None = None,
    stdout: Capture = EMPTY,
    stderr: Capture = EMPTY,
    survivors: int | None = 0,
    duration_s: float = 0.25,
) -> Outcome:
    """A report about the attempt."""
    return Outcome(
        claimed.attempt_id,
        state,
        reason,
        exit_code,
        error,
        duration_s,
        survivors,
        stdout,
        stderr,
    )


def success(claimed: Claimed, **rest: Any) -> Outcome:
    """Exit status 0."""
    return outcome(claimed, exit_code=0, **rest)


def failure(claimed: Claimed, exit_code: int = 3, **rest: Any) -> Outcome:
    """An exit status that says no."""
    return outcome(
        claimed,
        AttemptState.FAILED,
        reason=Reason.PROCESS_EXIT,
        exit_code=exit_code,
        error=f"exit {exit_code}",
        **rest,
    )


def timeout(claimed: Claimed) -> Outcome:
    """The time limit passed."""
    return outcome(
        claimed, AttemptState.TIMED_OUT, reason=Reason.TIMEOUT, error="timed out after 300s"
    )


def released(claimed: Claimed) -> Outcome:
    """The worker was told to stop at once."""
    return outcome(
        claimed,
        AttemptState.ABANDONED,
        reason=Reason.WORKER_SHUTDOWN,
        error="worker shut down",
    )


def never_started(claimed: Claimed) -> Outcome:
    """The worker gives the claim back: it had no slot for it in time."""
    return released(claimed)._replace(duration_s=0.0, started=False)


def stopped(claimed: Claimed, **rest: Any) -> Outcome:
    """What an owner reports of an attempt that was canceled or forced: it is gone."""
    return outcome(
        claimed,
        AttemptState.CANCELED,
        reason=Reason.CANCELED,
        error="canceled",
        **rest,
    )


class Desk:
    """One store with a clock and a registered worker: what a test says is what it does."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.me = self.register("host-1")

    def register(self, name: str, **rest: Any) -> int:
        new = worker(name, clock=self.clock, **rest)
        return self.store.register(new, now=self.clock.now()).worker_id

    def add(self, *argv: str, **fields: Any) -> int:
        return self.submit(job(*argv, **fields)).job.id

    def submit(self, new: NewJob) -> Added:
        (added,) = self.store.add([new], now=self.clock.now())
        return added

    def claim(
        self,
        limit: int = 1,
        lanes: tuple[str, ...] | None = None,
        *,
        ceiling: int | None = None,
        by: int | None = None,
    ) -> tuple[Claimed, ...]:
        want = Want(limit, lanes, ceiling)
        return self.store.claim(self.me if by is None else by, want, now=self.clock.now())

    def claim_one(self, **rest: Any) -> Claimed:
        (claimed,) = self.claim(**rest)
        return claimed

    def report(self, *outcomes: Outcome, by: int | None = None) -> tuple[Recorded, ...]:
        owner = self.me if by is None else by
        return self.store.finish(owner, outcomes, now=self.clock.now())

    def report_one(self, one: Outcome, *, by: int | None = None) -> Recorded:
        (recorded,) = self.report(one, by=by)
        return recorded

    def run(self, end: Callable[[Claimed], Outcome] = success) -> State:
        """Claim one job and end it so; its new state."""
        state = self.report_one(end(self.claim_one())).job_state
        assert state is not None
        return state

    def run_to_the_end(self, end: Callable[[Claimed], Outcome]) -> State:
        """The same again and again, waiting out the backoff, until the job has settled."""
        while (state := self.run(end)) is State.QUEUED:
            self.clock.advance(100.0)
        return state

    def cancel(self, job_id: int, *, running: bool = True) -> bool:
        return self.store.cancel(job_id, running=running, now=self.clock.now())

    def retry(self, job_id: int, *, force: bool = False) -> State:
        return self.store.retry(job_id, force=force, now=self.clock.now())

    def take_away(self, job_id: int, way: str) -> None:
        """Take a running job from its owner: `cancel`, or `force` it to run again."""
        if way == "cancel":
            self.cancel(job_id)
        else:
            self.retry(job_id, force=True)

    def suspects(self, threshold_s: float | None = None) -> list[Suspect]:
        return self.store.suspects(threshold_s=threshold_s, now=self.clock.now())

    def reap(self, suspect: Suspect, *, by: int | None = None, **streams: Capture) -> Reaped | None:
        return self.store.reap(
            suspect,
            by=self.me if by is None else by,
            error="worker died",
            survivors=0,
            stdout=streams.get("stdout", EMPTY),
            stderr=streams.get("stderr", EMPTY),
            now=self.clock.now(),
        )

    def let_owner_die(self) -> None:
        """So much silence that everything its owner held is suspect."""
        self.clock.advance(LONG_AGO_S)

    def get(self, job_id: int) -> Job:
        return self.store.get(job_id)

    def find(
        self, limit: int = 100, *, sort: str = "id", reverse: bool = False, **parts: Any
    ) -> list[int]:
        wanted = JobFilter(**parts)
        found = self.store.find(wanted, limit=limit, sort=sort, reverse=reverse)
        return [one.id for one in found]

    def trail(self, job_id: int) -> list[str]:
        """The ledger's entries about the job, by name."""
        events, _last, _first = self.store.events(since_id=0, job_id=job_id, limit=None)
        return [event.event.value for event in events]

    def counts(self) -> dict[str, int]:
        """States with jobs in them, and how many."""
        found = self.store.counts(now=self.clock.now())
        return {state.value: number for state, number in found.states.items() if number}

    def scheduled(self) -> int:
        return self.store.counts(now=self.clock.now()).scheduled

    def reach(self, state: State) -> int:
        """A new job, led to the state by the shortest way."""
        job_id = self.add("false", max_retries=0)
        if state is State.RUNNING:
            assert self.claim_one().job_id == job_id
        elif state is State.DONE:
            assert self.run(success) is State.DONE
        elif state is State.DEAD:
            assert self.run(failure) is State.DEAD
        elif state is State.CANCELED:
            self.cancel(job_id)
        elif state is State.FAILED:
            self.cancel(job_id)
            job_id = self.add("false", policy=final_exit(3))
            assert self.run(failure) is State.FAILED
        return job_id


def final_exit(code: int) -> RetryPolicy:
    """A policy by which this exit code is final."""
    return RetryPolicy(final_exits=((code, code),))

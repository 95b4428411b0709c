"""What a store can do: one method per operation of the domain, never SQL.

Every method is one transaction (or a read of one snapshot) and takes `now`; a store that is
shared by many hosts may use its server's clock instead. Methods that tell or decide
something (`add`, `cycle`, `finish`, `claim`, `cancel`, `retry`, `reap`, `prune`) are synced to
disk before they return; after a crash either all of it happened or none. Every writing
method may raise StoreBusy (repeat), StoreFull (repeat when there is room), StoreGone (the
file was removed or replaced) and StoreUnusable (a newer program migrated the file).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spoolctl.core.records import (
    Added,
    Attempt,
    Capture,
    Claimed,
    Counts,
    Cycle,
    EventRow,
    Instant,
    Job,
    JobDetail,
    JobFilter,
    NewJob,
    NewWorker,
    Outcome,
    Pruned,
    Reaped,
    Recorded,
    Registered,
    Suspect,
    Want,
    WorkerRow,
)
from spoolctl.core.states import State


class Store(Protocol):
    """A durable queue. Not thread-safe: one instance per thread."""

    path: str
    """The resolved path of the queue's file."""

    wait_s: float
    """How long a write waits for the lock before StoreBusy. May be set at any time."""

    def close(self) -> None:
        """Release the file. May be called twice."""

    def prepare(self) -> None:
        """Make ready for a long life, and for an end without `close`.

        Imports what later calls need: by then there may be no descriptor left for it, or
        another version on the disk.
        """

    def check_file(self) -> None:
        """Raise StoreGone if the file (or its log) at `path` is not the one that is open."""

    # -- submitting ---------------------------------------------------------------------

    def add(self, jobs: Sequence[NewJob], *, now: Instant) -> list[Added]:
        """Add all jobs, or none; ids ascend in the order given.

        A job whose key belongs to an active job (queued or running; or, where that job
        was given `key_for_s`, settled less than that long ago) with an equal execution
        is not added: the existing one is returned, unchanged.

        Raises:
            KeyConflict: the key is active for a different execution; `index` is its place.
        """

    def cancel(self, job_id: int, *, running: bool, now: Instant) -> bool:
        """Cancel a queued job, or with `running` a running one; returns whether it ran.

        A running job's attempt becomes `canceled` at once; its owner (or whoever reaps)
        ends the processes and then reports it gone.

        Raises: NotFound; SafetyBlock (it runs, and `running` is false); IllegalTransition.
        """

    def retry(self, job_id: int, *, force: bool, now: Instant) -> State:
        """Give a dead, failed or canceled job (with `force`: a running one) a fresh budget.

        Returns the state that it had. It becomes claimable when no process of an earlier
        attempt is left (see `Attempt.gone_at`).

        Raises: NotFound; SafetyBlock (it runs, without `force`); IllegalTransition.
        """

    def prune(
        self,
        *,
        before: float,
        states: Sequence[State],
        dry_run: bool,
        limit: int,
        now: Instant,
    ) -> Pruned:
        """Delete at most `limit` settled jobs that finished before the epoch time `before`.

        Jobs with an attempt that is not confirmed gone are left out. With `dry_run` counts
        all that match and deletes nothing.
        """

    def compact(self, *, pages: int) -> bool:
        """Return up to `pages` free pages to the file system; True if more are left."""

    # -- working ------------------------------------------------------------------------

    def register(self, worker: NewWorker, *, now: Instant) -> Registered:
        """Make the worker known, with a first heartbeat. Heals in the same transaction (`heal`)."""

    def unregister(self, worker: int, *, now: Instant) -> None:
        """Forget a worker that ends in good order. Refused while it owns living attempts."""

    def desert(self, worker: int) -> None:
        """The worker ends without having seen the end of all its attempts: others are to take
        it for dead (as soon as its heartbeat is stale), though its process may live on."""

    def heartbeat(self, worker: int, *, now: Instant) -> bool:
        """Renew the heartbeat (not synced). False if the worker is not registered any more."""

    def cycle(
        self, worker: int, outcomes: Sequence[Outcome], want: Want | None, *, now: Instant
    ) -> Cycle:
        """Record what has finished and claim what comes next, in one transaction.

        Promotes due jobs on the way (a bounded step). Order of claims: `priority`
        descending, `next_run_at` ascending, `id` ascending within a lane; lanes in order of
        preference; with all queues, over all of them by the same rule; a job that is wanted
        by its number is taken as soon as it is ready. A report on an
        attempt that is no longer running only sets `gone_at` and keeps its output; one that
        leaves survivors behind does not even that: the owner has to end them first.
        """

    def finish(
        self, worker: int, outcomes: Sequence[Outcome], *, now: Instant
    ) -> tuple[Recorded, ...]:
        """`cycle` without a claim."""

    def claim(self, worker: int, want: Want, *, now: Instant) -> tuple[Claimed, ...]:
        """`cycle` without reports."""

    def lost(self, worker: int) -> frozenset[int]:
        """Ids of the worker's attempts that were canceled or forced, and are not yet gone."""

    def living(self, worker: int) -> frozenset[int]:
        """Ids of all the worker's attempts that are not yet gone."""

    def holds_drain(self, lanes: Sequence[str] | None, *, now: Instant) -> bool:
        """Whether a drain of the lanes has to go on.

        True while a job is running under any worker, is queued and due, is in backoff
        (`attempts` > 0), or has an attempt that is not confirmed gone.
        """

    # -- recovering ---------------------------------------------------------------------

    def suspects(self, *, threshold_s: float | None, now: Instant) -> list[Suspect]:
        """Attempts that are not gone and whose worker is silent, in all lanes.

        Silent: no heartbeat for `threshold_s` on the boot clock, by default
        `max(4 * its interval, 30)`; a worker of another boot, or whose row is missing, is
        silent at once.
        """

    def reap(
        self,
        suspect: Suspect,
        *,
        by: int,
        error: str,
        survivors: int | None,
        stdout: Capture,
        stderr: Capture,
        now: Instant,
    ) -> Reaped | None:
        """Take the attempt back from its dead owner; call only with proof of death, and with
        all processes of the attempt gone.

        Re-checks in the transaction that the attempt is not gone yet and that its worker's
        heartbeat has not moved; else returns None and writes nothing.
        """

    def note_recovery(
        self, attempt_ids: Sequence[int], *, verdict: str, reason: str, now: Instant
    ) -> None:
        """Keep, for `show`, why these attempts cannot be taken back. Not synced."""

    def silent_workers(self, *, threshold_s: float | None, now: Instant) -> list[WorkerRow]:
        """Silent workers without living attempts: rows to sweep once they are proven dead."""

    def workers(self) -> list[WorkerRow]:
        """All registered workers, dead or alive."""

    def forget(self, worker_ids: Sequence[int], *, now: Instant) -> None:
        """Delete rows of dead workers (their names stay in attempts and events)."""

    def heal(self, *, now: Instant) -> list[str]:
        """Repair impossible rows of a damaged file (a running job without an attempt, ...).

        Returns one sentence per repair, for the log.
        """

    # -- asking -------------------------------------------------------------------------

    def get(self, job_id: int) -> Job:
        """One job. Raises NotFound."""

    def detail(self, job_id: int) -> JobDetail:
        """One job with attempts, events and captured context, of one snapshot. Raises NotFound."""

    def find(
        self, job_filter: JobFilter, *, limit: int, sort: str = "id", reverse: bool = False
    ) -> list[Job]:
        """Matching jobs in the order of one of `SORTS` (by id: the highest first), or the
        other way round; jobs without the time that is asked for come last either way.

        Filters apply before the limit; a negative one is none.
        """

    def states(self, job_ids: Sequence[int]) -> dict[int, Job]:
        """The jobs among these ids that exist, of one snapshot."""

    def first_job_id(self) -> int | None:
        """The lowest job id in the queue."""

    def counts(self, *, now: Instant) -> Counts:
        """Jobs per state and queue, from counters (not by counting rows)."""

    def recent_dead(self, limit: int) -> list[tuple[Job, Attempt | None]]:
        """Dead and finally failed jobs, latest finish first, each with its latest attempt;
        `limit` 0: all."""

    def attempt(self, job_id: int, attempt_no: int | None) -> Attempt | None:
        """One attempt (None: the latest); None if the job has none at all.

        Raises: NotFound (no such job; or no attempt of that number, with the known ones).
        """

    def stream(self, attempt_id: int, stream: str) -> bytes:
        """The bytes of a stream that is stored in the database; empty if it is not."""

    def events(
        self, *, since_id: int, job_id: int | None, limit: int | None
    ) -> tuple[list[EventRow], int, int | None]:
        """Entries with an id above `since_id`, ascending; the highest id ever given in the
        ledger; and the lowest id retained (of that job, if one is named)."""

    def changed(self) -> int:
        """A number that differs whenever another connection has committed since (cheap)."""

    def stream_names(self) -> frozenset[str]:
        """`TOKEN.STREAM` of every stream that is a file: of attempts that may live all of
        them (their input too), of ended ones those that stayed files."""

    def bells(self, queue: str | None) -> list[str]:
        """Tokens of registered workers that serve the queue (None: of all)."""

    def owner_token(self, job_id: int) -> str | None:
        """Token of the worker whose attempt of the job is not gone yet."""

    def backup(self, target: str) -> list[tuple[str, str]]:
        """Copy the queue to the new file `target` by SQLite's backup API (0600).

        Returns the (token, stream) pairs whose files belong beside it, as of the copy.
        """

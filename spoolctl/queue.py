"""`Queue`: the public API. The command line is built on it and on nothing below it.

    from spoolctl import Queue

    with Queue("queue.db") as queue:
        job = queue.add(["make", "test"], key="build-7")
        queue.wait([job.id], timeout_s=600)

Errors are those of `spoolctl.errors`, all of them `SpoolError`. Not thread-safe: one
instance per thread.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from spoolctl.core import checks
from spoolctl.core.paths import STREAMS, support_dir, waiters_dir, workers_dir
from spoolctl.core.records import (
    Added,
    Attempt,
    Counts,
    EventRow,
    Job,
    JobDetail,
    NewJob,
    StreamInfo,
)
from spoolctl.core.retry import DEFAULT_POLICY, RetryPolicy
from spoolctl.core.states import State
from spoolctl.core.tuples import NamedTuple
from spoolctl.engine.clock import SystemClock
from spoolctl.errors import InvalidInput, SpoolError, StoreUnusable
from spoolctl.process.filesystem import file_system
from spoolctl.store import open_store
from spoolctl.submission import CAPTURED, Captures, as_job, new_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from spoolctl.core.records import Identity
    from spoolctl.engine.options import Helper, Progress, WorkOptions, WorkResult
    from spoolctl.engine.output import Piece, Reader
    from spoolctl.engine.pruning import PruneResult
    from spoolctl.process.identity import Judgement
    from spoolctl.store.protocol import Store
    from spoolctl.waiting import Waiter

BUSY_WAIT_S = 5.0
"""How long a call waits for the write lock before StoreBusy."""

WORKER_WAIT_S = 0.002
"""The same for a worker: the length of a few transactions."""

CONFIRM_S = 10.0
"""How long `cancel` waits for the end of a running job's processes."""


class Canceled(NamedTuple):
    """The answer to a cancel. `gone`: no process of the job is left."""

    job: Job
    was_running: bool
    gone: bool


class EventPage(NamedTuple):
    """Entries of the ledger. `last_id`: the highest id ever given; `first_id`: the lowest
    one retained (of the job, if one was named)."""

    events: list[EventRow]
    last_id: int
    first_id: int | None


class BackupResult(NamedTuple):
    """What a backup wrote: its file, and the streams that were copied beside it."""

    path: str
    streams: int
    bytes: int


def _refuse_network(path: str) -> None:
    """Refuse a file system on which SQLite's log does not work (sqlite.org/wal.html).

    Raises:
        StoreUnusable: of kind `unsupported`; nothing was opened or created.
    """
    if file_system(path) == "network":
        raise StoreUnusable(
            f"{path} is on a network file system, on which a queue is not safe",
            kind="unsupported",
            path=path,
        )


class Queue:
    """One queue: a database file and its support folder.

    `path` None finds the queue as the command line does (`SPOOLCTL_DB`, the project's
    config file, `.spoolctl/queue.db`). `create`: make it where there is none. `wait_s`: how
    long a call waits for the write lock before StoreBusy. `brief`: for one call, and closed
    after it; opens faster, but imports in the middle of calls what they need.

    Raises:
        NotFound: there is no queue, and `create` is false.
        StoreUnusable: the file cannot serve as a queue; it was not changed.
        InvalidInput: the path is no path.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        create: bool = True,
        wait_s: float = BUSY_WAIT_S,
        brief: bool = False,
    ) -> None:
        from spoolctl.config import locate

        checks.span("wait_s", wait_s, "any")
        found = locate(None if path is None else checks.named("path", checks.file_path, path))
        _refuse_network(found.path)
        self._clock = SystemClock()
        if brief:
            self._store: Store = open_store(found.path, create=create, wait_s=wait_s)
        else:
            from spoolctl.ready import open_for_long

            self._store = open_for_long(found.path, create=create, wait_s=wait_s)

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file. May be called twice."""
        self._store.close()

    @property
    def path(self) -> str:
        """The resolved path of the queue's file."""
        return self._store.path

    # -- submitting -------------------------------------------------------------------------

    def add(
        self,
        argv: Sequence[str],
        *,
        queue: str = "default",
        priority: int = 0,
        delay_s: float | None = None,
        run_at: float | None = None,
        timeout_s: int | None = 300,
        max_retries: int = 3,
        max_crashes: int | None = 20,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        key: str | None = None,
        key_for_s: float | None = None,
        tags: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        note: str | None = None,
        policy: RetryPolicy = DEFAULT_POLICY,
        stdin: bytes | None = None,
        capture_env: Iterable[str] | None = CAPTURED,
    ) -> Job:
        """Submit a command; returns its job, synced to disk.

        `delay_s`: seconds from now; or `run_at`: epoch seconds. `timeout_s`: None for no
        limit. `max_retries` counts the command's own failures, `max_crashes` (None: no
        limit) deaths of workers. `key`: while a job with this key is active (and for
        `key_for_s` seconds after its end) no second one is made; the existing one is
        returned. `env` overrides variables; `capture_env` names those that are kept from
        this process (None: all). `stdin`: what the command reads; otherwise end of file.

        Raises:
            InvalidInput: a value is not acceptable; nothing was stored.
            KeyConflict: the key is active for a different execution.
        """
        job = new_job(
            argv,
            queue=queue,
            priority=priority,
            delay_s=delay_s,
            run_at=run_at,
            timeout_s=timeout_s,
            max_retries=max_retries,
            max_crashes=max_crashes,
            cwd=cwd,
            env=env,
            key=key,
            key_for_s=key_for_s,
            tags=tags,
            note=note,
            policy=policy,
            stdin=stdin,
            capture_env=capture_env,
        )
        return self.submit([job])[0].job

    def add_many(
        self, jobs: Iterable[Sequence[str] | Mapping[str, Any] | NewJob], **options: Any
    ) -> list[Job]:
        """Submit all, or none, in one transaction; jobs come back in order.

        Each is a command, or a mapping of `add`'s arguments with `argv`; `options` are
        arguments of `add` that hold for all of them.

        Raises: as `add`.
        """
        captures = Captures()
        requests = [as_job(each, options, captures) for each in checks.items("jobs", jobs)]
        return [added.job for added in self.submit(requests)]

    def submit(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Like `add_many`, for jobs that are checked already; tells which were deduplicated."""
        jobs = checks.items("jobs", jobs)
        if not all(isinstance(job, NewJob) for job in jobs):
            raise InvalidInput("jobs: must be NewJobs")
        added = self._store.add(jobs, now=self._clock.now())
        self._ring_workers({each.job.queue for each in added if not each.deduplicated})
        return added

    # -- asking -----------------------------------------------------------------------------

    def get(self, job_id: int) -> Job:
        """One job. Raises NotFound."""
        return self._store.get(checks.job_id(job_id))

    def detail(self, job_id: int) -> JobDetail:
        """One job with its attempts, events and environment. Raises NotFound."""
        found = self._store.detail(checks.job_id(job_id))
        attempts = tuple(self._look_at(attempt) for attempt in found.attempts)
        return found._replace(attempts=attempts)

    def jobs(
        self,
        *,
        states: Sequence[State | str] = (),
        queue: str | None = None,
        tags: Mapping[str, str | None] | Sequence[tuple[str, str | None]] = (),
        priority_min: int | None = None,
        since: float | None = None,
        command: str | None = None,
        before_id: int | None = None,
        after_id: int | None = None,
        sort: str = "id",
        reverse: bool = False,
        limit: int | None = 50,
    ) -> list[Job]:
        """Matching jobs; all filters apply before the limit (None or 0: all).

        A tag's value None matches any. `since`: epoch time of the submission, or later.
        `command`: a part of the command line as `list` shows it, uncut and in the same case.
        `sort`: `id` (the newest first), `started`, `finished` (the latest first), `priority`
        (the highest first) or `next-run` (the soonest first); `reverse` turns it round. Jobs
        without that time come last either way.

        Raises: InvalidInput.
        """
        from spoolctl import asked

        wanted = asked.job_filter(
            states=states,
            queue=queue,
            tags=tags,
            priority_min=priority_min,
            before_id=before_id,
            after_id=after_id,
            since=since,
            command=command,
        )
        most = checks.maybe_whole("limit", limit, "event_id") or -1
        return self._store.find(wanted, limit=most, sort=asked.sort(sort), reverse=reverse)

    def first_job_id(self) -> int | None:
        """The lowest job id in the queue."""
        return self._store.first_job_id()

    def counts(self) -> Counts:
        """Jobs per state and queue."""
        return self._store.counts(now=self._clock.now())

    def recent_dead(self, limit: int) -> list[tuple[Job, Attempt | None]]:
        """Dead jobs, latest finish first, each with its latest attempt; `limit` 0: all."""
        found = self._store.recent_dead(checks.whole("limit", limit, "event_id"))
        return [(job, attempt and self._look_at(attempt)) for job, attempt in found]

    def events(
        self,
        *,
        since_id: int = 0,
        since: int | None = None,
        job_id: int | None = None,
        limit: int | None = 1000,
    ) -> EventPage:
        """Entries of the ledger with an id above `since_id`, ascending; `limit` None or 0: all.

        `since`: short for `since_id`.
        """
        checks.whole("since_id", since_id, "event_id")
        if since is not None:
            one = checks.one_of("since_id", since_id or None, "since", since)
            since_id = checks.whole("since", one, "event_id")
        checks.maybe_whole("job_id", job_id, "id")
        most = checks.maybe_whole("limit", limit, "event_id") or None
        return EventPage(*self._store.events(since_id=since_id, job_id=job_id, limit=most))

    def changed(self) -> int:
        """A number that differs whenever somebody else has changed the queue since (cheap).

        Raises:
            StoreGone: the file was removed or replaced.
        """
        return self._store.changed()

    # -- waiting ----------------------------------------------------------------------------

    def waiter(self, *, poll_s: float | None = None) -> Waiter:
        """A doorbell that rings whenever something was committed; close it after use."""
        from spoolctl.waiting import Waiter

        checks.maybe_span("poll_s", poll_s, "duration_seconds")
        return Waiter(self.path, poll_s=poll_s)

    def wait(
        self,
        job_ids: Iterable[int],
        *,
        first: bool = False,
        timeout_s: float | None = None,
        timeout: float | None = None,
        poll_s: float | None = None,
        watch: Callable[[Mapping[int, Job]], float | None] | None = None,
    ) -> dict[int, Job]:
        """Block until every job has settled; returns them by id, in the order given.

        `first`: until at least one has; returns those that have. A doorbell wakes it;
        `poll_s` is the safety net. `watch` is told the jobs that are still open, whenever
        something has changed and after so many seconds as it returned the last time.
        `timeout`: short for `timeout_s`.

        Raises:
            NotFound: unknown ids, all of them named; also when one is pruned before it
                was seen settled.
            WaitTimeout: `timeout_s` has passed; `pending` are the open ids.
            StoreGone: the file was removed or replaced.
        """
        from spoolctl.waiting import until_settled

        ids = tuple(dict.fromkeys(map(checks.job_id, checks.items("job_ids", job_ids))))
        left_s = checks.one_of("timeout_s", timeout_s, "timeout", timeout)
        if left_s != math.inf:
            checks.maybe_span("timeout_s", left_s, "any")
        with self.waiter(poll_s=poll_s) as waiter:
            return until_settled(
                self._store, waiter, ids, first=first, timeout_s=left_s, watch=watch
            )

    def unserved(self, lanes: Iterable[str]) -> frozenset[str]:
        """Which of these queues no worker serves that may be alive."""
        from spoolctl.engine.serving import unserved

        names = [checks.named("lanes", checks.text, e) for e in checks.items("lanes", lanes)]
        return unserved(self._store, names, self._judge())

    def orphans(self) -> dict[int, str]:
        """Running jobs whose worker is dead, with the proof; the next worker takes them back."""
        from spoolctl.engine.serving import orphans

        return orphans(self._store, self._judge(), now=self._clock.now())

    def _judge(self) -> Callable[[Identity, str], Judgement]:
        from spoolctl.process.identity import Evidence, judge

        evidence = Evidence(self.path)
        return lambda who, lock: judge(who, lock, evidence=evidence)

    # -- output -----------------------------------------------------------------------------

    def attempt(self, job_id: int, attempt_no: int | None = None) -> Attempt | None:
        """One attempt, by default the latest; None if the job has none yet.

        Raises:
            NotFound: no such job, or no attempt of that number.
        """
        checks.maybe_whole("attempt_no", attempt_no, "attempt_number")
        found = self._store.attempt(checks.job_id(job_id), attempt_no)
        return found and self._look_at(found)

    def output(
        self, job_id: int, *, attempt_no: int | None = None, stream: str = "stdout"
    ) -> bytes:
        """Everything that an attempt (by default the latest) has written to a stream so far.

        All of it is in memory then: see `reader` for large streams.

        Raises: NotFound.
        """
        from spoolctl import asked

        asked.stream(stream)
        attempt = self.attempt(job_id, attempt_no)
        if attempt is None:
            return b""
        with self.reader(attempt, stream) as reader:
            return b"".join(reader.chunks())

    def reader(self, attempt: Attempt, stream: str) -> Reader:
        """One stream of an attempt, opened for reading in pieces; close it after use."""
        from spoolctl import asked
        from spoolctl.engine.output import open_stream

        if not isinstance(attempt, Attempt):
            raise InvalidInput("attempt: must be an Attempt")
        return open_stream(self._store, attempt, asked.stream(stream))

    def follow(
        self,
        job_id: int,
        *,
        streams: Sequence[str] = STREAMS,
        attempt_no: int | None = None,
        waits: bool = False,
        tail_lines: int | None = None,
        retries: bool = False,
        on_idle: Callable[[], None] | None = None,
        on_retry: Callable[[Job, Attempt], None] | None = None,
    ) -> Iterator[Piece]:
        """What an attempt writes, as it comes, until it has ended.

        Waits for the first attempt of a job that has not started; with `waits` for
        `attempt_no` as well. `tail_lines`: begin that
        many lines before the present end; None: at the first byte. `retries`: go on with
        the next attempts until the job has settled; `on_retry` is called with the job
        and each that has failed and was not the last. `on_idle` is called, some
        times a second, while nothing comes.

        Raises: NotFound; StoreGone (the file was removed or replaced).
        """
        from spoolctl import asked
        from spoolctl.engine.output import Follower

        names = asked.stream_list(streams)
        checks.maybe_whole("attempt_no", attempt_no, "attempt_number")
        checks.maybe_whole("tail_lines", tail_lines, "tail_lines")
        self._store.get(checks.job_id(job_id))
        with self.waiter() as waiter:

            def sleep(seconds: float) -> None:
                if on_idle is not None:
                    on_idle()
                waiter.sleep(seconds)

            follower = Follower(
                self._store,
                job_id,
                streams=names,
                attempt_no=attempt_no,
                waits=waits,
                tail_lines=tail_lines,
                retries=retries,
                sleep=sleep,
                on_retry=on_retry,
            )
            yield from follower.pieces()

    def _look_at(self, attempt: Attempt) -> Attempt:
        """The attempt with what can be found out about its files at the moment."""
        return attempt._replace(
            stdout=self._inspect(attempt, "stdout"), stderr=self._inspect(attempt, "stderr")
        )

    def _inspect(self, attempt: Attempt, stream: str) -> StreamInfo:
        from spoolctl.engine.output import inspect

        return inspect(attempt, stream, db_path=self.path)

    # -- changing ---------------------------------------------------------------------------

    def cancel(
        self, job_id: int, *, running: bool = False, confirm_s: float = CONFIRM_S
    ) -> Canceled:
        """Cancel a queued job, or with `running` one that runs.

        A running job is canceled at once; then its owner ends the processes, and this
        returns when they are gone, or after `confirm_s` seconds all the same.

        Raises:
            NotFound: no such job.
            SafetyBlock: it runs, and `running` is false.
            IllegalTransition: it has settled already.
        """
        checks.job_id(job_id)
        checks.span("confirm_s", confirm_s, "any")
        with self.waiter() as waiter:
            was_running = self._store.cancel(job_id, running=running, now=self._clock.now())
            job = self._store.get(job_id)
            self._ring_owner(job_id)
            gone = not was_running or self._await_gone(job_id, waiter, confirm_s)
        return Canceled(job, was_running, gone)

    def _await_gone(self, job_id: int, waiter: Waiter, timeout_s: float) -> bool:
        """Whether the processes of all the job's attempts were confirmed gone in time."""
        from spoolctl.engine.clock import mono

        until = mono() + timeout_s
        while self._store.owner_token(job_id) is not None:
            left = until - mono()
            if left <= 0:
                return False
            waiter.sleep(min(left, 0.5))
        return True

    def retry(self, job_id: int, *, force: bool = False) -> Job:
        """Put a dead, failed or canceled job (with `force`: a running one) back, with a fresh
        budget. It starts when no process of an earlier attempt is left.

        Raises:
            NotFound: no such job.
            SafetyBlock: it runs, and `force` is false.
            IllegalTransition: its state does not allow it.
        """
        self._store.retry(checks.job_id(job_id), force=force, now=self._clock.now())
        job = self._store.get(job_id)
        self._ring_owner(job_id)
        self._ring_workers({job.queue})
        return job

    def prune(
        self,
        older_than_s: float,
        *,
        states: Sequence[State | str] = (State.DONE,),
        dry_run: bool = False,
    ) -> PruneResult:
        """Delete settled jobs that finished longer ago than that, with all they left behind.

        In short steps, so that no worker has to wait. With `dry_run` nothing is deleted.
        """
        from spoolctl import asked
        from spoolctl.engine.pruning import prune

        checks.span("older_than_s", older_than_s, "any")
        now = self._clock.now()
        done = prune(
            self._store,
            before=now.at - older_than_s,
            states=asked.state_list(states),
            dry_run=dry_run,
            now=now,
        )
        if done.jobs and not dry_run:
            self._ring_waiters()
        return done

    def backup(self, target: str | os.PathLike[str]) -> BackupResult:
        """Copy the queue, as of one moment, to a new file, large streams beside it.

        The copy is a queue of its own. Nothing is left behind after a failure.

        Raises:
            InvalidInput: `target` exists, or its folder cannot be used.
        """
        from spoolctl.engine.stream_files import backup

        target = checks.named("target", checks.file_path, target)
        streams, size = backup(self._store, target)
        return BackupResult(os.path.realpath(target), streams, size)

    # -- working ----------------------------------------------------------------------------

    def work(
        self,
        options: WorkOptions | None = None,
        *,
        log: Callable[[str], None] | None = None,
        progress: Progress | None = None,
        helper: Helper | None = None,
    ) -> WorkResult:
        """Run jobs in this process, as `spoolctl work` does, until `options` are fulfilled
        or a signal comes; takes over SIGINT, SIGTERM, SIGHUP and SIGCHLD meanwhile.

        `log` gets one line per attempt and recovered job. `helper`: a child of this process
        that has nothing to do with the jobs.

        Raises:
            Untrusted: another user owns the queue or may write to it.
        """
        from spoolctl.engine.options import WorkOptions, checked
        from spoolctl.engine.trust import check_trust
        from spoolctl.engine.worker import run_worker

        chosen = checked(WorkOptions() if options is None else options)
        if not chosen.trust:
            check_trust(self.path)
        # The loop must not stand still: it comes back for a lock that is taken for longer.
        wait_s, self._store.wait_s = self._store.wait_s, WORKER_WAIT_S
        try:
            return run_worker(
                self._store, chosen, log=log or _silent, progress=progress, helper=helper
            )
        finally:
            self._store.wait_s = wait_s

    # -- doorbells --------------------------------------------------------------------------

    # The commit is done: a bell that cannot be rung must not make it look undone.

    def _ring_workers(self, lanes: Iterable[str]) -> None:
        with suppress(OSError, SpoolError):
            tokens = {token for lane in lanes for token in self._store.bells(lane)}
            self._ring(workers_dir(self.path), tokens)
        self._ring_waiters()

    def _ring_owner(self, job_id: int) -> None:
        with suppress(OSError, SpoolError):
            token = self._store.owner_token(job_id)
            self._ring(workers_dir(self.path), [token] if token else [])
        self._ring_waiters()

    def _ring_waiters(self) -> None:
        self._ring(waiters_dir(self.path), None)

    def _ring(self, folder: str, tokens: Iterable[str] | None) -> None:
        # The import too: for want of a descriptor, or of the module since an upgrade.
        with suppress(OSError, ImportError):
            from spoolctl.process.bell import ring

            if os.path.isdir(support_dir(self.path)):
                ring(folder, tokens)


def _silent(line: str) -> None:
    """Swallow a log line."""

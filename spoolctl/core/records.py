"""Immutable records that cross the rooms. `NamedTuple`s: dataclasses cost start-up time.

Suffixes: `_at` epoch seconds UTC (wall clock), `_boot` seconds on the boot clock, `_s`
seconds, `_bytes` bytes.
"""

from __future__ import annotations

from spoolctl.core.retry import DEFAULT_POLICY, RetryPolicy
from spoolctl.core.states import AttemptState, Ledger, Reason, State
from spoolctl.core.tuples import NamedTuple

SILENT_INTERVALS = 4
SILENT_AT_LEAST_S = 30.0


class Instant(NamedTuple):
    """One reading of all clocks.

    `at`: epoch seconds, UTC, may be stepped. `boot`: seconds since boot, suspend included
    (CLOCK_BOOTTIME where it exists), never stepped. `mono`: CLOCK_MONOTONIC, stands still in
    suspend. `boot_id`: which boot the last two belong to.
    """

    at: float
    boot: float
    mono: float
    boot_id: str


class Identity(NamedTuple):
    """Who a worker process is. More than a pid, since pids are reused.

    `pid_ns`: the PID namespace's id (`readlink /proc/self/ns/pid`), empty where there is none.
    `start`: when the process started, opaque, comparable for equality only (Linux: clock
    ticks since boot, field 22 of /proc/PID/stat). `lock_dev`, `lock_ino`: the lock file that
    it holds for its life.
    """

    boot_id: str
    pid_ns: str
    pid: int
    start: str
    lock_dev: int
    lock_ino: int


LEFT = "left"
"""The `start` of a worker that has left its attempts while its process lives on. No process
has this one: so that worker is told from it, as a pid is told from the process that gets it later.
"""


class NewWorker(NamedTuple):
    """A worker that registers itself. `lanes` None serves every queue."""

    token: str
    name: str
    identity: Identity
    lanes: tuple[str, ...] | None
    slots: int
    interval_s: float


class Registered(NamedTuple):
    """A worker's id, and one sentence for each repair that was made on the way.

    `ready`: how many jobs of its lanes may be claimed now, as far as is counted. `alone`: no other
    worker is registered, nor one that has died and whose attempts nobody has taken back yet.
    """

    worker_id: int
    healed: tuple[str, ...]
    ready: int
    alone: bool


class WorkerRow(NamedTuple):
    """A registered worker. `heartbeat_boot` counts on the clock of `identity.boot_id`."""

    id: int
    token: str
    name: str
    identity: Identity
    lanes: tuple[str, ...] | None
    slots: int
    interval_s: float
    started_at: float
    heartbeat_at: float
    heartbeat_boot: float

    def is_silent(self, threshold_s: float | None, now: Instant) -> bool:
        """Whether its last heartbeat is older than `threshold_s` (None: some of its intervals).

        By the boot clock: the wall clock may be stepped, and heartbeats stop in suspend.
        Says nothing about whether it is dead.
        """
        if self.identity.boot_id != now.boot_id:
            return True
        if threshold_s is None:
            threshold_s = max(SILENT_INTERVALS * self.interval_s, SILENT_AT_LEAST_S)
        return now.boot - self.heartbeat_boot > threshold_s


class Context(NamedTuple):
    """What was captured at submission without being asked for; stored once per distinct set.

    `umask` is None where it was not captured: then the worker's holds.
    """

    cwd: str | None
    umask: int | None
    env: tuple[tuple[str, str], ...]


class NewJob(NamedTuple):
    """A job to be added, validated. At most one of `delay_s` and `run_at` is set.

    `cwd` and `env` are what the submitter asked for explicitly (compared by keys of
    idempotency); `context` is what was captured besides (not compared).
    """

    argv: tuple[str, ...]
    context: Context
    queue: str = "default"
    priority: int = 0
    delay_s: float | None = None
    run_at: float | None = None
    timeout_s: int | None = 300
    max_retries: int = 3
    max_crashes: int | None = 20
    cwd: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    key: str | None = None
    key_for_s: float | None = None
    tags: tuple[tuple[str, str], ...] = ()
    note: str | None = None
    policy: RetryPolicy = DEFAULT_POLICY
    stdin: bytes | None = None


class Added(NamedTuple):
    """The answer to one submission.

    `differences`: where an existing job was returned for its key although tags, note or
    requested schedule differ: field -> (existing, submitted).
    """

    job: Job
    deduplicated: bool
    differences: tuple[tuple[str, object, object], ...] = ()


class Job(NamedTuple):
    """A job as everybody sees it; members as in docs/concepts.md.

    `attempts` and `crashes` count unsuccessful executions since submission or the last
    manual retry. `cwd` is the folder in which it will run (asked for or captured).
    `ready`: a worker may claim it now; a queued job that is not ready waits for its time or
    for the processes of an earlier attempt.
    """

    id: int
    argv: tuple[str, ...]
    state: State
    attempts: int
    crashes: int
    max_retries: int
    max_crashes: int | None
    timeout_s: int | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    next_run_at: float
    priority: int
    queue: str
    cwd: str | None
    last_exit_code: int | None
    last_error: str | None
    last_failure_reason: Reason | None
    key: str | None
    tags: tuple[tuple[str, str], ...]
    note: str | None
    ready: bool


class Owner(NamedTuple):
    """Who runs a job at the moment. `locked_at` is the time of the claim."""

    locked_by: str
    locked_pid: int
    locked_at: float
    heartbeat_at: float


class Recovery(NamedTuple):
    """Why a running job whose owner is silent has not been taken back (yet).

    `verdict`: `alive`, `dead` or `unclear`.
    """

    verdict: str
    reason: str


class StreamInfo(NamedTuple):
    """One stream of one attempt. `stored`: `file`, `database` or `missing` (file gone).

    `dropped_bytes` were cut out of the middle at `gap_start` by the output limit;
    `shortened` tells that the command truncated its own stream. `path` is None when the
    stream is stored in the database.
    """

    stored: str
    path: str | None
    size_bytes: int
    dropped_bytes: int = 0
    gap_start: int = 0
    shortened: bool = False


class Attempt(NamedTuple):
    """One execution of a job. `duration_s` was measured on the monotonic clock.

    `gone_at`: when all its processes were confirmed gone; None while some may live.
    `survivors`: how many processes a succeeded attempt left running; None if unknown.
    """

    id: int
    token: str
    job_id: int
    attempt_no: int
    state: AttemptState
    worker_name: str
    worker_pid: int
    started_at: float
    finished_at: float | None
    duration_s: float | None
    exit_code: int | None
    error: str | None
    failure_reason: Reason | None
    gone_at: float | None
    survivors: int | None
    stdout: StreamInfo
    stderr: StreamInfo


class EventRow(NamedTuple):
    """One entry of the ledger."""

    id: int
    job_id: int
    at: float
    event: Ledger
    worker_name: str | None
    detail: str | None


class JobDetail(NamedTuple):
    """A job with all that is known of it. `env` are the overrides asked for at `add`.

    `key_for_s`: how long the key protects after the end of the job; None: not at all.
    """

    job: Job
    env: tuple[tuple[str, str], ...]
    context: Context
    owner: Owner | None
    recovery: Recovery | None
    attempts: tuple[Attempt, ...]
    events: tuple[EventRow, ...]
    policy: RetryPolicy
    key_for_s: float | None


class Want(NamedTuple):
    """What a worker would take: at most `limit` jobs of `lanes` (None: all queues).

    `lanes` are in order of preference. `ceiling` is the most attempts that may live at a
    time in each lane, over all workers. `job_id`: this job and no other; `lanes` then is
    its lane, which is promoted all the same. The last `ahead` of `limit` are for slots that
    are not free yet (`engine.ahead`): only jobs that can bear some crashes are for them.
    """

    limit: int
    lanes: tuple[str, ...] | None
    ceiling: int | None = None
    job_id: int | None = None
    ahead: int = 0


class Claimed(NamedTuple):
    """An attempt that now belongs to the worker, with all that it needs to run it.

    `env` are the captured variables overlaid with the job's own.
    """

    attempt_id: int
    token: str
    job_id: int
    attempt_no: int
    argv: tuple[str, ...]
    queue: str
    key: str | None
    cwd: str | None
    umask: int | None
    env: tuple[tuple[str, str], ...]
    timeout_s: int | None
    stdin: bytes | None


class Capture(NamedTuple):
    """What became of one stream when its attempt ended.

    `data`: the bytes, if they go into the database; None if they stay in the file.
    """

    size_bytes: int
    data: bytes | None
    dropped_bytes: int = 0
    gap_start: int = 0
    shortened: bool = False
    missing: bool = False


class Outcome(NamedTuple):
    """How an attempt ended, reported by its owner once all its processes are gone.

    (Those of a succeeded one may live on; `survivors` counts them.) `state` ABANDONED with
    reason WORKER_SHUTDOWN gives the job back without spending its budget. Not `started`: the
    claim is taken back, and the attempt is as if it had never been.
    """

    attempt_id: int
    state: AttemptState
    reason: Reason | None
    exit_code: int | None
    error: str | None
    duration_s: float
    survivors: int | None
    stdout: Capture
    stderr: Capture
    started: bool = True


class Recorded(NamedTuple):
    """What a report led to. `job_state` is None if the result was discarded: the attempt had
    been canceled, forced or reaped meanwhile."""

    attempt_id: int
    job_id: int
    job_state: State | None
    next_run_at: float | None


class Cycle(NamedTuple):
    """The result of one worker transaction: what was recorded, what was claimed.

    `next_due_s`: seconds until the next job of the lanes falls due (0: more is due now but
    was not promoted yet), None if none is waiting for its time. `waited`: another program was in
    the way, since the last cycle that wrote.
    """

    recorded: tuple[Recorded, ...]
    claimed: tuple[Claimed, ...]
    next_due_s: float | None
    waited: bool = False


class Suspect(NamedTuple):
    """An attempt without `gone_at` whose owner has been silent for too long.

    `worker` is None if its row is missing (a damaged file). `attempt_state` is not RUNNING
    where the job was canceled or forced and its owner never confirmed the end.
    """

    attempt_id: int
    token: str
    job_id: int
    attempt_no: int
    attempt_state: AttemptState
    worker: WorkerRow | None


class Reaped(NamedTuple):
    """A job taken back. `job_state` is None where only the end of a canceled or forced
    attempt was confirmed."""

    job_id: int
    attempt_no: int
    worker_pid: int
    job_state: State | None


SORTS = ("finished", "id", "next-run", "priority", "started")
"""By what a list can be sorted: the latest, the highest, for `next-run` the soonest first."""


class JobFilter(NamedTuple):
    """Which jobs to list; all parts must match. `tags`: (key, value or None for any).

    `since`: created at this epoch time or later. `command`: a part of the command line as it
    is shown (`core.display.command`). The ids of `before_id` and `after_id` are left out.
    """

    states: tuple[State, ...] = ()
    queue: str | None = None
    tags: tuple[tuple[str, str | None], ...] = ()
    priority_min: int | None = None
    ids: tuple[int, ...] = ()
    before_id: int | None = None
    after_id: int | None = None
    since: float | None = None
    command: str | None = None


class Counts(NamedTuple):
    """How many jobs are in each state, per queue. `scheduled`: queued, but not due yet."""

    states: dict[State, int]
    scheduled: int
    queues: dict[str, tuple[dict[State, int], int]]

    def queued_in(self, lanes: tuple[str, ...] | None) -> int:
        """How many jobs are queued in these queues (None: in all), later ones included."""
        return sum(
            by_state[State.QUEUED]
            for lane, (by_state, _) in self.queues.items()
            if lanes is None or lane in lanes
        )


class Pruned(NamedTuple):
    """What one step of a prune deleted (or would delete).

    `tokens`: attempts whose stream files may now be unlinked. `more`: call again.
    """

    jobs: int
    attempts: int
    events: int
    database_bytes: int
    tokens: tuple[str, ...]
    more: bool

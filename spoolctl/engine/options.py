"""What a worker is asked to do, and what it answers."""

from __future__ import annotations

from spoolctl.core import checks
from spoolctl.core.tuples import NamedTuple
from spoolctl.errors import InvalidInput

HEARTBEAT_INTERVAL_S = 5.0
POLL_INTERVAL_S = 5.0
GRACE_S = 5.0
INLINE_BYTES = 64 * 1024
MAX_OUTPUT_BYTES = 1 << 30

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[int, int, int, int], None]


class WorkOptions(NamedTuple):
    """How to work. Seconds and bytes; None: no such limit.

    `lanes`: queues in order of preference, None for all. `jobs`: commands side by side.
    `slots`: refuse to claim while that many attempts of the lane live, over all workers.
    `once`: at most one attempt. `drain`: end when the lanes are settled.
    `reap_after_s`: age of a heartbeat from which its worker is looked into; None: four of
    that worker's intervals, at least 30 s. `inline_bytes`: streams up to this size move into
    the database. `idle_timeout_s`: end after so long without anything to do.
    `shutdown_timeout_s`: how long after the first stop request what runs may go on.

    `job_id`: work for this one job until it has settled, and leave it to whoever else serves
    its lane, the one in `lanes`, as long as such a worker is there. Others do not see a
    worker of that kind as one that serves the lane.
    """

    lanes: tuple[str, ...] | None = ("default",)
    jobs: int = 1
    once: bool = False
    drain: bool = False
    slots: int | None = None
    max_jobs: int | None = None
    idle_timeout_s: float | None = None
    poll_interval_s: float = POLL_INTERVAL_S
    worker_id: str | None = None
    reap_after_s: float | None = None
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S
    shutdown_timeout_s: float | None = None
    max_output_bytes: int = MAX_OUTPUT_BYTES
    inline_bytes: int = INLINE_BYTES
    grace_s: float = GRACE_S
    trust: bool = False
    job_id: int | None = None

    @property
    def most_claims(self) -> int | None:
        """How many jobs it may claim until it ends; None: any number."""
        return 1 if self.once else self.max_jobs


def checked(options: WorkOptions) -> WorkOptions:
    """The options, if a worker can go by them. Raises InvalidInput, which names what is wrong."""
    if not isinstance(options, WorkOptions):
        raise InvalidInput("options: must be WorkOptions")
    for name, limit in _WHOLE.items():
        checks.maybe_whole(name, getattr(options, name), limit)
    for name, limit in _SECONDS.items():
        checks.maybe_span(name, getattr(options, name), limit)
    for name in _REQUIRED:
        if getattr(options, name) is None:
            raise InvalidInput(f"{name}: must be a number")
    if options.worker_id is not None:
        checks.named("worker_id", checks.worker_id, options.worker_id)
    if options.lanes is None:
        return options
    lanes = checks.items("lanes", options.lanes)
    named = [checks.named("lanes", checks.queue_name, lane) for lane in lanes]
    # Each once, or it would be asked twice for the same jobs.
    return options._replace(lanes=tuple(dict.fromkeys(named)))


_WHOLE = {
    "jobs": "worker_jobs",
    "slots": "worker_slots",
    "max_jobs": "worker_max_jobs",
    "max_output_bytes": "output_bytes",
    "inline_bytes": "budget",
    "job_id": "id",
}
_SECONDS = {
    "idle_timeout_s": "duration_seconds",
    "poll_interval_s": "poll_interval_seconds",
    "reap_after_s": "duration_seconds",
    "heartbeat_interval_s": "poll_interval_seconds",
    "shutdown_timeout_s": "duration_seconds",
    "grace_s": "duration_seconds",
}
_REQUIRED = (
    "jobs",
    "max_output_bytes",
    "inline_bytes",
    "poll_interval_s",
    "heartbeat_interval_s",
    "grace_s",
)


class Helper(NamedTuple):
    """A child process that the caller of a worker has started for a purpose of its own.

    `pid`: the worker takes it for none of its commands' processes. `fd`: when it becomes
    readable the worker stops, as if it had been told to.
    """

    pid: int
    fd: int


class WorkResult(NamedTuple):
    """What a worker did. `executed`: attempts that it ran to their end.

    `drained`: a drain reached its end (False: a signal came first). `job_id`, `attempt_no`,
    `attempt_state` and `job_state` tell of the last attempt, for `once`; `job_state` is None
    if its result was discarded. `failure`: why the worker had to stop (the queue's file was
    removed or migrated); None otherwise. `stop_signal`: the number of the first signal that
    asked it to stop.
    """

    executed: int
    drained: bool
    stopped: bool
    job_id: int | None
    attempt_no: int | None
    attempt_state: str | None
    job_state: str | None
    failure: Exception | None
    stop_signal: int | None = None

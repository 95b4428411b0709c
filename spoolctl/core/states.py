"""Which states a job has, and the one table of what may follow what.

`TRANSITIONS` is the only place that knows a legal move. A store asks `move()` before it
writes `jobs.state`, and writes the ledger entries that the move names in the same
transaction. `docs/states.md` is generated from this table.
"""

from __future__ import annotations

from spoolctl.core.tuples import NamedTuple
from spoolctl.core.words import Enum
from spoolctl.errors import IllegalTransition


class State(str, Enum):
    """A job's state. The values are what scripts and the database see."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    CANCELED = "canceled"


class AttemptState(str, Enum):
    """An attempt's state; `running` until its end is recorded."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ABANDONED = "abandoned"
    CANCELED = "canceled"


class Reason(str, Enum):
    """Why an attempt did not succeed, in the order in which programs list them."""

    PROCESS_EXIT = "process_exit"
    TIMEOUT = "timeout"
    SPAWN_FAILED = "spawn_failed"
    WORKER_CRASH = "worker_crash"
    CANCELED = "canceled"
    WORKER_SHUTDOWN = "worker_shutdown"
    OUTPUT_LIMIT = "output_limit"
    DEPENDENCY_FAILED = "dependency_failed"
    UNKNOWN = "unknown"


class Ledger(str, Enum):
    """The types of the event ledger's entries."""

    ADDED = "added"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    REAPED = "reaped"
    RELEASED = "released"
    DEAD = "dead"
    FAILED_FINAL = "failed_final"
    RETRIED = "retried"
    CANCELED = "canceled"


class Event(str, Enum):
    """What happened to a job. A failure with tries left and one without are two entries."""

    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    FINAL = "final"
    TIMED_OUT = "timed_out"
    TIMED_OUT_EXHAUSTED = "timed_out_exhausted"
    REAPED = "reaped"
    REAPED_EXHAUSTED = "reaped_exhausted"
    RELEASED = "released"
    RETRIED = "retried"
    FORCED = "forced"
    CANCELED = "canceled"


class Move(NamedTuple):
    """Where an event leads, and the ledger entries that the move writes, in order."""

    to: State
    writes: tuple[Ledger, ...]


S, E, L = State, Event, Ledger

TRANSITIONS: dict[tuple[State, Event], Move] = {
    (S.QUEUED, E.CLAIMED): Move(S.RUNNING, (L.CLAIMED,)),
    (S.QUEUED, E.CANCELED): Move(S.CANCELED, (L.CANCELED,)),
    (S.RUNNING, E.SUCCEEDED): Move(S.DONE, (L.SUCCEEDED,)),
    (S.RUNNING, E.FAILED): Move(S.QUEUED, (L.FAILED,)),
    (S.RUNNING, E.EXHAUSTED): Move(S.DEAD, (L.FAILED, L.DEAD)),
    (S.RUNNING, E.FINAL): Move(S.FAILED, (L.FAILED, L.FAILED_FINAL)),
    (S.RUNNING, E.TIMED_OUT): Move(S.QUEUED, (L.TIMED_OUT,)),
    (S.RUNNING, E.TIMED_OUT_EXHAUSTED): Move(S.DEAD, (L.TIMED_OUT, L.DEAD)),
    (S.RUNNING, E.REAPED): Move(S.QUEUED, (L.REAPED,)),
    (S.RUNNING, E.REAPED_EXHAUSTED): Move(S.DEAD, (L.REAPED, L.DEAD)),
    (S.RUNNING, E.RELEASED): Move(S.QUEUED, (L.RELEASED,)),
    (S.RUNNING, E.FORCED): Move(S.QUEUED, (L.RETRIED,)),
    (S.RUNNING, E.CANCELED): Move(S.CANCELED, (L.CANCELED,)),
    (S.DEAD, E.RETRIED): Move(S.QUEUED, (L.RETRIED,)),
    (S.FAILED, E.RETRIED): Move(S.QUEUED, (L.RETRIED,)),
    (S.CANCELED, E.RETRIED): Move(S.QUEUED, (L.RETRIED,)),
}

SETTLED = frozenset({S.DONE, S.FAILED, S.DEAD, S.CANCELED})
"""States that a job leaves only by a manual retry (`done`: never)."""


def move(state: State, event: Event, *, job_id: int | None = None) -> Move:
    """Where `event` leads from `state`, and what it writes.

    Raises:
        IllegalTransition: nowhere; the caller must write nothing.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(state.value, event.value, job_id=job_id) from None

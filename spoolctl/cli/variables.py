"""The environment variables that spoolctl reads, and those that it gives to commands."""

from __future__ import annotations

from spoolctl.core.tuples import NamedTuple
from spoolctl.engine.options import HEARTBEAT_INTERVAL_S


class Variable(NamedTuple):
    """A variable that is read. `limit`: a name of `core.limits.LIMITS`.

    `shadowed_by`: the flag that is preferred to it everywhere. `consumed_by` None: by every
    verb that takes `--db`. `invalid`: fault -> a value that shows it.
    """

    type: str
    description: str
    default: object
    limit: str
    consumed_by: tuple[str, ...] | None
    shadowed_by: str | None
    grammar: str
    invalid: dict[str, str]


_SECONDS = "a decimal number of seconds; an empty value is an error, not a default"
_BAD_SECONDS = {"empty": "", "malformed": "soon", "not_positive": "0", "above_maximum": "86401"}

VARIABLES: dict[str, Variable] = {
    "SPOOLCTL_DB": Variable(
        "path",
        "path of the queue's file, used where --db is not given",
        "./.spoolctl/queue.db",
        "cwd_length",
        None,
        "--db",
        "a path; relative ones are relative to the current directory",
        {"empty": "", "too_long": "x" * 4097},
    ),
    "SPOOLCTL_TEST_HEARTBEAT_INTERVAL": Variable(
        "float",
        "seconds between a worker's heartbeats; for trials with short times",
        HEARTBEAT_INTERVAL_S,
        "wait_seconds",
        ("run", "work"),
        None,
        _SECONDS,
        _BAD_SECONDS,
    ),
    "SPOOLCTL_TEST_REAP_THRESHOLD": Variable(
        "float",
        "age of a heartbeat, in seconds, from which its worker is looked into; for trials",
        30.0,
        "wait_seconds",
        ("run", "work"),
        None,
        _SECONDS,
        _BAD_SECONDS,
    ),
}
"""Variable -> what there is to say of it. Each has the prefix that is spoolctl's alone."""

GIVEN_TO_JOBS: dict[str, str] = {
    "SPOOLCTL_JOB_ID": "the job's number",
    "SPOOLCTL_ATTEMPT": "the number of this attempt, from 1",
    "SPOOLCTL_ATTEMPT_ID": "a random id of this attempt",
    "SPOOLCTL_ATTEMPT_PATH": "the ids of this attempt and of those around it, by which its "
    "processes are found again; leave it in place",
    "SPOOLCTL_QUEUE": "the name of the job's queue",
    "SPOOLCTL_DB": "the path of the queue's file",
    "SPOOLCTL_KEY": "the idempotency key, where the job has one",
    "SPOOLCTL_SLOT": "which of its worker's places it runs in, from 0",
}
"""Variable -> meaning, for the commands that workers run."""

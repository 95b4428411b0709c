"""Ranges and lengths of everything that people and programs may hand in; as data, once.

The command line, the Python API, `capabilities` and the docs all read this table.
"""

from __future__ import annotations

from spoolctl.core.tuples import NamedTuple

MAX_INT = 2**63 - 1
"""The largest integer that SQLite stores."""


class Limit(NamedTuple):
    """An inclusive range of a number, or of a length in characters (`type` "length").

    `exclusive`: the minimum itself is not allowed.
    """

    type: str
    minimum: int
    maximum: int
    exclusive: bool = False


LIMITS: dict[str, Limit] = {
    "attempt_number": Limit("integer", 1, MAX_INT),
    "cwd_length": Limit("length", 1, 4096),
    "duration_seconds": Limit("float", 0, 31_536_000_000),
    "env_key_length": Limit("length", 1, 128),
    "env_value_length": Limit("length", 0, 4096),
    "event_limit": Limit("integer", 0, 10_000),
    "feedback_tail_bytes": Limit("integer", 1, 65_536),
    "id": Limit("integer", 1, MAX_INT),
    "idempotency_key_length": Limit("length", 1, 256),
    "limit": Limit("integer", 0, 1000),
    "note_length": Limit("length", 0, 10_000),
    "poll_interval_seconds": Limit("float", 0, 3600, exclusive=True),
    "priority": Limit("integer", -(2**31), 2**31 - 1),
    "queue_name": Limit("length", 1, 64),
    "status_limit": Limit("integer", 0, 1000),
    "tag_count": Limit("count", 0, 16),
    "tag_key_length": Limit("length", 1, 128),
    "tag_value_length": Limit("length", 0, 1024),
    "timeout_seconds": Limit("integer", 1, MAX_INT),
    "timestamp_epoch_seconds": Limit("float", -31_536_000_000, 31_536_000_000),
    "wait_seconds": Limit("float", 0, 86_400, exclusive=True),
    "worker_id_length": Limit("length", 1, 256),
    "worker_slots": Limit("integer", 1, MAX_INT),
    # Beyond the floor of the interface:
    "budget": Limit("integer", 0, MAX_INT),
    "event_id": Limit("integer", 0, MAX_INT),
    "fraction": Limit("float", 0, 1),
    "events_to_follow": Limit("integer", 1, 10_000),
    "output_bytes": Limit("integer", 4096, MAX_INT),
    "tail_lines": Limit("integer", 0, 1_000_000_000),
    "worker_jobs": Limit("integer", 1, 10_000),
    "worker_max_jobs": Limit("integer", 1, MAX_INT),
    "stdin_bytes": Limit("integer", 0, 16 * 1024 * 1024),
    "argv_bytes": Limit("integer", 1, 1024 * 1024),
    # Linux: MAX_ARG_STRLEN of execve(2), 32 pages of 4 KiB with the NUL at the end.
    "argv_word_bytes": Limit("integer", 0, 128 * 1024 - 1),
}
"""Name -> range. Names are published by `capabilities`."""

QUEUE_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""For those who read it. `core.checks` says the same without `re`, which takes 3 ms to import."""

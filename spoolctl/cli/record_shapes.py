"""JSON Schemas of what several verbs show: jobs, attempts, events, streams."""

from __future__ import annotations

from spoolctl.cli import shapes
from spoolctl.cli.shapes import JsonSchema, nullable
from spoolctl.core.states import AttemptState, Ledger, Reason, State

STATE = shapes.words(State)
ATTEMPT_STATE = shapes.words(AttemptState)
REASON = nullable(shapes.words(Reason))
STORED: JsonSchema = {"type": "string", "enum": ["database", "file", "missing"]}
TIME = shapes.NUMBER
TIME_OR_NULL = nullable(shapes.NUMBER)
TEXT_OR_NULL = nullable(shapes.STRING)
PATH_OR_NULL = nullable(shapes.TEXT)

JOB: dict[str, JsonSchema] = {
    "id": shapes.ID,
    "argv": {"type": "array", "items": shapes.STRING, "minItems": 1},
    "state": STATE,
    "attempts": shapes.COUNT,
    "crashes": shapes.COUNT,
    "max_retries": shapes.COUNT,
    "timeout_seconds": nullable(shapes.ID),
    "created_at": TIME,
    "started_at": TIME_OR_NULL,
    "finished_at": TIME_OR_NULL,
    "next_run_at": TIME,
    "priority": shapes.INTEGER,
    "queue": shapes.TEXT,
    "cwd": PATH_OR_NULL,
    "last_exit_code": nullable(shapes.INTEGER),
    "last_error": TEXT_OR_NULL,
    "idempotency_key": TEXT_OR_NULL,
    "tags": shapes.mapping(shapes.STRING),
    "note": TEXT_OR_NULL,
}
"""Members of a job in `list`; `show` adds some."""

EVENT: dict[str, JsonSchema] = {
    "at": TIME,
    "event": shapes.words(Ledger),
    "worker_id": TEXT_OR_NULL,
    "detail": TEXT_OR_NULL,
}
"""Members of an entry of the ledger in `show`."""


def event() -> JsonSchema:
    """An entry of the ledger in `events`, one-shot and as a data frame."""
    return shapes.closed(id=shapes.ID, job_id=shapes.ID, **EVENT)


def events_follow() -> JsonSchema:
    """One line of `events --follow --json`: an event, or a control frame."""
    end = shapes.closed(
        type={"const": "end"}, reason={"type": "string", "enum": ["idle_timeout", "max_events"]}
    )
    error = shapes.closed(
        type={"const": "error"},
        reason={"const": "sqlite_error"},
        message=shapes.TEXT,
        exit_code={"const": 3},
    )
    return shapes.one_of(event(), shapes.closed(control=shapes.one_of(end, error)))

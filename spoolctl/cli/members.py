"""Jobs, attempts and events as JSON: their members, and the schema of these members."""

from __future__ import annotations

from spoolctl.core.records import Attempt, EventRow, Job, StreamInfo
from spoolctl.core.states import AttemptState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from spoolctl.cli.app import App

Json: TypeAlias = "dict[str, Any]"
JsonSchema: TypeAlias = "dict[str, Any]"


def job(row: Job) -> Json:
    """A job as in `list` and `show`."""
    return {
        "id": row.id,
        "argv": list(row.argv),
        "state": row.state.value,
        "attempts": row.attempts,
        "crashes": row.crashes,
        "max_retries": row.max_retries,
        "timeout_seconds": row.timeout_s,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "next_run_at": row.next_run_at,
        "priority": row.priority,
        "queue": row.queue,
        "cwd": row.cwd,
        "last_exit_code": row.last_exit_code,
        "last_error": row.last_error,
        "idempotency_key": row.key,
        "tags": dict(row.tags),
        "note": row.note,
    }


def attempt(row: Attempt) -> Json:
    """An attempt as in `show`."""
    return {
        "attempt_no": row.attempt_no,
        "state": row.state.value,
        "worker_id": row.worker_name,
        "worker_pid": row.worker_pid,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "duration_seconds": row.duration_s,
        "exit_code": row.exit_code,
        "error": row.error,
        "failure_reason": row.failure_reason and row.failure_reason.value,
        "gone_at": row.gone_at,
        "stdout_path": path_of(row.stdout),
        "stderr_path": path_of(row.stderr),
        "stored": {"stdout": row.stdout.stored, "stderr": row.stderr.stored},
        "survivors": row.survivors,
    }


def path_of(stream: StreamInfo) -> str | None:
    """Where a stream's file is, or was; None if the stream is in the database."""
    return None if stream.stored == "database" else stream.path


def warn_if_incomplete(app: App, row: Attempt) -> None:
    """A success in spite of a full disk: what the command meant to write may be missing."""
    if row.state is AttemptState.SUCCEEDED and row.error:
        app.warn("OUTPUT_INCOMPLETE", f"job {row.job_id} attempt {row.attempt_no}: {row.error}")


def event(row: EventRow) -> Json:
    """An entry of the ledger."""
    return {
        "id": row.id,
        "job_id": row.job_id,
        "at": row.at,
        "event": row.event.value,
        "worker_id": row.worker_name,
        "detail": row.detail,
    }


# -- schemas --------------------------------------------------------------------------------


def job_schema(**more: JsonSchema) -> JsonSchema:
    """The schema of `job`, with further members."""
    from spoolctl.cli import shapes
    from spoolctl.core.states import State

    maybe = shapes.nullable
    return shapes.closed(
        id=shapes.ID,
        argv=shapes.array(shapes.STRING, minItems=1),
        state=shapes.words(State),
        attempts=shapes.COUNT,
        crashes=shapes.COUNT,
        max_retries=shapes.COUNT,
        timeout_seconds=maybe(shapes.ID),
        created_at=shapes.NUMBER,
        started_at=maybe(shapes.NUMBER),
        finished_at=maybe(shapes.NUMBER),
        next_run_at=shapes.NUMBER,
        priority=shapes.INTEGER,
        queue=shapes.TEXT,
        cwd=maybe(shapes.STRING),
        last_exit_code=maybe(shapes.INTEGER),
        last_error=maybe(shapes.TEXT),
        idempotency_key=maybe(shapes.TEXT),
        tags=shapes.mapping(shapes.STRING),
        note=maybe(shapes.STRING),
        **more,
    )


def attempt_schema() -> JsonSchema:
    """The schema of `attempt`."""
    from spoolctl.cli import shapes
    from spoolctl.core.states import AttemptState, Reason

    maybe = shapes.nullable
    return shapes.closed(
        attempt_no=shapes.ID,
        state=shapes.words(AttemptState),
        worker_id=shapes.STRING,
        worker_pid=shapes.COUNT,
        started_at=shapes.NUMBER,
        finished_at=maybe(shapes.NUMBER),
        duration_seconds=maybe(shapes.NUMBER),
        exit_code=maybe(shapes.INTEGER),
        error=maybe(shapes.STRING),
        failure_reason=maybe(shapes.words(Reason)),
        gone_at=maybe(shapes.NUMBER),
        stdout_path=maybe(shapes.STRING),
        stderr_path=maybe(shapes.STRING),
        stored=shapes.closed(stdout=stored_schema(), stderr=stored_schema()),
        survivors=maybe(shapes.COUNT),
    )


def stored_schema() -> JsonSchema:
    """Where a stream is."""
    from spoolctl.cli import shapes

    return shapes.words(("file", "database", "missing"))


def event_schema(*, with_ids: bool = True) -> JsonSchema:
    """The schema of `event`; `show` leaves the ids out."""
    from spoolctl.cli import shapes
    from spoolctl.core.states import Ledger

    ids = {"id": shapes.ID, "job_id": shapes.ID} if with_ids else {}
    return shapes.closed(
        **ids,
        at=shapes.NUMBER,
        event=shapes.words(Ledger),
        worker_id=shapes.nullable(shapes.STRING),
        detail=shapes.nullable(shapes.STRING),
    )

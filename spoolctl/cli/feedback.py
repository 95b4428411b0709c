"""`spoolctl feedback`: the verdict on one job, in one call."""

from __future__ import annotations

from spoolctl.cli import shapes
from spoolctl.cli.members import stored_schema, warn_if_incomplete
from spoolctl.cli.render import visible, visible_lines
from spoolctl.cli.spec import COMMON, DB, JOB_ID, Flag, JsonSchema, Verb
from spoolctl.core.paths import STREAMS
from spoolctl.core.states import SETTLED, AttemptState, Reason, State
from spoolctl.core.tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.core.records import Attempt, Job
    from spoolctl.queue import Queue

TAIL_BYTES = 2048

NEXT = {
    State.RUNNING: "spoolctl wait {id}",
    State.DEAD: "spoolctl output {id}",
    State.FAILED: "spoolctl output {id}",
}
"""State -> the command to run next; for a queued job it depends on its past."""


def schema() -> JsonSchema:
    """What `data` looks like."""
    stream = shapes.closed(
        tail=shapes.STRING,
        size_bytes=shapes.COUNT,
        truncated=shapes.BOOLEAN,
        missing=shapes.BOOLEAN,
        path=shapes.nullable(shapes.TEXT),
        stored=stored_schema(),
    )
    return shapes.closed(
        job_id=shapes.ID,
        state=shapes.words(State),
        terminal=shapes.BOOLEAN,
        succeeded=shapes.nullable(shapes.BOOLEAN),
        exit_code=shapes.nullable(shapes.INTEGER),
        failure_reason=shapes.nullable(shapes.words(Reason)),
        last_error=shapes.nullable(shapes.STRING),
        attempts=shapes.COUNT,
        attempts_total=shapes.COUNT,
        latest_attempt_no=shapes.nullable(shapes.ID),
        duration_seconds=shapes.nullable({"type": "number", "minimum": 0}),
        remediation=shapes.nullable(shapes.TEXT),
        streams=shapes.table(STREAMS, stream),
    )


VERB = Verb(
    name="feedback",
    description="Say in one call how a job stands: whether it has settled and succeeded, its exit "
    "code, why it failed, the ends of both streams of its latest attempt, and the command to run "
    "next. Exits 0 for every job that exists, whatever its fate.",
    data_schema="The verdict, the ends of the latest attempt's streams, and the next command.",
    schema=schema,
    flags=(
        Flag(
            "--tail-bytes",
            "integer",
            "at most this many bytes from the end of each stream",
            metavar="N",
            default=TAIL_BYTES,
            limit="feedback_tail_bytes",
        ),
        Flag(
            "--stream",
            "enum",
            "which streams the text shows; with --json always both",
            metavar="NAME",
            default="both",
            choices=("both", "stderr", "stdout"),
        ),
        DB,
        *COMMON,
    ),
    positionals=(JOB_ID,),
    examples=(
        ("spoolctl", "feedback", "1"),
        ("spoolctl", "feedback", "--json", "--tail-bytes", "8192", "1"),
    ),
)


class Tail(NamedTuple):
    """The end of one stream. `path` None: stored in the database, or never started."""

    text: str
    size_bytes: int
    truncated: bool
    path: str | None
    stored: str


NEVER = Tail("", 0, False, None, "missing")
"""The end of a stream of a job that was never started."""


def run(args: Args, app: App) -> int:
    """Show the verdict."""
    job, attempt = _look(app.queue, args.id)
    if attempt is None:
        tails = dict.fromkeys(STREAMS, NEVER)
        app.warn("NO_ATTEMPTS_YET", f"job {job.id} has no attempts yet")
    else:
        warn_if_incomplete(app, attempt)
        tails = {name: _tail(app.queue, attempt, name, args.tail_bytes) for name in STREAMS}
        for name, tail in tails.items():
            # Of an attempt that is just being started the files may not be there yet.
            if tail.stored == "missing" and attempt.state is not AttemptState.RUNNING:
                app.warn(
                    "OUTPUT_MISSING",
                    f"the file of {name} of job {job.id} attempt {attempt.attempt_no} is gone",
                )
    data = {
        **verdict(job, attempt),
        "streams": {name: _stream(tail) for name, tail in tails.items()},
    }
    shown = STREAMS if args.stream == "both" else (args.stream,)
    return app.show(data, lambda: _text(app, data, {name: tails[name] for name in shown}))


def _look(queue: Queue, job_id: int) -> tuple[Job, Attempt | None]:
    """The job and its latest attempt, as of one moment.

    Two reads: looks again while the job moves in between (a job that moves all the time
    gets what was seen last).
    """
    for _ in range(10):
        job = queue.get(job_id)
        attempt = queue.attempt(job_id)
        if queue.get(job_id) == job:
            break
    return job, attempt


def verdict(job: Job, attempt: Attempt | None) -> dict[str, Any]:
    """All members but the streams; `attempt` is the latest one."""
    settled = job.state in SETTLED
    retrying = job.state is State.QUEUED and job.attempts > 0
    reason = job.last_failure_reason
    if retrying and attempt is not None:
        reason = attempt.failure_reason
    return {
        "job_id": job.id,
        "state": job.state.value,
        "terminal": settled,
        "succeeded": job.state is State.DONE if settled else None,
        "exit_code": _exit_code(job, attempt),
        "failure_reason": reason.value if reason is not None else None,
        "last_error": job.last_error,
        "attempts": job.attempts,
        # Numbers count up from 1 and none is ever left out.
        "attempts_total": attempt.attempt_no if attempt is not None else 0,
        "latest_attempt_no": attempt.attempt_no if attempt is not None else None,
        "duration_seconds": _duration(attempt) if settled and attempt is not None else None,
        "remediation": _next_command(job),
    }


def _exit_code(job: Job, attempt: Attempt | None) -> int | None:
    if job.state is State.DONE:
        return 0
    if job.state is State.QUEUED:
        return job.last_exit_code
    if job.state in (State.DEAD, State.FAILED) and attempt is not None:
        return attempt.exit_code
    return None


def _duration(attempt: Attempt) -> float | None:
    if attempt.duration_s is not None:
        return attempt.duration_s
    if attempt.finished_at is None:
        return None
    # Not measured: its worker died. The wall clock may have been set back meanwhile.
    return max(0.0, attempt.finished_at - attempt.started_at)


def _next_command(job: Job) -> str | None:
    if job.state is State.QUEUED:
        return f"spoolctl show {job.id}" if job.attempts else "spoolctl work --drain"
    command = NEXT.get(job.state)
    return command.format(id=job.id) if command is not None else None


def _tail(queue: Queue, attempt: Attempt, name: str, length: int) -> Tail:
    with queue.reader(attempt, name) as reader:
        info, kept = reader.info, reader.kept_bytes
        data = reader.tail(length)
    size = max(info.size_bytes, kept)
    truncated = size > len(data)
    path = None if info.stored == "database" else info.path
    return Tail(decoded(data, cut=truncated), size, truncated, path, info.stored)


def decoded(data: bytes, *, cut: bool) -> str:
    """The text of bytes; `cut`: they may begin inside of a character, whose rest is dropped."""
    start = 0
    if cut:
        # At most three continuation bytes (0b10xxxxxx) can belong to one character.
        while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
            start += 1
    return data[start:].decode("utf-8", "replace")


def _stream(tail: Tail) -> dict[str, Any]:
    return {
        "tail": tail.text,
        "size_bytes": tail.size_bytes,
        "truncated": tail.truncated,
        "missing": tail.stored == "missing",
        "path": tail.path,
        "stored": tail.stored,
    }


def _text(app: App, data: dict[str, Any], tails: dict[str, Tail]) -> str:
    outcome = {True: "succeeded", False: "failed", None: "in flight"}[data["succeeded"]]
    lines = [f"#{data['job_id']}  {app.style.state(data['state'])}  {outcome}"]
    shown = ("exit_code", "failure_reason", "last_error")
    lines += [f"{name}: {_or_dash(data[name])}" for name in shown]
    lines.append(f"attempts: {data['attempts']}  recorded: {data['attempts_total']}")
    seconds = data["duration_seconds"]
    lines.append(f"duration_seconds: {'-' if seconds is None else f'{seconds:.1f}'}")
    for name, tail in tails.items():
        lines.append(f"=== {name} ({tail.size_bytes} bytes) ===")
        if tail.text:
            lines.append(visible_lines(tail.text.removesuffix("\n")))
    if data["remediation"] is not None:
        lines.append(f"next: {data['remediation']}")
    return "\n".join(lines)


def _or_dash(value: object) -> str:
    return "-" if value is None else visible(str(value))

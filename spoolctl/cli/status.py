"""`spoolctl status`: counts, and the latest dead jobs."""

from __future__ import annotations

from spoolctl.cli import render
from spoolctl.cli.members import path_of
from spoolctl.cli.spec import COMMON, DB, Flag, JsonSchema, Verb
from spoolctl.core.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.core.records import Attempt, Job

STATES = sorted(state.value for state in State)
COMMAND_CHARACTERS = 200
ORPHANS_NAMED = 10


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes

    maybe = shapes.nullable
    counts = shapes.table(STATES, shapes.COUNT)
    return shapes.closed(
        counts=counts,
        scheduled=shapes.COUNT,
        queues=shapes.mapping(shapes.closed(counts=counts, scheduled=shapes.COUNT)),
        recent_dead=shapes.array(
            shapes.closed(
                id=shapes.ID,
                command=shapes.STRING,
                attempts=shapes.COUNT,
                crashes=shapes.COUNT,
                last_error=maybe(shapes.TEXT),
                finished_at=maybe(shapes.NUMBER),
                stdout_path=maybe(shapes.STRING),
                stderr_path=maybe(shapes.STRING),
            )
        ),
    )


VERB = Verb(
    name="status",
    description="How many jobs are in each state, per lane, and which died last; with --json "
    "also a warning of running jobs whose worker is dead.",
    data_schema="Counts by state, in all and per lane; the latest dead jobs.",
    schema=schema,
    flags=(
        Flag(
            "--limit",
            "integer",
            "how many dead jobs to show; 0 for all",
            default=10,
            limit="status_limit",
        ),
        DB,
        *COMMON,
    ),
    examples=(("spoolctl", "status"), ("spoolctl", "status", "--json", "--limit", "1")),
)


def run(args: Args, app: App) -> int:
    """Read the counters."""
    queue = app.queue_if_any()
    dead: list[tuple[Job, Attempt | None]] = []
    if queue is None:
        data = _data({}, 0, {}, dead)
    else:
        counts = queue.counts()
        dead = queue.recent_dead(args.limit)
        data = _data(counts.states, counts.scheduled, counts.queues, dead)
        if app.json and data["counts"]["running"]:  # people ask `show` and `doctor`
            _tell_orphans(app, sorted(queue.orphans()))
    return app.show(data, lambda: _text(app, data, [job for job, _ in dead]))


def _tell_orphans(app: App, ids: list[int]) -> None:
    if not ids:
        return
    named = ", ".join(f"#{job_id}" for job_id in ids[:ORPHANS_NAMED])
    more = f" and {len(ids) - ORPHANS_NAMED} more" if len(ids) > ORPHANS_NAMED else ""
    app.warn(
        "OWNER_GONE",
        f"running, but the owner is gone: {named}{more}; a worker takes them back when the dead "
        "one has been silent for long enough",
    )


def _data(
    states: Mapping[State, int],
    scheduled: int,
    queues: Mapping[str, tuple[dict[State, int], int]],
    dead: list[tuple[Job, Attempt | None]],
) -> dict[str, Any]:
    return {
        "counts": _by_name(states),
        "scheduled": scheduled,
        "queues": {
            lane: {"counts": _by_name(of_lane), "scheduled": later}
            for lane, (of_lane, later) in sorted(queues.items())
            if any(of_lane.values())
        },
        "recent_dead": [_dead(job, attempt) for job, attempt in dead],
    }


def _by_name(states: Mapping[State, int]) -> dict[str, int]:
    return {name: states.get(State(name), 0) for name in STATES}


def _dead(job: Job, attempt: Attempt | None) -> dict[str, Any]:
    return {
        "id": job.id,
        "command": render.shorten(" ".join(job.argv), COMMAND_CHARACTERS),
        "attempts": job.attempts,
        "crashes": job.crashes,
        "last_error": job.last_error,
        "finished_at": job.finished_at,
        "stdout_path": attempt and path_of(attempt.stdout),
        "stderr_path": attempt and path_of(attempt.stderr),
    }


def _text(app: App, data: dict[str, Any], dead: list[Job]) -> str:
    lines = [_counts_line(data["counts"])]
    if data["scheduled"]:
        lines.append(f"scheduled {data['scheduled']}")
    if set(data["queues"]) - {"default"}:
        lines.append("queues:")
        for lane, part in data["queues"].items():
            later = f"  scheduled {part['scheduled']}" if part["scheduled"] else ""
            lines.append(f"  {lane}:  {_counts_line(part['counts'])}{later}")
    if dead:
        lines.append(app.style.bold("recent dead:"))
        lines += [_dead_line(app, job) for job in dead]
    return "\n".join(lines)


def _counts_line(counts: Mapping[str, int]) -> str:
    # Never coloured: scripts that drive a terminal look for exactly this line.
    return "  ".join(f"{name} {count}" for name, count in counts.items())


def _dead_line(app: App, job: Job) -> str:
    when = "" if job.finished_at is None else f"  {render.local_time(job.finished_at)}"
    error = render.shorten(render.visible(job.last_error or ""), 80)
    command = render.shorten(render.command(job.argv), COMMAND_CHARACTERS)
    line = f"  #{job.id}{when}  {error}  {command}"
    return render.fit(line, app.out.columns()) if app.out.is_terminal() else line

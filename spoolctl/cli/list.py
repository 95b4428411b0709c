"""`spoolctl list`: enumerate jobs."""

from __future__ import annotations

import time

from spoolctl.cli import members, render
from spoolctl.cli.spec import COMMON, DB, Flag, JsonSchema, Verb
from spoolctl.core.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.core.records import Job

COMMAND_CHARACTERS = 80
SCAN_LIMIT = 1000
"""How many jobs a tag filter is promised to look at, at least."""


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes

    return shapes.closed(count=shapes.COUNT, jobs=shapes.array(members.job_schema()))


VERB = Verb(
    name="list",
    description=(
        "Enumerate jobs, newest first. All filters apply before the limit, and a tag filter "
        "looks at every job. Environment values are never shown."
    ),
    data_schema="The jobs, newest first.",
    schema=schema,
    flags=(
        Flag(
            "--before-id",
            "integer",
            "only jobs with a smaller id: the next page after meta.pagination.cursor",
            metavar="ID",
            limit="id",
        ),
        Flag(
            "--limit",
            "integer",
            "how many jobs at most; 0 for all",
            default=50,
            limit="limit",
        ),
        Flag(
            "--priority-min", "integer", "only jobs with at least this priority", limit="priority"
        ),
        Flag("--queue", "queue", "only jobs of this lane", metavar="NAME"),
        Flag(
            "--state",
            "enum_csv",
            "only jobs in these states, separated by commas",
            metavar="STATES",
            choices=tuple(sorted(state.value for state in State)),
        ),
        Flag(
            "--tag",
            "key_value",
            "only jobs with this tag; all that are given must match",
            metavar="KEY[=VALUE]",
            default=(),
            repeatable=True,
            check="tag_filter",
        ),
        DB,
        *COMMON,
    ),
    examples=(
        ("spoolctl", "list"),
        ("spoolctl", "list", "--state", "dead,failed", "--tag", "batch=7", "--json"),
    ),
)


def run(args: Args, app: App) -> int:
    """Find the jobs, and tell whether there are more."""
    queue = app.queue_if_any()
    jobs: list[Job] = []
    first_id = None
    truncated = False
    if queue is not None:
        limit = args.limit or None
        found = queue.jobs(
            states=args.state or (),
            queue=args.queue,
            tags=args.tag,
            priority_min=args.priority_min,
            before_id=args.before_id,
            limit=None if limit is None else limit + 1,
        )
        jobs, truncated = found[:limit], limit is not None and len(found) > limit
        first_id = queue.first_job_id()
    pagination: dict[str, int | bool | None] = {
        "cursor": jobs[-1].id if jobs else 0,
        "first_id": first_id,
        "limit": args.limit,
        "truncated": truncated,
    }
    if args.tag:
        # Of a filter that may give up early these would tell how far it got. This one looks
        # at every job with the tag: at more than it promises.
        pagination |= {"scanned": len(jobs), "scan_limit": SCAN_LIMIT}
    data = {"count": len(jobs), "jobs": [members.job(job) for job in jobs]}
    return app.show(data, lambda: _text(app, jobs), meta={"pagination": pagination})


def _text(app: App, jobs: list[Job]) -> str:
    if not jobs:
        return "No jobs"
    if app.out.is_terminal():
        columns, now = app.out.columns(), time.time()
        lines = [render.fit(_short_line(job, now), columns) for job in jobs]
    else:
        lines = [_line(job) for job in jobs]
    return "\n".join(_colored(app, line, job) for line, job in zip(lines, jobs, strict=True))


def _line(job: Job) -> str:
    command = render.shorten(render.command(job.argv), COMMAND_CHARACTERS)
    return (
        f"#{job.id}  {job.state.value}  queue={job.queue}  priority={job.priority}  "
        f"next_run_at={render.local_time(job.next_run_at)}  attempts={job.attempts}  {command}"
    )


def _short_line(job: Job, now: float) -> str:
    """For a terminal: only what is out of the ordinary, so that there is room for the command."""
    parts = [f"#{job.id}", job.state.value]
    if job.queue != "default":
        parts.append(f"queue={job.queue}")
    if job.priority:
        parts.append(f"priority={job.priority}")
    if job.state is State.QUEUED and job.next_run_at > now:
        parts.append(f"in {render.duration(job.next_run_at - now)}")
    if job.attempts:
        parts.append(f"attempts={job.attempts}")
    return "  ".join([*parts, render.command(job.argv)])


def _colored(app: App, line: str, job: Job) -> str:
    # After cutting: escape sequences take no room.
    state = job.state.value
    return line.replace(f"  {state}  ", f"  {app.style.state(state)}  ", 1)

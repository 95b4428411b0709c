"""`spoolctl list`: enumerate jobs."""

from __future__ import annotations

import time

from spoolctl.cli import members, render
from spoolctl.cli.parse import UsageError
from spoolctl.cli.spec import COMMON, DB, Flag, JsonSchema, Verb
from spoolctl.core.records import SORTS
from spoolctl.core.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.core.records import Job
    from spoolctl.queue import Queue

COMMAND_CHARACTERS = 80
PAGE = 500
"""How many jobs are read at once where all are printed."""

SCAN_LIMIT = 1000
"""How many jobs a tag filter is promised to look at, at least."""


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes

    return shapes.closed(count=shapes.COUNT, jobs=shapes.array(members.job_schema()))


VERB = Verb(
    name="list",
    description=(
        "Enumerate jobs, newest first unless --sort says otherwise. All filters apply before "
        "the limit, and each looks at every job. Environment values are never shown."
    ),
    data_schema="The jobs, in the order asked for.",
    schema=schema,
    flags=(
        Flag(
            "--after-id",
            "integer",
            "only jobs with a larger id; with --reverse the next page after meta.pagination.cursor",
            metavar="ID",
            limit="id",
        ),
        Flag(
            "--before-id",
            "integer",
            "only jobs with a smaller id: the next page after meta.pagination.cursor",
            metavar="ID",
            limit="id",
        ),
        Flag(
            "--command",
            "string",
            "only jobs with this text in their command line, as it is shown here, but uncut; "
            "case counts",
            metavar="TEXT",
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
        Flag("--reverse", "boolean", "turn the order round", default=False),
        Flag(
            "--since",
            "moment",
            "only jobs submitted so long ago or later (90s, 1h30m, 2d), or since a time (9:00, "
            "'yesterday 18:00', 2026-12-24 18:00)",
            metavar="WHEN",
            limit="timestamp_epoch_seconds",
        ),
        Flag(
            "--sort",
            "enum",
            "by id (the newest first), started or finished (the latest first), priority (the "
            "highest first), next-run (the soonest first)",
            metavar="ORDER",
            choices=SORTS,
            default="id",
        ),
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
        Flag("--wide", "boolean", "whole commands, however long", default=False),
        DB,
        *COMMON,
    ),
    exclusive=(("--before-id", "--reverse"),),
    examples=(
        ("spoolctl", "list"),
        ("spoolctl", "list", "--state", "dead,failed", "--tag", "batch=7", "--json"),
        ("spoolctl", "list", "--since", "2h", "--command", "make test", "--limit", "0"),
        ("spoolctl", "list", "--state", "running", "--sort", "started", "--reverse"),
    ),
    epilog=(
        "--since compares the time of submission (created_at). Jobs are looked for in the order "
        "of their ids: only where the clock was wrong while hundreds of jobs in a row were "
        "submitted may it miss some before them.",
        "Jobs that were never started, or have not ended, come last when sorted by that time. "
        "--before-id and --after-id go with the order of ids only: the other orders have no "
        "pages.",
    ),
)


def run(args: Args, app: App) -> int:
    """Find the jobs, and tell whether there are more."""
    if args.sort != "id":
        for flag in ("--after-id", "--before-id"):
            if flag in args.given:
                raise UsageError(
                    f"{flag} goes with the order of ids, not with --sort {args.sort}",
                    remediation="leave one of them out, or read all at once with --limit 0",
                )
    queue = app.queue_if_any()
    if queue is not None and not app.json and args.limit == 0 and args.sort == "id":
        return _all_in_pages(args, app, queue)
    jobs: list[Job] = []
    first_id = None
    truncated = False
    if queue is not None:
        found = _find(queue, args, limit=args.limit and args.limit + 1)
        jobs, truncated = found[: args.limit or None], 0 < args.limit < len(found)
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
    return app.show(data, lambda: _text(args, app, jobs), meta={"pagination": pagination})


def _find(queue: Queue, args: Args, *, limit: int) -> list[Job]:
    return queue.jobs(
        states=args.state or (),
        queue=args.queue,
        tags=args.tag,
        priority_min=args.priority_min,
        since=args.since,
        command=args.command,
        before_id=args.before_id,
        after_id=args.after_id,
        sort=args.sort,
        reverse=args.reverse,
        limit=limit,
    )


def _all_in_pages(args: Args, app: App, queue: Queue) -> int:
    """Print all jobs, however many, a page at a time: a million lines need no memory."""
    app.show_warnings()
    page = _find(queue, args, limit=PAGE)
    app.out.line(_text(args, app, page))
    while len(page) == PAGE:
        setattr(args, "after_id" if args.reverse else "before_id", page[-1].id)
        page = _find(queue, args, limit=PAGE)
        if page:
            app.out.line(_text(args, app, page))
    return 0


def _text(args: Args, app: App, jobs: list[Job]) -> str:
    if not jobs:
        return "No jobs"
    if app.out.is_terminal():
        now = time.time()
        lines = [_short_line(job, now) for job in jobs]
        if not args.wide:
            columns = app.out.columns()
            lines = [render.fit(line, columns) for line in lines]
    else:
        lines = [_line(job, wide=args.wide) for job in jobs]
    return "\n".join(_colored(app, line, job) for line, job in zip(lines, jobs, strict=True))


def _line(job: Job, *, wide: bool) -> str:
    command = render.command(job.argv)
    if not wide:
        command = render.shorten(command, COMMAND_CHARACTERS)
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
    if job.state is State.RUNNING and job.started_at is not None:
        parts.append(f"for {render.duration(now - job.started_at)}")
    if job.attempts:
        parts.append(f"attempts={job.attempts}")
    return "  ".join([*parts, render.command(job.argv)])


def _colored(app: App, line: str, job: Job) -> str:
    # After cutting: escape sequences take no room.
    state = job.state.value
    return line.replace(f"  {state}  ", f"  {app.style.state(state)}  ", 1)

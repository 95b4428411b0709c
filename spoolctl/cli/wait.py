"""`spoolctl wait`: block until jobs have settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spoolctl.cli.spec import COMMON, DB, Flag, JsonSchema, Positional, Verb
from spoolctl.core.states import SETTLED, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.core.records import Job


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes

    maybe = shapes.nullable
    return shapes.closed(
        all_succeeded=shapes.BOOLEAN,
        jobs=shapes.mapping(
            shapes.closed(
                state=shapes.words(sorted(state.value for state in SETTLED)),
                attempts=shapes.COUNT,
                last_exit_code=maybe(shapes.INTEGER),
                last_error=maybe(shapes.TEXT),
            )
        ),
    )


VERB = Verb(
    name="wait",
    description=(
        "Block until every job has settled: done, failed, dead or canceled. Woken by the end "
        "of a job; costs nothing meanwhile. Changes nothing: a wait that was interrupted can "
        "simply be repeated."
    ),
    data_schema="Whether all are done, and the state of each by its id.",
    schema=schema,
    positionals=(Positional("ids", "+", "integer", "the jobs' numbers", metavar="ID", limit="id"),),
    flags=(
        Flag(
            "--timeout",
            "float",
            "give up after so many seconds",
            metavar="SECONDS",
            limit="wait_seconds",
        ),
        Flag(
            "--poll-interval",
            "float",
            "look at least so often where there can be no doorbell",
            metavar="SECONDS",
            default=0.5,
            limit="poll_interval_seconds",
        ),
        DB,
        *COMMON,
    ),
    examples=(
        ("spoolctl", "wait", "1"),
        ("spoolctl", "wait", "--timeout", "600", "--json", "1", "2", "3"),
    ),
    epilog=(
        "What its exit status tells:\n"
        "  0  every job is done\n"
        "  1  a job does not exist, or bad input\n"
        "  4  --timeout has passed: wait again\n"
        "  6  every job has settled, but not all are done",
    ),
)


def run(args: Args, app: App) -> int:
    """Wait, then tell how the jobs ended."""
    from spoolctl.cli.signals import interruptible

    queue = app.queue
    line = _Line(app, len(set(args.ids)))
    # The default is for where there is no bell; one that was asked for always holds.
    poll_s = args.poll_interval if "--poll-interval" in args.given else None
    with interruptible():
        try:
            jobs = queue.wait(args.ids, timeout_s=args.timeout, poll_s=poll_s, on_change=line.show)
        finally:
            line.erase()
    succeeded = all(job.state is State.DONE for job in jobs.values())
    data = {
        "all_succeeded": succeeded,
        "jobs": {str(job_id): _member(job) for job_id, job in jobs.items()},
    }
    return app.show(data, lambda: _text(app, jobs, succeeded), exit_code=0 if succeeded else 6)


def _member(job: Job) -> dict[str, Any]:
    return {
        "state": job.state.value,
        "attempts": job.attempts,
        "last_exit_code": job.last_exit_code,
        "last_error": job.last_error,
    }


def _text(app: App, jobs: Mapping[int, Job], succeeded: bool) -> str:
    lines = [f"#{job.id}  {app.style.state(job.state.value)}" for job in jobs.values()]
    return "\n".join([*lines, "all succeeded" if succeeded else "not all succeeded"])


class _Line:
    """How many jobs are still open, in one line on a terminal."""

    def __init__(self, app: App, total: int) -> None:
        self._app = app
        self._total = total
        self._live = not app.json and app.out.errors_are_seen()
        self._shown = False

    def show(self, pending: Mapping[int, Job]) -> None:
        """Draw the line anew."""
        if self._live:
            running = sum(job.state is State.RUNNING for job in pending.values())
            settled = self._total - len(pending)
            self._shown = True
            self._app.out.error_text(
                f"\r\x1b[K{settled} of {self._total} settled, {running} running"
            )

    def erase(self) -> None:
        """Leave no trace of it."""
        if self._shown:
            self._app.out.error_text("\r\x1b[K")

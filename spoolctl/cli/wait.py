"""`spoolctl wait`: block until jobs have settled."""

from __future__ import annotations

import time

from spoolctl.cli.parse import UsageError
from spoolctl.cli.signals import interruptible
from spoolctl.cli.spec import COMMON, DB, Flag, JsonSchema, Positional, Verb
from spoolctl.core.states import SETTLED, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.core.records import Job


PATIENCE_S = 2.0
"""After so long it is time to say that nobody is there to run the jobs."""


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
    replaces_positional=("--all", "--queue", "--tag"),
    flags=(
        Flag("--all", "boolean", "every job that has not settled yet", default=False),
        Flag("--any", "boolean", "return as soon as one of them has settled", default=False),
        Flag("--queue", "queue", "every job of this lane that has not settled yet", metavar="NAME"),
        Flag(
            "--tag",
            "key_value",
            "every job with this tag, settled or not; all that are given must match",
            metavar="KEY[=VALUE]",
            default=(),
            repeatable=True,
            check="tag_filter",
        ),
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
    exclusive=(("--all", "--queue"), ("--all", "--tag")),
    examples=(
        ("spoolctl", "wait", "1"),
        ("spoolctl", "wait", "--timeout", "600", "--json", "1", "2", "3"),
        ("spoolctl", "wait", "--tag", "batch=7"),
    ),
    epilog=(
        "What its exit status tells:\n"
        "  0  every job is done\n"
        "  1  a job does not exist, or bad input\n"
        "  4  --timeout has passed: wait again\n"
        "  6  every job has settled, but not all are done",
        "--tag, --queue and --all mean the jobs that are there when the wait begins; with --any "
        "all_succeeded speaks of those that have settled.",
    ),
)


def run(args: Args, app: App) -> int:
    """Wait, then tell how the jobs ended."""
    if args.ids and (args.all or args.queue or args.tag):
        raise UsageError("numbers of jobs go without --all, --queue and --tag")
    queue = app.queue
    ids = _chosen(args, app)
    # The default is for where there is no bell; one that was asked for always holds.
    poll_s = args.poll_interval if "--poll-interval" in args.given else None
    watch = Watch(app, len(set(ids)))
    with interruptible():
        try:
            jobs = queue.wait(
                ids,
                first=args.any,
                timeout_s=args.timeout,
                poll_s=poll_s,
                watch=watch,
            )
        finally:
            watch.erase()
    succeeded = all(job.state is State.DONE for job in jobs.values())
    data = {
        "all_succeeded": succeeded,
        "jobs": {str(job_id): _member(job) for job_id, job in jobs.items()},
    }
    return app.show(data, lambda: _text(app, jobs, succeeded), exit_code=0 if succeeded else 6)


def _chosen(args: Args, app: App) -> tuple[int, ...]:
    """The numbers of the jobs to wait for.

    Raises:
        UsageError: no job has the tags. (That nothing is left of a lane is no fault.)
    """
    if args.ids:
        ids: tuple[int, ...] = args.ids
        return ids
    states = () if args.tag else (State.QUEUED, State.RUNNING)
    if args.queue is not None:
        _warn_if_no_lane(app, args.queue)
    found = app.queue.jobs(states=states, queue=args.queue, tags=args.tag, limit=None)
    if args.tag and not found:
        names = " and ".join(key if value is None else f"{key}={value}" for key, value in args.tag)
        raise UsageError(
            f"no job in {app.queue.path} has the tag {names}",
            "NOT_FOUND",
            remediation="`spoolctl list --json` shows all jobs with their tags; --db or "
            "SPOOLCTL_DB names another queue",
        )
    return tuple(job.id for job in reversed(found))


def _warn_if_no_lane(app: App, lane: str) -> None:
    """Most often the name is not what was meant; that all went well would hide it."""
    lanes = app.queue.counts().queues
    if not any(lanes.get(lane, ({}, 0))[0].values()):
        others = sorted(name for name, (states, _) in lanes.items() if any(states.values()))
        there = f"there are jobs in {', '.join(others[:10])}" if others else "nor does any other"
        app.warn("NO_JOBS", f"the queue {lane} holds no jobs; {there}")


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


class Watch:
    """Looks on while `wait` waits: a progress line on a terminal, and a word if nobody is
    there to run the jobs. `live`: whether there may be a progress line; it would stand amid
    the output of a job that is followed."""

    def __init__(self, app: App, total: int, *, live: bool = True) -> None:
        self._app = app
        self._total = total
        self._live = live and not app.json and app.out.has_live_line()
        self._shown = False
        self._began_mono = time.monotonic()
        self._asked = False

    def __call__(self, pending: Mapping[int, Job]) -> float | None:
        """Told what is still open; returns when it wants to be told again."""
        left = self.left_s
        if left is not None and left <= 0:
            self._asked = True
            self._tell_unserved(pending)
        if self._live:
            running = sum(job.state is State.RUNNING for job in pending.values())
            settled = self._total - len(pending)
            self._shown = True
            self._app.out.error_text(
                f"\r\x1b[K{settled} of {self._total} settled, {running} running"
            )
        return self.left_s

    @property
    def left_s(self) -> float | None:
        """How long it still waits before it asks whether there is a worker; None: it has."""
        return None if self._asked else self._began_mono + PATIENCE_S - time.monotonic()

    def _tell_unserved(self, pending: Mapping[int, Job]) -> None:
        from spoolctl.cli.unserved import sentence

        lanes = {job.queue for job in pending.values() if job.state is State.QUEUED}
        for lane in sorted(self._app.queue.unserved(lanes)):
            message = sentence(lane)
            self.erase()
            self._app.out.note(f"warning: {message}")
            if self._app.json:
                self._app.warn("NO_WORKER", message)

    def erase(self) -> None:
        """Leave no trace of the progress line."""
        if self._shown:
            self._app.out.error_text("\r\x1b[K")

"""`spoolctl work`: run jobs."""

from __future__ import annotations

from spoolctl.cli.spec import COMMON, DB, MAX_OUTPUT, TRUST, Flag, JsonSchema, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.engine.options import WorkOptions, WorkResult

RESULTS = ("succeeded", "failed", "timed_out")
"""How the attempt of `--once` can have ended, unless a signal put its job back."""


def schema() -> JsonSchema:
    """What `data` looks like; nothing is printed where neither --once nor --drain is given."""
    from spoolctl.cli import shapes
    from spoolctl.core.states import State

    return shapes.one_of(
        shapes.closed(claimed={"const": False}),
        shapes.closed(
            claimed={"const": True},
            job_id=shapes.ID,
            attempt_no=shapes.ID,
            result=shapes.words(RESULTS),
            job_state=shapes.nullable(shapes.words(State)),
        ),
        shapes.closed(drained=shapes.BOOLEAN, executed=shapes.COUNT),
        shapes.closed(stopped={"const": True}),
    )


VERB = Verb(
    name="work",
    description=(
        "Run jobs, one at a time unless --jobs says more, until told to stop. Any number of "
        "workers may serve one queue. A worker also takes back the jobs of workers that have "
        "died, once that is proven, and reports each attempt in one line on stderr."
    ),
    data_schema="--once: the attempt that was made, or `stopped` if a second signal put its job "
    "back; --drain: how many attempts were made.",
    schema=schema,
    flags=(
        Flag(
            "--all-queues",
            "boolean",
            "serve every lane",
            default=False,
        ),
        Flag("--drain", "boolean", "end when the lanes are settled", default=False),
        Flag(
            "--heartbeat-interval",
            "float",
            "seconds between signs of life (5)",
            metavar="SECONDS",
            limit="wait_seconds",
        ),
        Flag(
            "--idle-timeout",
            "float",
            "end after so many seconds without anything to do",
            metavar="SECONDS",
            limit="wait_seconds",
        ),
        Flag(
            "--jobs",
            "integer",
            "run so many commands side by side",
            aliases=("-j",),
            default=1,
            limit="worker_jobs",
            config="jobs",
        ),
        Flag(
            "--max-jobs",
            "integer",
            "end after so many attempts",
            limit="worker_max_jobs",
        ),
        MAX_OUTPUT,
        Flag("--once", "boolean", "make at most one attempt", default=False),
        Flag(
            "--poll-interval",
            "float",
            "look for work at least so often (5); a doorbell announces it at once",
            metavar="SECONDS",
            limit="poll_interval_seconds",
            config="poll_interval",
        ),
        Flag(
            "--queue",
            "queue",
            "serve this lane; of several, earlier ones are preferred",
            metavar="NAME",
            default="default",
            repeatable=True,
            config="queue",
        ),
        Flag(
            "--reap-after",
            "float",
            "look into workers that have been silent for so long (default: 4 of their "
            "intervals, at least 30)",
            metavar="SECONDS",
            limit="wait_seconds",
        ),
        Flag(
            "--shutdown-timeout",
            "float",
            "after the first signal, give running jobs so long; then put them back",
            metavar="SECONDS",
            limit="wait_seconds",
        ),
        Flag(
            "--slots",
            "integer",
            "start nothing while so many jobs of the lane run, over all workers",
            limit="worker_slots",
        ),
        TRUST,
        Flag(
            "--worker-id",
            "string",
            "name in events and attempts (default: HOST-PID)",
            metavar="NAME",
            check="worker_id",
        ),
        DB,
        *COMMON,
    ),
    exclusive=(("--once", "--drain"), ("--queue", "--all-queues")),
    examples=(
        ("spoolctl", "work", "--drain"),
        ("spoolctl", "work", "--jobs", "4", "--queue", "urgent", "--queue", "default"),
        ("spoolctl", "work", "--once", "--json"),
    ),
    mutates=True,
    idempotent=False,
    epilog=(
        "The first SIGINT, SIGTERM or SIGHUP: finish what runs, take nothing more, exit 0. The "
        "second: end the commands and put their jobs back, at no cost to their budget. A third "
        "gives up results that cannot be recorded within a second, as on a full disk: their jobs "
        "run again. The several SIGHUP of a terminal that is closed are one.",
        "--drain waits out retries, jobs of other workers and the recovery of crashed ones, but "
        "not jobs that were added for a later time.",
    ),
)


def run(args: Args, app: App) -> int:
    """Check everything, then work."""
    from spoolctl.engine.log import LineLog

    options = _options(args)
    log: Callable[[str], None] = LineLog(app.out.stderr)
    progress = None
    if args.drain and app.out.has_live_line():
        from spoolctl.cli.progress import DrainLine

        progress = DrainLine(app.out)
        log = progress.log
    result = app.queue.work(options, log=log, progress=progress)
    if progress is not None:
        progress.finish(executed=result.executed, drained=result.drained)
    if result.failure is not None:
        raise result.failure
    return _report(args, app, result)


def _options(args: Args) -> WorkOptions:
    """What to do, from flags, from the two variables for trials, and from the defaults."""
    from spoolctl.cli.trials import trial_times
    from spoolctl.engine.options import HEARTBEAT_INTERVAL_S, WorkOptions

    interval_s, threshold_s = trial_times()
    chosen = WorkOptions(
        lanes=None if args.all_queues else tuple(dict.fromkeys(args.queue)),
        jobs=args.jobs,
        once=args.once,
        drain=args.drain,
        slots=args.slots,
        max_jobs=args.max_jobs,
        idle_timeout_s=args.idle_timeout,
        worker_id=args.worker_id,
        reap_after_s=args.reap_after or threshold_s,
        heartbeat_interval_s=args.heartbeat_interval or interval_s or HEARTBEAT_INTERVAL_S,
        shutdown_timeout_s=args.shutdown_timeout,
        trust=args.trust,
    )
    if args.poll_interval is not None:
        chosen = chosen._replace(poll_interval_s=args.poll_interval)
    if args.max_output is not None:
        chosen = chosen._replace(max_output_bytes=args.max_output)
    return chosen


def _report(args: Args, app: App, result: WorkResult) -> int:
    if args.once:
        return app.show(_once(result), lambda: _once_text(result))
    if args.drain:
        data = {"drained": result.drained, "executed": result.executed}
        head = "Drained:" if result.drained else "Stopped before the queue settled;"
        return app.show(data, f"{head} executed {result.executed} job(s)")
    return 0


def _once(result: WorkResult) -> dict[str, Any]:
    if result.job_id is None:
        return {"claimed": False}
    if result.attempt_state not in RESULTS:
        return {"stopped": True}
    return {
        "claimed": True,
        "job_id": result.job_id,
        "attempt_no": result.attempt_no,
        "result": result.attempt_state,
        "job_state": result.job_state,
    }


def _once_text(result: WorkResult) -> str:
    if result.job_id is None:
        return "No eligible job"
    after = result.job_state or "discarded"
    return f"Job {result.job_id} attempt {result.attempt_no} {result.attempt_state} -> {after}"

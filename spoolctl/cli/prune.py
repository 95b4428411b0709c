"""`spoolctl prune`: delete old settled jobs."""

from __future__ import annotations

from spoolctl.cli.render import duration
from spoolctl.cli.spec import COMMON, DB, Flag, JsonSchema, Verb
from spoolctl.errors import SafetyBlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes

    return shapes.closed(
        matched=shapes.COUNT,
        deleted_jobs=shapes.COUNT,
        deleted_attempts=shapes.COUNT,
        deleted_events=shapes.COUNT,
        freed_bytes=shapes.COUNT,
        dry_run=shapes.BOOLEAN,
        actual=shapes.BOOLEAN,
        older_than_seconds=shapes.NUMBER,
        older_than_source=shapes.words(("flag", "project_config")),
        irreversible={"const": True},
        optional=("irreversible", "older_than_seconds", "older_than_source"),
    )


VERB = Verb(
    name="prune",
    description=(
        "Delete settled jobs that finished longer ago than --older-than, with their attempts, "
        "events and output. Jobs that wait or run are never touched. For good: look first "
        "with --dry-run. The age may stand in the config file (keep_for); nothing is deleted "
        "without this verb."
    ),
    data_schema="How much was, or would be, deleted, and of what age.",
    schema=schema,
    flags=(
        Flag("--dry-run", "boolean", "only tell what would be deleted", default=False),
        Flag(
            "--older-than",
            "duration",
            "how long ago a job must have finished (30d, 12h, 0)",
            limit="duration_seconds",
            required=True,
            config="keep_for",
        ),
        Flag(
            "--state",
            "enum_csv",
            "which settled states, separated by commas",
            metavar="STATES",
            choices=("canceled", "dead", "done", "failed"),
            default="done",
        ),
        Flag("--yes", "boolean", "confirm the deletion", aliases=("-y",), default=False),
        DB,
        *COMMON,
    ),
    exclusive=(("--yes", "--dry-run"),),
    examples=(
        ("spoolctl", "prune", "--older-than", "30d", "--dry-run"),
        ("spoolctl", "prune", "--older-than", "30d", "--state", "done,canceled", "--yes"),
    ),
    mutates=True,
    destructive=True,
    idempotent=False,
    extra={
        "safety": {
            "confirmation_flag": "--yes",
            "dry_run_flag": "--dry-run",
            "refusal_code": "SAFETY_BLOCK",
            "refusal_exit_code": 2,
        }
    },
)


def run(args: Args, app: App) -> int:
    """Check the confirmation before the queue is opened, then delete."""
    if not args.yes and not args.dry_run:
        raise SafetyBlock("prune deletes for good: it needs --yes or --dry-run", action="prune")
    queue = app.queue_if_any()
    jobs = attempts = events = freed = 0
    if queue is not None:
        states = args.state if isinstance(args.state, tuple) else (args.state,)
        jobs, attempts, events, freed = queue.prune(
            args.older_than, states=states, dry_run=args.dry_run
        )
    data: dict[str, Any] = {
        "matched": jobs,
        "deleted_jobs": jobs,
        "deleted_attempts": attempts,
        "deleted_events": events,
        "freed_bytes": freed,
        "dry_run": args.dry_run,
        "actual": not args.dry_run,
        "older_than_seconds": args.older_than,
        "older_than_source": "flag",
    }
    age = ""
    if "--older-than" in args.configured:
        data["older_than_source"] = "project_config"
        age = f", finished more than {duration(args.older_than)} ago (keep_for in the config file)"
    if args.dry_run:
        return app.show(data, f"would prune {jobs} job(s), freeing {freed} bytes (dry run){age}")
    text = f"pruned {jobs} job(s), freed {freed} bytes{age}"
    return app.show({**data, "irreversible": True}, text)

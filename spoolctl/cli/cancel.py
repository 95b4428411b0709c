"""`spoolctl cancel`: withdraw or stop a job."""

from __future__ import annotations

from spoolctl.cli.spec import COMMON, DB, JOB_ID, Flag, JsonSchema, Verb
from spoolctl.errors import SafetyBlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes

    return shapes.closed(job_id=shapes.ID, state={"const": "canceled"}, was_running=shapes.BOOLEAN)


VERB = Verb(
    name="cancel",
    description=(
        "Withdraw a job that waits, or stop one that runs. A running one needs --running --yes: "
        "it is canceled at once, its processes are ended (SIGTERM, 5 seconds of grace, "
        "SIGKILL), and the verb returns when they are gone."
    ),
    data_schema="The job's id, its state, and whether it was running.",
    schema=schema,
    positionals=(JOB_ID,),
    flags=(
        Flag("--running", "boolean", "also if the job is running; needs --yes", default=False),
        Flag(
            "--yes",
            "boolean",
            "confirm that a running command may be ended",
            aliases=("-y",),
            default=False,
        ),
        DB,
        *COMMON,
    ),
    examples=(
        ("spoolctl", "cancel", "1"),
        ("spoolctl", "cancel", "--running", "--yes", "1"),
    ),
    mutates=True,
    destructive="ends the processes of a running job, with --running --yes",
    idempotent=False,
    extra={
        "safety": {
            "confirmation_flag": "--yes",
            "requires": ["--running", "--yes"],
            "refusal_code": "SAFETY_BLOCK",
            "refusal_exit_code": 2,
        }
    },
)


def run(args: Args, app: App) -> int:
    """Check the confirmation before anything is looked up, then cancel."""
    if args.running and not args.yes:
        raise SafetyBlock("--running stops a command at work: it needs --yes", action="cancel")
    from spoolctl.cli.signals import interruptible

    with interruptible():
        canceled = app.queue.cancel(args.id, running=args.running)
    if not canceled.gone:
        app.warn(
            "KILL_ASYNC",
            f"job {args.id} is canceled, but the end of its processes is not confirmed yet: "
            "its worker does that, or if that has died, another one (`spoolctl work`)",
        )
    data = {
        "job_id": canceled.job.id,
        "state": "canceled",
        "was_running": canceled.was_running,
    }
    return app.show(data, f"Canceled job {canceled.job.id}")

"""`spoolctl retry`: put a job that ended badly back."""

from __future__ import annotations

from spoolctl.cli.spec import COMMON, DB, JOB_ID, Flag, JsonSchema, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes

    return shapes.closed(job_id=shapes.ID, state={"const": "queued"})


VERB = Verb(
    name="retry",
    description=(
        "Put a dead, failed or canceled job back in its lane, due now and with a fresh budget. "
        "Its key, tags, note, earlier attempts and their output stay. With --force a running "
        "job: its attempt is given up, and the next one starts when no process of it is left."
    ),
    data_schema="The job's id and state.",
    schema=schema,
    positionals=(JOB_ID,),
    flags=(
        Flag(
            "--force",
            "boolean",
            "give up the running attempt and start again",
            default=False,
        ),
        DB,
        *COMMON,
    ),
    examples=(("spoolctl", "retry", "1"), ("spoolctl", "retry", "--force", "1")),
    mutates=True,
    destructive="ends the processes of a running job, with --force",
    idempotent=False,
    extra={
        "safety": {
            "force_flag": "--force",
            "force_required_for": "running_job",
            "refusal_code": "SAFETY_BLOCK",
            "refusal_exit_code": 2,
            "also_requires_yes": False,
        }
    },
)


def run(args: Args, app: App) -> int:
    """Put it back."""
    job = app.queue.retry(args.id, force=args.force)
    data = {"job_id": job.id, "state": "queued"}
    return app.show(data, f"Requeued job {job.id} with a fresh retry budget")

"""Staying with a job that was just submitted: until it has settled, showing its output."""

from __future__ import annotations

from spoolctl.core.records import Added, Job
from spoolctl.core.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App

NO_CODE = 6
"""Exit status for a job whose command has no exit code of its own."""


def attend(app: App, added: Added, data: dict[str, Any], *, follow: bool) -> int:
    """Wait for the end; returns the command's own exit status.

    With `follow` its streams go to ours byte for byte; all that is ours goes to stderr.
    """
    from spoolctl.cli.signals import interruptible

    job_id = added.job.id
    app.show_warnings()
    if not app.json:
        app.out.note(f"spoolctl: job {job_id}")
    with interruptible():
        try:
            if follow:
                for piece in app.queue.follow(job_id, retries=True, on_idle=app.out.check_reader):
                    write = app.out.write if piece.stream == "stdout" else app.out.error_bytes
                    write(piece.data)
            job = app.queue.wait([job_id])[job_id]
        except KeyboardInterrupt:
            app.out.note(f"spoolctl: job {job_id} goes on; `spoolctl wait {job_id}` waits for it")
            raise
    status = exit_status(job)
    if not app.json:
        if job.state is not State.DONE:
            app.out.note(
                f"spoolctl: job {job_id} {job.state.value}: {job.last_error or 'no error'}"
            )
        return status
    outcome = {
        "state": job.state.value,
        "exit_code": job.last_exit_code,
        "last_error": job.last_error,
    }
    return app.show({**data, "outcome": outcome}, "", exit_code=status)


def exit_status(job: Job) -> int:
    """The exit status by which a settled job's command tells how it ended."""
    if job.state is State.DONE:
        return 0
    code = job.last_exit_code
    if not code:
        return NO_CODE
    return code if code > 0 else 128 - code

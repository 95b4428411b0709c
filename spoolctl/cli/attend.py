"""Staying with a job that was just submitted: until it has settled, showing its output."""

from __future__ import annotations

from spoolctl.cli.signals import interruptible
from spoolctl.cli.wait import Watch
from spoolctl.core.records import Added, Attempt, Job
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
    job_id = added.job.id
    app.show_warnings()
    if not app.json:
        app.out.note(f"spoolctl: job {job_id}")
    watch = Watch(app, 1, live=not follow)
    with interruptible():
        try:
            if follow:
                _follow(app, job_id, watch)
            try:
                job = app.queue.wait([job_id], watch=watch)[job_id]
            finally:
                watch.erase()
        except KeyboardInterrupt:
            app.out.note(goes_on(job_id))
            raise
    return conclude(app, job, data)


def goes_on(job_id: int) -> str:
    """What is said when somebody stops waiting for a job."""
    return f"spoolctl: job {job_id} goes on; `spoolctl wait {job_id}` waits for it"


def conclude(app: App, job: Job, data: dict[str, Any]) -> int:
    """Tell how the settled job ended; returns the command's own exit status."""
    status = exit_status(job)
    if not app.json:
        if job.state is not State.DONE:
            from spoolctl.cli.render import visible

            why = visible(job.last_error or "no error")
            app.out.note(f"spoolctl: job {job.id} {job.state.value}: {why}")
        return status
    outcome = {
        "state": job.state.value,
        "exit_code": job.last_exit_code,
        "last_error": job.last_error,
    }
    return app.show({**data, "outcome": outcome}, "", exit_code=status)


def _follow(app: App, job_id: int, watch: Watch) -> None:
    def look_around() -> None:
        app.out.check_reader()
        left = watch.left_s
        if left is not None and left <= 0:
            watch({job_id: app.queue.get(job_id)})

    def tell_retry(job: Job, attempt: Attempt) -> None:
        app.out.note(next_try(job, attempt))

    for piece in app.queue.follow(job_id, retries=True, on_idle=look_around, on_retry=tell_retry):
        write = app.out.write if piece.stream == "stdout" else app.out.error_bytes
        write(piece.data)


def next_try(job: Job, failed: Attempt) -> str:
    """What is said between two attempts."""
    import time

    from spoolctl.cli.render import duration, visible

    wait_s = job.next_run_at - time.time()
    when = f" in {duration(wait_s)}" if job.state is State.QUEUED and wait_s > 0 else ""
    why = failed.error or failed.state.value
    return visible(f"spoolctl: job {job.id} is tried again{when} ({why})")


def exit_status(job: Job) -> int:
    """The exit status by which a settled job's command tells how it ended."""
    if job.state is State.DONE:
        return 0
    code = job.last_exit_code
    if not code:
        return NO_CODE
    return code if code > 0 else 128 - code

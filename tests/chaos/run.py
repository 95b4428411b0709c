"""One run: a queue, its workers, and a faithful record of what was asked and answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spoolctl import Queue
from spoolctl.core.retry import RetryPolicy
from spoolctl.core.states import SETTLED, State
from spoolctl.errors import (
    IllegalTransition,
    KeyConflict,
    NotFound,
    SafetyBlock,
    StoreBusy,
    StoreFull,
)
from tests.chaos import gather, ledger
from tests.chaos.fleet import TIMES, Fleet
from tests.chaos.history import Act, Entry, History, Job

JOB = str(Path(__file__).with_name("job.py"))
PYTHON = (sys.executable, "-I", "-S", "-B")
QUICK = RetryPolicy(delays_s=(0.05, 0.2))
REFUSED = (IllegalTransition, KeyConflict, NotFound, SafetyBlock)

# (dash has no job control without a terminal. The shell's own remarks must not mix with what
# the program writes.)
JOB_CONTROL = (
    shutil.which("bash") or "sh",
    "-c",
    'exec 3>&2 2>/dev/null; set -m; "$@" 2>&3 3>&- & wait $!',
    "sh",
)
"""A shell that gives the program a process group of its own."""


class SmallDisk:
    """A file system of its own for a queue, so that it can be full."""

    def __init__(self, folder: Path, *, megabytes: int = 256) -> None:
        """Raises OSError where this user may not mount."""
        folder.mkdir(parents=True)
        self.folder = folder
        size = ["-o", f"size={megabytes}m,mode=700"]
        done = subprocess.run(
            ["mount", "-t", "tmpfs", *size, "tmpfs", str(folder)], capture_output=True, check=False
        )
        if done.returncode != 0:
            raise OSError(done.stderr.decode(errors="replace").strip())

    def fill(self) -> None:
        """Take all the room that is left."""
        stat = os.statvfs(self.folder)
        fd = os.open(self.folder / "ballast", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, max(1, stat.f_bavail * stat.f_frsize))
        except OSError:
            pass  # others were quicker: it is full all the same
        finally:
            os.close(fd)

    def free(self) -> None:
        """Give the room back."""
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it; who still has files there keeps them."""
        subprocess.run(["umount", "-l", str(self.folder)], check=False)


class Run:
    """A queue at `folder` (or on a small disk) under the eyes of its operator.

    `without`: mechanisms that its workers do not have. `latest`: each job's latest
    event; `archive`: jobs that may be pruned, with the id of that event.
    """

    def __init__(
        self, folder: Path, *, disk: SmallDisk | None = None, without: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.disk = disk
        self.db = (disk.folder if disk else folder) / "queue.db"
        self.ledger = folder / "ledger"
        (self.ledger / ledger.LOCKS).mkdir(parents=True)
        self.fleet = Fleet(self.db, folder / "workers", without=without)
        self.queue = Queue(self.db, wait_s=0.5)
        self.acts: list[Act] = []
        self.seen: list[Entry] = []
        self.latest: dict[int, Entry] = {}
        self.archive: dict[int, tuple[int, Job]] = {}
        self.ceilings: dict[str, int] = {}
        self.faults: list[str] = []
        # Tens of milliseconds where a processor is free; a guardian that has to share it with
        # a hundred others takes seconds for its look at all processes.
        self.grace_s = 15.0

    # -- what the operator does ---------------------------------------------------------

    def command(self, *, wrap: Sequence[str] = (), **words: Any) -> list[str]:
        """The command of a job that behaves as these words say (see job.py)."""
        return [
            *wrap,
            *PYTHON,
            JOB,
            str(self.ledger),
            *(f"{name}={value}" for name, value in words.items()),
        ]

    def add(self, command: Sequence[str], **options: Any) -> int | None:
        """Add a job; its id, or None if it was not acknowledged."""
        options = {"policy": QUICK, "capture_env": (), "cwd": "/", **options}
        try:
            job = self.queue.add(command, **options)
        except (StoreBusy, KeyConflict):
            return None
        self.acts.append(Act("add", job.id, at=ledger.boot_time()))
        return job.id

    def cancel(self, job_id: int, *, confirm_s: float = 0.0) -> bool:
        """Cancel a job, running or not; whether it was acknowledged."""
        try:
            done = self.queue.cancel(job_id, running=True, confirm_s=confirm_s)
        except REFUSED:
            return False
        except StoreBusy as error:
            self._unsure("cancel", job_id, error)
            return False
        self.acts.append(
            Act("cancel", job_id, at=ledger.boot_time(), gone=done.was_running and done.gone)
        )
        return True

    def retry(self, job_id: int, *, force: bool = False) -> bool:
        """Retry a job; whether it was acknowledged."""
        try:
            self.queue.retry(job_id, force=force)
        except REFUSED:
            return False
        except StoreBusy as error:
            self._unsure("retry", job_id, error)
            return False
        self.acts.append(Act("retry", job_id, at=ledger.boot_time()))
        return True

    def _unsure(self, kind: str, job_id: int, error: StoreBusy) -> None:
        # Busy: never begun. Full: what of it reached the disk is for SQLite to roll back,
        # but a client that was told so would look again.
        if isinstance(error, StoreFull):
            self.acts.append(Act(kind, job_id, sure=False, at=ledger.boot_time()))

    def prune(self, older_than_s: float) -> None:
        """Delete old settled jobs of all kinds, after a last look at them and the events."""
        self.watch()
        self._archive()
        states = ("done", "dead", "failed", "canceled")
        try:
            done = self.queue.prune(older_than_s, states=states)
        except StoreBusy:
            self.acts.append(Act("prune", sure=False, at=ledger.boot_time()))
            return
        self.acts.append(Act("prune", deleted=done.jobs, at=ledger.boot_time()))

    def _archive(self) -> None:
        """Keep what is known of settled jobs, so that pruned ones are checked too."""
        now = ledger.boot_time()
        for job in self.queue.jobs(states=tuple(SETTLED), limit=None):
            last = self.latest.get(job.id)
            if last is None or (job.id in self.archive and self.archive[job.id][0] == last.id):
                continue
            detail = self.queue.detail(job.id)
            # What can still change without an event: the end of a canceled attempt, and the
            # output of what a success left running.
            gone = all(attempt.gone_at is not None for attempt in detail.attempts)
            quiet = now - (last.seen or now) > gather.SURVIVORS_S
            if gone and (quiet or all(attempt.survivors == 0 for attempt in detail.attempts)):
                self.archive[job.id] = last.id, gather.job_of(self.queue, detail)

    def _pruned(self) -> list[Job]:
        """Jobs that were deleted, as they were in the end."""
        left = {job.id for job in self.queue.jobs(limit=None)}
        return [
            job
            for job_id, (last_id, job) in self.archive.items()
            if job_id not in left and self.latest[job_id].id == last_id
        ]

    def unsettled(self) -> int:
        """How many jobs are waiting or running."""
        states = self.queue.counts().states
        return states[State.QUEUED] + states[State.RUNNING]

    def watch(self) -> None:
        """Read the events that are new, and note when they were seen."""
        last = self.seen[-1].id if self.seen else 0
        for row in self.queue.events(since_id=last, limit=None).events:
            at = ledger.boot_time()
            entry = Entry(row.id, row.job_id, row.event.value, row.worker_name, at)
            self.seen.append(entry)
            self.latest[entry.job] = entry

    # -- the end ------------------------------------------------------------------------

    def drain(self, lanes: Sequence[dict[str, Any]] = ({},), *, timeout_s: float = 120.0) -> None:
        """Let fresh workers settle everything (one per set of options); nothing is asked any
        more. A worker that does not get there is a fault."""
        workers = [self.fleet.start(drain=True, **{"jobs": 4, **options}) for options in lanes]
        until = time.monotonic() + timeout_s
        while any(member in self.fleet.alive for member in workers):
            self.watch()
            self.fleet.poll()
            if time.monotonic() > until:
                names = [member.name for member in workers if member in self.fleet.alive]
                self.faults.append(f"workers {names} did not drain the queue in {timeout_s:.0f} s")
                break
            time.sleep(0.01)
        self.watch()

    def history(self) -> History:
        """Everything about the run, for the checker. Nothing may run any more."""
        wait_s = 0.0 if self.faults else gather.SURVIVORS_S
        left = gather.left_over(self.db, self.ledger, wait_s)
        if not left and not self.faults and not self.unsettled():
            # What survivors of a success held until now is for the next worker to sweep, and
            # what the dead left, once they have been silent for long enough.
            last = max((member.dead or 0.0 for member in self.fleet.all), default=0.0)
            time.sleep(max(0.0, last + TIMES["reap_after_s"] + 0.1 - ledger.boot_time()))
            self.drain(timeout_s=10)
        pruned = self._pruned()
        return History(
            records=ledger.read(str(self.ledger)),
            acts=self.acts,
            jobs=[*pruned, *gather.jobs(self.queue)],
            entries=gather.entries(self.queue, self.seen),
            seen=self.seen,
            workers=[member.fact() for member in self.fleet.all],
            left=left,
            litter=gather.litter(self.queue),
            faults=(
                *self.faults,
                *self.fleet.faults,
                *gather.job_errors(self.ledger),
                *gather.damage(self.queue),
            ),
            pruned=frozenset(job.id for job in pruned),
            ceilings=self.ceilings,
            grace_s=self.grace_s,
        )

    def close(self) -> None:
        """End all workers and whatever jobs have left."""
        self.fleet.end_all()
        gather.end_left_over(self.db, self.ledger)
        self.queue.close()
        if self.disk:
            self.disk.close()

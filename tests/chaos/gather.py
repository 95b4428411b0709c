"""Collect what is left of a run: from the queue by its public API, from /proc and the disk."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from spoolctl import Queue
from spoolctl.core.paths import support_dir, waiters_dir, workers_dir
from spoolctl.core.records import Attempt, JobDetail
from tests.chaos import ledger
from tests.chaos.history import Entry, Job, Output, Try
from tests.helpers import processes_of

SURVIVORS_S = 5.0
"""How long what a success left running may go on (job.py is told less)."""


def jobs(queue: Queue) -> list[Job]:
    """All jobs with their attempts and a verdict on each stored stream."""
    return [job_of(queue, queue.detail(job.id)) for job in reversed(queue.jobs(limit=None))]


def job_of(queue: Queue, detail: JobDetail) -> Job:
    """One job, with a verdict on each stored stream."""
    job = detail.job
    return Job(
        id=job.id,
        state=job.state.value,
        attempts=job.attempts,
        crashes=job.crashes,
        max_retries=job.max_retries,
        max_crashes=job.max_crashes,
        queue=job.queue,
        key=job.key,
        tries=tuple(_try(queue, attempt) for attempt in detail.attempts),
    )


def _try(queue: Queue, attempt: Attempt) -> Try:
    reason = attempt.failure_reason
    return Try(
        token=attempt.token,
        number=attempt.attempt_no,
        state=attempt.state.value,
        reason=None if reason is None else reason.value,
        exit_code=attempt.exit_code,
        worker=attempt.worker_name,
        gone=attempt.gone_at is not None,
        stdout=_output(queue, attempt, "stdout"),
        stderr=_output(queue, attempt, "stderr"),
    )


def _output(queue: Queue, attempt: Attempt, stream: str) -> Output:
    info = attempt.stdout if stream == "stdout" else attempt.stderr
    with queue.reader(attempt, stream) as reader:
        data = b"".join(reader.chunks())
    sound = ledger.sound_prefix(attempt.token, stream, data)
    return Output(len(data), sound, missing=info.stored == "missing")


def entries(queue: Queue, seen: Sequence[Entry]) -> list[Entry]:
    """The event ledger as it is now, with when each entry was seen; and what was seen of
    jobs that are not there any more."""
    times = {entry.id: entry.seen for entry in seen}
    found = [
        Entry(row.id, row.job_id, row.event.value, row.worker_name, times.get(row.id))
        for row in queue.events(limit=None).events
    ]
    kept = {entry.job for entry in found}
    return sorted([*found, *(entry for entry in seen if entry.job not in kept)])


def living(db: Path, ledger_dir: Path) -> dict[int, str]:
    """Processes of the run that live: by the queue's path, and by what the ledger names."""
    found = dict.fromkeys(processes_of(db), "has the queue's path")
    for record in ledger.read(str(ledger_dir)):
        if record.kind == "start" and _runs(record.pid, record.start):
            found[record.pid] = f"{record.role} of job {record.job} attempt {record.number}"
    found.pop(os.getpid(), None)
    return found


def _runs(pid: int, start: str) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == start and fields[0] not in "ZX"


def left_over(db: Path, ledger_dir: Path, wait_s: float = SURVIVORS_S) -> tuple[str, ...]:
    """Processes that go on for longer than what a success may leave running."""
    until = time.monotonic() + wait_s
    while (found := living(db, ledger_dir)) and time.monotonic() < until:
        time.sleep(0.05)
    return tuple(f"process {pid} ({what})" for pid, what in found.items())


def end_left_over(db: Path, ledger_dir: Path) -> None:
    """SIGKILL what is left, so that one run's fault does not spoil the next run."""
    for pid in living(db, ledger_dir):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def litter(queue: Queue) -> tuple[str, ...]:
    """Files of the support folder that a queue at rest does not need."""
    needed = {
        info.path
        for job in queue.jobs(limit=None)
        for attempt in queue.detail(job.id).attempts
        for info in (attempt.stdout, attempt.stderr)
        if info.stored == "file"
    }
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(support_dir(queue.path))
        for name in names
    ]
    own = (waiters_dir(queue.path), workers_dir(queue.path))
    return tuple(path for path in found if path not in needed or path.startswith(own))


def job_errors(ledger_dir: Path) -> tuple[str, ...]:
    """Mishaps of the jobs' program itself; a run with any proves nothing."""
    try:
        text = (ledger_dir / "errors").read_text()
    except FileNotFoundError:
        return ()
    return (f"job.py failed: {text[-1000:]}",)


def damage(queue: Queue) -> tuple[str, ...]:
    """What is wrong with the file itself, and counters that have lost count."""
    with closing(sqlite3.connect(queue.path)) as connection:
        (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
    found = [] if verdict == "ok" else [f"integrity check: {verdict}"]
    counted = Counter(job.state for job in queue.jobs(limit=None))
    kept = {state: count for state, count in queue.counts().states.items() if count}
    if kept != counted:
        found.append(f"counters say {kept}, there are {dict(counted)}")
    return tuple(found)

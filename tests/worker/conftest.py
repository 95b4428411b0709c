"""A queue in a scratch folder and real workers on it, none of which outlives its test."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from spoolctl.engine.crew import Crew
from spoolctl.engine.loop import Deadlines
from spoolctl.engine.options import WorkOptions
from spoolctl.engine.patience import Patience
from spoolctl.engine.station import Station
from tests.helpers import clean_env, eventually, processes_of, spoolctl

QUICK = {
    "SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "0.1",
    "SPOOLCTL_TEST_REAP_THRESHOLD": "0.5",
}
"""Short times, so that a test of recovery does not take half a minute."""

EAGER = (
    "-c",
    "from spoolctl.engine import ahead; ahead.SHORT_S = ahead.SLOW_S = 60.0;"
    " from spoolctl.__main__ import main; main()",
)
"""A worker for which commands are short and the disk is quick, however busy the machine."""

TELLING_JOB = """
mkdir -p locks
exec 9>locks/$SPOOLCTL_JOB_ID
flock -n -E 77 9
[ $? -ne 77 ] || echo $SPOOLCTL_JOB_ID >> doubles
echo $SPOOLCTL_JOB_ID >> runs
"""
"""A script that tells in `runs` when its job runs, and in `doubles` if it does already."""


class Bench:
    """A queue, and what a test does to it from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "queue.db"
        self.workers: list[subprocess.Popen[str]] = []

    def run(self, verb: str, *words: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """One verb on the queue."""
        return spoolctl(verb, "--db", str(self.db), *words, cwd=self.folder, **kwargs)

    def json(self, verb: str, *words: str) -> dict[str, Any]:
        """One verb's data."""
        done = self.run(verb, "--json", *words)
        envelope = json.loads(done.stdout)
        assert envelope["ok"], envelope["errors"]
        data: dict[str, Any] = envelope["data"]
        return data

    def add(self, *words: str) -> int:
        """Submit a command; its id."""
        return int(self.json("add", *words)["job_id"])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a question of the file itself gives."""
        with closing(sqlite3.connect(f"file:{self.db}?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchall()

    def job(self, job_id: int) -> dict[str, Any]:
        """One job's members."""
        return dict(self.json("show", str(job_id))["job"])

    def attempts(self, job_id: int) -> list[dict[str, Any]]:
        """One job's attempts."""
        return list(self.json("show", str(job_id))["attempts"])

    def trail(self, job_id: int) -> list[str]:
        """One job's events by name."""
        return [event["event"] for event in self.json("show", str(job_id))["events"]]

    def work(
        self,
        *flags: str,
        env: dict[str, str] | None = None,
        program: tuple[str, ...] = ("-m", "spoolctl"),
        **kwargs: Any,
    ) -> subprocess.Popen[str]:
        """Start a worker with short times."""
        process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, *program, "work", "--db", str(self.db), *flags],
            cwd=self.folder,
            env=clean_env({**QUICK, **(env or {})}),
            stdin=subprocess.DEVNULL,
            stderr=kwargs.pop("stderr", subprocess.PIPE),
            text=True,
            **kwargs,
        )
        self.workers.append(process)
        return process

    def drain(self, *flags: str, **kwargs: Any) -> str:
        """Run a worker until the queue is settled; its log."""
        worker = self.work("--drain", *flags, **kwargs)
        _, log = worker.communicate(timeout=60)
        assert worker.returncode == 0, log
        return log

    def wait_state(self, job_id: int, state: str) -> None:
        """Wait until the job is in this state."""
        eventually(lambda: self.job(job_id)["state"] == state, what=f"job {job_id} {state}")

    def wait_file(self, name: str) -> str:
        """Wait until the file has content; that content."""
        path = self.folder / name
        return eventually(lambda: path.exists() and path.read_text(), what=name)

    def close(self) -> None:
        """End what is left; complain about processes that only a kill could end."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()
            if worker.stderr:
                worker.stderr.close()
        eventually(lambda: not processes_of(self.db), timeout_s=20, what="processes left running")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A queue of its own; afterwards nothing may run."""
    bench = Bench(Path(os.path.realpath(tmp_path)))
    yield bench
    bench.close()


def alive(pid: int) -> bool:
    """Whether the process lives (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter between open and read
        return False


def companions_of(worker: int, title: str) -> list[int]:
    """The worker's children that call themselves so for ps(1): its guardian, its clerk."""
    found = []
    for pid in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
        with suppress(OSError):  # a command that has ended meanwhile
            if f"spoolctl {title} of".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def guardian_of(worker: int) -> int:
    """The pid of the worker's guardian. 0: it has none now."""
    return next(iter(companions_of(worker, "guardian")), 0)


def idle_crew(
    path: str, *, mono: Callable[[], float], deadlines: Deadlines | None = None
) -> tuple[Crew, Station]:
    """A crew of one slot without a worker, and its station; both are to be closed."""
    station = Station(path, 1, grace_s=1.0, waits=False)
    patience, options = Patience(print), WorkOptions()
    quiet: dict[str, Any] = {"log": print, "stuck": print}
    deadlines = deadlines or Deadlines()
    return Crew(path, station, deadlines, patience, options, mono=mono, **quiet), station

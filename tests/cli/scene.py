"""A queue in which everything has happened once, for tests that look at every answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.helpers import clean_env, eventually, spoolctl

QUICK = {"SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "0.1", "SPOOLCTL_TEST_REAP_THRESHOLD": "0.4"}


class Scene(NamedTuple):
    """The queue, and its jobs by what became of them."""

    folder: Path
    db: Path
    jobs: dict[str, int]

    def id(self, name: str) -> str:
        """A job's number as a word."""
        return str(self.jobs[name])


JOBS: dict[str, tuple[str, ...]] = {
    "done": ("--key", "k-done", "--tag", "a=1", "--note", "n\n\x1b[2J", "--", "echo", "hello"),
    "noisy": ("-c", "head -c 200000 /dev/urandom; printf '\\377\\303\\251' >&2"),
    "dead": ("--max-retries", "0", "-c", "echo oops >&2; exit 3"),
    "backoff": ("-c", "exit 4"),
    "unstartable": ("--max-retries", "0", "--", "/no/such/program"),
    "slow": ("--timeout", "1", "--max-retries", "0", "--", "sleep", "60"),
    "crashed": ("--max-crashes", "0", "--queue", "crash", "--", "sleep", "60"),
    "stopped": ("--queue", "stop", "--", "sleep", "60"),
    "canceled": ("--env", "TOKEN=s3cr3t", "--queue", "later", "--", "true"),
    "scheduled": ("--after", "1h", "--priority", "-5", "--", "true"),
    "waiting": (
        "--queue",
        "later",
        "--env",
        "A=b",
        "--tag",
        "a=2",
        "--tag",
        "z=",
        "--",
        "a b",
        "ü",
    ),
}


def make(folder: Path) -> Scene:
    """Set the scene: some seconds."""
    with ExitStack() as workers:
        return _make(folder, workers)


def _make(folder: Path, workers: ExitStack) -> Scene:
    db = folder / "queue.db"
    jobs = {name: _add(folder, db, words) for name, words in JOBS.items()}
    where = ("--db", str(db))
    spoolctl("cancel", *where, str(jobs["canceled"]), cwd=folder)
    crashing = _work(workers, folder, db, "--queue", "crash")
    _until(folder, db, jobs["crashed"], "running")
    crashing.send_signal(signal.SIGKILL)
    crashing.wait()
    stopping = _work(workers, folder, db, "--queue", "stop")
    _until(folder, db, jobs["stopped"], "running")
    spoolctl("cancel", *where, "--running", "--yes", str(jobs["stopped"]), cwd=folder)
    stopping.send_signal(signal.SIGTERM)
    stopping.wait()
    # `backoff` fails meanwhile, and is left between two attempts.
    working = _work(workers, folder, db, "-j", "4")
    _until(folder, db, jobs["slow"], "dead")
    _until(folder, db, jobs["crashed"], "dead")
    working.send_signal(signal.SIGTERM)
    working.wait()
    return Scene(folder, db, jobs)


def _add(folder: Path, db: Path, words: tuple[str, ...]) -> int:
    done = spoolctl("add", "--json", "--db", str(db), *words, cwd=folder)
    return int(json.loads(done.stdout)["data"]["job_id"])


def _work(workers: ExitStack, folder: Path, db: Path, *flags: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "spoolctl", "work", "--db", str(db), *flags],
        cwd=folder,
        env=clean_env(QUICK),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    workers.callback(process.wait)
    workers.callback(process.kill)
    return process


def _until(folder: Path, db: Path, job_id: int, state: str) -> None:
    def reached() -> bool:
        done = spoolctl("show", "--json", "--db", str(db), str(job_id), cwd=folder)
        return bool(json.loads(done.stdout)["data"]["job"]["state"] == state)

    eventually(reached, timeout_s=30, what=f"job {job_id} {state}")

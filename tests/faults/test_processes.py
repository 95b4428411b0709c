"""No more processes: jobs wait, cost nothing and run when there is room again."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import clean_env, eventually
from tests.system.strace_log import can_strace
from tests.worker.conftest import QUICK, Bench

SOMEBODY = 60_000 + os.getpid() % 5_000
"""A user who runs nothing else; another one in each process that runs tests side by side."""

REFUSED = "waiting: cannot start"


def words_of(number: int) -> list[str]:
    """Let the worker's calls that make a process, but not its children's, fail this time."""
    calls = "clone,clone3,fork,vfork"
    inject = f"inject={calls}:error=EAGAIN:when={number}"
    return ["strace", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", inject]


@pytest.mark.skipif(not can_strace(), reason="strace is missing or not allowed")
@pytest.mark.parametrize(("number", "whom"), [(1, "the guardian"), (2, "a process")])
def test_a_fork_that_fails_is_tried_again(bench: Bench, number: int, whom: str) -> None:
    jobs = [bench.add("--max-retries", "0", "-c", f"echo {n}; echo x >> ran{n}") for n in (1, 2)]
    words = [sys.executable, "-m", "spoolctl", "work", "--drain", "--db", str(bench.db)]
    done = subprocess.run(
        [*words_of(number), *words],
        env=clean_env(QUICK),
        cwd=bench.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"{REFUSED} {whom}: Resource temporarily unavailable") == 1
    assert "going on" in done.stderr
    for n, job in enumerate(jobs, 1):
        assert bench.trail(job) == ["added", "claimed", "succeeded"]
        assert (bench.folder / f"ran{n}").read_text() == "x\n"


def as_somebody() -> list[str]:
    """Run a program as another user who nevertheless may read everything."""
    few = "-all,+dac_override,+dac_read_search"
    words = ["setpriv", f"--reuid={SOMEBODY}", "--clear-groups", f"--inh-caps={few}"]
    return [*words, f"--ambient-caps={few}", f"--bounding-set={few}"]


def can_be_somebody() -> bool:
    """Whether that works here, and the quota of processes counts."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    code = "import os; os.posix_spawn('/bin/true', ['true'], {})"
    tried = subprocess.run(
        [*as_somebody(), sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)),
        capture_output=True,
        text=True,
        check=False,
    )
    return "BlockingIOError" in tried.stderr


@pytest.fixture
def their_bench() -> Iterator[Bench]:
    """A queue of that user, in a folder that they can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, SOMEBODY, -1)
        bench = Bench(Path(os.path.realpath(folder)))
        yield bench
        bench.close()


@pytest.fixture
def others() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of that user, who use up the quota."""
    made = [subprocess.Popen([*as_somebody(), "sleep", "300"]) for _ in range(3)]
    yield made
    end(made)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Make room."""
    for each in processes:
        each.kill()
        each.wait()


@pytest.mark.skipif(not can_be_somebody(), reason="needs root, to be another user with a quota")
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_quota_of_processes_delays_jobs_and_fails_none(
    their_bench: Bench, others: list[subprocess.Popen[bytes]], limit: int
) -> None:
    """With 1 there is no room for the guardian, with 2 none for a job, with 3 for one of them."""
    bench = their_bench
    jobs = [
        bench.add("--max-retries", "0", "-c", f"echo x >> ran{n}; until test -e go; do :; done")
        for n in (1, 2)
    ]
    for path in bench.folder.iterdir():
        os.chown(path, SOMEBODY, -1)
    quota = limit + len(others)
    worker = subprocess.Popen(
        [*as_somebody(), sys.executable, "-m", "spoolctl", "work", "-j", "2", "--drain"],
        env=clean_env({**QUICK, "SPOOLCTL_DB": str(bench.db)}),
        cwd=bench.folder,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (quota, quota)),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    bench.workers.append(worker)
    assert worker.stderr is not None
    line = worker.stderr.readline()
    assert REFUSED in line
    assert "Resource temporarily unavailable" in line
    ran = [bench.folder / f"ran{n}" for n in (1, 2)]
    eventually(lambda: sum(path.exists() for path in ran) == max(0, limit - 2), timeout_s=30)
    assert worker.poll() is None
    end(others)
    eventually(lambda: all(path.exists() for path in ran), timeout_s=30)
    (bench.folder / "go").touch()
    _, log = worker.communicate(timeout=60)
    assert worker.returncode == 0, log
    assert "going on" in log
    assert [bench.trail(job) for job in jobs] == [["added", "claimed", "succeeded"]] * 2
    assert [path.read_text() for path in ran] == ["x\n"] * 2

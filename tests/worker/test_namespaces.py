"""Workers in containers: other PID namespaces of one kernel, and other boots."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import clean_env, eventually
from tests.worker.conftest import QUICK, Bench, alive, guardian_of

CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _can_unshare() -> bool:
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not _can_unshare(), reason="PID namespaces need Linux, unshare(1) and the right to use it"
)


def work_in_container(bench: Bench, *flags: str) -> tuple[subprocess.Popen[str], int]:
    """A worker that is PID 1 of its own namespace; unshare's process, the worker's outer pid."""
    process = subprocess.Popen(
        [*CONTAINER, sys.executable, "-m", "spoolctl", "work", "--db", str(bench.db), *flags],
        cwd=bench.folder,
        env=clean_env(QUICK),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    bench.workers.append(process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    pid = eventually(lambda: children.read_text().split())[0]
    return process, int(pid)


def test_a_stopped_worker_of_a_container_is_not_robbed(bench: Bench) -> None:
    job = bench.add("-c", "echo run >> runs; until test -e go; do sleep 0.05; done")
    first, inner = work_in_container(bench, "--once")
    bench.wait_file("runs")
    os.kill(inner, signal.SIGSTOP)
    second = bench.work("--poll-interval", "0.1")
    recovery = eventually(lambda: bench.json("show", str(job))["job"]["recovery"])
    assert recovery["verdict"] == "alive"
    assert "lock" in recovery["reason"]
    (bench.folder / "go").touch()
    os.kill(inner, signal.SIGCONT)
    first.communicate(timeout=30)
    bench.wait_state(job, "done")
    second.terminate()
    second.communicate(timeout=30)
    assert (bench.folder / "runs").read_text() == "run\n"


def test_a_killed_worker_of_a_container_is_recovered(bench: Bench) -> None:
    """It was PID 1: its whole namespace dies with it, the guardian too."""
    job = bench.add("-c", "echo x >> runs; test $(wc -l < runs) = 1 && sleep 300; true")
    first, inner = work_in_container(bench)
    bench.wait_file("runs")
    os.kill(inner, signal.SIGKILL)
    first.wait()
    bench.work("--poll-interval", "0.1")
    bench.wait_state(job, "done")
    assert bench.trail(job)[:4] == ["added", "claimed", "reaped", "claimed"]


def test_a_container_recovers_what_a_killed_worker_outside_left(bench: Bench) -> None:
    job = bench.add("-c", "echo x >> runs; test $(wc -l < runs) = 1 && sleep 300; true")
    first = bench.work()
    bench.wait_file("runs")
    first.kill()
    first.wait()
    second, inner = work_in_container(bench, "--poll-interval", "0.1")
    bench.wait_state(job, "done")
    assert bench.job(job)["crashes"] == 1
    os.kill(inner, signal.SIGTERM)
    second.communicate(timeout=30)


def test_a_container_waits_for_processes_that_it_cannot_see(bench: Bench) -> None:
    """Worker and guardian outside are killed; their command lives on and holds its lock."""
    job = bench.add("-c", "echo $$ >> pids; test $(wc -l < pids) = 1 && exec sleep 300; true")
    first = bench.work()
    pid = int(bench.wait_file("pids"))
    guardian = guardian_of(first.pid)
    assert guardian
    for victim in (first.pid, guardian):
        os.kill(victim, signal.SIGSTOP)
    for victim in (first.pid, guardian):
        os.kill(victim, signal.SIGKILL)
    first.wait()
    second, inner = work_in_container(bench, "--poll-interval", "0.1")
    eventually(lambda: bench.job(job)["recovery"])
    # First from us, who see that its worker has ended, then from the one who tries.
    eventually(lambda: "no process" not in bench.job(job)["recovery"]["reason"])
    assert bench.job(job)["recovery"]["verdict"] == "dead"
    assert bench.job(job)["state"] == "running"
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)
    bench.wait_state(job, "done")
    os.kill(inner, signal.SIGTERM)
    _, log = second.communicate(timeout=30)
    assert f"job {job} left alone" in log


def test_after_a_reboot_the_job_is_recovered_at_once(bench: Bench) -> None:
    job = bench.add("-c", "echo x >> runs; test $(wc -l < runs) = 1 && sleep 300; true")
    first = bench.work()
    bench.wait_file("runs")
    first.kill()
    first.wait()
    conn = sqlite3.connect(bench.db)
    with conn:
        conn.execute("UPDATE workers SET boot_id = 'another boot'")
    conn.close()
    bench.work("--reap-after", "3600")
    bench.wait_state(job, "done")


def test_a_pid_that_another_process_has_now_is_no_sign_of_life(bench: Bench) -> None:
    job = bench.add("-c", "echo x >> runs; test $(wc -l < runs) = 1 && sleep 300; true")
    first = bench.work()
    bench.wait_file("runs")
    first.kill()
    first.wait()
    conn = sqlite3.connect(bench.db)
    with conn:  # as if this very process had been given the dead worker's number
        conn.execute("UPDATE workers SET pid = ?", (os.getpid(),))
    conn.close()
    bench.work()
    bench.wait_state(job, "done")
    assert bench.job(job)["state"] == "done"

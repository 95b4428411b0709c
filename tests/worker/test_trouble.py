"""Locked, full, removed and replaced files; a log nobody reads; too few resources."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import eventually
from tests.worker.conftest import Bench, alive


def test_a_long_foreign_lock_loses_no_result(bench: Bench) -> None:
    job = bench.add(
        "--max-retries", "0", "-c", "echo up > up; until test -e go; do sleep 0.05; done; exit 3"
    )
    worker = bench.work()
    bench.wait_file("up")
    other = sqlite3.connect(bench.db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    (bench.folder / "go").touch()
    time.sleep(1.5)  # far longer than the threshold of recovery
    second = bench.work()
    time.sleep(0.5)
    other.execute("ROLLBACK")
    other.close()
    bench.wait_state(job, "dead")
    assert bench.job(job)["last_exit_code"] == 3
    assert bench.trail(job) == ["added", "claimed", "failed", "dead"]
    for one in (worker, second):
        one.terminate()
        one.communicate(timeout=30)
        assert one.returncode == 0


@pytest.mark.parametrize("how", ["removed", "replaced", "folder"])
def test_a_queue_that_is_gone_ends_the_worker(bench: Bench, how: str) -> None:
    bench.add("-c", "echo $$ > pid; sleep 300")
    worker = bench.work()
    pid = int(bench.wait_file("pid"))
    if how == "folder":
        shutil.move(bench.folder, bench.folder.with_name("moved"))
        shutil.rmtree(bench.folder.with_name("moved"))
    else:
        os.unlink(bench.db)
    if how == "replaced":
        Path(bench.db).touch()
    _, log = worker.communicate(timeout=30)
    assert worker.returncode == 3, log
    assert log.count("removed or replaced") == 1
    assert "Traceback" not in log
    assert not alive(pid)
    assert how == "replaced" or not bench.db.exists(), "it never makes the file again"


def test_the_support_folder_may_go_while_a_worker_runs(bench: Bench) -> None:
    job = bench.add(
        "-c", "echo before; echo up > up; until test -e go; do sleep 0.05; done; echo after"
    )
    worker = bench.work()
    bench.wait_file("up")
    shutil.rmtree(f"{bench.db}.d")
    (bench.folder / "go").touch()
    bench.wait_state(job, "done")
    assert bench.run("output", "--raw", "--stream", "stdout", str(job)).stdout == "before\nafter\n"
    again = bench.add("--", "echo", "again")
    bench.wait_state(again, "done")
    worker.terminate()
    worker.communicate(timeout=30)
    assert worker.returncode == 0


def test_a_closed_stderr_does_not_end_the_worker(bench: Bench) -> None:
    job = bench.add("--", "true")
    worker = bench.work("--drain", stderr=None, preexec_fn=lambda: os.close(2))
    worker.wait(timeout=30)
    assert worker.returncode == 0
    assert bench.job(job)["state"] == "done"


def test_a_reader_of_stderr_that_went_away_does_not_end_the_worker(bench: Bench) -> None:
    read, write = os.pipe()
    os.close(read)
    jobs = [bench.add("--", "true") for _ in range(3)]
    worker = bench.work("--drain", stderr=write)
    os.close(write)
    worker.wait(timeout=30)
    assert worker.returncode == 0
    assert {bench.job(job)["state"] for job in jobs} == {"done"}


def test_a_reader_of_stderr_that_does_not_read_does_not_hang_the_worker(bench: Bench) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while os.write(write, b"x" * 4096):
            pass
    except BlockingIOError:
        pass
    os.set_blocking(write, True)
    jobs = [bench.add("--", "true") for _ in range(3)]
    worker = bench.work("--drain", stderr=write)
    worker.wait(timeout=30)
    assert worker.returncode == 0
    assert {bench.job(job)["state"] for job in jobs} == {"done"}
    os.close(read)
    os.close(write)


def test_too_few_open_files_delay_jobs_and_fail_none(bench: Bench) -> None:
    jobs = [bench.add("--max-retries", "0", "-c", "echo out; sleep 0.2") for _ in range(30)]
    worker = bench.work(
        "--drain", "-j", "30",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (34, 34)),
    )  # fmt: skip
    _, log = worker.communicate(timeout=60)
    assert worker.returncode == 0, log
    assert "waiting: " in log
    assert {bench.job(job)["state"] for job in jobs} == {"done"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 4 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", folder], capture_output=True
    )
    if mount.returncode:
        pytest.skip("a small disk needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_delays_and_loses_nothing(bench: Bench, small_disk: Path) -> None:
    bench.db = small_disk / "queue.db"
    jobs = [bench.add("-c", "echo $SPOOLCTL_JOB_ID; until test -e go; do sleep 0.05; done")]
    jobs += [bench.add("--", "echo", "x" * 50000) for _ in range(4)]
    worker = bench.work()
    bench.wait_state(jobs[0], "running")
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    (bench.folder / "go").touch()
    assert worker.stderr is not None
    line = worker.stderr.readline()
    assert "waiting" in line, line
    assert worker.poll() is None
    filler.unlink()
    for job in jobs:
        bench.wait_state(job, "done")
        assert bench.run("output", "--raw", "--stream", "stdout", str(job)).stdout
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    conn = sqlite3.connect(bench.db)
    assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    conn.close()
    eventually(lambda: worker.poll() is not None)


def test_a_flood_of_output_keeps_head_and_tail_and_says_so(bench: Bench) -> None:
    job = bench.add("-c", "echo HEAD; head -c 20000000 /dev/zero; echo TAIL; sleep 1.2")
    worker = bench.work("--drain", "--max-output", "1M")
    worker.communicate(timeout=60)
    attempt = bench.attempts(job)[0]
    if attempt["failure_reason"] == "output_limit":
        pytest.skip("this file system cannot punch holes")
    data = bench.run("output", "--stream", "stdout", "--json", str(job)).stdout
    assert "HEAD" in data
    text = bench.run("output", "--stream", "stdout", "--tail", "1", str(job)).stdout
    assert text.endswith("TAIL\n")
    assert os.stat(attempt["stdout_path"]).st_blocks * 512 < 2_000_000

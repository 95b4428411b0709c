"""Locked, full, removed and replaced files; a log nobody reads; too few resources."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from spoolctl import Queue
from tests.helpers import clean_env, eventually
from tests.worker.conftest import EAGER, Bench, alive, guardian_of


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_signal_while_it_waits_for_its_first_lock_does_not_keep_it_awake(bench: Bench) -> None:
    bench.add("true")
    with closing(sqlite3.connect(bench.db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        worker = bench.work("--once")
        eventually(lambda: list(Path(f"{bench.db}.d", "workers").glob("*.bell")))
        time.sleep(1.0)  # by now it looks for the lock at its slowest pace
        worker.send_signal(signal.SIGCHLD)
        before = _waits(worker.pid)
        time.sleep(1.0)
        assert _waits(worker.pid) - before < 500  # about 170; 1300 if nothing lets it sleep
        other.execute("ROLLBACK")
    worker.communicate(timeout=30)
    assert worker.returncode == 0


def _waits(pid: int) -> int:
    """How often a process has gone to sleep so far."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


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


def clerk_from(jobs: int) -> tuple[str, ...]:
    """A worker that has a clerk from the start if so many jobs wait, and else none."""
    return (
        "-c",
        f"from spoolctl.engine import ahead, books; books.BACKLOG = {jobs}; ahead.STEADY = 10**9;"
        " from spoolctl.__main__ import main; main()",
    )


NO_CLERK = clerk_from(10**9)


def drains(
    bench: Bench,
    limit: int,
    program: tuple[str, ...],
    timeout_s: float,
    *,
    slots: int = 1,
    guardian_dies: bool = False,
) -> bool:
    """Whether a worker with so few descriptors runs a dozen commands in time."""
    with Queue(bench.db) as queue:
        queue.add_many([["sleep", "0.02"]] * 12)
    worker = bench.work(
        "--drain", "-j", str(slots), program=program, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )  # fmt: skip
    if guardian_dies:
        os.kill(eventually(lambda: guardian_of(worker.pid)), signal.SIGKILL)
    try:
        return worker.wait(timeout=timeout_s) == 0
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
        return False


def fewest(bench: Bench, slots: int) -> int:
    """How many descriptors are enough for a worker without a clerk."""
    limit = 40
    while drains(bench, limit - 1, NO_CLERK, 3.0, slots=slots):
        limit -= 1
    assert 15 < limit < 36
    bench.drain("--reap-after", "0.1")
    return limit


@pytest.mark.parametrize("slots", [1, 4])
def test_a_clerk_takes_no_descriptors_that_guardian_and_commands_need(
    bench: Bench, slots: int
) -> None:
    """However few there are: what is enough without it is enough."""
    enough = fewest(bench, slots)
    for limit in range(enough, enough + 6):
        assert drains(bench, limit, clerk_from(1), 20.0, slots=slots), limit


def test_streams_of_the_next_command_keep_no_descriptors_from_a_new_guardian(bench: Bench) -> None:
    enough = fewest(bench, 1)
    for limit in range(enough, enough + 3):
        assert drains(bench, limit, NO_CLERK, 20.0, guardian_dies=True), limit


def test_what_was_recorded_keeps_no_descriptors_from_the_next_commands(bench: Bench) -> None:
    """Two streams a slot fit; those of the commands before them are let go for these."""
    with Queue(bench.db) as queue:
        queue.add_many([["true"]] * 200)
    worker = bench.work(
        "--drain", "-j", "8", program=EAGER,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (44, 44)),
    )  # fmt: skip
    _, log = worker.communicate(timeout=60)
    assert worker.returncode == 0, log
    assert "waiting: " not in log


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


def fill(folder: Path) -> Path:
    """Take all the room that is left on the folder's disk; the file that has it."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return filler


def test_a_full_disk_delays_and_loses_nothing(bench: Bench, small_disk: Path) -> None:
    bench.db = small_disk / "queue.db"
    jobs = [bench.add("-c", "echo $SPOOLCTL_JOB_ID; until test -e go; do sleep 0.05; done")]
    jobs += [bench.add("--", "echo", "x" * 50000) for _ in range(4)]
    worker = bench.work()
    bench.wait_state(jobs[0], "running")
    filler = fill(small_disk)
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


def test_a_success_on_a_full_disk_is_no_silent_one(bench: Bench, small_disk: Path) -> None:
    bench.db = small_disk / "queue.db"
    reserve = small_disk / "reserve"
    reserve.write_bytes(b"x" * 500_000)
    job = str(bench.add("-c", "head -c 20000000 /dev/zero | cat; echo x > over; exit 0"))
    worker = bench.work("--once")
    bench.wait_file("over")
    doctor = bench.run("doctor", "--json")
    assert not json.loads(doctor.stdout)["data"]["ready"]
    time.sleep(0.5)  # the worker takes note of the end, and may have no room to record it
    reserve.unlink()
    worker.communicate(timeout=30)
    for verb in ("output", "feedback"):
        told = json.loads(bench.run(verb, "--json", job).stdout)["warnings"]
        assert [each["code"] for each in told] == ["OUTPUT_INCOMPLETE"]
        assert "disk is full" in told[0]["message"]
    raw = bench.run("output", "--raw", "--stream", "stdout", job)
    assert "disk is full" in raw.stderr


def test_only_a_third_signal_gives_up_a_result_that_waits_for_room(
    bench: Bench, small_disk: Path
) -> None:
    bench.db = small_disk / "queue.db"
    job = bench.add("--max-crashes", "0", "-c", "touch up; until test -e go; do sleep 0.05; done")
    worker = bench.work()
    eventually((bench.folder / "up").exists)
    filler = fill(small_disk)
    (bench.folder / "go").touch()
    assert worker.stderr is not None
    assert "waiting: no room" in worker.stderr.readline()
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.5)
    worker.send_signal(signal.SIGHUP)
    _, log = worker.communicate(timeout=30)
    assert f"how job {job} ended could not be recorded; that counts as a crash" in log
    filler.unlink()
    bench.drain()
    assert bench.trail(job) == ["added", "claimed", "reaped", "dead"]


def giving_in_after(seconds: float) -> tuple[str, str]:
    """A worker that tries for so long to record results after a third stop request."""
    return (
        "-c",
        f"from spoolctl.engine import worker; worker.GIVE_IN_S = {seconds};"
        " from spoolctl.__main__ import main; main()",
    )


def test_who_insists_while_others_write_loses_no_result(bench: Bench) -> None:
    job = bench.add(
        "--max-crashes", "0", "-c", "echo $$ > pid; until test -e go; do sleep 0.05; done"
    )
    worker = bench.work(program=giving_in_after(30.0))
    pid = int(bench.wait_file("pid"))
    with closing(sqlite3.connect(bench.db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        (bench.folder / "go").touch()
        eventually(lambda: not alive(pid), what="the command's end")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            worker.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.5)
    worker.wait(30)
    assert bench.job(job)["state"] == "done"


def test_who_insists_while_something_runs_waits_for_its_result_all_the_same(bench: Bench) -> None:
    """The second counts from the end of all that ran, not from the signal."""
    job = bench.add("--max-crashes", "0", "-c", "trap '' TERM; echo up > up; sleep 60 & wait")
    worker = bench.work(program=giving_in_after(3.0))  # the grace is 5 s
    bench.wait_file("up")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        worker.send_signal(number)
    with closing(sqlite3.connect(bench.db, isolation_level=None)) as other:
        while worker.poll() is None:
            other.execute("BEGIN IMMEDIATE")
            with suppress(subprocess.TimeoutExpired):
                worker.wait(0.2)
            other.execute("ROLLBACK")
            time.sleep(0.02)
    assert bench.trail(job) == ["added", "claimed", "released"]


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


def without_support_folder(bench: Bench) -> tuple[subprocess.Popen[str], Path, int]:
    """A worker with a file in the place of its support folder, and a job that waits for that."""
    worker = bench.work()
    support = Path(f"{bench.db}.d")
    eventually(lambda: list(support.glob("workers/*.bell")), what="the worker")
    shutil.rmtree(support)
    support.touch()
    job = bench.add("--max-retries", "0", "--", "true")
    bench.wait_state(job, "running")
    return worker, support, job


def test_a_file_in_the_place_of_the_support_folder_is_waited_out(bench: Bench) -> None:
    worker, support, job = without_support_folder(bench)
    time.sleep(2.5)  # several tries to start the guardian
    support.unlink()
    bench.wait_state(job, "done")
    worker.terminate()
    _, log = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert log.count(f"cannot start the guardian: Not a directory: {support}/workers/") == 1


def test_what_waits_for_room_is_given_back_at_the_first_signal(bench: Bench) -> None:
    worker, _, job = without_support_folder(bench)
    worker.terminate()
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert bench.trail(job) == ["added", "claimed", "released"]
    assert bench.job(job)["attempts"] == 0


@pytest.fixture
def stuck(bench: Bench) -> Iterator[subprocess.Popen[str]]:
    """A worker with two places and a failed attempt that cannot be ended: job 1."""
    bench.add("--max-retries", "0", "-c", "echo up > up; until test -e go; do :; done; exit 3")
    worker = bench.work("-j", "2", "--shutdown-timeout", "0.5")
    bench.wait_file("up")
    lock = next(Path(f"{bench.db}.d", "workers").glob("*.?.0"))
    eventually(lambda: not has_open(worker.pid, lock), what="the command alone has the lock")
    with open(lock, "rb") as file:
        worker.send_signal(signal.SIGSTOP)  # or it might see the lock free before we have it
        (bench.folder / "go").touch()
        fcntl.flock(file, fcntl.LOCK_EX)  # as soon as the command lets it go
        worker.send_signal(signal.SIGCONT)
        eventually(lambda: bench.job(1)["recovery"], what="the reason why it is stuck")
        yield worker


def test_a_stuck_attempt_does_not_keep_zombies_of_others(
    bench: Bench, stuck: subprocess.Popen[str]
) -> None:
    for _ in range(5):
        bench.wait_state(bench.add("-c", "(setsid sleep 0.1 &); exit 0"), "done")
    # Its own leader, and nobody else.
    eventually(lambda: len(zombies_of(stuck.pid)) == 1, what="orphans collected")
    assert bench.job(1)["state"] == "running"


def test_a_stuck_attempt_does_not_outlast_the_shutdown_timeout(
    bench: Bench, stuck: subprocess.Popen[str]
) -> None:
    stuck.terminate()
    assert stuck.wait(timeout=20) == 0
    assert bench.job(1)["state"] == "running"


def has_open(pid: int, path: Path) -> bool:
    """Whether the process has the file open at this moment."""
    links = Path(f"/proc/{pid}/fd")
    return any(os.path.realpath(links / name) == str(path) for name in os.listdir(links))


def zombies_of(pid: int) -> list[int]:
    """Ended children that were not collected."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if not alive(int(child))]


def test_a_success_that_came_too_late_leaves_the_next_command_alone(bench: Bench) -> None:
    """Its survivors are ended, but not the command that has the place and its lock by now."""
    hider = (
        "import os, time; os.setsid(); os.closerange(0, 300); open('hidden', 'w'); time.sleep(60)"
    )
    late = bench.add(
        "-c", f'{sys.executable} -c "{hider}" & until test -e hidden -a -e go; do sleep 0.01; done'
    )
    following = bench.add("--max-retries", "0", "-c", "sleep 1")
    worker = bench.work()
    eventually((bench.folder / "hidden").exists)
    with closing(sqlite3.connect(bench.db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        (bench.folder / "go").touch()
        time.sleep(0.7)  # the worker has noticed the end by now, and cannot record it
        worker.send_signal(signal.SIGSTOP)  # or it might be the first to get the lock
        cancel = subprocess.Popen(
            [sys.executable, "-m", "spoolctl", "cancel", "--running", "--yes", str(late)],
            env=clean_env({"SPOOLCTL_DB": str(bench.db)}),
        )
        other.execute("ROLLBACK")
    bench.wait_state(late, "canceled")
    worker.send_signal(signal.SIGCONT)
    assert cancel.wait(timeout=30) == 0
    bench.wait_state(following, "done")
    assert bench.job(late)["state"] == "canceled"
    worker.terminate()


def test_a_worker_that_ends_while_others_write_leaves_no_row(bench: Bench) -> None:
    job = bench.add("--", "true")
    worker = bench.work()
    bench.wait_state(job, "done")
    with closing(sqlite3.connect(bench.db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        worker.terminate()
        time.sleep(0.6)  # it would have ended
        other.execute("ROLLBACK")
        worker.wait(timeout=30)
        registered = "SELECT count(*) FROM workers WHERE ended_at IS NULL"
        assert other.execute(registered).fetchone() == (0,)

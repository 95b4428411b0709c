"""Workers that are killed, stopped, told to end, or whose guardian dies."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from spoolctl import Queue
from spoolctl.engine.children import Children
from spoolctl.engine.station import Station
from spoolctl.process.table import MARK
from tests.helpers import clean_env, eventually, processes_of
from tests.worker.conftest import Bench, alive, guardian_of

TREE = "sleep 300 & setsid sleep 300 & echo $! > pid; echo started; wait"


def start_job(bench: Bench, *flags: str) -> int:
    """Add a job with a small tree of processes and wait until a worker runs it."""
    return bench.add(*flags, "-c", TREE)


def test_a_killed_workers_tree_ends_and_its_job_runs_again(bench: Bench) -> None:
    job = start_job(bench)
    first = bench.work()
    pid = int(bench.wait_file("pid"))
    first.kill()
    first.wait()
    # The guardian ends the tree within a second (nothing here ignores SIGTERM) ...
    eventually(lambda: not alive(pid), timeout_s=3)
    # ... and leaves the queue alone.
    assert bench.job(job)["state"] == "running"
    (bench.folder / "pid").unlink()
    second = bench.work()
    bench.wait_file("pid")
    shown = bench.job(job)
    assert (shown["state"], shown["crashes"], shown["attempts"]) == ("running", 1, 1)
    assert [one["state"] for one in bench.attempts(job)] == ["abandoned", "running"]
    assert bench.attempts(job)[0]["failure_reason"] == "worker_crash"
    assert bench.trail(job) == ["added", "claimed", "reaped", "claimed"]
    output = bench.run("output", "--attempt", "1", "--raw", "--stream", "stdout", str(job))
    assert output.stdout == "started\n"
    second.terminate()
    second.terminate()
    bench.json("cancel", "--running", "--yes", str(job))
    _, log = second.communicate(timeout=30)
    assert f"spoolctl: reaped job {job} (worker pid {first.pid} died); now queued" in log


def test_a_worker_killed_when_its_first_command_has_just_started_leaves_nothing(
    bench: Bench,
) -> None:
    """The guardian's interpreter is still starting then."""
    for _ in range(4):
        bench.add("-c", "echo $$ > pid; sleep 300 & setsid sleep 300 & wait")
        worker = bench.work("--once")
        while not (bench.folder / "pid").exists():
            assert worker.poll() is None
        worker.kill()
        worker.wait()
        (bench.folder / "pid").unlink()
        eventually(lambda: not processes_of(bench.db), timeout_s=4, what="all processes gone")


def test_a_worker_killed_at_any_moment_of_its_end_leaves_nothing(bench: Bench) -> None:
    """The guardian is dismissed then: not before the last command's end is recorded."""
    for moment in range(12):
        bench.add("--", "true")
        worker = bench.work("--drain")
        assert worker.stderr is not None
        assert worker.stderr.readline().endswith("-> done\n")
        time.sleep(moment * 0.0005)
        worker.kill()
        worker.wait()
        eventually(lambda: not processes_of(bench.db), timeout_s=4, what="all processes gone")
    bench.drain()
    with Queue(bench.db) as queue:
        assert {job.state.value for job in queue.jobs()} == {"done"}


def test_what_is_still_announced_when_a_worker_ends_is_the_guardians(tmp_path: Path) -> None:
    station = Station(str(tmp_path / "queue.db"), 1, grace_s=0.5, waits=False)
    children = Children()
    guardian = station.ensure_guardian(time.monotonic())
    assert guardian is not None
    children.watch(guardian)
    token = os.urandom(16).hex()
    station.roster.announce(0, token, str(tmp_path / "lock"))
    pid = os.posix_spawn("/bin/sleep", ["sleep", "300"], {MARK: token}, setsid=True)
    station.close(children)
    try:
        assert eventually(lambda: os.waitpid(pid, os.WNOHANG)[0]) == pid
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise


def test_fifty_trees_end_with_their_worker(bench: Bench) -> None:
    for _ in range(50):
        bench.add("-c", "echo >> up; exec sleep 300")
    worker = bench.work("-j", "50")
    eventually(lambda: bench.wait_file("up").count("\n") == 50, timeout_s=30)
    worker.kill()
    worker.wait()
    eventually(lambda: not processes_of(bench.db), timeout_s=6, what="all trees gone")


def test_the_kill_of_a_workers_whole_group_leaves_the_guardian(bench: Bench) -> None:
    start_job(bench)
    worker = bench.work(start_new_session=True)
    pid = int(bench.wait_file("pid"))
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    eventually(lambda: not alive(pid), timeout_s=3)


def test_a_killed_guardian_is_replaced_and_the_job_goes_on(bench: Bench) -> None:
    job = start_job(bench)
    worker = bench.work()
    pid = int(bench.wait_file("pid"))
    old = eventually(lambda: guardian_of(worker.pid))
    os.kill(old, signal.SIGKILL)
    new = eventually(lambda: guardian_of(worker.pid) not in (0, old))
    assert new
    assert bench.job(job)["state"] == "running"
    assert alive(pid)
    worker.kill()
    worker.wait()
    eventually(lambda: not alive(pid), timeout_s=3)


def test_without_its_guardian_the_reaper_ends_the_tree(bench: Bench) -> None:
    """The second net alone: worker and guardian killed together."""
    job = start_job(bench)
    worker = bench.work()
    pid = int(bench.wait_file("pid"))
    guardian = eventually(lambda: guardian_of(worker.pid))
    for victim in (worker.pid, guardian):
        os.kill(victim, signal.SIGSTOP)
    for victim in (worker.pid, guardian):
        os.kill(victim, signal.SIGKILL)
    worker.wait()
    assert alive(pid)
    (bench.folder / "pid").unlink()
    second = bench.work()
    bench.wait_file("pid")
    assert not alive(pid), "the old copy must be gone before the next starts"
    second.kill()
    second.wait()
    assert bench.job(job)["crashes"] == 1


def test_a_stopped_worker_keeps_its_job(bench: Bench) -> None:
    job = bench.add("-c", "echo run >> runs; until test -e go; do sleep 0.05; done")
    first = bench.work("--once")
    bench.wait_file("runs")
    os.kill(first.pid, signal.SIGSTOP)
    second = bench.work("--poll-interval", "0.1")
    eventually(lambda: bench.json("show", str(job))["job"]["recovery"], what="a recovery note")
    assert bench.json("show", str(job))["job"]["recovery"]["verdict"] == "alive"
    (bench.folder / "go").touch()
    os.kill(first.pid, signal.SIGCONT)
    first.communicate(timeout=30)
    bench.wait_state(job, "done")
    second.terminate()
    second.communicate(timeout=30)
    assert (bench.folder / "runs").read_text() == "run\n"
    assert bench.trail(job) == ["added", "claimed", "succeeded"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_lets_the_job_end(bench: Bench, number: signal.Signals) -> None:
    job = bench.add("-c", "echo up > up; until test -e go; do sleep 0.05; done")
    waiting = bench.add("--", "true")
    worker = bench.work()
    bench.wait_file("up")
    worker.send_signal(number)
    assert worker.stderr is not None
    assert "stopping after in-flight job" in worker.stderr.readline()
    (bench.folder / "go").touch()
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert bench.job(job)["state"] == "done"
    assert bench.job(waiting)["state"] == "queued"


def test_a_closed_terminal_is_one_signal(bench: Bench) -> None:
    """Its shell passes SIGHUP on, and when that ends the kernel sends another."""
    job = bench.add("-c", "echo up > up; until test -e go; do sleep 0.05; done")
    master, slave = pty.openpty()
    worker = bench.work(
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    )
    os.close(slave)
    bench.wait_file("up")
    os.close(master)  # the kernel hangs up, and tells the session's leader
    assert worker.stderr is not None
    assert "stopping after in-flight job" in worker.stderr.readline()
    worker.send_signal(signal.SIGHUP)
    time.sleep(0.3)  # for the command to be ended, if it is
    (bench.folder / "go").touch()
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert bench.trail(job) == ["added", "claimed", "succeeded"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_same_signal_twice_is_two_requests(bench: Bench, number: signal.Signals) -> None:
    job = start_job(bench)
    worker = bench.work()
    bench.wait_file("pid")
    worker.send_signal(number)
    assert worker.stderr is not None
    assert "stopping after in-flight job" in worker.stderr.readline()
    worker.send_signal(number)
    worker.communicate(timeout=30)
    assert bench.trail(job) == ["added", "claimed", "released"]


def test_the_second_signal_gives_the_job_back_without_spending_its_budget(bench: Bench) -> None:
    job = start_job(bench, "--max-retries", "0", "--max-crashes", "0")
    worker = bench.work()
    pid = int(bench.wait_file("pid"))
    worker.terminate()
    assert worker.stderr is not None
    worker.stderr.readline()
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert not alive(pid)
    shown = bench.job(job)
    assert (shown["state"], shown["attempts"], shown["crashes"]) == ("queued", 0, 0)
    attempt = bench.attempts(job)[0]
    assert (attempt["state"], attempt["failure_reason"]) == ("abandoned", "worker_shutdown")
    assert bench.trail(job) == ["added", "claimed", "released"]


def test_a_job_that_ignores_sigterm_does_not_keep_a_worker_that_has_to_go(bench: Bench) -> None:
    bench.add("-c", "trap '' TERM; echo up > up; while :; do sleep 1; done")
    worker = bench.work()
    bench.wait_file("up")
    began = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        worker.send_signal(number)
        time.sleep(0.1)  # spacing of the signals, not a wait for something
    worker.communicate(timeout=30)
    assert time.monotonic() - began < 5 + 3
    assert worker.returncode == 0


def test_the_shutdown_timeout_is_a_second_signal(bench: Bench) -> None:
    job = start_job(bench)
    worker = bench.work("--shutdown-timeout", "0.3")
    bench.wait_file("pid")
    worker.terminate()
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert bench.trail(job) == ["added", "claimed", "released"]


def test_once_with_its_job_put_back_says_that_it_was_stopped(bench: Bench) -> None:
    job = start_job(bench)
    worker = bench.work("--once", "--json", "--shutdown-timeout", "0.3", stdout=subprocess.PIPE)
    bench.wait_file("pid")
    worker.terminate()
    out, _ = worker.communicate(timeout=30)
    assert (worker.returncode, json.loads(out)["data"]) == (0, {"stopped": True})
    assert bench.job(job)["state"] == "queued"


def test_a_stop_request_while_the_worker_starts_is_not_lost(bench: Bench) -> None:
    bench.add("--after", "1h", "--", "true")
    for number in range(20):
        worker = bench.work(stderr=subprocess.DEVNULL)
        # At many moments of the start: the interpreter's own (ended by the signal), ours (exit 0).
        time.sleep(number * 0.012)
        worker.terminate()
        worker.wait(timeout=20)
        assert worker.returncode in (0, -signal.SIGTERM)


def test_a_canceled_running_job_ends_at_once(bench: Bench) -> None:
    job = start_job(bench)
    worker = bench.work("--heartbeat-interval", "60")
    pid = int(bench.wait_file("pid"))
    began = time.monotonic()
    done = bench.run("cancel", "--running", "--yes", "--json", str(job))
    took = time.monotonic() - began
    assert not alive(pid), "cancel returns when the tree is gone"
    assert '"KILL_ASYNC"' not in done.stdout
    assert took < 5
    assert bench.job(job)["state"] == "canceled"
    assert bench.attempts(job)[0]["state"] == "canceled"
    good = bench.add("--", "true")
    bench.wait_state(good, "done")
    worker.terminate()
    _, log = worker.communicate(timeout=30)
    assert f"job {job} ownership lost" in log
    assert "-> discarded" in log


@pytest.mark.parametrize("way", ["cancel_retry", "force"])
@pytest.mark.parametrize("owner", ["alive", "killed", "both_killed"])
def test_never_a_second_copy_after_cancel_and_retry(bench: Bench, way: str, owner: str) -> None:
    """The command itself detects a second copy by a lock that it holds while it runs."""
    probe = (
        "import fcntl, sys, time, pathlib\n"
        "f = open('copy.lock', 'w')\n"
        "try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: open('second', 'w').write('copy')\n"
        "open('starts', 'a').write('x')\n"
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(1.5 if len(open('starts').read()) == 1 else 0)\n"
    )
    job = bench.add("--max-retries", "5", "--", sys.executable, "-c", probe)
    first = bench.work()
    bench.wait_file("starts")
    if owner == "both_killed":
        os.kill(eventually(lambda: guardian_of(first.pid)), signal.SIGSTOP)
        victims = [guardian_of(first.pid), first.pid]
        os.kill(first.pid, signal.SIGKILL)
        os.kill(victims[0], signal.SIGKILL)
    elif owner == "killed":
        first.kill()
    if way == "force":
        bench.json("retry", "--force", str(job))
    else:
        canceler = subprocess.Popen(
            [sys.executable, "-m", "spoolctl", "cancel", "--db", str(bench.db),
             "--running", "--yes", str(job)],
            env=clean_env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        bench.wait_state(job, "canceled")
        bench.json("retry", str(job))
        canceler.kill()
        canceler.wait()
    bench.work("--poll-interval", "0.1")
    eventually(lambda: bench.job(job)["state"] == "done", timeout_s=30, what="the second run")
    assert not (bench.folder / "second").exists()
    assert len((bench.folder / "starts").read_text()) == 2


def test_a_job_that_kills_its_workers_ends(bench: Bench) -> None:
    job = bench.add("--max-crashes", "0", "-c", "kill -9 $PPID; sleep 300")
    bench.work()
    eventually(lambda: bench.workers[0].poll() is not None)
    log = bench.drain()
    assert "now dead" in log
    shown = bench.job(job)
    assert (shown["state"], shown["crashes"]) == ("dead", 1)
    assert shown["last_failure_reason"] == "worker_crash"
    assert bench.trail(job) == ["added", "claimed", "reaped", "dead"]


HIDER = """
import os, sys, time
pid = os.fork()
if not pid:
    os.setsid()
    os.closerange(0, 256)
    os.execve(sys.argv[1], ["sleep", "300"], {})
while b"sleep" not in open(f"/proc/{pid}/cmdline", "rb").read():
    time.sleep(0.01)
open("hidden", "w").write(str(pid))
sys.exit(int(sys.argv[2]))
"""


def test_a_child_that_hides_in_every_way_ends_with_a_failed_attempt(bench: Bench) -> None:
    sleep = shutil.which("sleep") or "/bin/sleep"
    bench.add("--max-retries", "0", "--", sys.executable, "-c", HIDER, sleep, "3")
    bench.drain()
    assert not alive(int(bench.wait_file("hidden")))


def test_what_a_success_left_is_not_taken_for_a_later_failures(bench: Bench) -> None:
    sleep = shutil.which("sleep") or "/bin/sleep"
    bench.add("--", sys.executable, "-c", HIDER, sleep, "0")
    bench.add("--max-retries", "0", "-c", "sleep 0.1; exit 3")
    bench.drain()
    pid = int(bench.wait_file("hidden"))
    try:
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)

"""A worker in a program that has a life of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import clean_env
from tests.worker.conftest import Bench

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, subreapers")

HEAD = """
import fcntl, os, signal, subprocess, sys, threading, time
from pathlib import Path
from spoolctl import Queue
from spoolctl.engine.options import WorkOptions
from spoolctl.errors import InvalidInput
from tests.helpers import eventually
QUICK = WorkOptions(grace_s=0.2, heartbeat_interval_s=0.1, reap_after_s=0.3, drain=True)
folder = Path(sys.argv[1])
queue = Queue(folder / "queue.db")
def state():
    signals = [signal.getsignal(each) for each in signal.valid_signals()]
    mask = os.umask(0o77)
    os.umask(mask)
    return signals, mask, os.getcwd(), len(os.listdir("/proc/self/fd"))
def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
def work(options=QUICK, log=lambda line: None):
    before = state()
    try:
        return queue.work(options, log=log)
    finally:
        assert state() == before
"""


def run(tmp_path: Path, body: str) -> None:
    """Run a program with these lines in it, in a process of its own."""
    words = [sys.executable, "-c", HEAD + body, str(tmp_path)]
    done = subprocess.run(words, env=clean_env(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_programs_own_children_are_its_own(tmp_path: Path) -> None:
    """Their exit codes are theirs to tell, and a failed job's end does not reach them."""
    run(
        tmp_path,
        """
older = subprocess.Popen(["sh", "-c", "exit 7"])
apart = subprocess.Popen(["sh", "-c", "exit 8"], start_new_session=True)
queue.add(["sh", "-c", "touch began; sleep 60"], cwd=folder, timeout_s=1, max_retries=0)
def meanwhile():
    eventually((folder / "began").exists)
    beside.append(subprocess.Popen(["sh", "-c", "read line; exit 9"], stdin=subprocess.PIPE))
beside = []
thread = threading.Thread(target=meanwhile)
thread.start()
for _ in range(3):  # behind the zombies, which stay, ended commands are seen
    queue.add(["true"])
queue.work(QUICK)
thread.join()
assert queue.counts().states == {**queue.counts().states, "dead": 1, "done": 3}
beside[0].communicate(b"end\\n")
assert [each.wait() for each in (older, apart, *beside)] == [7, 8, 9]
""",
    )


def test_what_a_job_left_running_is_collected_by_the_next_worker(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
script = "setsid sh -c 'echo $$ > pid; read line < go' & until test -s pid; do :; done"
queue.add(["sh", "-c", script], cwd=folder)
os.mkfifo(folder / "go")
work()
pid = (folder / "pid").read_text().strip()
assert children() == [pid]
(folder / "go").write_text("end")
queue.add(["true"])
eventually(lambda: "State:\\tZ" in Path(f"/proc/{pid}/status").read_text())
work()
assert children() == []
""",
    )


def test_an_error_in_the_middle_leaves_running_jobs_to_others(bench: Bench) -> None:
    """The process lives on, but its worker does not: they are ended, and taken back."""
    run(
        bench.folder,
        """
queue.add(["sleep", "60"])
queue.add(["true"])
def fail(line):
    raise RuntimeError(line)
for _ in range(2):
    try:
        work(QUICK._replace(jobs=2), log=fail)
    except RuntimeError as error:
        assert "succeeded" in str(error)
    assert queue.get(1).state == "running"
    queue.add(["true"])
eventually(lambda: not subprocess.run(["pgrep", "-P", str(os.getpid()), "sleep"]).returncode == 0)
other = [sys.executable, "-m", "spoolctl", "work", "--db", queue.path, "--reap-after", "0.3"]
other += ["--idle-timeout", "0.5"]
eventually(lambda: subprocess.run(other, check=True, capture_output=True) and queue.get(1).crashes)
assert [each.event for each in queue.detail(1).events][-1] == "reaped"
""",
    )


def test_a_tree_that_cannot_be_ended_is_left_to_others(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
queue.add(["sh", "-c", "touch up; sleep 60"], cwd=folder, timeout_s=1, max_retries=0)
log, held = [], []
def hold():
    eventually((folder / "up").exists)
    (lock,) = folder.glob("queue.db.d/workers/*.0.0")
    held.append(os.open(lock, os.O_RDONLY))
    fcntl.flock(held[0], fcntl.LOCK_EX)  # as soon as the command lets it go
    eventually(lambda: log)
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
before = state()
thread = threading.Thread(target=hold)
thread.start()
assert queue.work(QUICK._replace(shutdown_timeout_s=0), log=log.append).stopped
thread.join()
assert "cannot be ended" in log[0]
assert queue.get(1).state == "running"
assert state()[3] == before[3] + len(held)
os.close(held[0])
work()
assert queue.detail(1).attempts[0].state == "abandoned"
""",
    )


def test_only_the_main_thread_can_be_a_worker(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
def apart():
    with Queue(queue.path) as own:
        try:
            own.work(QUICK)
        except InvalidInput as error:
            said.append(str(error))
said = []
before = state()
thread = threading.Thread(target=apart)
thread.start()
thread.join()
assert said == ["only the main thread of a program can be a worker"]
assert state()[:3] == before[:3]
""",
    )


def test_too_few_descriptors_for_a_worker_leave_none_open(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
import resource
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
before = state()
failed = 0
for room in range(12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[3] - 1 + room, limits[1]))
    try:
        queue.work(QUICK._replace(idle_timeout_s=0, drain=False))
    except OSError:
        failed += 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert state() == before, room
assert failed >= 5
queue.add(["true"])
work()
assert queue.get(1).state == "done"
""",
    )

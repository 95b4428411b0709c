"""A lock proves life: it ends with its owner, a probe never changes anything."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spoolctl.process import locks
from spoolctl.process.roster import Roster
from tests.helpers import clean_env, eventually
from tests.process.staging import Stage


def _take(path: str) -> int:
    fd = locks.take(path)
    assert fd is not None
    return fd


def test_only_one_has_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fd = _take(path)
    assert locks.take(path) is None
    assert locks.is_held(path) is True
    os.close(fd)
    assert locks.is_held(path) is False
    os.close(_take(path))


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
def test_the_file_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        fd = _take(str(tmp_path / "lock"))
    finally:
        os.umask(before)
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    os.close(fd)


def test_a_probe_never_creates_and_tells_what_it_cannot_know(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert locks.is_held(path) is None
    assert list(tmp_path.iterdir()) == []
    assert locks.is_held(str(tmp_path)) is not True  # a folder
    assert locks.is_held("nul\0") is None
    os.mkfifo(path)
    assert locks.is_held(path) is False  # and it does not hang
    os.unlink(path)
    os.symlink("/etc/passwd", path)
    assert locks.is_held(path) is None


def test_a_replaced_file_is_not_the_one_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fd = _take(path)
    found = os.fstat(fd)
    assert locks.is_held(path, found.st_dev, found.st_ino) is True
    assert locks.is_held(path, found.st_dev, found.st_ino + 1) is None
    assert locks.is_held(path, found.st_dev + 1, found.st_ino) is None
    os.close(fd)


def test_a_file_unlinked_between_open_and_lock_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "lock")
    real = locks._lock
    swept = []

    def sweep_first(fd: int, kind: int) -> bool:
        if not swept:
            swept.append(fd)
            os.unlink(path)
        return real(fd, kind)

    monkeypatch.setattr(locks, "_lock", sweep_first)
    fd = _take(path)
    assert os.path.samestat(os.fstat(fd), os.stat(path))
    os.close(fd)


def test_a_probe_does_not_keep_an_owner_from_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "lock")
    os.close(_take(path))
    probe = os.open(path, os.O_RDONLY)
    fcntl.flock(probe, fcntl.LOCK_SH)  # in the middle of a probe, which ends a moment later
    monkeypatch.setattr(locks, "pause", lambda _: os.close(probe))
    os.close(_take(path))


@pytest.mark.parametrize("copy", ["fork", "command", "guardian"])
def test_no_copy_keeps_the_lock_of_a_dead_worker(tmp_path: Path, copy: str) -> None:
    path = str(tmp_path / "worker.lock")
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, path, copy],
        env=clean_env(),
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    other = int(worker.stdout.readline())
    assert locks.is_held(path) is True
    worker.kill()
    worker.wait()
    try:
        # A forked copy drops it as the first thing that it does.
        eventually(lambda: locks.is_held(path) is False)
        os.kill(other, 0)  # it is still there
    finally:
        worker.stdin.close()
        _end(other)


def _end(pid: int) -> None:
    def gone() -> bool:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    eventually(gone)


_WORKER = """
import os, sys, time
from spoolctl.process import locks
from spoolctl.process.guardian import Guardian
from spoolctl.process.roster import Roster
from spoolctl.process.spawn import spawn
path, copy = sys.argv[1:]
roster = Roster.create(path, 2)
if copy == "fork":
    pid = os.fork()
    if pid == 0:
        sys.stdin.read()
        os._exit(0)
elif copy == "guardian":
    # It has somebody to end who does not obey.
    null = os.open(os.devnull, os.O_RDWR)
    token = "f" * 32
    roster.announce(0, token, path + ".0")
    fd = locks.take(path + ".0")
    spawn(["sh", "-c", "trap '' TERM; sleep 3; sleep 3"], cwd=None, umask=None,
          env={**os.environ, "SPOOLCTL_ATTEMPT_PATH": token},
          stdin_fd=null, stdout_fd=null, stderr_fd=null, lock_fd=fd)
    pid = Guardian.start(path, locks.take(path + ".guard"), roster_fd=roster.fd, grace_s=1).pid
else:
    null = os.open(os.devnull, os.O_RDWR)
    pid = spawn(["sleep", "60"], cwd=None, env=os.environ, umask=None,
                stdin_fd=null, stdout_fd=null, stderr_fd=null, lock_fd=null)
print(pid, flush=True)
time.sleep(60)
"""


def test_a_command_keeps_its_attempts_lock_until_its_last_process_ends(stage: Stage) -> None:
    attempt = stage.start("sh", "-c", "sleep U & sleep U & exit 0")
    stage.settle(2)
    attempt.collect()
    first, second = stage.sleepers()
    assert locks.is_held(attempt.lock_path) is True
    os.kill(first, 9)
    eventually(lambda: len(stage.sleepers()) == 1)
    assert locks.is_held(attempt.lock_path) is True
    os.kill(second, 9)
    eventually(lambda: locks.is_held(attempt.lock_path) is False)


def test_a_closed_roster_gives_the_lock_up(tmp_path: Path) -> None:
    path = str(tmp_path / "worker.lock")
    roster = Roster.create(path, 1)
    with pytest.raises(BlockingIOError):
        Roster.create(path, 1)
    roster.close(unlink=False)
    roster.close(unlink=False)
    assert locks.is_held(path) is False
    Roster.create(path, 1).close(unlink=True)
    assert not os.path.exists(path)

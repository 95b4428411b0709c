"""When a worker dies by any means, its guardian ends what it ran; otherwise it only sleeps."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spoolctl.process import locks, table
from spoolctl.process.guardian import Guardian
from spoolctl.process.roster import Roster
from tests.helpers import ROOT, clean_env, eventually
from tests.process.staging import HERE, alive_with, unique_seconds

OBEDIENT = "set -m; setsid sleep U & sleep U & wait"
SLEEPERS = 2


class Worker:
    """A small worker with attempts, seen from outside."""

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        script: str = OBEDIENT,
        *,
        grace_s: float = 5,
        python: tuple[str, ...] = (sys.executable,),
        **popen: Any,
    ) -> None:
        self.folder = folder
        self.words = unique_seconds()
        env = {**popen.pop("env", clean_env()), "GRACE": str(grace_s)}
        self.process = subprocess.Popen(
            [*python, str(HERE / "small_worker.py"), str(folder), str(count), self._known(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
            **popen,
        )
        first = self._answer()
        self.guardian: int = first["guardian"]
        self.attempts: list[int] = first["attempts"]

    def _known(self, script: str) -> str:
        return script.replace("U", self.words)

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def tell(self, word: str) -> Any:
        """Give a command and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._answer()

    def trees(self) -> list[int]:
        """Living processes of its attempts."""
        return [
            pid
            for pid in alive_with(self.words)
            if pid != self.process.pid and _name(pid) in ("bash", "sleep", "sh")
        ]

    def settle(self, sleepers: int) -> None:
        """Wait until its commands have started everything."""
        eventually(lambda: sum(_name(pid) == "sleep" for pid in self.trees()) == sleepers)

    def kill(self) -> float:
        """SIGKILL it; when that was, on the monotonic clock."""
        self.process.kill()
        self.process.wait()
        return time.monotonic()

    def guardian_lives(self) -> bool:
        """Whether the guardian is still there."""
        return _lives(self.guardian)

    def clear(self) -> None:
        """Leave nothing."""
        if self.process.returncode is None:
            self.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        eventually(lambda: not self.trees(), what="trees end")
        eventually(lambda: not self.guardian_lives(), what="the guardian ends")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    made: list[Worker] = []

    def start_worker(*args: Any, **kwargs: Any) -> Worker:
        folder = tmp_path / str(len(made)) if made else tmp_path
        folder.mkdir(exist_ok=True)
        made.append(Worker(folder, *args, **kwargs))
        return made[-1]

    yield start_worker
    for worker in made:
        worker.clear()


def _proc(pid: int) -> table.Proc | None:
    return table.read_proc(pid)


def _name(pid: int) -> str:
    proc = _proc(pid)
    return proc.name if proc is not None else ""


def _lives(pid: int) -> bool:
    proc = _proc(pid)
    return proc is not None and proc.lives


def _seconds_to_end(start: Any, count: int, script: str, grace_s: float) -> Iterator[float]:
    """How long the trees of killed workers take to end, three times.

    A busy machine makes it slower, never quicker: the best one tells what the guardian does.
    """
    for _ in range(3):
        worker = start(count, script, grace_s=grace_s)
        worker.settle(SLEEPERS * count)
        killed = worker.kill()
        eventually(lambda worker=worker: not worker.trees())
        yield time.monotonic() - killed
        eventually(lambda worker=worker: not worker.guardian_lives())


@pytest.mark.parametrize("count", [1, 50])
def test_the_trees_of_a_killed_worker_end_within_a_second(start: Any, count: int) -> None:
    assert any(took < 1 for took in _seconds_to_end(start, count, OBEDIENT, 5))


@pytest.mark.parametrize("count", [1, 50])
def test_the_stubborn_end_a_second_after_the_grace_at_the_latest(start: Any, count: int) -> None:
    stubborn = "trap '' TERM; setsid sleep U & sleep U & wait"
    assert any(0.5 <= took < 1.5 for took in _seconds_to_end(start, count, stubborn, 0.5))


def test_its_lock_is_held_until_the_end_is_confirmed(start: Any, tmp_path: Path) -> None:
    guard = str(tmp_path / "worker.guard")
    worker = start(1, "trap '' TERM; sleep U", grace_s=0.5)
    worker.settle(1)
    worker.kill()
    held = locks.is_held(guard)
    while worker.trees():  # looked at after the lock: what lives now was guarded then
        assert held is True
        held = locks.is_held(guard)
    eventually(lambda: locks.is_held(guard) is False)
    assert not worker.guardian_lives()


def test_a_kill_of_the_workers_whole_group_never_reaches_it(start: Any) -> None:
    worker = start(2, start_new_session=True)  # as a shell does with a job
    # At once: the guardian's interpreter is still starting.
    os.killpg(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert worker.guardian_lives()
    eventually(lambda: not worker.trees() and not worker.guardian_lives(), timeout_s=4)


SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
    signal.SIGALRM,
)


def test_no_signal_but_kill_ends_it_from_its_first_moment_on(start: Any) -> None:
    worker = start(1)
    for _ in range(200):  # while its interpreter starts, and after
        for number in SIGNALS:
            os.kill(worker.guardian, number)
    worker.settle(SLEEPERS)
    assert worker.guardian_lives()
    worker.kill()
    eventually(lambda: not worker.trees(), timeout_s=4)


# Makes its standard error the controlling terminal of a new session, then becomes the rest.
ON_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(2, termios.TIOCSCTTY, 0);"
    " os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.parametrize("how", ["Ctrl-C", "hangup"])
def test_it_survives_the_terminal(start: Any, how: str) -> None:
    master, slave = pty.openpty()
    worker = start(1, python=(sys.executable, "-c", ON_TERMINAL, sys.executable), stderr=slave)
    os.close(slave)
    worker.settle(SLEEPERS)
    if how == "Ctrl-C":
        os.write(master, b"\x03")
        worker.process.wait(10)
    os.close(master)
    assert worker.process.wait(10) in (-signal.SIGINT, -signal.SIGHUP)
    eventually(lambda: not worker.trees(), timeout_s=4)


def test_a_killed_guardian_can_be_replaced(start: Any) -> None:
    worker = start(1)
    worker.settle(SLEEPERS)
    os.kill(worker.guardian, signal.SIGKILL)
    worker.guardian = worker.tell("replace")
    assert worker.guardian_lives()
    assert len(worker.trees()) == SLEEPERS + 1
    worker.kill()
    eventually(lambda: not worker.trees(), timeout_s=4)


def test_a_guardian_of_a_removed_folder_can_be_replaced(start: Any, tmp_path: Path) -> None:
    worker = start(1)
    worker.settle(SLEEPERS)
    (tmp_path / "worker.lock").unlink()
    os.kill(worker.guardian, signal.SIGKILL)
    worker.guardian = worker.tell("replace")
    worker.kill()
    eventually(lambda: not worker.trees(), timeout_s=4)


def test_an_attempt_that_was_announced_but_not_noted_is_ended_too(start: Any) -> None:
    worker = start(1)
    worker.settle(SLEEPERS)
    worker.tell("forget")
    worker.settle(SLEEPERS * 2)
    worker.kill()
    eventually(lambda: not worker.trees(), timeout_s=4)


def test_one_that_hides_and_was_not_noted_is_found_by_its_lock(start: Any) -> None:
    worker = start(0, "exec env -i /bin/bash -c 'setsid sleep U & sleep U & wait'")
    worker.tell("forget")
    worker.settle(SLEEPERS)
    worker.kill()
    eventually(lambda: not worker.trees(), timeout_s=4)


HIDING = (
    "[ $(($$ % 3)) = 0 ] && exec env -i sleep U; [ $(($$ % 3)) = 1 ] && setsid sleep U & sleep U"
)


@pytest.mark.parametrize("script", ["exec sleep U", "exec env -i sleep U", HIDING])
def test_a_worker_killed_at_any_moment_of_a_start_leaves_nothing(start: Any, script: str) -> None:
    for _ in range(8):
        worker = start(0, script)
        assert worker.tell("loop") is True
        time.sleep(random.uniform(0, 0.15))
        worker.kill()
        eventually(lambda worker=worker: not worker.guardian_lives())
        assert worker.trees() == []


def test_a_forked_copy_of_the_worker_does_not_keep_it_asleep(start: Any) -> None:
    worker = start(1)
    worker.settle(SLEEPERS)
    copy = worker.tell("fork")
    try:
        worker.kill()
        eventually(lambda: not worker.trees(), timeout_s=4)
        assert _lives(copy)  # no attempt's process: left alone
    finally:
        os.kill(copy, signal.SIGKILL)


def test_an_end_in_good_order_is_quick_and_touches_nobody(start: Any, tmp_path: Path) -> None:
    worker = start(1)
    worker.settle(SLEEPERS)
    began = time.monotonic()
    assert worker.tell("close") is True
    assert time.monotonic() - began < 4
    assert not worker.guardian_lives()
    assert len(worker.trees()) == SLEEPERS + 1
    assert not (tmp_path / "worker.lock").exists()
    for pid in worker.trees():
        os.kill(pid, signal.SIGKILL)


def test_a_dismissed_one_ends_at_once_and_touches_nobody(start: Any) -> None:
    took = []
    for _ in range(5):
        worker = start(1)
        began = time.monotonic()  # its interpreter is still starting
        assert worker.tell("dismiss") is True
        took.append(time.monotonic() - began)
        assert _proc(worker.guardian) is None  # and is collected
        worker.settle(SLEEPERS)
        for pid in worker.trees():
            os.kill(pid, signal.SIGKILL)
    assert min(took) < 0.02  # one that has to look for itself takes 0.04 and more


def test_one_that_has_ended_by_itself_is_dismissed_without_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is collected, its pid may be a stranger's."""
    roster = Roster.create(str(tmp_path / "worker.lock"), 1)
    fd = locks.take(str(tmp_path / "worker.guard"))
    assert fd is not None
    guardian = Guardian.start(roster.path, fd)
    os.close(fd)
    os.kill(guardian.pid, signal.SIGKILL)
    os.waitpid(guardian.pid, 0)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal for nobody knows whom"))
    guardian.kill()
    assert guardian.close(0)
    roster.close(unlink=True)


def test_a_stopped_worker_is_not_a_dead_one(start: Any) -> None:
    worker = start(1)
    worker.settle(SLEEPERS)
    worker.process.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    assert len(worker.trees()) == SLEEPERS + 1
    assert _proc(worker.guardian).state == "S"  # type: ignore[union-attr]


# -- what it costs and holds ----------------------------------------------------------------


def _idle(worker: Worker) -> None:
    """Wait until the guardian sleeps in its read."""
    wchan = Path(f"/proc/{worker.guardian}/wchan")
    syscall = Path(f"/proc/{worker.guardian}/syscall")
    eventually(
        lambda: "pipe" in wchan.read_text() or syscall.read_text().startswith("0 0x3 "),
        what="the guardian waits",
    )


def test_it_costs_less_than_12_mb_and_nothing_while_idle(start: Any) -> None:
    worker = start(1)
    worker.settle(SLEEPERS)
    _idle(worker)
    rollup = Path(f"/proc/{worker.guardian}/smaps_rollup").read_text()
    pss_kb = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert pss_kb < 12 * 1024
    before = _switches(worker.guardian)
    time.sleep(1.5)
    assert _switches(worker.guardian) == before


def _switches(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [line for line in lines if line.startswith("voluntary")] + stat[11:13]


def test_it_holds_only_what_it_needs(start: Any, tmp_path: Path) -> None:
    # The worker itself had inherited something open.
    extra = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(extra, True)
    worker = start(1, pass_fds=(extra,))
    os.close(extra)
    _idle(worker)
    fds = {
        name: os.readlink(f"/proc/{worker.guardian}/fd/{name}")
        for name in os.listdir(f"/proc/{worker.guardian}/fd")
    }
    assert fds.pop("3").startswith("pipe:")
    assert fds == {
        "0": "/dev/null",
        "1": "/dev/null",
        "2": "/dev/null",
        "4": str(tmp_path / "worker.lock"),
        "5": str(tmp_path / "worker.guard"),
    }
    info = Path(f"/proc/{worker.guardian}/fdinfo/4").read_text()
    assert int(info.partition("flags:")[2].split()[0], 8) & os.O_ACCMODE == os.O_RDONLY
    assert os.readlink(f"/proc/{worker.guardian}/cwd") == "/"
    assert os.getsid(worker.guardian) == worker.guardian


# -- where it must start --------------------------------------------------------------------


def test_it_starts_in_a_removed_folder(start: Any, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    worker = start(
        1, python=("sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", sys.executable), cwd=gone
    )
    worker.settle(SLEEPERS)
    worker.kill()
    eventually(lambda: not worker.trees(), timeout_s=4)


def test_it_starts_without_a_path(start: Any) -> None:
    worker = start(1, env={"PYTHONPATH": str(ROOT)})
    worker.settle(SLEEPERS)
    worker.kill()
    eventually(lambda: not worker.trees(), timeout_s=4)


def test_it_starts_from_a_zipapp_named_relatively(start: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "spoolctl.pyz", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((ROOT / "spoolctl").rglob("*.py")):
            archive.write(path, path.relative_to(ROOT))
    code = "import runpy, sys; sys.path.insert(0, 'spoolctl.pyz'); del sys.argv[0];"
    code += " runpy.run_path(sys.argv[0], run_name='__main__')"
    env = {name: value for name, value in clean_env().items() if name != "PYTHONPATH"}
    worker = start(1, env=env, cwd=tmp_path, python=(sys.executable, "-c", code))
    worker.settle(SLEEPERS)
    worker.tell("move")  # what was relative at the start is so no more
    os.kill(worker.guardian, signal.SIGKILL)
    worker.guardian = worker.tell("replace")
    worker.kill()
    eventually(lambda: not worker.trees(), timeout_s=4)


def test_it_ignores_what_is_meant_for_the_workers_python(start: Any, tmp_path: Path) -> None:
    for name in ("os", "contextlib", "functools", "weakref", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    env = {**clean_env(), "PYTHONINSPECT": "1", "PYTHONWARNINGS": "error", "PYTHONVERBOSE": ""}
    worker = start(1, env=env, cwd=tmp_path)
    worker.settle(SLEEPERS)
    worker.kill()
    eventually(lambda: not worker.trees(), timeout_s=4)
    eventually(lambda: not worker.guardian_lives())


def test_without_setsid_in_the_c_library_it_makes_its_session_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.posix_spawn

    def old_library(*args: Any, **kwargs: Any) -> int:
        if "setsid" in kwargs:
            raise NotImplementedError("setsid unavailable on this platform")
        return real(*args, **kwargs)

    roster = Roster.create(str(tmp_path / "worker.lock"), 1)
    fd = locks.take(str(tmp_path / "worker.guard"))
    assert fd is not None
    monkeypatch.setattr(os, "posix_spawn", old_library)
    guardian = Guardian.start(roster.path, fd)
    os.close(fd)
    eventually(lambda: os.getsid(guardian.pid) == guardian.pid)
    assert guardian.close(10)
    assert guardian.close(0)  # and again
    roster.close(unlink=True)

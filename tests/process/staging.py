"""Attempts without a worker: commands started as the engine starts them, and an observer.

The observer knows test processes by a number in their words and by nothing that `tree`
looks at, so it can tell what `tree` has missed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from spoolctl.process import locks
from spoolctl.process.identity import start_of
from spoolctl.process.spawn import spawn
from spoolctl.process.table import MARK, read_proc
from spoolctl.process.tree import Ending, Snapshot, Target, end_all
from tests.helpers import eventually

HERE = Path(__file__).resolve().parent
HIDER = str(HERE / "hider.py")


def unique_seconds() -> str:
    """A number for sleep(1) that no other process on this machine has among its words."""
    return f"{random.randrange(10**8, 10**9)}.{os.getpid()}"


def alive_with(words: str) -> list[int]:
    """Living processes with this text in their command line (zombies are not alive)."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                # A first thread that has ended has no command line; the others have.
                for thread in os.listdir(f"/proc/{name}/task"):
                    place = Path("/proc", name, "task", thread)
                    state = place.joinpath("stat").read_bytes().rpartition(b")")[2].split()[0]
                    if words.encode() in place.joinpath("cmdline").read_bytes() and state != b"Z":
                        found.append(int(name))
                        break
    return found


class Attempt:
    """A command that runs as an attempt does: own session, mark, lock."""

    def __init__(self, folder: Path, argv: list[str], env: Mapping[str, str] = os.environ) -> None:
        self.token = os.urandom(16).hex()
        self.lock_path = str(folder / f"{self.token}.0.0")
        lock = locks.take(self.lock_path)
        assert lock is not None
        null = os.open(os.devnull, os.O_RDWR)
        try:
            self.pid = spawn(
                argv,
                cwd=str(folder),
                env={**env, MARK: f"{'0' * 32}:{self.token}"},
                umask=None,
                stdin_fd=null,
                stdout_fd=null,
                stderr_fd=null,
                lock_fd=lock,
            )
        finally:
            os.close(null)
            os.close(lock)
        self.target = Target(self.token, self.pid, start_of(self.pid), self.lock_path)
        self.collected = False

    def members(self, **kwargs: object) -> list[int]:
        """The pids that one look finds."""
        return [proc.pid for proc in Snapshot.take().members(self.target, **kwargs)]  # type: ignore[arg-type]

    def end(self, grace_s: float, within_s: float = 100.0, **kwargs: object) -> float:
        """End it and return the seconds that it took."""
        began = time.monotonic()
        left = end_all(
            [self.target],
            grace_s=grace_s,
            until_mono=began + within_s,
            **kwargs,  # type: ignore[arg-type]
        )
        assert left == [], [ending.stuck for ending in left]
        return time.monotonic() - began

    def collect(self) -> int:
        """Wait for the command itself; its exit code, or minus its signal."""
        self.collected = True
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Stage:
    """Makes attempts, and leaves nothing of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.words = unique_seconds()
        self.attempts: list[Attempt] = []

    def start(self, *argv: str, env: Mapping[str, str] = os.environ) -> Attempt:
        """Start a command; `U` in its words becomes the number that the observer knows."""
        attempt = Attempt(self.folder, [word.replace("U", self.words) for word in argv], env)
        self.attempts.append(attempt)
        return attempt

    def hide(self, ways: str, *, leader: str = "stays") -> Attempt:
        """Start a command with one child that hides in these ways (see hider.py)."""
        attempt = self.start(sys.executable, "-I", "-S", HIDER, ways, leader, self.words)
        expected = 1 if leader == "exits" else 2
        if leader == "exits":
            eventually(lambda: not _lives(attempt.pid), what="the leader exits")
        eventually(lambda: len(self.sleepers()) == 1, what="the hidden child sleeps")
        if "stop" in ways:
            eventually(lambda: _state(self.sleepers()[0]) == "T", what="the child is stopped")
        # Who is to be an orphan may become what it wants to be before its parent has ended.
        eventually(lambda: len(self.alive()) == expected, what="those in between have ended")
        return attempt

    def alive(self) -> list[int]:
        """What the observer sees of all attempts of this stage."""
        return alive_with(self.words)

    def sleepers(self) -> list[int]:
        """Those that have become a sleep(1)."""
        return [pid for pid in self.alive() if _name(pid) == "sleep"]

    def settle(self, count: int) -> None:
        """Wait until so many processes are alive and asleep."""
        eventually(lambda: len(self.sleepers()) == count, what=f"{count} sleepers")

    def clear(self) -> None:
        """Leave nothing alive."""
        deadline = time.monotonic() + 10
        while (left := self.alive()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        for attempt in self.attempts:
            if not attempt.collected:
                os.kill(attempt.pid, signal.SIGKILL)
                attempt.collect()


def _lives(pid: int) -> bool:
    proc = read_proc(pid)
    return proc is not None and proc.lives


def _state(pid: int) -> str:
    proc = read_proc(pid)
    return proc.state if proc is not None else ""


def _name(pid: int) -> str:
    proc = read_proc(pid)
    return proc.name if proc is not None else ""


def step_until_gone(ending: Ending, timeout_s: float = 10.0) -> None:
    """Drive an ending as an event loop does."""
    deadline = time.monotonic() + timeout_s
    while (pause := ending.step(Snapshot.take(), time.monotonic())) is not None:
        assert time.monotonic() < deadline, ending.stuck
        time.sleep(pause)


def _can_make_namespaces() -> bool:
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return False
    return os.system("unshare -p -f --mount-proc true 2>/dev/null") == 0


needs_namespaces = pytest.mark.skipif(
    not _can_make_namespaces(), reason="needs the right to make PID namespaces"
)

"""Start a process of this program's own beside a worker: its guardian, its clerk.

It runs in a session of its own with every signal blocked, so that what is meant for the worker
or its terminal does not reach it. Of the pipe by which it learns of its worker's end, only the
worker has the other side.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import sys
import time
from collections.abc import Sequence

from spoolctl.core.pauses import pause
from spoolctl.process import spawn

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
with contextlib.suppress(OSError):  # our folder may be gone, and with it relative paths
    _ROOT = os.path.abspath(_ROOT)

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); {}\nfrom {} import main; main()"

_companions: set[Companion] = set()


class Companion:
    """A companion of this process. `pid` is its process, `fds` are our ends of its pipes."""

    def __init__(self, pid: int, fds: Sequence[int]) -> None:
        self.pid = pid
        self._fds = tuple(fds)
        _companions.add(self)

    def let_go(self) -> None:
        """Close our ends: it does what it does when we are gone. May be called twice."""
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)
        _companions.discard(self)

    def kill(self) -> None:
        """End it at once; not if it was collected, as its pid may be another's then. (macOS
        before Python 3.13 cannot tell: there it is not to be called then.)"""
        with contextlib.suppress(OSError):
            if hasattr(os, "waitid"):  # which finds no child that was collected
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(self.pid, signal.SIGKILL)

    def close(self, timeout_s: float) -> bool:
        """Let go of it, wait for its end and collect it; whether it ended in time."""
        self.let_go()
        until = time.monotonic() + timeout_s
        pause_s = 0.0002
        while not self.collected():
            if time.monotonic() >= until:
                return False
            pause(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        return True

    def collected(self) -> bool:
        """Whether it has ended and was collected, which is done now if not before."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:  # collected by the worker's loop
            return True


def _let_go_of_copies() -> None:
    # A forked copy of the worker would keep the pipes open after the worker's death.
    for companion in list(_companions):
        companion.let_go()


os.register_at_fork(after_in_child=_let_go_of_copies)


def start_companion(
    module: str, words: Sequence[str], fds: Sequence[int], *, title: str, code: str = ""
) -> int:
    """Run `main` of `module`, which finds `words` from `sys.argv[2]` on; returns the pid.

    `fds` become its descriptors 0, 1 and so on. It needs neither our folder nor PATH nor what
    the environment says to Python; `title` is what readers of ps(1) see. `code`, one line, runs
    before `module` is imported.

    Raises:
        OSError: it could not be started.
    """
    # Numbers above all targets first: a source must not be overwritten by another's copy.
    copies: list[int] = []
    line = ["-I", "-S", "-c", _CODE.format(code, module), _ROOT, *words]
    try:
        copies.extend(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in fds)
        return _start_python([*line, f"spoolctl {title} of {os.getpid()}"], copies)
    except ValueError as error:
        raise OSError(f"cannot start {sys.executable}: {error}") from None
    finally:
        for fd in copies:
            os.close(fd)


def _start_python(words: list[str], fds: list[int]) -> int:
    python = sys.executable or ""
    if not os.access(python, os.X_OK) and sys.platform.startswith("linux"):
        python = "/proc/self/exe"  # replaced by an upgrade while we run
    start = functools.partial(
        os.posix_spawn,
        python,
        [sys.executable or "python3", *words],
        # Whole, the mark of an attempt around the worker included: it ends the companion too.
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate(fds)],
        # Blocked from its first instruction on: there is no moment at which a signal for
        # the worker's group, or a careless `kill`, ends the companion.
        setsigmask=spawn.ALL_SIGNALS,
    )
    try:
        return start(setsid=True)
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID: see `detach`
        return start()


def detach(last_fd: int) -> None:
    """In the new process, first of all: nothing of the worker's that was not meant for it.

    Descriptors above `last_fd` are those that the worker itself had inherited without
    close-on-exec.
    """
    with contextlib.suppress(PermissionError):  # it leads one already
        os.setsid()
    os.chdir("/")
    for fd in spawn.open_descriptors():
        if fd > last_fd:
            with contextlib.suppress(OSError):
                os.close(fd)

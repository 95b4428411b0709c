"""The guardian: a small process that outlives its worker to end what the worker ran.

It sleeps in read(2) on a pipe whose other end only the worker holds. When the worker dies, by
whatever means, the read ends; then the guardian ends every attempt that the worker's roster
lists. It does not touch the queue.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import sys
import time

from spoolctl.core.pauses import pause
from spoolctl.process import spawn
from spoolctl.process.roster import read_roster
from spoolctl.process.search import Target
from spoolctl.process.tree import end_all

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
with contextlib.suppress(OSError):  # our folder may be gone, and with it relative paths
    _ROOT = os.path.abspath(_ROOT)

_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    " from spoolctl.process.guardian import main; main()"
)
_PIPE, _ROSTER, _GUARD = 3, 4, 5
_LONGEST_S = 3600.0
_NICE = -20  # the little that is to be done comes before what keeps the machine busy

_guardians: set[Guardian] = set()


class Guardian:
    """The guardian of this worker. `pid` is its process."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self._pipe: int | None = pipe
        _guardians.add(self)

    @classmethod
    def start(
        cls,
        roster_path: str,
        guard_fd: int,
        *,
        roster_fd: int | None = None,
        grace_s: float = 5.0,
    ) -> Guardian:
        """Start a guardian for the attempts that the roster lists, now or later.

        It inherits the lock behind `guard_fd` and keeps it until it has ended them all; the
        caller closes its own copy. It runs in a session of its own, ignores what ends other
        programs, and needs neither our folder nor PATH. `roster_fd`, the roster as its
        worker has it open, serves where the path is gone.

        Raises:
            OSError: it could not be started.
        """
        opened: list[int] = []
        try:
            # Opened anew: a copy of the worker's descriptor would share its lock.
            opened.append(_open_roster(roster_path, roster_fd))
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            opened.append(null)
            reading, writing = os.pipe()
            opened.append(reading)
            try:
                fds = [null, null, null, reading, opened[0], guard_fd]
                pid = _spawn(fds, os.path.dirname(roster_path), grace_s)
            except BaseException:
                os.close(writing)
                raise
        finally:
            for fd in opened:
                os.close(fd)
        return cls(pid, writing)

    def abandon(self) -> None:
        """Let go of a guardian that has ended, or that shall end its attempts now."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
            _guardians.discard(self)

    def dismiss(self) -> None:
        """End the guardian as it is, for want of anything that it should end.

        Only while the roster lists nothing, and nothing is announced any more. One whose
        worker was quick is still starting then, and would take longer to find out.
        """
        if not self._collect():
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self, timeout_s: float) -> bool:
        """Let the guardian finish and collect it; whether it ended in time.

        It ends at once if it was dismissed, or if the roster lists nothing any more.
        """
        self.abandon()
        until = time.monotonic() + timeout_s
        pause_s = 0.0002
        while not self._collect():
            if time.monotonic() >= until:
                return False
            pause(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        return True

    def _collect(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:  # collected by the worker's loop
            return True


def _abandon_copies() -> None:
    # A forked copy of the worker would keep the pipe open after the worker's death.
    for guardian in list(_guardians):
        guardian.abandon()


os.register_at_fork(after_in_child=_abandon_copies)


def _open_roster(path: str, fd: int | None) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if fd is None or not sys.platform.startswith("linux"):
            raise
        # The file lives as long as it is open; this opens it anew (proc(5)), which
        # /dev/fd of other systems does not.
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def _spawn(fds: list[int], folder: str, grace_s: float) -> int:
    # Numbers above all targets first: a source must not be overwritten by another's copy.
    copies: list[int] = []
    words = ["-I", "-S", "-c", _CODE, _ROOT, folder, str(grace_s)]
    words.append(f"spoolctl guardian of {os.getpid()}")  # for readers of ps(1)
    try:
        copies.extend(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in fds)
        return _start_python(words, copies)
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
        # Whole, the mark of an attempt around the worker included: it ends the guardian too.
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate(fds)],
        # Blocked from its first instruction on: there is no moment at which a signal for
        # the worker's group, or a careless `kill`, ends the guardian.
        setsigmask=spawn.ALL_SIGNALS,
    )
    try:
        return start(setsid=True)
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID: see `main`
        return start()


def main() -> None:
    """The guardian's own process. Wakes up once: when its worker is gone."""
    folder, grace_s = sys.argv[2], float(sys.argv[3])
    with contextlib.suppress(PermissionError):  # it leads one already
        os.setsid()
    os.chdir("/")
    _close_others()
    while os.read(_PIPE, 4096):
        pass
    with contextlib.suppress(OSError):  # not everybody may
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    entries = read_roster(_ROSTER, folder)
    targets = [Target(e.token, e.pid, e.start, e.lock_path) for e in entries]
    end_all(targets, grace_s=grace_s, until_mono=time.monotonic() + _LONGEST_S)


def _close_others() -> None:
    """Descriptors that the worker itself had inherited without close-on-exec."""
    for fd in spawn.open_descriptors():
        if fd > _GUARD:
            with contextlib.suppress(OSError):
                os.close(fd)

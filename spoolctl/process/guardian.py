"""The guardian: a small process that outlives its worker to end what the worker ran.

It sleeps in read(2) on a pipe whose other end only the worker holds. When the worker dies, by
whatever means, the read ends; then the guardian ends every attempt that the worker's roster
lists. It does not touch the queue.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from spoolctl.process.companion import Companion, detach, start_companion
from spoolctl.process.roster import read_roster
from spoolctl.process.search import Target
from spoolctl.process.tree import end_all

_PIPE, _ROSTER, _GUARD = 3, 4, 5
_LONGEST_S = 3600.0
_NICE = -20  # the little that is to be done comes before what keeps the machine busy


class Guardian(Companion):
    """The guardian of this worker. Let go of, it ends what the roster lists.

    It may be killed only while that is nothing, and nothing is announced any more. One whose
    worker was quick is still starting then, and would take longer to find out by itself.
    """

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
                words = [os.path.dirname(roster_path), str(grace_s)]
                pid = start_companion(__name__, words, fds, title="guardian")
            except BaseException:
                os.close(writing)
                raise
        finally:
            for fd in opened:
                os.close(fd)
        return cls(pid, [writing])


def _open_roster(path: str, fd: int | None) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if fd is None or not sys.platform.startswith("linux"):
            raise
        # The file lives as long as it is open; this opens it anew (proc(5)), which
        # /dev/fd of other systems does not.
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def main() -> None:
    """The guardian's own process. Wakes up once: when its worker is gone."""
    folder, grace_s = sys.argv[2], float(sys.argv[3])
    detach(_GUARD)
    while os.read(_PIPE, 4096):
        pass
    with contextlib.suppress(OSError):  # not everybody may
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    entries = read_roster(_ROSTER, folder)
    targets = [Target(e.token, e.pid, e.start, e.lock_path) for e in entries]
    end_all(targets, grace_s=grace_s, until_mono=time.monotonic() + _LONGEST_S)

"""Which of our children have ended, and the rest of what a child subreaper has to collect.

The leader of an attempt that did not succeed stays a zombie until its whole tree is gone:
as long as it is not collected, the kernel cannot give its pid (which is also the group's and
the session's id) to a stranger.
"""

from __future__ import annotations

import contextlib
import os

from spoolctl.core.tuples import NamedTuple
from spoolctl.process.table import OwnChildren


class Exit(NamedTuple):
    """How a process ended: an exit code, or minus the number of the signal that ended it."""

    pid: int
    code: int


class Children:
    """Collects ended children; leaders and helpers are told apart from strangers."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._kept: set[int] = set()
        self._all = OwnChildren()

    def watch(self, pid: int) -> None:
        """Report the end of this child from `poll`."""
        self._known.add(pid)

    def release(self, pid: int) -> None:
        """Collect a watched child that has ended; its pid may be reused from now on."""
        self._known.discard(pid)
        if pid in self._kept:
            self._kept.discard(pid)
            _collect(pid)

    def collect_strangers(self) -> None:
        """Collect orphans that a watched child, kept for long, hides from `poll`."""
        if self._kept:
            for pid in (self._all.pids() or set()) - self._known:
                _collect(pid)

    def others(self) -> bool | None:
        """Whether this process has children that are not watched; None if that is unknown.

        Cheap. For a subreaper with no other children, nothing that its ended commands forked
        is alive: orphans become its children. Uncollected zombies count.
        """
        pids = self._all.pids()
        return None if pids is None else not pids <= self._known

    def close(self) -> None:
        """Release what is kept open for `others`. May be called twice."""
        self._all.close()

    @property
    def known(self) -> frozenset[int]:
        """The watched children."""
        return frozenset(self._known)

    def poll(self) -> list[Exit]:
        """Watched children that have ended since the last call; strangers are collected.

        A watched one stays a zombie until it is released.
        """
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._poll_collecting()
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return []
            if info is None:
                return []
            if info.si_pid in self._known:
                # Uncollected, it hides whoever ended after it: look at each by its pid.
                return self._poll_each()
            _collect(info.si_pid)

    def _poll_each(self) -> list[Exit]:
        ended: list[Exit] = []
        for pid in self._known - self._kept:
            try:
                info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                continue
            if info is not None:
                self._kept.add(pid)
                ended.append(Exit(pid, _code(info.si_code, info.si_status)))
        return ended

    def _poll_collecting(self) -> list[Exit]:
        ended: list[Exit] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid in self._known:
                ended.append(Exit(pid, os.waitstatus_to_exitcode(status)))


def _code(si_code: int, status: int) -> int:
    return status if si_code == os.CLD_EXITED else -status


def _collect(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)

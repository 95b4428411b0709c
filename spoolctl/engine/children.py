"""Which of our children have ended, and the rest of what a child subreaper has to collect.

A program that has a worker in it may have children of its own: their ends are its to collect,
or it would never learn of them.

The leader of an attempt that did not succeed stays a zombie until its whole tree is gone:
as long as it is not collected, the kernel cannot give its pid (which is also the group's and
the session's id) to a stranger.
"""

from __future__ import annotations

import contextlib
import os

from spoolctl.core.tuples import NamedTuple
from spoolctl.process.table import OwnChildren

_left: set[int] = set()
"""Children that an earlier worker in this process had, or had adopted, and that did not end with
it. The program does not know of them, so the next worker collects them."""


class Exit(NamedTuple):
    """How a process ended: an exit code, or minus the number of the signal that ended it."""

    pid: int
    code: int


class Children:
    """Collects ended children; leaders and helpers are told apart from strangers, and those from
    the program's own. To be made before the first command is started."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._kept: set[int] = set()
        self._all = OwnChildren()
        self._older = (self._all.pids() or set()) - _left
        self._hidden = False  # behind one that stays uncollected there may be strangers

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
        """Collect orphans that `poll` did not see behind a child that is not to be collected."""
        if self._hidden:
            self._hidden = False
            for pid in (self._all.pids() or set()) - self._known:
                if not self._is_programs(pid):
                    _collect(pid)

    def others(self) -> bool | None:
        """Whether orphans have become children of this process; None if that is unknown.

        Cheap. For a subreaper with no other children, nothing that its ended commands forked
        is alive: orphans become its children. Uncollected zombies count.
        """
        pids = self._all.pids()
        if pids is None:
            return None
        return not all(self._is_programs(pid) for pid in pids - self._known)

    def _is_programs(self, pid: int) -> bool:
        """Whether a child that is not watched was started by the program around the worker.

        It was there before the worker, or is in our session: commands lead sessions of their
        own, and no way leads from there into ours (setsid(2)). Not told apart from an orphan is
        what another thread starts meanwhile in a new session.
        """
        if pid in self._older:
            return True
        try:
            # Init has to collect whoever is left to it, from wherever.
            return os.getsid(pid) == os.getsid(0) and os.getpid() != 1
        except OSError:
            return False

    def rest(self) -> None:
        """Keep nothing open for `others` until it is asked again."""
        self._all.close()

    def close(self) -> None:
        """Release what is kept open for `others`. May be called twice."""
        pids = self._all.pids() or set()
        _left.clear()
        _left.update(pid for pid in pids if not self._is_programs(pid))
        self.rest()

    @property
    def known(self) -> frozenset[int]:
        """The watched children, and those that were there before the worker."""
        return frozenset(self._known | self._older)

    def poll(self) -> list[Exit]:
        """Watched children that have ended since the last call; orphans are collected.

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
            if info.si_pid in self._known or self._is_programs(info.si_pid):
                # Uncollected, it hides whoever ended after it: look at each by its pid.
                self._hidden = True
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
        # One by one: where this is needed nobody becomes a subreaper, so there are no orphans.
        ended: list[Exit] = []
        for pid in self._known:
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found == pid:
                    ended.append(Exit(pid, os.waitstatus_to_exitcode(status)))
        return ended


def _code(si_code: int, status: int) -> int:
    return status if si_code == os.CLD_EXITED else -status


def _collect(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)

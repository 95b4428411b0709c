"""Find every process of an attempt.

Four nets find them, each with its own blind spot: the *session* that the command led, the
*descendants* of whatever was found, the attempt's mark in the *environment*, and, when the
attempt's *lock* is held by somebody whom the others did not find, whoever has it open.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

from spoolctl.process import locks, table
from spoolctl.process.table import Proc

ALL_NETS = frozenset({"session", "descendants", "environment", "lock"})
"""The nets of a search. Fewer are used only to show what each of them finds."""

_Key = tuple[int, str]  # pid and start: one process, whatever happens to its number


class Target(NamedTuple):
    """An attempt whose processes are searched for.

    `pid`, `start`: its command, None if unknown; leave both None unless they were noted in
    this boot and this PID namespace, where alone the numbers mean anything. `lock_path`: its
    lock, which its processes inherit. Whoever calls must not hold that lock itself.
    """

    token: str
    pid: int | None
    start: str | None
    lock_path: str | None


class Found(NamedTuple):
    """What one search found.

    `members`: live processes of the attempt. `unsure`: live ones in a session with the
    command's number, whose leader is gone and which carry no mark: survivors of the attempt,
    or strangers who got the number later. `inside`: the searcher is a process of the attempt.
    """

    members: list[Proc]
    unsure: list[Proc]
    inside: bool


class Snapshot:
    """All processes at one moment, shared by the searches of one tick."""

    def __init__(self, procs: dict[int, Proc], *, me: int, blind: bool = False) -> None:
        self.procs = procs
        self.blind = blind
        self._me = me
        self._children: dict[int, list[Proc]] = {}
        self._sessions: dict[int, list[Proc]] = {}
        for proc in procs.values():
            self._children.setdefault(proc.ppid, []).append(proc)
            self._sessions.setdefault(proc.sid, []).append(proc)
        self._marks: dict[int, tuple[str, ...]] = {}
        self._lineage = self._ancestors(me)

    @classmethod
    def take(cls) -> Snapshot:
        """Read the table of processes. `blind` if it is not that of our own PID namespace."""
        if not table.is_ours():
            return cls({}, me=os.getpid(), blind=True)
        return cls(table.read_all(), me=os.getpid())

    def members(
        self,
        target: Target,
        known: Collection[_Key] = frozenset(),
        nets: Collection[str] = ALL_NETS,
    ) -> list[Proc]:
        """The attempt's live processes, oldest first; see `search`."""
        return self.search(target, known, nets).members

    def search(
        self,
        target: Target,
        known: Collection[_Key] = frozenset(),
        nets: Collection[str] = ALL_NETS,
    ) -> Found:
        """Find the attempt's live processes. `known` are those that earlier looks found.

        Zombies, the searcher and its ancestors are never among them; reused pids are told
        by start times. Everything that an attempt forked is younger than its command, so
        older processes are not looked at.
        """
        since = int(target.start) if target.pid and target.start else 0
        found = {
            pid: proc
            for pid, start in known
            if (proc := self.procs.get(pid)) is not None and proc.start == start
        }
        leader = self.procs.get(target.pid) if target.pid and target.start else None
        if leader is not None and leader.start == target.start:
            found[leader.pid] = leader
        if "environment" in nets:
            for proc in self._younger(since):
                if target.token in self._marks_of(proc):
                    found[proc.pid] = proc
        if "lock" in nets and not self._live(found):
            for proc in self._holders(target, since):
                found[proc.pid] = proc
        unsure = self._close(found, target, {pid for pid, _ in known}, since, nets)
        inside = not self._lineage.isdisjoint(found)
        for pid in self._lineage:
            found.pop(pid, None)
        return Found(self._live(found), self._live(unsure), inside)

    def adopted(self, known: Collection[int]) -> list[Proc]:
        """Live children of this process besides `known`, and all their descendants.

        For a subreaper: what its commands left behind, whatever they did to hide.
        """
        found = {p.pid: p for p in self._children.get(self._me, ()) if p.pid not in known}
        self._add_descendants(found)
        return self._live(found)

    def whole_groups(self, members: Collection[Proc]) -> list[Proc]:
        """One of each process group that consists of `members` alone."""
        pids = {proc.pid for proc in members}
        mixed = {proc.pgid for proc in self.procs.values() if proc.pid not in pids and proc.lives}
        groups = {proc.pgid: proc for proc in members if proc.pgid > 1}
        return [proc for pgid, proc in groups.items() if pgid not in mixed]

    def _close(
        self,
        found: dict[int, Proc],
        target: Target,
        known: set[int],
        since: int,
        nets: Collection[str],
    ) -> dict[int, Proc]:
        """Add sessions and descendants to `found` until nothing is new; returns the unsure."""
        while True:
            size = len(found)
            if "descendants" in nets:
                self._add_descendants(found)
            if "session" in nets:
                for sid in self._own_sessions(found, target, known):
                    found.update({p.pid: p for p in self._sessions[sid] if int(p.start) >= since})
            if len(found) == size:
                break
        if "session" not in nets or not target.pid or not since or target.pid in self.procs:
            return {}
        # The leader is gone and nobody vouches for the session: its number may have been
        # given to a stranger since. What descends from us cannot be one.
        unsure = {}
        for proc in self._sessions.get(target.pid, ()):
            if proc.pid in found or int(proc.start) < since:
                continue
            if self._me in self._ancestors(proc.pid):
                found[proc.pid] = proc
            elif not self._marks_of(proc):  # else it belongs to another attempt
                unsure[proc.pid] = proc
        if "descendants" in nets:
            self._add_descendants(found)
        return {pid: proc for pid, proc in unsure.items() if pid not in found}

    def _own_sessions(self, found: dict[int, Proc], target: Target, known: set[int]) -> set[int]:
        # A session's number stays taken while any process is in it, so one sure member of
        # a session whose leader was the attempt's makes all of it the attempt's.
        return {
            proc.sid
            for proc in found.values()
            if proc.sid in found or proc.sid in known or proc.sid == target.pid
        }

    def _add_descendants(self, found: dict[int, Proc]) -> None:
        todo = list(found.values())
        while todo:
            parent = todo.pop()
            for child in self._children.get(parent.pid, ()):
                if child.pid not in found and int(child.start) >= int(parent.start):
                    found[child.pid] = child
                    todo.append(child)

    def _live(self, found: dict[int, Proc]) -> list[Proc]:
        live = [proc for proc in found.values() if proc.lives and not proc.kernel]
        return sorted(live, key=lambda proc: (int(proc.start), proc.pid))

    def _younger(self, since: int) -> list[Proc]:
        return [
            proc
            for proc in self.procs.values()
            if not proc.kernel and proc.lives and int(proc.start) >= since
        ]

    def _marks_of(self, proc: Proc) -> tuple[str, ...]:
        # Read once a snapshot and never kept for longer: execve may change it any time.
        marks = self._marks.get(proc.pid)
        if marks is None:
            marks = self._marks[proc.pid] = table.read_marks(proc) or ()
        return marks

    def _holders(self, target: Target, since: int) -> list[Proc]:
        if target.lock_path is None or not locks.is_held(target.lock_path):
            return []
        try:
            lock = os.stat(target.lock_path, follow_symlinks=False)
        except OSError:
            return []
        return table.holders(self._younger(since), lock.st_dev, lock.st_ino)

    def _ancestors(self, pid: int) -> set[int]:
        """`pid` and the processes above it."""
        line = set()
        while pid not in line and (proc := self.procs.get(pid)) is not None:
            line.add(pid)
            pid = proc.ppid
        return line

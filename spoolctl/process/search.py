"""Find every process of an attempt.

Four nets find them, each with its own blind spot: the *session* that the command led, the
*descendants* of whatever was found, the attempt's mark in the *environment*, and, when the
attempt's *lock* is held by somebody whom the others did not find, whoever has it open.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from spoolctl.core.tuples import NamedTuple
from spoolctl.process import locks, table
from spoolctl.process.table import Proc

ALL_NETS = frozenset({"session", "descendants", "environment", "lock"})
"""The nets of a search. Fewer are used only to show what each of them finds."""

NO_SESSIONS: Mapping[int, int] = MappingProxyType({})

Key = tuple[int, str]
"""Pid and start: one process, whatever becomes of its number."""


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

    `members`: live processes of the attempt, oldest first. `unsure`: live ones in a session
    with the command's number, whose leader is gone and which carry no mark: survivors of the
    attempt, or strangers who got the number later. `inside`: the searcher itself is a process
    of the attempt. `complete`: nobody was left out for want of descriptors or memory.
    `settled`: nobody was in the middle of execve(2), where no mark can be read.
    """

    members: list[Proc]
    unsure: list[Proc]
    inside: bool
    complete: bool
    settled: bool


class Snapshot:
    """All processes at one moment, shared by the searches of one tick.

    `blind`: the table of processes is not that of our own PID namespace; it shows nobody.
    """

    def __init__(
        self, procs: dict[int, Proc], *, me: int, complete: bool = True, blind: bool = False
    ) -> None:
        self.procs = procs
        self.blind = blind
        self._me = me
        self._complete = complete
        self._settled = True
        self._children: dict[int, list[Proc]] = {}
        self._sessions: dict[int, list[Proc]] = {}
        for proc in procs.values():
            self._children.setdefault(proc.ppid, []).append(proc)
            self._sessions.setdefault(proc.sid, []).append(proc)
        self._candidates: list[tuple[int, Proc]] | None = None
        self._marks: dict[int, tuple[str, ...]] = {}
        self._lineage = self._ancestors(me)

    @classmethod
    def take(cls) -> Snapshot:
        """Read the table of processes."""
        if not table.is_ours():
            return cls({}, me=os.getpid(), blind=True)
        procs, complete = table.read_all()
        return cls(procs, me=os.getpid(), complete=complete)

    def members(
        self,
        target: Target,
        known: Collection[Key] = frozenset(),
        nets: Collection[str] = ALL_NETS,
    ) -> list[Proc]:
        """The attempt's live processes, oldest first; see `search`."""
        return self.search(target, known, nets).members

    def search(
        self,
        target: Target,
        known: Collection[Key] = frozenset(),
        nets: Collection[str] = ALL_NETS,
        sessions: Mapping[int, int] = NO_SESSIONS,
    ) -> Found:
        """Find the attempt's live processes. `known` are those that earlier looks found,
        `sessions` those of which it was certain at a moment (in the unit of `start`) that
        the attempt leads them.

        Zombies, the searcher and its ancestors are never among them; reused pids are told
        by start times. Whatever an attempt forked is no older than its command, so older
        processes are not looked at.
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
            found.update(_by_pid(self._marked(target.token, since)))
        known_pids = {pid for pid, _ in known}
        if "session" in nets:
            for sid, moment in sessions.items():
                found.update(_by_pid(self._in_session_at(sid, moment, since)))
        self._close(found, target, known_pids, since, nets)
        inside = not self._lineage.isdisjoint(found)
        if "lock" in nets and not self._live(found):
            found.update(_by_pid(self._holders(target, since)))
            self._close(found, target, known_pids, since, nets)
        for pid in self._lineage:
            found.pop(pid, None)
        unsure = self._unsure(found, target, since) if "session" in nets else {}
        return Found(self._live(found), self._live(unsure), inside, self._complete, self._settled)

    def adopted(self, known: Collection[int], target: Target) -> list[Proc]:
        """Live children of this process besides `known`, and their descendants, that are no
        older than the target's command.

        For a subreaper that runs this attempt alone: what it left behind, however it hides.
        Who is in our own session is none of it: a command leads another, and nobody can leave
        that for ours (setsid(2)); the program around the worker has started it.
        """
        me = self.procs.get(self._me)
        if self._me == 1 or me is None:  # init adopts strangers too
            return []
        since = int(target.start or 0)
        children = [p for p in self._children.get(self._me, ()) if p.sid != me.sid]
        found = _by_pid(p for p in children if p.pid not in known and int(p.start) >= since)
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
        known_pids: set[int],
        since: int,
        nets: Collection[str],
    ) -> None:
        """Add sessions and descendants to `found` until nothing is new."""
        size = -1
        while len(found) != size:
            size = len(found)
            if "descendants" in nets:
                self._add_descendants(found)
            if "session" in nets:
                # A session's number stays taken while any process is in it. So one sure
                # member of a session that the attempt led makes all of it the attempt's.
                for sid in {
                    proc.sid
                    for proc in found.values()
                    if proc.sid in found or proc.sid in known_pids or proc.sid == target.pid
                }:
                    found.update(_by_pid(p for p in self._sessions[sid] if int(p.start) >= since))

    def _in_session_at(self, sid: int, moment: int, since: int) -> list[Proc]:
        """Those who were in the session at that moment: nobody joins one, but by birth.

        A number that is a session's stays taken until the last of them has ended.
        """
        return [p for p in self._sessions.get(sid, ()) if since <= int(p.start) < moment]

    def _unsure(self, found: dict[int, Proc], target: Target, since: int) -> dict[int, Proc]:
        """Those in a session with the command's number for whom nothing else speaks.

        Its leader is gone: the number may have been given to a stranger since. Whoever can,
        collects a command only after its processes have been confirmed gone.
        """
        if not since or target.pid is None or target.pid in self.procs:
            return {}
        # A process that is marked with other ids alone belongs to another attempt.
        return _by_pid(
            proc
            for proc in self._sessions.get(target.pid, ())
            if proc.pid not in found and int(proc.start) >= since and not self._marks_of(proc)
        )

    def _add_descendants(self, found: dict[int, Proc]) -> None:
        todo = list(found.values())
        while todo:
            parent = todo.pop()
            for child in self._children.get(parent.pid, ()):
                # An older child than its parent: the number changed hands between two reads.
                if child.pid not in found and int(child.start) >= int(parent.start):
                    found[child.pid] = child
                    todo.append(child)

    def _live(self, found: dict[int, Proc]) -> list[Proc]:
        live = [proc for proc in found.values() if proc.lives and not proc.kernel]
        return sorted(live, key=lambda proc: (int(proc.start), proc.pid))

    def _younger(self, since: int) -> list[Proc]:
        if self._candidates is None:
            self._candidates = [
                (int(proc.start), proc)
                for proc in self.procs.values()
                if proc.lives and not proc.kernel
            ]
        return [proc for start, proc in self._candidates if start >= since]

    def _marked(self, token: str, since: int) -> list[Proc]:
        return [proc for proc in self._younger(since) if token in self._marks_of(proc)]

    def _marks_of(self, proc: Proc) -> tuple[str, ...]:
        # Read once a snapshot and not kept for longer: execve(2) may change it any time.
        marks = self._marks.get(proc.pid)
        if marks is None:
            marks = ()
            try:
                marks = table.read_marks(proc) or ()
            except table.Unsettled:
                self._settled = False
            except OSError:
                self._complete = False
            self._marks[proc.pid] = marks
        return marks

    def _holders(self, target: Target, since: int) -> list[Proc]:
        if target.lock_path is None or not locks.is_held(target.lock_path):
            return []
        try:
            return table.holders(self._younger(since), target.lock_path)
        except FileNotFoundError:
            return []
        except OSError:
            self._complete = False
            return []

    def _ancestors(self, pid: int) -> set[int]:
        """`pid` and the processes above it."""
        line = set()
        while pid not in line and (proc := self.procs.get(pid)) is not None:
            line.add(pid)
            pid = proc.ppid
        return line


def _by_pid(procs: Iterable[Proc]) -> dict[int, Proc]:
    return {proc.pid: proc for proc in procs}

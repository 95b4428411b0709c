"""What commands leave running: the survivors of a success, which may stay, and the orphans of an
attempt that has to go.
"""

from __future__ import annotations

from collections.abc import Iterable

from spoolctl.engine.attempt import Running
from spoolctl.engine.children import Children
from spoolctl.process import tree


class Leftovers:
    """Tells for one worker whose the processes are that outlive their leader."""

    def __init__(self, children: Children) -> None:
        self._children = children
        # Orphans that may be the survivors of a success: pid and start.
        self._tolerated: set[tuple[int, str]] = set()
        self._nobody = False  # but our own children is alive, as was seen since `look_again`

    def look_again(self) -> None:
        """Leaders have ended: what was seen before says nothing of theirs."""
        self._nobody = False

    def survivors(self, running: Running) -> int | None:
        """How many processes a succeeded attempt left running; None if that cannot be seen.

        Cheap where there are none.
        """
        if running.slot.is_free():
            running.unlock()
            # One look tells for all leaders that had ended before it.
            self._nobody = self._nobody or self._children.others() is False
            if self._nobody:
                return 0
        try:
            look = tree.Snapshot.take()
            found = look.search(running.target)
        except OSError:
            return None
        anyone = running.target._replace(pid=None, start=None)
        orphans = look.adopted(self._children.known, anyone)
        self._tolerated = {(proc.pid, proc.start) for proc in orphans}
        if not found.members and not running.slot.is_free():
            return None  # somebody has the lock: between two forks, where one look missed it
        return len(found.members) if found.complete and found.settled else None

    def orphans_of(
        self, running: Running, all_running: Iterable[Running], look: tree.Snapshot
    ) -> list[tree.Proc]:
        """Processes that came to us as orphans and can be nobody's but this attempt's.

        However they hide: a new session, no environment, no descriptors. Older than all
        other commands that run, younger than this one, and no success's to leave.
        """
        if running.target.start is None:
            return []
        others = [look.procs.get(one.pid) for one in all_running if one is not running]
        oldest = min((int(proc.start) for proc in others if proc), default=None)
        return [
            proc
            for proc in look.adopted(self._children.known, running.target)
            if (proc.pid, proc.start) not in self._tolerated
            and (oldest is None or int(proc.start) < oldest)
        ]

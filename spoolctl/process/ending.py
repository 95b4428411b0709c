"""The end of one attempt's processes, as a state machine that never blocks.

TERM (and CONT, for the stopped) to all, KILL after the grace, again and again, until two looks
in a row find nothing and the attempt's lock is free. What cannot be ended is said, and
looked at again at a slower pace.

Those who are known without a look at all processes are signaled before one is taken: on a
busy machine it can take seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection

from spoolctl.process import locks, table
from spoolctl.process.family import family
from spoolctl.process.search import ALL_NETS, Key, Snapshot, Target
from spoolctl.process.table import Proc

_FIRST_S = 0.002  # most processes are gone a millisecond after SIGTERM
_LONGEST_S = 0.05
_SECOND_LOOK_S = 0.001
_QUIET_S = 0.2  # how long nothing must be found where one look may have missed something
_STUCK_AFTER_S = 2.0  # SIGKILL takes milliseconds; what has not ended by now needs a reason
_STUCK_FIRST_S = 0.5
_STUCK_LONGEST_S = 10.0

_NO_RESOURCES = "there are not enough file descriptors or memory to look at all processes"


class Signals:
    """How signals are sent; tests stage their own."""

    def one(self, proc: Proc, number: int) -> str:
        """Signal this very process, never one that got its pid later.

        Returns `sent`, `gone` or `denied`.
        """
        # A pidfd names a process, not a number: opened first and compared then, it can
        # only be the one that we saw. Without pidfds a moment's doubt remains.
        try:
            handle = _pidfd(proc.pid)
        except ProcessLookupError:
            return "gone"
        try:
            now = table.read_proc(proc.pid)
            if now is None or now.start != proc.start:
                return "gone"
            if handle is not None:
                signal.pidfd_send_signal(handle, number)
            else:
                os.kill(proc.pid, number)
        except ProcessLookupError:
            return "gone"
        except (PermissionError, table.Hidden):
            return "denied"
        finally:
            if handle is not None:
                os.close(handle)
        return "sent"

    def group(self, member: Proc, number: int) -> None:
        """Signal all of the process group that `member` is in, in one step."""
        try:
            now = table.read_proc(member.pid)
            if now is None or not now.lives:
                return
            # While a member lives, the group's number cannot belong to another group.
            if (now.start, now.pgid) == (member.start, member.pgid):
                os.killpg(now.pgid, number)
        except (OSError, table.Hidden):
            pass

    def child_group(self, pid: int, number: int) -> bool:
        """Signal the group that our own child `pid` leads; whether it is one and runs."""
        try:
            # Uncollected, it keeps its number.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.killpg(pid, number)
        except OSError:
            return False
        return ended is None


class Ending:
    """Ends the processes of `target`: call `step` with a new snapshot when it asks for it.

    `gone` becomes true when the end is confirmed. `stuck` says why it cannot be reached so
    far, None while there is hope. With `force` nobody gets a grace.
    """

    def __init__(
        self,
        target: Target,
        *,
        grace_s: float,
        now_mono: float,
        force: bool = False,
        nets: Collection[str] = ALL_NETS,
        signals: Signals | None = None,
    ) -> None:
        self.target = target
        self.gone = False
        self.stuck: str | None = None
        self._nets = nets
        self._signals = signals or Signals()
        self._kill_at = now_mono if force else now_mono + grace_s
        self._known: dict[Key, Proc] = {}
        self._sessions: dict[int, int] = {}
        self._asked_first: int | None = None  # when, in the unit of Proc.start
        self._struck: set[int] = set()
        self._looked = False
        self._asked: dict[Key, str] = {}
        self._denied: set[Key] = set()
        self._kills = 0
        self._quiet_looks = 0
        self._quiet_since = now_mono
        self._helpless_since: float | None = None
        self._pause_s = _FIRST_S
        self._last: Snapshot | None = None

    def include(self, procs: Collection[Proc]) -> None:
        """Count these among the attempt's: found by other means, their descendants too."""
        self._known.update(((proc.pid, proc.start), proc) for proc in procs)

    def strike(self, now_mono: float) -> float:
        """Signal the command, its descendants and whoever was found before, without a look at
        all processes. To be called before each `step`; acts once with TERM, once with KILL.

        Returns the seconds to wait before that step: most are gone a moment later.
        """
        number = signal.SIGTERM if now_mono < self._kill_at else signal.SIGKILL
        if self.gone or number in self._struck or "descendants" not in self._nets:
            return 0.0
        self._struck.add(number)
        pid, start = self.target.pid, self.target.start
        moment = table.now_ticks()
        if pid is None or start is None or moment is None:
            return 0.0
        members = family(pid, start)
        if members is None:  # without them a look that comes later could miss somebody
            return 0.0
        self.include(members)
        # Their leader may be gone when we look: then this tells whose the session is.
        self._sessions.update((proc.sid, moment) for proc in members if proc.sid == proc.pid)
        if number == signal.SIGKILL:
            members = list(self._known.values())
            for proc in members:
                self._signal_kill(proc)
        else:
            members = [proc for proc in members if proc.lives]
            self._asked_first = moment
            for proc in members:
                self._ask_one(proc)
        return _FIRST_S if members else 0.0

    def step(self, snapshot: Snapshot, now_mono: float) -> float | None:
        """Look and act. Returns the seconds until the next step, None when all is gone."""
        if self.gone:
            return None
        if snapshot is self._last:  # the same look twice proves nothing
            return _SECOND_LOOK_S
        self._last = snapshot
        if snapshot.blind:
            return self._step_blind(now_mono)
        found = snapshot.search(self.target, self._known.keys(), self._nets, self._sessions)
        if found.inside:
            self.stuck = "this process itself belongs to the attempt"
            return _STUCK_LONGEST_S
        if found.members:
            return self._end(found.members, snapshot, now_mono)
        held = self._lock_is_held()
        if held or found.unsure:
            return self._wait_for(_reason_unseen(found.unsure), now_mono)
        if not found.complete or held is None:
            return self._wait_for(_NO_RESOURCES, now_mono)
        return self._confirm(now_mono, found.settled)

    def _lock_is_held(self) -> bool | None:
        """None if the lock's file is there but cannot be looked at."""
        path = self.target.lock_path
        if path is None:
            return False
        held = locks.is_held(path)
        return False if held is None and not os.path.lexists(path) else held

    def _confirm(self, now: float, settled: bool) -> float | None:
        if not self._quiet_looks:
            self._quiet_since = now
        self._quiet_looks += 1
        self._helpless_since = self.stuck = None
        if self._quiet_looks < 2:
            return _SECOND_LOOK_S
        # A command that is just being spawned carries no mark before its execve, and its
        # lock may be gone with the folder: then only time tells. The same where somebody,
        # perhaps a stranger, is in the middle of an execve.
        certain = settled and (self.target.pid is not None or self._has_lock())
        if not certain and now - self._quiet_since < _QUIET_S:
            return _LONGEST_S
        self.gone = True
        return None

    def _has_lock(self) -> bool:
        path = self.target.lock_path
        return path is not None and os.path.lexists(path)

    def _end(self, members: list[Proc], snapshot: Snapshot, now: float) -> float:
        self._quiet_looks = 0
        keys = {(proc.pid, proc.start) for proc in members}
        fresh = not keys <= self._known.keys()
        self.include(members)
        if now < self._kill_at:
            self._helpless_since = self.stuck = None
            self._ask(members)
            return min(self._next_pause(), max(self._kill_at - now, 0.0))
        if not self._kills or fresh:
            self._helpless_since = self.stuck = None
            self._pause_s = _FIRST_S
        self._kill(members, snapshot)
        return self._wait_for(self._reason_alive(members), now)

    def _ask(self, members: list[Proc]) -> None:
        first, self._looked = not self._looked, True
        alive = {proc.pid for proc in members}
        for proc in members:
            # What a process that was asked starts to clean up may do its work; an orphan
            # will not be told by its parent.
            if proc.ppid not in alive or (first and self._is_older_than_the_first_ask(proc)):
                self._ask_one(proc)
            elif proc.state == "T":
                self._signals.one(proc, signal.SIGCONT)

    def _is_older_than_the_first_ask(self, proc: Proc) -> bool:
        return self._asked_first is None or int(proc.start) < self._asked_first

    def _ask_one(self, proc: Proc) -> None:
        key = (proc.pid, proc.start)
        # Once: to many programs a second one means "at once". But a child that was asked
        # between its fork and its execve may have caught it with what its parent had set up.
        if self._asked.get(key) != proc.image:
            self._asked[key] = proc.image
            self._signals.one(proc, signal.SIGTERM)
        if proc.state == "T":
            self._signals.one(proc, signal.SIGCONT)

    def _kill(self, members: list[Proc], snapshot: Snapshot) -> None:
        self._kills += 1
        if self._kills > 1:
            # Somebody forks faster than we look. A group dies in one step, and no fork of
            # its members gets through (fork(2) fails while a fatal signal is pending).
            for member in snapshot.whole_groups(members):
                self._signals.group(member, signal.SIGKILL)
        for proc in members:
            self._signal_kill(proc)

    def _signal_kill(self, proc: Proc) -> None:
        if self._signals.one(proc, signal.SIGKILL) == "denied":
            self._denied.add((proc.pid, proc.start))

    def _wait_for(self, reason: str, now: float) -> float:
        """Nothing more can be done than to look again, at a slower pace after a while."""
        self._quiet_looks = 0
        if self._helpless_since is None:
            self._helpless_since = now
        if now - self._helpless_since < _STUCK_AFTER_S:
            return self._next_pause()
        if self.stuck is None:
            self._pause_s = _STUCK_FIRST_S
        self.stuck = reason
        pause = self._pause_s
        self._pause_s = min(pause * 1.5, _STUCK_LONGEST_S)
        return pause

    def _next_pause(self) -> float:
        pause = min(self._pause_s, _LONGEST_S)
        self._pause_s = pause * 2
        return pause

    def _reason_alive(self, members: list[Proc]) -> str:
        parts = []
        for proc in members[:3]:
            if (proc.pid, proc.start) in self._denied:
                why = "may not be signaled by this user"
            elif proc.state == "D":
                why = "is in uninterruptible sleep"
            else:
                why = "does not die"
            parts.append(f"process {proc.pid} ({proc.name}) {why}")
        if len(members) > 3:
            parts.append(f"and {len(members) - 3} more")
        return ", ".join(parts)

    def _step_blind(self, now: float) -> float | None:
        # All that is left: our own child's group, and the lock, which everything that the
        # command started inherits.
        number = signal.SIGTERM if now < self._kill_at else signal.SIGKILL
        pid = self.target.pid
        runs = pid is not None and self._signals.child_group(pid, number)
        if not runs and self._lock_is_held() is False:
            return self._confirm(now, settled=False)
        if now < self._kill_at:
            return _LONGEST_S
        return self._wait_for("the processes of this PID namespace cannot be seen in /proc", now)


def _reason_unseen(unsure: list[Proc]) -> str:
    if not unsure:
        return "a process that cannot be found holds the attempt's lock"
    names = ", ".join(f"{proc.pid} ({proc.name})" for proc in unsure[:3])
    return (
        f"process {names} is in a session with the number of the attempt's command, but"
        " carries no mark of the attempt: if it belongs to it, end it by hand"
    )


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):  # an old kernel, macOS, a sandbox, no descriptor left
        return None

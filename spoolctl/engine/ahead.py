"""How many jobs a worker claims before it has a slot for them, and what it records together.

A command that ends leaves its slot empty until the next claim is on the disk, which takes as
long as a short command itself. So a worker whose commands have all been short claims the next
ones together with what it records, starts them as soon as a slot comes free, and records
afterwards, while they run. That must not keep a job from a worker with a free slot: the first
command that lasts ends it, and what was claimed is given back (docs/adr/0013-claims-ahead.md).
With several slots it also waits a moment for more to end, so that one synced commit serves them
all (docs/adr/0014-ends-recorded-together.md).
"""

from __future__ import annotations

SHORT_S = 0.01
"""A command that takes no longer is a short one."""

STREAK = 16
"""After how many short commands in a row to begin."""

MOST_AHEAD = 16
"""The most that are claimed ahead, however many slots there are."""

HOLD_S = 0.02
"""How long claimed jobs wait for a slot before they are given back."""

GATHER_S = 0.004
"""How long an end may wait to be recorded together with those that follow."""

_MEMORY = 8
"""Over about how many commands their length is averaged."""


class Ahead:
    """Decides for one worker from how long its commands took. Without slots: nothing ahead."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        # One command at a time is recorded while the next one runs: nothing is won by more.
        self._most = min(slots, 1) if slots < 2 else MOST_AHEAD
        self._streak = 0
        self._usual_s = SHORT_S

    @property
    def most(self) -> int:
        """The highest that `limit` can be."""
        return self._most

    @property
    def limit(self) -> int:
        """How many jobs may be claimed that have no slot yet: as many as will get one within
        the length of a short command."""
        if self._streak < STREAK:
            return 0
        if self._usual_s * self._most <= SHORT_S * self._slots:
            return self._most
        return min(self._most, int(SHORT_S * self._slots / self._usual_s))

    def ended(self, duration_s: float) -> None:
        """A command has ended after so many seconds."""
        if duration_s > SHORT_S:
            self.waited()
            return
        self._streak += 1
        self._usual_s += (duration_s - self._usual_s) / _MEMORY

    def waited(self) -> None:
        """No slot came free in time."""
        self._streak = 0
        self._usual_s = SHORT_S

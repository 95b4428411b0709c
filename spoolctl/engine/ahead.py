"""How many jobs a worker claims before it has a slot for them.

A command that ends leaves its slot empty until the next claim is on the disk, which takes as
long as a short command itself. So a worker whose commands have all been short claims the next
ones together with what it records, starts them as soon as a slot comes free, and records
afterwards, while they run. That must not keep a job from a worker with a free slot: the first
command that lasts ends it, and what was claimed is given back (docs/adr/0013-claims-ahead.md).
"""

from __future__ import annotations

SHORT_S = 0.01
"""A command that takes no longer is a short one."""

STREAK = 16
"""After how many short commands in a row to begin."""

MOST_AHEAD = 8
"""The most that are claimed ahead, however many slots there are."""

HOLD_S = 0.02
"""How long claimed jobs wait for a slot before they are given back."""


class Ahead:
    """Decides for one worker from how long its commands took."""

    def __init__(self, slots: int) -> None:
        self._most = min(slots, MOST_AHEAD)
        self._streak = 0

    @property
    def limit(self) -> int:
        """How many jobs may be claimed that have no slot yet."""
        return self._most if self._streak >= STREAK else 0

    def ended(self, duration_s: float) -> None:
        """A command has ended after so many seconds."""
        self._streak = self._streak + 1 if duration_s <= SHORT_S else 0

    def waited(self) -> None:
        """No slot came free in time."""
        self._streak = 0

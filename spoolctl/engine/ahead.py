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

MOST_IF_HELPED = 24
"""The most while a clerk records, with one slot too: many are started before it answers."""

MOST_FOR_ONE_SLOT = 4
"""The most with one slot while other workers are in the way; otherwise it is one."""

MOST_IF_SLOW = 8
"""The most with one slot where recording is slow."""

STEADY = 64
"""After how many short commands in a row, with more waiting all the time, a clerk is worth its
start, which takes as long as a hundred of them (`engine.clerk`). Where `BACKLOG` jobs wait this
is not awaited."""

BACKLOG = 256
"""How many jobs have to wait for a worker that is alone for a clerk to be started with it: while
the worker is still finding out whether they are short, the clerk comes up."""

RARELY, OFTEN = 0.2, 0.5
"""In what share of transactions others may be in the way for a clerk to be started, and to be
asked: beside other workers the processors have enough to do."""

SLOW_S = 0.002
"""A transaction that takes longer is worth sharing, with one slot too: the disk is slow, or many
others wait for the lock."""

CROWD = 16
"""For how many transactions others count as being in the way after one of theirs was."""

HOLD_S = 0.02
"""How long claimed jobs wait for a slot before they are given back; and twice as long as a
transaction takes, since nobody could take them over sooner."""

GATHER_S = 0.004
"""How long an end may wait to be recorded together with those that follow; if a transaction
takes longer, as long as that."""

LONGEST_RECORD_S = 0.25
"""What takes longer, for once, is taken for no longer: dozens of workers wait for each other so
long, and somebody who held the lock for seconds is not what is usual."""

_MEMORY = 8
"""Over about how many commands, or transactions, their length is averaged."""


class Ahead:
    """Decides for one worker from how long its commands took. Without slots: nothing ahead.

    `record_s`: how long a transaction takes as a rule, from when it was first tried. `helped`:
    a clerk does them.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._streak = 0
        self._waiting = 0  # how many short ones since less than wanted was there to be claimed
        self._usual_s = SHORT_S
        self._crowd = 0
        self._met_share = 0.0
        self.record_s = 0.0
        self.helped = False

    @property
    def most(self) -> int:
        """The highest that `limit` can be."""
        return MOST_IF_HELPED if self._slots else 0

    @property
    def limit(self) -> int:
        """How many jobs may be claimed that have no slot yet: as many as will get one within
        the length of a short command."""
        if self._streak < STREAK:
            return 0
        most = self._most_now
        if self._usual_s * most <= SHORT_S * self._slots:
            return most
        return min(most, int(SHORT_S * self._slots / self._usual_s))

    @property
    def _most_now(self) -> int:
        if self._uses_clerk:
            return MOST_IF_HELPED
        if self._slots > 1:
            return MOST_AHEAD
        if self.record_s > SLOW_S:
            return MOST_IF_SLOW
        # Its commands are recorded one by one, each while the next one runs, and nothing is won by
        # more: unless recording takes longer, beside others or on a slow disk.
        return MOST_FOR_ONE_SLOT if self._crowd else 1

    @property
    def reserve(self) -> int:
        """How many may be left when more is to be asked for: with a clerk, as many as are started
        while that is on its way."""
        return self.limit // 2 if self._uses_clerk else 0

    @property
    def steady(self) -> bool:
        """Whether a clerk would be worth it."""
        return self._slots > 0 and self._waiting >= STEADY and self._met_share <= RARELY

    @property
    def helps(self) -> bool:
        """Whether a clerk that is there is worth being asked."""
        return self._streak >= STREAK and self._met_share <= OFTEN

    @property
    def _uses_clerk(self) -> bool:
        return self.helped and self.helps

    @property
    def hold_s(self) -> float:
        """How long claimed jobs may wait for a slot."""
        return HOLD_S + 2 * self.record_s

    @property
    def gather_s(self) -> float:
        """How long an end may wait for others."""
        return min(max(GATHER_S, self.record_s), HOLD_S)

    def ended(self, duration_s: float) -> None:
        """A command has ended after so many seconds at least.

        What was not seen, because something was being recorded, does not count: on a slow disk
        no command would be short.
        """
        if duration_s > SHORT_S:
            self.waited()
            return
        self._streak += 1
        self._waiting += 1
        self._usual_s += (duration_s - self._usual_s) / _MEMORY

    def waited(self) -> None:
        """No slot came free in time."""
        self._streak = self._waiting = 0
        self._usual_s = SHORT_S

    def ran_dry(self) -> None:
        """Less than wanted was there to be claimed."""
        self._waiting = 0

    def recorded(self, met_others: bool, took_s: float) -> None:
        """A transaction is done; whether another worker's, or a client's, was in the way.

        `took_s`: from when it was first tried, so with all the time that it waited for the lock.
        """
        self._crowd = CROWD if met_others else max(0, self._crowd - 1)
        self._met_share += (met_others - self._met_share) / _MEMORY
        self.record_s += (min(took_s, LONGEST_RECORD_S) - self.record_s) / _MEMORY

"""Queued jobs by the marks that claims and promotion go by: by priority within their lane."""

from __future__ import annotations

import math
from collections.abc import Iterator

from spoolctl.store.sqlite import sql
from spoolctl.store.sqlite.branches import ANY, HELD, Branch, Pair, marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.sqlite.finding import Finding

# So many marks are sorted at least; and so many of all lanes, where that may be the other way.
_SOME = 200
_ANYWHERE = 64


class Marks:
    """Those of a lane's queued jobs, or of all (`ANY`), inside one read transaction.

    What the counters know not to be there is not looked for.
    """

    def __init__(self, store: Finding, pair: Pair) -> None:
        self._execute = store._c.execute
        self._has_more = store._has_more
        self._pair = pair
        self._clocks: list[int] = []
        if pair.waiting:
            self._clocks = [row[0] for row in self._execute(sql.CLOCKS_IN_USE)]

    def branches(self, lowest: int, *, exactly: bool = False) -> list[Branch]:
        """All jobs of this priority or above, or of just this one; of held ones, more."""
        lane = self._pair.queue
        level = "priority = ?" if exactly else "priority >= ?"
        found = []
        if self._pair.ready:
            found.append(marked("ready_{}", f"ready = 1 AND {level}", lane, lowest))
        if self._pair.held:
            found.append(marked("held", HELD, lane))
        test = f"due_clock = ? AND {level} AND due IS NOT NULL"
        found += [marked("due_{}_by_priority", test, lane, clock, lowest) for clock in self._clocks]
        return found

    def few(self, lowest: int, limit: int, *, exactly: bool = False) -> list[Branch] | None:
        """The same, where they are so few that to sort them is less work than to read the lane.

        What is important is done first: many jobs of a high priority, hardly one of them
        queued, is what a queue at work looks like.
        """
        # In the order of ids, about limit * jobs / matching ones of the lane are read.
        most = max(_SOME, math.isqrt(max(limit, 0) * self._pair.size))
        if self._pair.queue == ANY:
            most = _ANYWHERE
        branches = self.branches(lowest, exactly=exactly)
        some = [branch for branch in branches if self._has_more(branch, 0)]
        return None if any(self._has_more(branch, most) for branch in some) else some

    def priorities(self, *, rising: bool) -> Iterator[int]:
        """The priorities that they have (and perhaps more), in order."""
        lane = self._pair.queue
        held: set[int] = set()
        if self._pair.held:
            held = {row[0] for row in self._execute(sql.HELD_PRIORITIES, (lane,))}
        choose = min if rising else max
        last = -1 << 40 if rising else 1 << 40
        while True:
            found = [each for each in held if (each > last if rising else each < last)]
            questions: list[tuple[str, tuple[object, ...]]] = [
                (sql.DUE_PRIORITY[rising], (lane, clock, last)) for clock in self._clocks
            ]
            if self._pair.ready:
                questions.append((sql.READY_PRIORITY[rising], (lane, last)))
            answers = [self._execute(*question).fetchone()[0] for question in questions]
            found += [each for each in answers if each is not None]
            if not found:
                return
            last = choose(found)
            yield last

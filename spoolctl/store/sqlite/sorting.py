"""Lists in another order than that of ids: by an index where one has that order, and pays."""

from __future__ import annotations

import math
from contextlib import closing, suppress
from itertools import islice, takewhile

from spoolctl.core.limits import LIMITS
from spoolctl.core.records import JobFilter
from spoolctl.core.states import State
from spoolctl.core.tuples import NamedTuple
from spoolctl.store.sqlite import sql
from spoolctl.store.sqlite.branches import (
    ANY,
    APART,
    HELD,
    NEAR,
    NEAR_S,
    Branch,
    Clause,
    Pair,
    by_lane,
    by_tag,
    condition,
    direction,
    indexed,
    marked,
    size_of,
    together,
)
from spoolctl.store.sqlite.finding import FEW, Finding
from spoolctl.store.sqlite.marks import Marks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

Entry: TypeAlias = "tuple[float | None, int]"
"""What a job is sorted by, and its id."""

TABLE = Branch("jobs", "jobs.id", Clause("1", ()))
ENDED = Clause("jobs.finished_at IS NOT NULL", ())
UNFINISHED = Clause("jobs.finished_at IS NULL", ())
STARTED = Clause("jobs.started_at IS NOT NULL", ())
NEVER_STARTED = Clause("jobs.started_at IS NULL", ())
ENDED_NEAR = Clause(NEAR, ())
# So many priorities of a lane are looked at one by one, before all of it is sorted. To look at
# one costs as much as to sort so many jobs, so more of them where there are many jobs.
_LEVELS = 40
_JOBS_OF_A_LEVEL = 80
_MOST_LEVELS = 1000
_MILE = 32
# So many times as many rows are read in order as if what matches lay evenly.
_PATIENCE = 4


class Order(NamedTuple):
    """A column, and whether small values come first."""

    column: str
    ascending: bool = False


ORDERS = {
    "finished": Order("jobs.finished_at"),
    "next-run": Order("jobs.run_at", ascending=True),
    "priority": Order("jobs.priority"),
    "started": Order("jobs.started_at"),
}
"""`SORTS` but `id`. Of equal ones, the ids decide in the same direction."""


class _TooFarError(Exception):
    """So many rows were read in order that it is better to sort what matches."""


class Sorting:
    """One question, inside the store's read transaction."""

    def __init__(self, store: Finding, sort: str, reverse: bool) -> None:
        self._store = store
        self._execute = store._c.execute
        self._sort = sort
        self._column = ORDERS[sort].column
        self._ascending = ORDERS[sort].ascending is not reverse
        way = direction(self._ascending)
        self._by_id = f"jobs.id {way}"
        self._by_index = f"{self._column} {way}, {self._by_id}"
        self._by_end = f"jobs.finished_at {way}, {self._by_id}"
        # Without a time: last, whatever the direction.
        self._by_value = f"{self._column} IS NULL, {self._by_index}"
        self._most = 0

    def ids(self, wanted: JobFilter, limit: int) -> list[int]:
        """Ids of the jobs, in order."""
        if limit == 0:
            return []
        pairs = None if wanted.ids else self._store._pairs(wanted)
        few = None if wanted.ids else self._store._sparse(wanted, pairs, limit)
        found = None if few is not None else self._cheaply(wanted, limit, pairs)
        if found is None:
            drivers = self._drivers(wanted) if few is None else few
            found = self._entries(drivers, wanted, limit, self._by_value)
        return self._first(found, limit)

    def _cheaply(
        self, wanted: JobFilter, limit: int, pairs: list[Pair] | None
    ) -> set[Entry] | None:
        """All that can be among the first, where an index has the order and pays."""
        if limit < 0 or wanted.ids:
            return None
        if not self._index_pays(wanted, limit, pairs):
            return None
        try:
            if self._sort == "finished":
                return self._by_ends(wanted, limit, pairs)
            if self._sort == "started":
                return self._by_start(wanted, limit)
            if self._sort == "next-run":
                return None if pairs is None else self._by_next_run(wanted, limit, pairs)
            if wanted.queue is None or pairs is None or wanted.tags:
                return self._by_priority(wanted, limit)
            return self._by_priority_in_lane(wanted, limit, pairs)
        except _TooFarError:
            return None

    def _drivers(self, wanted: JobFilter) -> list[Branch]:
        """What yields the fewest rows without any order."""
        branches = self._store._branches(wanted._replace(priority_min=None))
        return [TABLE] if branches is None else branches

    def _index_pays(self, wanted: JobFilter, limit: int, pairs: list[Pair] | None) -> bool:
        """Whether to read in order, testing each row, is less work than to sort what matches.

        In order, about limit * total / matching rows are read, if they lie evenly. If they do
        not, or other filters match far less, `_walk` gives up after some more.
        """
        first, last = self._execute(sql.FIRST_AND_LAST_JOB_ID).fetchone()
        if first is None:
            return False
        low = max(first - 1, wanted.after_id or 0)
        high = min(last + 1, wanted.before_id or last + 1)
        total: int = last - first + 1
        matching: int = max(0, high - low - 1)
        if pairs is not None:
            matching = min(matching, size_of(pairs))
        enough = math.isqrt(limit * total)
        self._most = _PATIENCE * enough
        tags = (by_tag(*tag) for tag in wanted.tags)
        return matching > enough and all(self._store._has_more(tag, enough) for tag in tags)

    def _by_ends(self, wanted: JobFilter, limit: int, pairs: list[Pair] | None) -> set[Entry]:
        """Each state's by its index, or by lane where that has few of them; then, if there is
        room, those that have not ended."""
        found: set[Entry] = set()
        for state in dict.fromkeys(wanted.states or State):
            some = None if pairs is None else [pair for pair in pairs if pair.state is state]
            if some is not None and size_of(some) <= FEW:
                lanes = [by_lane(pair) for pair in some]
                found |= self._entries(lanes, wanted, limit, self._by_value, ENDED)
            else:
                test = "state = ? AND finished_at IS NOT NULL"
                branch = indexed("jobs_by_end", test, state.value)
                found |= self._walk(branch, wanted, limit, self._by_index, self._most)
        if len(found) < limit:
            found |= self._without_time(wanted, limit, UNFINISHED)
        return found

    def _without_time(self, wanted: JobFilter, limit: int, never: Clause) -> set[Entry]:
        branches = self._store._branches(wanted, limit, self._ascending)
        drivers = [TABLE] if branches is None else branches
        return self._entries(drivers, wanted, limit, self._by_id, never)

    def _by_start(self, wanted: JobFilter, limit: int) -> set[Entry]:
        """By the end, of those that ended within `NEAR_S` of their start; the others by an
        index of their own; and all that run."""
        found: set[Entry] = set()
        near: list[Branch] = []
        apart: list[Branch] = []
        pairs = self._store._pairs(wanted._replace(states=wanted.states or tuple(State))) or []
        for state in dict.fromkeys(pair.state for pair in pairs):
            some = [pair for pair in pairs if pair.state is state]
            if state is State.RUNNING or size_of(some) <= FEW:
                lanes = [by_lane(pair) for pair in some]
                found |= self._entries(lanes, wanted, limit, self._by_value, STARTED)
            else:
                test = "state = ? AND finished_at IS NOT NULL"
                near.append(indexed("jobs_by_end", test, state.value))
                apart.append(indexed("started_apart", f"state = ? AND {APART}", state.value))
        ended, left_ended = self._as_far_as_it_pays(near, wanted, limit, self._by_end, ENDED_NEAR)
        others, left = self._as_far_as_it_pays(apart, wanted, limit, self._by_index)
        found = found.union(ended, others)
        if len(found) >= limit:
            return found | self._before(self._border(found, limit), near, left, wanted)
        if left or left_ended:
            raise _TooFarError
        return found | self._without_time(wanted, limit, NEVER_STARTED)

    def _as_far_as_it_pays(
        self, branches: list[Branch], wanted: JobFilter, limit: int, order: str, *more: Clause
    ) -> tuple[set[Entry], list[Branch]]:
        """The first of each branch, and the branches in which these lie too far apart."""
        found: set[Entry] = set()
        left = []
        for branch in branches:
            try:
                found |= self._walk(branch, wanted, limit, order, self._most, *more)
            except _TooFarError:
                left.append(branch)
        return found, left

    def _border(self, found: set[Entry], limit: int) -> tuple[float, int]:
        """The last of those that are the first so far."""
        timed = [(value, job_id) for value, job_id in found if value is not None]
        return sorted(timed, reverse=not self._ascending)[limit - 1]

    def _before(
        self, last: tuple[float, int], near: list[Branch], apart: list[Branch], wanted: JobFilter
    ) -> set[Entry]:
        """Those started before this one (in this direction): they did not end long after."""
        start, than, end = (last[0], ">", last[0])
        if self._ascending:  # twice as long: a sum is not always exact
            start, than, end = (last[0], "<", last[0] + 2 * NEAR_S)
        better = Clause(f"(jobs.started_at, jobs.id) {than} (?, ?)", last)
        found: set[Entry] = set()
        for branch in near:
            part = branch.within(f"finished_at {than}= ?", end)
            found |= self._walk(part, wanted, -1, self._by_end, self._most, ENDED_NEAR, better)
        for branch in apart:
            part = branch.within(f"started_at {than}= ?", start)
            found |= self._walk(part, wanted, -1, self._by_index, self._most, better)
        return found

    def _by_next_run(self, wanted: JobFilter, limit: int, pairs: list[Pair]) -> set[Entry] | None:
        """Queued jobs by their marks: the ready ones of each priority in order, and those that
        wait. None where there are many of another state, or too many priorities or lanes."""
        others = [pair for pair in pairs if pair.state is not State.QUEUED]
        queued = [pair for pair in pairs if pair.state is State.QUEUED]
        waiting = [pair for pair in queued if pair.waiting]
        if size_of(others) > FEW or len(waiting) > _LEVELS:
            return None
        all_of_them = together(queued)
        if wanted.queue is not None:
            all_of_them = all_of_them._replace(queue=wanted.queue)
        rest = [by_lane(pair) for pair in others]
        if all_of_them.held:
            rest.append(marked("held", HELD, all_of_them.queue))
        found = self._entries(rest, wanted, limit, self._by_index)
        for pair in waiting:
            test = "queue = ? AND due IS NOT NULL"
            lane = indexed("due_in_lane_by_run", test, pair.queue)
            found |= self._walk(lane, wanted, limit, self._by_index, self._most)
        if all_of_them.ready:
            priorities = self._ready_priorities(wanted, all_of_them)
            if priorities is None:
                return None
            for priority in priorities:
                test = "ready = 1 AND priority = ?"
                ready = marked("ready_{}", test, all_of_them.queue, priority)
                found |= self._walk(ready, wanted, limit, self._by_index, self._most)
        return found

    def _ready_priorities(self, wanted: JobFilter, pair: Pair) -> list[int] | None:
        """Those that ready jobs have, and perhaps more; None: too many."""
        lowest = _lowest(wanted)
        most = max(_LEVELS, min(pair.ready // _JOBS_OF_A_LEVEL, _MOST_LEVELS))
        if pair.queue == ANY:
            found = self._store._different_priorities(lowest, most)
        else:
            marks = Marks(self._store, pair._replace(size=pair.ready, waiting=0))
            falling = takewhile(lambda each: each >= lowest, marks.priorities(rising=False))
            found = list(islice(falling, most + 1))
        return None if len(found) > most else found

    def _by_priority(self, wanted: JobFilter, limit: int) -> set[Entry]:
        branch = indexed("jobs_by_priority", "priority >= ?", _lowest(wanted))
        return self._walk(branch, wanted, limit, self._by_index, self._most)

    def _by_priority_in_lane(self, wanted: JobFilter, limit: int, pairs: list[Pair]) -> set[Entry]:
        """A lane's queued jobs priority by priority, as its marks have them; and the others."""
        found: set[Entry] = set()
        others = [pair for pair in pairs if pair.state is not State.QUEUED]
        if size_of(others) <= FEW:
            lanes = [by_lane(pair) for pair in others]
            found |= self._entries(lanes, wanted, limit, self._by_value)
        else:
            states = tuple(pair.state for pair in others)
            found |= self._by_priority(wanted._replace(states=states), limit)
        for pair in pairs:
            if pair.state is State.QUEUED:
                found |= self._queued_by_priority(wanted, limit, pair)
        return found

    def _queued_by_priority(self, wanted: JobFilter, limit: int, pair: Pair) -> set[Entry]:
        found: set[Entry] = set()
        marks = Marks(self._store, pair)
        for tried, priority in enumerate(marks.priorities(rising=self._ascending)):
            if tried == _LEVELS:
                return self._entries([by_lane(pair)], wanted, limit, self._by_value)
            found |= self._queued_of(priority, wanted, limit - len(found), marks, pair)
            if len(found) >= limit:
                break
        return found

    def _queued_of(
        self, priority: int, wanted: JobFilter, limit: int, marks: Marks, pair: Pair
    ) -> set[Entry]:
        """A lane's queued jobs of a priority: the first by their ids."""
        one = Clause("+jobs.priority = ?", (priority,))
        few = marks.few(priority, limit, exactly=True)
        if few is None:
            # The newest, or oldest, of them may be the lane's, or it may have this priority;
            # or else many of both lie before them, and all marks are sorted.
            level = indexed("jobs_by_priority", "priority = ?", priority)
            queued = wanted._replace(queue=pair.queue, states=(pair.state,))
            most = _PATIENCE * math.isqrt(limit * pair.size)
            for branch, order in ((level, self._by_index), (by_lane(pair), self._by_id)):
                with suppress(_TooFarError):
                    return self._walk(branch, queued, limit, order, most, one)
            few = marks.branches(priority, exactly=True)
        return self._entries(few, wanted, limit, self._by_id, one)

    def _walk(
        self,
        branch: Branch,
        wanted: JobFilter,
        limit: int,
        order: str,
        most: int,
        *more: Clause,
    ) -> set[Entry]:
        """The first of a branch in the order of its index, unless they lie too far apart."""
        fits, values = condition(TABLE, wanted, more)
        # Of those that do not fit, one in so many is yielded, too: to see how far it has come.
        query = (
            f"SELECT {self._column}, jobs.id, CASE WHEN {fits} THEN 1 ELSE 0 END"
            f" FROM {branch.source} WHERE {branch.clause.text}"
            f" AND CASE WHEN {fits} THEN 1 ELSE jobs.id % {_MILE} = 0 END"
            f" ORDER BY {order}"
        )
        found: set[Entry] = set()
        miles = most // _MILE
        with closing(self._execute(query, [*values, *branch.clause.values, *values])) as rows:
            for value, job_id, is_fit in rows:
                if is_fit:
                    found.add((value, job_id))
                    if 0 <= limit <= len(found):
                        break
                elif miles == 0:
                    raise _TooFarError
                else:
                    miles -= 1
        return found

    def _entries(
        self,
        branches: list[Branch],
        wanted: JobFilter,
        limit: int,
        order: str,
        *more: Clause,
    ) -> set[Entry]:
        """The first of each branch; each is read in this order."""
        found: set[Entry] = set()
        for branch in branches:
            where, values = condition(branch, wanted, more)
            query = (
                f"SELECT {self._column}, jobs.id FROM {branch.source} WHERE {where}"
                f" ORDER BY {order} LIMIT ?"
            )
            found.update(self._execute(query, [*values, limit]))
        return found

    def _first(self, found: set[Entry], limit: int) -> list[int]:
        falling = not self._ascending
        timed = sorted([each for each in found if each[0] is not None], reverse=falling)
        never = sorted([each[1] for each in found if each[0] is None], reverse=falling)
        ids = [*(job_id for _, job_id in timed), *never]
        return ids if limit < 0 else ids[:limit]


def _lowest(wanted: JobFilter) -> int:
    return LIMITS["priority"].minimum if wanted.priority_min is None else wanted.priority_min

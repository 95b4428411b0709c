"""Lists in another order than that of ids: by an index where one has that order, and pays."""

from __future__ import annotations

from spoolctl.core.limits import LIMITS
from spoolctl.core.records import JobFilter
from spoolctl.core.states import State
from spoolctl.core.tuples import NamedTuple
from spoolctl.store.sqlite import sql
from spoolctl.store.sqlite.finding import Branch, Clause, Finding, condition, direction, indexed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

Entry: TypeAlias = "tuple[float | None, int]"
"""What a job is sorted by, and its id."""

TABLE = Branch("jobs", "jobs.id", Clause("1", ()))
UNFINISHED = Clause("jobs.finished_at IS NULL", ())


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
        # Without a time: last, whatever the direction.
        self._by_value = f"{self._column} IS NULL, {self._by_index}"

    def ids(self, wanted: JobFilter, limit: int) -> list[int]:
        """Ids of the jobs, in order."""
        if self._sort == "priority" and self._index_pays(wanted, limit):
            lowest = wanted.priority_min
            floor = LIMITS["priority"].minimum if lowest is None else lowest
            branch = indexed("jobs_by_priority", "priority >= ?", floor)
            return self._merged([branch], wanted, limit, self._by_index)
        if self._sort == "finished" and self._index_pays(wanted, limit):
            return self._by_end(wanted, limit)
        return self._merged(self._drivers(wanted), wanted, limit, self._by_value)

    def _drivers(self, wanted: JobFilter) -> list[Branch]:
        """What yields the fewest rows without any order."""
        return self._store._branches(wanted._replace(priority_min=None)) or [TABLE]

    def _index_pays(self, wanted: JobFilter, limit: int) -> bool:
        """Whether to read in order, testing each row, is less work than to sort what matches.

        In order, about limit * total / matching rows are read, if they lie evenly.
        """
        if limit < 0 or wanted.tags or wanted.ids:
            return False
        first, last = self._execute(sql.FIRST_AND_LAST_JOB_ID).fetchone()
        if first is None:
            return False
        low = max(first - 1, wanted.after_id or 0)
        high = min(last + 1, wanted.before_id or last + 1)
        total: int = last - first + 1
        matching: int = max(0, high - low - 1)
        if wanted.states or wanted.queue is not None:
            matching = min(matching, self._counted(wanted))
        return matching * matching > limit * total

    def _counted(self, wanted: JobFilter) -> int:
        """How many jobs are in these lanes and states, by the counters."""
        states = wanted.states or tuple(State)
        found = 0
        for queue, *numbers, _waiting in self._execute(sql.LANE_COUNTS).fetchall():
            if wanted.queue in (None, queue):
                counts = dict(zip(State, numbers, strict=True))
                found += sum(counts[state] for state in states)
        return found

    def _by_end(self, wanted: JobFilter, limit: int) -> list[int]:
        """Each state's by its index; then, if there is room, those that have not ended."""
        branches = [
            indexed("jobs_by_end", "state = ? AND finished_at IS NOT NULL", state.value)
            for state in wanted.states or State
        ]
        ids = self._merged(branches, wanted, limit, self._by_index)
        if len(ids) < limit:
            left = limit - len(ids)
            ids += self._merged(self._drivers(wanted), wanted, left, self._by_id, UNFINISHED)
        return ids

    def _merged(
        self,
        branches: list[Branch],
        wanted: JobFilter,
        limit: int,
        order: str,
        *more: Clause,
    ) -> list[int]:
        """The first ids of all branches together; each is read in this order."""
        found: set[Entry] = set()
        for branch in branches:
            where, values = condition(branch, wanted, more)
            query = (
                f"SELECT {self._column}, jobs.id FROM {branch.source} WHERE {where}"
                f" ORDER BY {order} LIMIT ?"
            )
            found.update(self._execute(query, [*values, limit]))
        falling = not self._ascending
        timed = sorted([each for each in found if each[0] is not None], reverse=falling)
        never = sorted([each[1] for each in found if each[0] is None], reverse=falling)
        ids = [*(job_id for _, job_id in timed), *never]
        return ids if limit < 0 else ids[:limit]

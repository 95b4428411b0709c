"""Lists: any combination of filters, by an index, in the order of ids.

One filter drives, through an index whose entries come in the order of ids, so that reading
stops at the limit; the others are tested on the rows that it yields.
"""

from __future__ import annotations

from spoolctl.core.records import Job, JobFilter
from spoolctl.core.states import State
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.branches import (
    Branch,
    Pair,
    branch_query,
    by_ids,
    by_lane,
    by_priorities,
    by_tag,
    direction,
    indexed,
    narrowest,
    shower,
    size_of,
    tests_of,
    together,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.sqlite.asking import Asking

# So many rows may be read by priority before a list is full, if they lie evenly.
_SOON = 200
# So few jobs of a priority or above are all looked at; other filters would yield more.
FEW = 200
# So many different priorities are visited one by one, before plain reading is better; and
# so many where a lane could be read instead.
_PRIORITIES = 300
_STREAMS = 20
# How far times may be out of order: a submitter reads the clock before it waits for the lock;
# and so many jobs in a row may have been added while the clock was wrong.
_SLACK_S = 60.0
OUT_OF_ORDER = 200


class Finding:
    """One list, inside the store's read transaction."""

    def __init__(self, store: Asking) -> None:
        self._c = store._c
        self._records = store._records
        self._record_of = store._record_of

    def find(self, job_filter: JobFilter, *, limit: int, sort: str, reverse: bool) -> list[Job]:
        """Matching jobs in the order that is asked for. See the protocol."""
        wanted = self._prepared(job_filter)
        if sort == "id":
            return self._in_order_of_ids(wanted, limit, reverse)
        from spoolctl.store.sqlite.sorting import Sorting

        ids = Sorting(self, sort, reverse).ids(wanted, limit)
        known = self._records(ids)
        return [known[job_id] for job_id in ids]

    def _prepared(self, wanted: JobFilter) -> JobFilter:
        """The same filter, with what it says of times said of ids, too."""
        if wanted.command is not None:
            self._c.teach("shows", 2, shower())
        if wanted.since is None:
            return wanted
        before = self._first_since(wanted.since) - 1
        return wanted._replace(after_id=max(wanted.after_id or 0, before))

    def _first_since(self, since: float) -> int:
        """An id below which no job was created at that time or later.

        There is no index by time, which every `add` would have to pay for: ids are given in
        the order of time, nearly.
        """
        low, last = self._c.execute(sql.FIRST_AND_LAST_JOB_ID).fetchone()
        if low is None:
            return 1
        high: int = last + 1
        while low < high:
            middle = (low + high) // 2
            row = self._c.execute(sql.JOB_TIME_FROM, (middle,)).fetchone()
            if row is None or row[1] >= since - _SLACK_S:
                high = middle
            else:
                low = row[0] + 1
        while True:
            earlier = self._c.execute(sql.SINCE_JUST_BELOW, (low, OUT_OF_ORDER, since)).fetchone()
            if earlier[0] is None:
                return int(low)
            low = earlier[0]

    def _in_order_of_ids(self, wanted: JobFilter, limit: int, reverse: bool) -> list[Job]:
        branches = self._branches(wanted, limit, reverse)
        if branches is not None:
            ids = self._ids(branches, wanted, limit, reverse)
            known = self._records(ids)
            return [known[job_id] for job_id in ids]
        tests = tests_of(wanted)
        where = " AND ".join(test.text for test in tests) or "1"
        query = (
            f"SELECT {rows.JOB_COLUMNS} FROM jobs WHERE {where}"
            f" ORDER BY jobs.id {direction(reverse)} LIMIT ?"
        )
        values = [value for test in tests for value in test.values]
        found = self._c.execute(query, [*values, limit]).fetchall()
        return [self._record_of(row) for row in found]

    def _ids(
        self, branches: list[Branch], wanted: JobFilter, limit: int, reverse: bool
    ) -> list[int]:
        """The ids that the branches yield together, in order."""
        ids: list[int] = []
        for branch in branches:
            if 0 < limit <= len(ids):
                # A full list: only what comes before its last entry can still count.
                end = ids[-1]
                wanted = (
                    wanted._replace(before_id=end) if reverse else wanted._replace(after_id=end)
                )
            query, values = branch_query(branch, wanted, limit, reverse=reverse)
            found = {row[0] for row in self._c.execute(query, values)}
            ids = sorted(found.union(ids), reverse=not reverse)
            if limit >= 0:
                del ids[limit:]
        return ids

    def _branches(
        self, wanted: JobFilter, limit: int = -1, reverse: bool = False
    ) -> list[Branch] | None:
        """The drivers whose ids together hold all that match; None: read the table itself.

        The one that yields the fewest rows, as far as it can be told without counting.
        """
        if wanted.ids:
            return by_ids(wanted.ids)
        pairs = self._pairs(wanted)
        sparse = self._sparse(wanted, pairs, limit)
        if sparse is not None:
            return sparse
        if wanted.tags:
            return [by_tag(*narrowest(wanted.tags))]
        if wanted.priority_min is None:
            return None if pairs is None else [by_lane(pair) for pair in pairs]
        if pairs is None:
            return self._priorities_from(wanted.priority_min)
        return self._with_priority(pairs, wanted.priority_min, limit, reverse)

    def _sparse(
        self, wanted: JobFilter, pairs: list[Pair] | None, limit: int
    ) -> list[Branch] | None:
        """Drivers of so few jobs that nothing can be much better, if there are such."""
        if pairs is not None and size_of(pairs) <= FEW:
            return [by_lane(pair) for pair in pairs]
        lowest = wanted.priority_min
        if lowest is not None and pairs and all(pair.state is State.QUEUED for pair in pairs):
            from spoolctl.store.sqlite.marks import Marks

            # Either one lane was asked for, or these are all that have any.
            one = pairs[0] if len(pairs) == 1 else together(pairs)
            marked = Marks(self, one).few(lowest, limit)
            if marked is not None:
                return marked
        if len(wanted.tags) + (pairs is not None) + (lowest is not None) > 1:
            return self._few(wanted)
        return None

    def _pairs(self, wanted: JobFilter) -> list[Pair] | None:
        """The lanes and states that are asked for and have jobs; None: neither was."""
        if wanted.queue is None and not wanted.states:
            return None
        states = dict.fromkeys(wanted.states or State)
        if wanted.queue is None:
            lanes = self._c.execute(sql.LANES)
        else:
            lanes = self._c.execute(sql.LANE_BY_NAME, (wanted.queue,))
        found = []
        for queue, ready, waiting, *numbers in lanes.fetchall():
            for state, count in zip(State, numbers, strict=True):
                if count and state in states:
                    marks = (ready, waiting) if state is State.QUEUED else ()
                    found.append(Pair(queue, state, count, *marks))
        return found

    def _few(self, wanted: JobFilter) -> list[Branch] | None:
        """A tag, or priorities, of so few jobs that nothing can be much better, if there is one."""
        single = [by_tag(*tag) for tag in wanted.tags]
        if wanted.priority_min is not None:
            single.append(indexed("jobs_by_priority", "priority >= ?", wanted.priority_min))
        for branch in single:
            if not self._has_more(branch, FEW):
                return [branch]
        return None

    def _with_priority(
        self, pairs: list[Pair], lowest: int, limit: int, reverse: bool
    ) -> list[Branch] | None:
        """By priority, where the lanes hold so much that this soon fills the list; else by
        lane, but for queued jobs by their marks where few have such a priority."""
        from spoolctl.store.sqlite.marks import Marks

        held = size_of(pairs)
        first, last = self._c.execute(sql.FIRST_AND_LAST_JOB_ID).fetchone()
        if 0 < limit * (last - first + 1) <= _SOON * held:
            priorities = self._different_priorities(lowest, _STREAMS)
            if len(priorities) <= _STREAMS:
                end = self._first_end(pairs, reverse)
                return [
                    branch._replace(above=end - 1) if reverse else branch._replace(below=end + 1)
                    for branch in by_priorities(priorities)
                ]
        short: list[Branch] = []
        long: list[tuple[int, Branch]] = []
        for pair in pairs:
            some = None
            if pair.state is State.QUEUED and len(pairs) > 1:  # `_sparse` has tried a single one
                some = Marks(self, pair).few(lowest, limit)
            if some is not None:
                short += some
            elif pair.size <= FEW or len(pairs) == 1:
                short.append(by_lane(pair))
            else:
                newest: int = self._c.execute(sql.NEWEST_IN_LANE, pair.key).fetchone()[0]
                long.append((newest, by_lane(pair)))
        # The newest first: they fill the list, and the others need not be read far.
        long.sort(key=lambda each: each[0], reverse=True)
        return [*short, *(branch for _newest, branch in long)]

    def _first_end(self, pairs: list[Pair], reverse: bool) -> int:
        """The newest id, or the oldest, that the lanes have in any of these states."""
        states = dict.fromkeys(pair.state.value for pair in pairs)
        query = sql.END_OF_STATE[reverse]
        ends: list[int] = [self._c.execute(query, (state,)).fetchone()[0] for state in states]
        return min(ends) if reverse else max(ends)

    def _priorities_from(self, lowest: int) -> list[Branch] | None:
        """Branches by priority, where these are the better drivers."""
        priorities = self._different_priorities(lowest, _PRIORITIES)
        if len(priorities) <= _PRIORITIES:
            return by_priorities(priorities)
        several = indexed("jobs_by_priority", "priority >= ?", lowest)
        return None if self._has_more(several, FEW) else [several]

    def _has_more(self, branch: Branch, most: int) -> bool:
        """Whether the branch has more rows than that; looks no further."""
        query = f"SELECT 1 FROM {branch.counted} WHERE {branch.clause.text} LIMIT 1 OFFSET ?"
        return self._c.execute(query, (*branch.clause.values, most)).fetchone() is not None

    def _different_priorities(self, lowest: int, most: int) -> list[int]:
        """The priorities that occur, from the highest on; of more than `most`, one more."""
        found: list[int] = []
        below = 1 << 31  # priorities are less
        while len(found) <= most:
            row = self._c.execute(sql.NEXT_PRIORITY, (lowest, below)).fetchone()
            if row[0] is None:
                break
            below = row[0]
            found.append(below)
        return found

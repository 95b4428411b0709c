"""Lists: any combination of filters, by an index, newest first.

One filter drives, through an index whose entries come in the order of ids, so that reading
stops at the limit; the others are tested on the rows that it yields.
"""

from __future__ import annotations

from spoolctl.core.records import Job, JobFilter
from spoolctl.core.states import State
from spoolctl.core.tuples import NamedTuple
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.asking import Asking

# So few jobs of a priority or above are all looked at; other filters would yield more.
_FEW = 200
# So many different priorities are visited one by one, before plain reading is better.
_PRIORITIES = 300


class Clause(NamedTuple):
    """A condition of a WHERE clause with its values."""

    text: str
    values: tuple[object, ...]


class Branch(NamedTuple):
    """A source of ids in descending order: a FROM clause, the id's name, the condition."""

    source: str
    name: str
    clause: Clause


class Finding(Asking):
    """The part of the store that lists jobs."""

    def find(self, job_filter: JobFilter, *, limit: int) -> list[Job]:
        """Matching jobs, highest id first; filters apply before the limit."""
        with self._c.read():
            branches = self._branches(job_filter)
            if branches is None:
                tests = _tests(job_filter)
                where = " AND ".join(test.text for test in tests) or "1"
                query = (
                    f"SELECT {rows.JOB_COLUMNS} FROM jobs WHERE {where}"
                    " ORDER BY jobs.id DESC LIMIT ?"
                )
                values = [value for test in tests for value in test.values]
                found = self._c.execute(query, [*values, limit]).fetchall()
                return [self._record_of(row) for row in found]
            wanted: list[int] = []
            for branch in branches:
                # A full list: only what is newer than its last entry can still count.
                full = 0 <= limit <= len(wanted)
                above = wanted[-1] if full and wanted else 0
                query, values = branch_query(branch, job_filter, limit, above=above)
                found_ids = {row[0] for row in self._c.execute(query, values)}
                wanted = sorted(found_ids.union(wanted), reverse=True)
                if limit >= 0:
                    del wanted[limit:]
            known = self._records(wanted)
        return [known[job_id] for job_id in wanted]

    def _branches(self, wanted: JobFilter) -> list[Branch] | None:
        """The drivers whose ids together hold all that match; None: read the table itself."""
        if wanted.ids:
            return _by_ids(wanted.ids)
        if wanted.tags:
            return [_by_tag(*_narrowest(wanted.tags))]
        if wanted.priority_min is not None:
            above = self._priorities_from(wanted.priority_min, narrow=_is_narrowed(wanted))
            if above is None and wanted.states == (State.QUEUED,):
                above = self._queued_from(wanted.priority_min)
            if above is not None:
                return above
        if wanted.queue is None and not wanted.states:
            return None
        lanes = [wanted.queue]
        if wanted.queue is None:
            lanes = [row[0] for row in self._c.execute(sql.LANES)]
        pairs = [(lane, state.value) for lane in lanes for state in wanted.states or State]
        if wanted.priority_min is not None:
            # The newest first: they fill the list, and the others need not be read far.
            newest = {
                pair: self._c.execute(sql.NEWEST_IN_LANE, pair).fetchone()[0] for pair in pairs
            }
            pairs.sort(key=lambda pair: newest[pair] or 0, reverse=True)
        return [_jobs("jobs_by_lane", "queue = ? AND state = ?", *pair) for pair in pairs]

    def _priorities_from(self, lowest: int, *, narrow: bool) -> list[Branch] | None:
        """Branches by priority, where these are the better drivers (`narrow`: there are
        others)."""
        if not narrow:
            priorities = self._different_priorities(lowest)
            if len(priorities) <= _PRIORITIES:
                return [_jobs("jobs_by_priority", "priority = ?", each) for each in priorities]
        few = self._c.execute(sql.FEW_FROM_PRIORITY, (lowest, _FEW + 1)).fetchone()[0] or 0
        if few <= _FEW:
            return [_jobs("jobs_by_priority", "priority >= ?", lowest)]
        return None

    def _queued_from(self, lowest: int) -> list[Branch] | None:
        """Branches by the marks of queued jobs, where few of them have such a priority.

        What is important is done first: many jobs of a high priority, hardly one of them
        queued, is what a queue at work looks like.
        """
        clocks = [row[0] for row in self._c.execute(sql.CLOCKS_IN_USE)]
        branches = [
            _jobs("ready_anywhere", "ready = 1 AND priority >= ?", lowest),
            _jobs("held", "state = 'queued' AND ready = 0 AND due IS NULL"),
        ]
        branches += [
            _jobs(
                "due_anywhere_by_priority",
                "due_clock = ? AND priority >= ? AND due IS NOT NULL",
                clock,
                lowest,
            )
            for clock in clocks
        ]
        left = _FEW
        for branch in branches:
            left -= self._size(branch, left + 1)
            if left < 0:
                return None
        return branches

    def _size(self, branch: Branch, most: int) -> int:
        """How many rows a branch has, as far as `most`."""
        rows_of_it = f"SELECT 1 FROM {branch.source} WHERE {branch.clause.text} LIMIT ?"
        query = f"SELECT sum(1) FROM ({rows_of_it})"
        found = self._c.execute(query, (*branch.clause.values, most)).fetchone()[0]
        return int(found or 0)

    def _different_priorities(self, lowest: int) -> list[int]:
        found: list[int] = []
        below = 1 << 31  # priorities are less
        while len(found) <= _PRIORITIES:
            row = self._c.execute(sql.NEXT_PRIORITY, (lowest, below)).fetchone()
            if row[0] is None:
                break
            below = row[0]
            found.append(below)
        return found


def branch_query(
    branch: Branch, job_filter: JobFilter, limit: int, *, above: int = 0
) -> tuple[str, list[object]]:
    """The statement that reads one branch's ids, newest first, with all filters applied."""
    tests = [branch.clause, Clause(f"{branch.name} > ?", (above,))]
    if job_filter.before_id is not None:
        tests.append(Clause(f"{branch.name} < ?", (job_filter.before_id,)))
    tests += _tests(job_filter)
    where = " AND ".join(test.text for test in tests)
    values = [value for test in tests for value in test.values]
    query = (
        f"SELECT {branch.name} FROM {branch.source} WHERE {where}"
        f" ORDER BY {branch.name} DESC LIMIT ?"
    )
    return query, [*values, limit]


def _tests(wanted: JobFilter) -> list[Clause]:
    """Every filter as a condition on a row of `jobs`."""
    tests = []
    if wanted.before_id is not None:
        tests.append(Clause("jobs.id < ?", (wanted.before_id,)))
    if wanted.states:
        marks = ",".join("?" * len(wanted.states))
        # The plus keeps the planner from driving by this one instead.
        values = tuple(state.value for state in wanted.states)
        tests.append(Clause(f"+jobs.state IN ({marks})", values))
    if wanted.queue is not None:
        tests.append(Clause("+jobs.queue = ?", (wanted.queue,)))
    if wanted.priority_min is not None:
        tests.append(Clause("+jobs.priority >= ?", (wanted.priority_min,)))
    for key, value in wanted.tags:
        if value is None:
            text = "EXISTS (SELECT 1 FROM tags WHERE key = ? AND job = jobs.id)"
            tests.append(Clause(text, (rows.storable(key),)))
        else:
            text = "EXISTS (SELECT 1 FROM tags WHERE key = ? AND value = ? AND job = jobs.id)"
            tests.append(Clause(text, (rows.storable(key), rows.storable(value))))
    return tests


def _jobs(index: str, test: str, *values: object) -> Branch:
    return Branch(f"jobs INDEXED BY {index}", "jobs.id", Clause(test, values))


def _by_ids(ids: tuple[int, ...]) -> list[Branch]:
    usable = sorted({job_id for job_id in ids if 0 < job_id < 1 << 63}, reverse=True)
    branches = []
    for start in range(0, len(usable), 500):  # at least 999 values fit into a statement
        some = usable[start : start + 500]
        marks = ",".join("?" * len(some))
        branches.append(Branch("jobs", "jobs.id", Clause(f"jobs.id IN ({marks})", tuple(some))))
    return branches


def _narrowest(tags: tuple[tuple[str, str | None], ...]) -> tuple[str, str | None]:
    return min(tags, key=lambda tag: tag[1] is None)


def _by_tag(key: str, value: str | None) -> Branch:
    source = "tags CROSS JOIN jobs ON jobs.id = tags.job"
    if value is None:
        return Branch(source, "tags.job", Clause("tags.key = ?", (rows.storable(key),)))
    values = (rows.storable(key), rows.storable(value))
    return Branch(source, "tags.job", Clause("tags.key = ? AND tags.value = ?", values))


def _is_narrowed(wanted: JobFilter) -> bool:
    return bool(wanted.states) or wanted.queue is not None

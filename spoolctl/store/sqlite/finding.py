"""Lists: any combination of filters, by an index, in the order of ids.

One filter drives, through an index whose entries come in the order of ids, so that reading
stops at the limit; the others are tested on the rows that it yields.
"""

from __future__ import annotations

import json
import re

from spoolctl.core.records import Job, JobFilter
from spoolctl.core.states import State
from spoolctl.core.tuples import NamedTuple
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.asking import Asking

# So few jobs of a priority or above are all looked at; other filters would yield more.
_FEW = 200
# So many different priorities are visited one by one, before plain reading is better.
_PRIORITIES = 300
# How far times may be out of order: a submitter reads the clock before it waits for the lock;
# and so many jobs in a row may have been added while the clock was wrong.
_SLACK_S = 60.0
_OUT_OF_ORDER = 200


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

    def find(
        self, job_filter: JobFilter, *, limit: int, sort: str = "id", reverse: bool = False
    ) -> list[Job]:
        """Matching jobs in the order that is asked for. See the protocol."""
        with self._c.read():
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
            self._c.teach("shows", 2, _shows)
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
            earlier = self._c.execute(sql.SINCE_JUST_BELOW, (low, _OUT_OF_ORDER, since)).fetchone()
            if earlier[0] is None:
                return int(low)
            low = earlier[0]

    def _in_order_of_ids(self, wanted: JobFilter, limit: int, reverse: bool) -> list[Job]:
        branches = self._branches(wanted)
        if branches is not None:
            ids = self._ids(branches, wanted, limit, reverse)
            known = self._records(ids)
            return [known[job_id] for job_id in ids]
        tests = _tests(wanted)
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
        return self._lane_branches(wanted)

    def _lane_branches(self, wanted: JobFilter) -> list[Branch] | None:
        """One branch for each lane and state; None where neither is asked for."""
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
        return [indexed("jobs_by_lane", "queue = ? AND state = ?", *pair) for pair in pairs]

    def _priorities_from(self, lowest: int, *, narrow: bool) -> list[Branch] | None:
        """Branches by priority, where these are the better drivers (`narrow`: there are
        others)."""
        if not narrow:
            priorities = self._different_priorities(lowest)
            if len(priorities) <= _PRIORITIES:
                return [indexed("jobs_by_priority", "priority = ?", each) for each in priorities]
        few = self._c.execute(sql.FEW_FROM_PRIORITY, (lowest, _FEW + 1)).fetchone()[0] or 0
        if few <= _FEW:
            return [indexed("jobs_by_priority", "priority >= ?", lowest)]
        return None

    def _queued_from(self, lowest: int) -> list[Branch] | None:
        """Branches by the marks of queued jobs, where few of them have such a priority.

        What is important is done first: many jobs of a high priority, hardly one of them
        queued, is what a queue at work looks like.
        """
        clocks = [row[0] for row in self._c.execute(sql.CLOCKS_IN_USE)]
        branches = [
            indexed("ready_anywhere", "ready = 1 AND priority >= ?", lowest),
            indexed("held", "state = 'queued' AND ready = 0 AND due IS NULL"),
        ]
        branches += [
            indexed(
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
    branch: Branch,
    wanted: JobFilter,
    limit: int,
    *,
    reverse: bool = False,
    more: tuple[Clause, ...] = (),
) -> tuple[str, list[object]]:
    """The statement that reads one branch's ids in order, with all filters applied."""
    where, values = condition(branch, wanted, more)
    query = (
        f"SELECT {branch.name} FROM {branch.source} WHERE {where}"
        f" ORDER BY {branch.name} {direction(reverse)} LIMIT ?"
    )
    return query, [*values, limit]


def condition(
    branch: Branch, wanted: JobFilter, more: tuple[Clause, ...] = ()
) -> tuple[str, list[object]]:
    """The WHERE clause of a branch with all filters, and its values."""
    tests = [branch.clause, Clause(f"{branch.name} > ?", (wanted.after_id or 0,))]
    if wanted.before_id is not None:
        tests.append(Clause(f"{branch.name} < ?", (wanted.before_id,)))
    tests += [*_tests(wanted), *more]
    where = " AND ".join(test.text for test in tests)
    return where, [value for test in tests for value in test.values]


def direction(reverse: bool) -> str:
    """The SQL word for ascending or (not `reverse`) descending ids."""
    return "ASC" if reverse else "DESC"


def _tests(wanted: JobFilter) -> list[Clause]:
    """Every filter as a condition on a row of `jobs`."""
    tests = []
    if wanted.before_id is not None:
        tests.append(Clause("jobs.id < ?", (wanted.before_id,)))
    if wanted.after_id is not None:
        tests.append(Clause("jobs.id > ?", (wanted.after_id,)))
    if wanted.since is not None:
        tests.append(Clause("jobs.created_at >= ?", (wanted.since,)))
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
    if wanted.command is not None:
        # The last one: it calls back into Python.
        tests.append(_command_test(wanted.command))
    return tests


def _command_test(text: str) -> Clause:
    """A part of the command line as it is shown.

    What is shown is made in Python; before that the stored text is looked at, which for most
    jobs is enough to tell that they do not match. Letters stand in it as they are shown,
    unless something has to be escaped, here (a backslash) or there (not ASCII).
    """
    exact = Clause("shows(jobs.argv, ?)", (text,))
    longest = max(re.findall(r"[A-Za-z0-9_@%+=:,./-]+", text), key=len, default="")
    if not longest:
        return exact
    maybe = (
        "(instr(jobs.argv, ?) > 0 OR instr(jobs.argv, char(92)) > 0"
        " OR length(jobs.argv) < length(CAST(jobs.argv AS BLOB)))"
    )
    return Clause(f"{maybe} AND {exact.text}", (longest, *exact.values))


def _shows(argv: str, text: str) -> bool:
    from spoolctl.core.display import command

    try:
        return text in command(json.loads(argv))
    except (ValueError, TypeError):
        return True  # damaged: whoever reads the row says so


def indexed(index: str, test: str, *values: object) -> Branch:
    """Jobs by an index whose entries of this condition come in the order of ids."""
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

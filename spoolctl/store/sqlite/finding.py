"""Lists: any combination of filters, by an index, in the order of ids.

One filter drives, through an index whose entries come in the order of ids, so that reading
stops at the limit; the others are tested on the rows that it yields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from spoolctl.core.records import Job, JobFilter
from spoolctl.core.states import State
from spoolctl.core.tuples import NamedTuple
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.asking import Asking

# So many rows may be read by priority before a list is full, if they lie evenly; and so many
# marks of all lanes are sorted, where that may be the other way.
_SOON = 200
_MARKS = 64
# So few jobs of a priority or above are all looked at; other filters would yield more.
FEW = 200
# So many different priorities are visited one by one, before plain reading is better; and
# so many where a lane could be read instead.
_PRIORITIES = 300
_STREAMS = 20
# Stands for all lanes: no lane has an empty name.
ANY = ""
HELD = "state = 'queued' AND ready = 0 AND due IS NULL"
# How far times may be out of order: a submitter reads the clock before it waits for the lock;
# and so many jobs in a row may have been added while the clock was wrong.
_SLACK_S = 60.0
OUT_OF_ORDER = 200


class Clause(NamedTuple):
    """A condition of a WHERE clause with its values."""

    text: str
    values: tuple[object, ...]


class Branch(NamedTuple):
    """A source of ids in descending order: a FROM clause, the id's name, the condition.

    What matters lies between the ids `above` and `below`.
    """

    source: str
    name: str
    clause: Clause
    above: int = 0
    below: int | None = None

    @property
    def counted(self) -> str:
        """The FROM clause without what is only read along."""
        return self.source.split(" CROSS JOIN ")[0]


class Pair(NamedTuple):
    """A lane and a state, and how many jobs it has."""

    queue: str
    state: State
    size: int

    @property
    def key(self) -> tuple[str, str]:
        """What `jobs_by_lane` finds them by."""
        return self.queue, self.state.value


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

    def _branches(
        self, wanted: JobFilter, limit: int = -1, reverse: bool = False
    ) -> list[Branch] | None:
        """The drivers whose ids together hold all that match; None: read the table itself.

        The one that yields the fewest rows, as far as it can be told without counting.
        """
        if wanted.ids:
            return _by_ids(wanted.ids)
        by_lanes = bool(wanted.states) or wanted.queue is not None
        if len(wanted.tags) + by_lanes + (wanted.priority_min is not None) > 1:
            few = self._few(wanted)
            if few is not None:
                return few
        pairs = self._pairs(wanted)
        if pairs is not None and size_of(pairs) <= FEW:
            return [by_lane(pair) for pair in pairs]
        if wanted.tags:
            return [by_tag(*_narrowest(wanted.tags))]
        if wanted.priority_min is None:
            return None if pairs is None else [by_lane(pair) for pair in pairs]
        if pairs is None:
            return self._priorities_from(wanted.priority_min)
        return self._with_priority(pairs, wanted.priority_min, limit, reverse)

    def _pairs(self, wanted: JobFilter) -> list[Pair] | None:
        """The lanes and states that are asked for and have jobs; None: neither was."""
        if wanted.queue is None and not wanted.states:
            return None
        states = dict.fromkeys(wanted.states or State)
        return [
            Pair(queue, state, count)
            for queue, *numbers, _waiting in self._c.execute(sql.LANE_COUNTS).fetchall()
            if wanted.queue in (None, queue)
            for state, count in zip(State, numbers, strict=True)
            if count and state in states
        ]

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
        held = size_of(pairs)
        if len(pairs) > 1 and all(pair.state is State.QUEUED for pair in pairs):
            marked = self._marked(Pair(ANY, State.QUEUED, held), lowest, limit)
            if marked is not None:
                return marked
        first, last = self._c.execute(sql.FIRST_AND_LAST_JOB_ID).fetchone()
        if 0 < limit * (last - first + 1) <= _SOON * held:
            priorities = self._different_priorities(lowest, _STREAMS)
            if len(priorities) <= _STREAMS:
                end = self._first_end(pairs, reverse)
                return [
                    branch._replace(above=end - 1) if reverse else branch._replace(below=end + 1)
                    for branch in _by_priorities(priorities)
                ]
        short: list[Branch] = []
        long: list[tuple[int, Branch]] = []
        for pair in pairs:
            some = self._marked(pair, lowest, limit) if pair.state is State.QUEUED else None
            if some is not None:
                short += some
            elif pair.size <= FEW:
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
            return _by_priorities(priorities)
        several = indexed("jobs_by_priority", "priority >= ?", lowest)
        return None if self._has_more(several, FEW) else [several]

    def _marked(
        self, pair: Pair, lowest: int, limit: int, *, exactly: bool = False
    ) -> list[Branch] | None:
        """Branches by the marks of a lane's queued jobs, where so few of them have such a
        priority, or just this one, that to sort them is less work than to read the lane.

        What is important is done first: many jobs of a high priority, hardly one of them
        queued, is what a queue at work looks like.
        """
        level = "priority = ?" if exactly else "priority >= ?"
        branches = [
            marked("ready_{}", f"ready = 1 AND {level}", pair.queue, lowest),
            marked("held", HELD, pair.queue),
        ]
        test = f"due_clock = ? AND {level} AND due IS NOT NULL"
        branches += [
            marked("due_{}_by_priority", test, pair.queue, clock, lowest)
            for (clock,) in self._c.execute(sql.CLOCKS_IN_USE)
        ]
        # In the order of ids, about limit * jobs / matching ones of the lane are read.
        most = _MARKS if pair.queue == ANY else max(FEW, math.isqrt(max(limit, 0) * pair.size))
        some = [branch for branch in branches if self._has_more(branch, 0)]
        return None if any(self._has_more(branch, most) for branch in some) else some

    def _has_more(self, branch: Branch, most: int) -> bool:
        """Whether the branch has more rows than that; looks no further."""
        query = f"SELECT 1 FROM {branch.counted} WHERE {branch.clause.text} LIMIT 1 OFFSET ?"
        return self._c.execute(query, (*branch.clause.values, most)).fetchone() is not None

    def _priorities_of(self, queue: str, *, rising: bool) -> Iterator[int]:
        """The priorities that a lane's queued jobs have (and perhaps more), in order."""
        clocks = [row[0] for row in self._c.execute(sql.CLOCKS_IN_USE)]
        held = {row[0] for row in self._c.execute(sql.HELD_PRIORITIES, (queue,))}
        choose = min if rising else max
        last = -1 << 40 if rising else 1 << 40
        while True:
            next_ones = [
                self._c.execute(sql.READY_PRIORITY[rising], (queue, last)).fetchone()[0],
                *(
                    self._c.execute(sql.DUE_PRIORITY[rising], (queue, clock, last)).fetchone()[0]
                    for clock in clocks
                ),
                *(each for each in held if (each > last if rising else each < last)),
            ]
            found = [each for each in next_ones if each is not None]
            if not found:
                return
            last = choose(found)
            yield last

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
    ends = [each for each in (wanted.before_id, branch.below) if each is not None]
    # Once each: of two lower bounds the planner may use the wrong one.
    above = max(wanted.after_id or 0, branch.above)
    tests = [branch.clause, Clause(f"{branch.name} > ?", (above,))]
    if ends:
        tests.append(Clause(f"{branch.name} < ?", (min(ends),)))
    tests += [*_tests(wanted._replace(before_id=None, after_id=None)), *more]
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
    jobs is enough to tell that they do not match. All ASCII but spaces, quotes and backslashes
    stands in it as it is shown, next to the same characters, unless it belongs to an escape (a
    backslash, and letters and digits behind it).
    """
    import re

    exact = Clause("shows(jobs.argv, ?)", (text,))
    word = r"[!#-&(-\[\]-~]+"
    # The first escape may begin before the text does, and a `$` be the first half of a quote.
    surely = re.sub(r"(?:^\\?|\\)[ntrexuU]?[0-9a-f]{0,8}|\$(?='|$)", " ", text)
    longest = max(re.findall(word, surely), key=len, default="")
    if longest:
        return Clause(f"instr(jobs.argv, ?) > 0 AND {exact.text}", (longest, *exact.values))
    # Else what matches contains it as it is, or is a text in which something is escaped.
    maybe = (
        "instr(jobs.argv, char(92)) > 0 OR instr(jobs.argv, char(127)) > 0"
        " OR length(jobs.argv) < length(CAST(jobs.argv AS BLOB))"
    )
    if text.isascii():
        maybe += " OR instr(jobs.argv, ?) > 0"
        longest = max(re.findall(word, text), key=len, default="")
        exact = exact._replace(values=(longest, text))
    return Clause(f"({maybe}) AND {exact.text}", exact.values)


def _shows(argv: str, text: str) -> bool:
    import json

    from spoolctl.core.display import command

    try:
        return text in command(json.loads(argv))
    except (ValueError, TypeError):
        return True  # damaged: whoever reads the row says so


def indexed(index: str, test: str, *values: object) -> Branch:
    """Jobs by an index whose entries of this condition come in the order of ids."""
    return Branch(f"jobs INDEXED BY {index}", "jobs.id", Clause(test, values))


def marked(index: str, test: str, queue: str, *values: object) -> Branch:
    """Queued jobs of a lane, or of all, by an index of marks (`{}`: of which there are two)."""
    if queue == ANY:
        return indexed(index.format("anywhere"), test, *values)
    return indexed(index.format("in_lane"), f"queue = ? AND {test}", queue, *values)


def size_of(pairs: list[Pair]) -> int:
    """How many jobs lanes and states have together."""
    return sum(pair.size for pair in pairs)


def by_lane(pair: Pair) -> Branch:
    """The jobs of a lane in a state."""
    return indexed("jobs_by_lane", "queue = ? AND state = ?", *pair.key)


def _by_priorities(priorities: list[int]) -> list[Branch]:
    return [indexed("jobs_by_priority", "priority = ?", each) for each in priorities]


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


def by_tag(key: str, value: str | None) -> Branch:
    """The jobs with a tag."""
    source = "tags CROSS JOIN jobs ON jobs.id = tags.job"
    if value is None:
        return Branch(source, "tags.job", Clause("tags.key = ?", (rows.storable(key),)))
    values = (rows.storable(key), rows.storable(value))
    return Branch(source, "tags.job", Clause("tags.key = ? AND tags.value = ?", values))

"""Sources of ids, and filters as conditions on the rows of jobs."""

from __future__ import annotations

from collections.abc import Callable

from spoolctl.core.records import JobFilter
from spoolctl.core.states import State
from spoolctl.core.tuples import NamedTuple
from spoolctl.store.sqlite import rows

# Stands for all lanes: no lane has an empty name.
ANY = ""
HELD = "state = 'queued' AND ready = 0 AND due IS NULL"
# Whose start cannot be told from the end, of those that do not run (as the index `started_apart`
# has it); and whose can.
NEAR_S = 0.1
APART = (
    "started_at IS NOT NULL AND state <> 'running' AND (finished_at IS NULL"
    f" OR started_at > finished_at OR started_at < finished_at - {NEAR_S})"
)
NEAR = f"jobs.started_at BETWEEN jobs.finished_at - {NEAR_S} AND jobs.finished_at"


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

    def within(self, test: str, *values: object) -> Branch:
        """The part of it for which this holds, too."""
        text = f"{self.clause.text} AND {test}"
        return self._replace(clause=Clause(text, (*self.clause.values, *values)))

    @property
    def counted(self) -> str:
        """The FROM clause without what is only read along."""
        return self.source.split(" CROSS JOIN ")[0]


class Pair(NamedTuple):
    """A lane and a state, and how many jobs it has; of queued ones how many have which mark."""

    queue: str
    state: State
    size: int
    ready: int = 0
    waiting: int = 0

    @property
    def held(self) -> int:
        """Of queued ones: neither ready nor waiting for a time."""
        return self.size - self.ready - self.waiting

    @property
    def key(self) -> tuple[str, str]:
        """What `jobs_by_lane` finds them by."""
        return self.queue, self.state.value


def branch_query(
    branch: Branch,
    wanted: JobFilter,
    limit: int,
    *,
    reverse: bool = False,
) -> tuple[str, list[object]]:
    """The statement that reads one branch's ids in order, with all filters applied."""
    where, values = condition(branch, wanted)
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
    tests += [*tests_of(wanted._replace(before_id=None, after_id=None)), *more]
    where = " AND ".join(test.text for test in tests)
    return where, [value for test in tests for value in test.values]


def direction(reverse: bool) -> str:
    """The SQL word for ascending or (not `reverse`) descending ids."""
    return "ASC" if reverse else "DESC"


def tests_of(wanted: JobFilter) -> list[Clause]:
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


# So many words of a text are looked for before a line is made.
_MOST_WORDS = 8


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
    # The longest first, as the fewest jobs have it.
    words = sorted(dict.fromkeys(re.findall(word, surely)), key=len, reverse=True)[:_MOST_WORDS]
    if words:
        held = "instr(jobs.argv, ?) > 0 AND " * len(words)
        return Clause(held + exact.text, (*words, *exact.values))
    # Else what matches contains it as it is, or is a text in which something is escaped.
    maybe = (
        "instr(jobs.argv, char(92)) > 0 OR instr(jobs.argv, char(127)) > 0"
        " OR length(jobs.argv) < length(CAST(jobs.argv AS BLOB))"
    )
    if text.isascii():
        longest = max(re.findall(word, text), key=len, default="")
        if not longest:
            return Clause(f"{_between_words(text)} AND {exact.text}", exact.values)
        maybe += " OR instr(jobs.argv, ?) > 0"
        exact = exact._replace(values=(longest, text))
    return Clause(f"({maybe}) AND {exact.text}", exact.values)


# Some word has other than plain characters (letters, digits, `%+,-./:=@_`), or none at all: it is
# shown in quotes (`shlex.quote`). Words are stored between double quotes, with commas between them.
_QUOTED = """(jobs.argv GLOB '[[]*[^"%+-:=@-Z_a-z]*]' OR instr(jobs.argv, '""') > 0)"""
# A word has a quote in it, or is empty.
_INNER = (
    """(instr(jobs.argv, char(39)) > 0 OR instr(jobs.argv, '""') > 0"""
    """ OR instr(jobs.argv, '\\"') > 0)"""
)
_SEVERAL = """(instr(jobs.argv, ' ') > 0 OR instr(jobs.argv, '","') > 0)"""


_ALL_ALIKE = str.maketrans('"\\', "''")


def _between_words(text: str) -> str:
    """What is true of the stored text of each command line that shows this text without words.

    To make the line takes some microseconds, for each job of a long queue.
    """
    tests = []
    if "  " in text:  # one may stand between words, more are part of a word
        spaces = max(text.translate(_ALL_ALIKE).split("'"), key=len)
        tests.append(f"instr(jobs.argv, '{spaces}') > 0")
    elif " " in text:
        tests.append(_SEVERAL)
    if '"' in text or "''" in text:
        tests.append(_INNER)
    elif text.strip(" "):
        tests.append(_QUOTED)
    return " AND ".join(tests) or "1"


def shower() -> Callable[[str, str], bool]:
    """The function `shows` of the statements: is this a part of the command line as shown?"""
    from json import loads

    from spoolctl.core.display import command

    def shows(argv: str, text: str) -> bool:
        try:
            return text in command(loads(argv))
        except (ValueError, TypeError):
            return True  # damaged: whoever reads the row says so

    return shows


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


def together(pairs: list[Pair]) -> Pair:
    """All of these queued ones, of whatever lane."""
    ready, waiting = sum(pair.ready for pair in pairs), sum(pair.waiting for pair in pairs)
    return Pair(ANY, State.QUEUED, size_of(pairs), ready, waiting)


def by_lane(pair: Pair) -> Branch:
    """The jobs of a lane in a state."""
    return indexed("jobs_by_lane", "queue = ? AND state = ?", *pair.key)


def by_priorities(priorities: list[int]) -> list[Branch]:
    """The jobs of these priorities."""
    return [indexed("jobs_by_priority", "priority = ?", each) for each in priorities]


def by_ids(ids: tuple[int, ...]) -> list[Branch]:
    """These jobs; numbers that no job can have are left out."""
    usable = sorted({job_id for job_id in ids if 0 < job_id < 1 << 63}, reverse=True)
    branches = []
    for start in range(0, len(usable), 500):  # at least 999 values fit into a statement
        some = usable[start : start + 500]
        marks = ",".join("?" * len(some))
        branches.append(Branch("jobs", "jobs.id", Clause(f"jobs.id IN ({marks})", tuple(some))))
    return branches


def narrowest(tags: tuple[tuple[str, str | None], ...]) -> tuple[str, str | None]:
    """One with a value, if there is one: a key alone has more jobs."""
    return min(tags, key=lambda tag: tag[1] is None)


def by_tag(key: str, value: str | None) -> Branch:
    """The jobs with a tag."""
    source = "tags CROSS JOIN jobs ON jobs.id = tags.job"
    if value is None:
        return Branch(source, "tags.job", Clause("tags.key = ?", (rows.storable(key),)))
    values = (rows.storable(key), rows.storable(value))
    return Branch(source, "tags.job", Clause("tags.key = ? AND tags.value = ?", values))

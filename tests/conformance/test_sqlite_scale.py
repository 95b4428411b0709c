"""Work that must not grow with the queue: counted in SQLite's own steps, not in seconds."""

from __future__ import annotations

import inspect
import itertools
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spoolctl.core.records import Capture, JobFilter, NewJob, Want
from spoolctl.core.states import State
from spoolctl.store import open_store
from spoolctl.store.sqlite import finding, promotion, sql
from spoolctl.store.sqlite.branches import branch_query
from spoolctl.store.sqlite.store import SqliteStore
from tests.conformance.kit import Clock, Desk, failure, job, success

SMALL = {
    # Indices that hold only what waits, runs or is being cleaned up at the moment.
    "ready_anywhere",
    "ready_in_lane",
    "held",
    "due_anywhere",
    "due_anywhere_by_priority",
    "due_in_lane",
    "due_in_lane_by_priority",
    "due_in_lane_by_run",
    "attempts_living",
    "attempts_in_files",
    "workers_here",
    "contexts_unused",
}
SMALL_TABLES = {"lanes", "sqlite_sequence", "workers", "clocks"}
STATEMENTS = {
    name: text
    for name, text in vars(sql).items()
    if re.fullmatch(r"[A-Z][A-Z_]+", name)
    and isinstance(text, str)
    and not name.endswith("COLUMNS")
}
STATEMENTS |= {f"MOVE_JOB to {state.value}": text for state, text in sql.MOVE_JOB.items()}
STATEMENTS |= {name: getattr(sql, name)[-1] for name in ("ADD_EVENTS", "ADD_JOBS", "ADD_ATTEMPTS")}
STATEMENTS |= {
    f"{name} of {places}": text
    for name in ("RUNNING_WITH_JOB", "ATTEMPTS_TO_PRUNE", "OUTPUT_BYTES", "EVENTS_TO_PRUNE")
    for places, text in getattr(sql, name).items()
}


SCAN = re.compile(r"SCAN (?:TABLE )?(\w+)(?: AS \w+)?(?: USING (?:COVERING )?INDEX (\w+))?")


def opened(path: Path) -> SqliteStore:
    store = open_store(str(path), create=True, wait_s=2.0)
    assert isinstance(store, SqliteStore)
    return store


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(opened(tmp_path / "queue.db"), Clock())
    yield desk
    desk.store.close()


def plan(store: SqliteStore, statement: str, values: list[object]) -> list[str]:
    found = store._c.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    return [row[3] for row in found]


def scans(steps: list[str]) -> list[str]:
    """What is read from end to end, and could be long."""
    found = []
    for step in steps:
        match = re.match(
            r"SCAN (?:TABLE )?(\w+)(?: AS \w+)?(?: USING (?:COVERING )?INDEX (\w+))?", step
        )
        if match is None or "CONSTANT ROW" in step or "SUBQUERY" in step:
            continue
        table, index = match.groups()
        if table not in SMALL_TABLES and index not in SMALL:
            found.append(step)
    return found


@pytest.fixture(scope="module", params=["no statistics", "analyzed"])
def mixed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """Many done jobs, some of everything else; perhaps after somebody ran ANALYZE."""
    desk = Desk(opened(tmp_path_factory.mktemp("plans") / "queue.db"), Clock())
    desk.store.add([job(str(n)) for n in range(600)], now=desk.clock.now())
    while claimed := desk.claim(200):
        desk.report(*[success(one, stdout=Capture(1, b"x")) for one in claimed])
    later = [job(delay_s=60.0 + n, priority=n % 9, queue="later") for n in range(300)]
    desk.store.add(later, now=desk.clock.now())
    desk.store.add([job(key=f"k{n}", tags=(("t", "v"),)) for n in range(30)], now=desk.clock.now())
    desk.claim(5)
    if request.param == "analyzed":
        assert isinstance(desk.store, SqliteStore)
        desk.store._c.execute("ANALYZE")
        path = desk.store.path
        desk.store.close()
        desk.store = opened(Path(path))
    yield desk
    desk.store.close()


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_reads_a_long_table_from_end_to_end(mixed: Desk, name: str) -> None:
    statement = STATEMENTS[name]
    if statement.split()[0] == "INSERT":
        return
    numbered = [int(number) for number in re.findall(r"\?(\d)", statement)]
    values: list[object] = [1] * (max(numbered) if numbered else statement.count("?"))
    assert isinstance(mixed.store, SqliteStore)
    steps = plan(mixed.store, statement, values)
    assert scans(steps) == [], steps


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("CLAIMABLE_IN_LANE", "ready_in_lane"),
        ("CLAIMABLE_ANYWHERE", "ready_anywhere"),
        ("DUE_IN_LANE", "due_in_lane"),
        ("DUE_ANYWHERE", "due_anywhere"),
        ("PRIORITY_IN_LANE", "due_in_lane_by_priority"),
        ("PRIORITY_ANYWHERE", "due_anywhere_by_priority"),
        ("JOB_OF_KEY", "jobs_by_key"),
        ("OLD_JOBS", "jobs_by_end"),
        ("RECENTLY_ENDED", "jobs_by_end"),
        ("EVENTS_OF_JOB", "events_by_job"),
        ("LATEST_ATTEMPT", "attempts_by_job"),
    ],
)
def test_hot_questions_use_their_index_and_sort_nothing(mixed: Desk, name: str, index: str) -> None:
    statement = STATEMENTS[name]
    assert isinstance(mixed.store, SqliteStore)
    steps = plan(mixed.store, statement, [1] * statement.count("?"))
    assert index in " ".join(steps)
    assert not any("TEMP B-TREE" in step for step in steps), steps


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (JobFilter(states=(State.DONE,)), "jobs_by_lane"),
        (JobFilter(queue="default"), "jobs_by_lane"),
        (JobFilter(tags=(("t", "v"),)), "PRIMARY KEY"),
        (JobFilter(tags=(("t", None),)), "tags_by_key"),
        (JobFilter(priority_min=3), "jobs_by_priority"),
        (JobFilter(ids=(1, 2)), "PRIMARY KEY"),
        (JobFilter(tags=(("t", "v"),), states=(State.DONE,), queue="default"), "PRIMARY KEY"),
    ],
)
def test_lists_go_by_an_index_in_the_order_of_ids(
    mixed: Desk, wanted: JobFilter, index: str
) -> None:
    store = mixed.store
    assert isinstance(store, SqliteStore)
    branches = finding.Finding(store)._branches(wanted)
    assert branches
    for branch in branches:
        statement, values = branch_query(branch, wanted, 20)
        steps = plan(store, statement, values)
        assert index in " ".join(steps)
        assert scans(steps) == []
        if wanted.priority_min is None:
            assert not any("TEMP B-TREE" in step for step in steps), steps


# -- steps ------------------------------------------------------------------------------


class Steps:
    """How many steps SQLite took, in hundreds."""

    def __init__(self) -> None:
        self.hundreds = 0


@contextmanager
def counted(store: object) -> Iterator[Steps]:
    assert isinstance(store, SqliteStore)
    steps = Steps()

    def tick() -> int:
        steps.hundreds += 1
        return 0

    store._c._db.set_progress_handler(tick, 100)
    yield steps
    store._c._db.set_progress_handler(None, 0)


def cost(desk: Desk, action: Callable[[], object]) -> int:
    with counted(desk.store) as steps:
        action()
    return steps.hundreds


def crowd(number: int) -> list[NewJob]:
    """Jobs for later, more important than anything else."""
    return [job(priority=1000 + n % 10, delay_s=9999.0, queue=f"q{n % 3}") for n in range(number)]


OPERATIONS: dict[str, Callable[[Desk], object]] = {
    "claim": lambda desk: desk.claim(1, ("q0",)),
    "claim anywhere": lambda desk: desk.claim(1),
    "claim with a ceiling": lambda desk: desk.claim(1, ("q0",), ceiling=5),
    "look around": lambda desk: desk.claim(1, ("nothing here",)),
    "add": lambda desk: desk.add("x"),
    "add with a key": lambda desk: desk.add("x", key="new"),
    "counts": lambda desk: desk.counts(),
    "drain": lambda desk: desk.store.holds_drain(None, now=desk.clock.now()),
    "detail": lambda desk: desk.store.detail(1),
    "states": lambda desk: desk.store.states([1, 2]),
    "list": lambda desk: desk.find(20),
    "list by state": lambda desk: desk.find(20, states=(State.QUEUED,)),
    "list by queue": lambda desk: desk.find(20, queue="q1"),
    "list by priority": lambda desk: desk.find(20, priority_min=1005),
    "list by priority and state": lambda desk: desk.find(
        20, priority_min=1005, states=(State.QUEUED,)
    ),
    "list the important that wait": lambda desk: desk.find(
        20, priority_min=5, states=(State.QUEUED,)
    ),
    "list by tag": lambda desk: desk.find(20, tags=(("t", "1"),)),
    "list what is not there": lambda desk: desk.find(20, states=(State.DEAD,), queue="q2"),
    "list since": lambda desk: desk.find(20, since=desk.clock.at),
    "list since, of a state": lambda desk: desk.find(
        20, since=desk.clock.at + 99.0, states=(State.DEAD,)
    ),
    "list by command": lambda desk: desk.find(20, command="tru"),
    "list by id, oldest first": lambda desk: desk.find(20, reverse=True, queue="q0"),
    "list by priority, highest first": lambda desk: desk.find(20, sort="priority"),
    "list of a queue by priority": lambda desk: desk.find(20, sort="priority", queue="q1"),
    "list latest ends": lambda desk: desk.find(20, sort="finished", states=(State.DONE,)),
    "list latest ends by a tag": lambda desk: desk.find(
        20, sort="finished", tags=(("all", "x"),), states=(State.DONE, State.DEAD)
    ),
    "list first ends": lambda desk: desk.find(20, sort="finished", reverse=True),
    "list since by priority": lambda desk: desk.find(
        20, sort="priority", since=desk.clock.at + 99.0
    ),
    "list by tag and a state that none has": lambda desk: desk.find(
        20, tags=(("all", "x"),), states=(State.DEAD,)
    ),
    "list by tag and a queue that is not there": lambda desk: desk.find(
        20, tags=(("all", "x"),), queue="nowhere"
    ),
    "list by two tags": lambda desk: desk.find(20, tags=(("all", "x"), ("nobody", "has"))),
    "list by priority, of a queue that has none": lambda desk: desk.find(
        20, priority_min=5000, queue="q1"
    ),
    "list by priority, of a queue that has none, though more than a few others do": lambda desk: (
        desk.find(20, priority_min=2000, queue="quiet")
    ),
    "list of a queue by priority, where what is new has another one": lambda desk: desk.find(
        20, sort="priority", queue="quiet"
    ),
    "list by priority, of several states": lambda desk: desk.find(
        20, priority_min=1009, states=(State.QUEUED, State.RUNNING, State.DEAD)
    ),
    "suspects": lambda desk: desk.suspects(),
    "heal": lambda desk: desk.store.heal(now=desk.clock.now()),
    "register": lambda desk: desk.register("another"),
    "recent dead": lambda desk: desk.store.recent_dead(10),
    "events": lambda desk: desk.store.events(since_id=0, job_id=None, limit=50),
    "events of a job": lambda desk: desk.store.events(since_id=0, job_id=2, limit=50),
}


for _sort in ("finished", "priority", "started", "next-run"):
    # What the counters know not to be there is not looked for, in whatever order.
    OPERATIONS[f"list by {_sort} what no queue has"] = partial(
        lambda sort, desk: desk.find(20, sort=sort, states=(State.DEAD,)), _sort
    )
    OPERATIONS[f"list by {_sort} a queue that is not there"] = partial(
        lambda sort, desk: desk.find(20, sort=sort, queue="nowhere", reverse=True), _sort
    )


@pytest.fixture(scope="module")
def small_and_large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Desk]]:
    """The same queue with a hundred jobs in the way, and with many more."""
    desks = []
    for number in (100, 6_000):
        desk = Desk(opened(tmp_path_factory.mktemp("scale") / "queue.db"), Clock())
        desk.store.add(
            [
                job(queue="q0", tags=(("t", str(n % 50)), ("all", "x")), priority=9)
                for n in range(number)
            ],
            now=desk.clock.now(),
        )
        while claimed := desk.claim(500):
            ends = [failure if one.job_id % 3 else success for one in claimed]
            desk.report(*[end(one) for end, one in zip(ends, claimed, strict=True)])
        for number_canceled in range(1, number, 2):
            if desk.get(number_canceled).state is State.QUEUED:
                desk.cancel(number_canceled)
        desk.store.add(crowd(number), now=desk.clock.now())
        desk.store.add([job(queue="q0", tags=(("t", "1"),))] * 40, now=desk.clock.now())
        loud = [job(queue="loud", priority=2000) for _ in range(number)]
        desk.store.add(
            [job(queue="quiet", priority=n % 5) for n in range(number)], now=desk.clock.now()
        )
        desk.store.add(loud, now=desk.clock.now())
        desks.append(desk)
    yield desks[0], desks[1]
    for desk in desks:
        desk.store.close()


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_the_work_does_not_grow_with_the_queue(
    small_and_large: tuple[Desk, Desk], name: str
) -> None:
    small, large = small_and_large
    action = OPERATIONS[name]
    few, many = cost(small, lambda: action(small)), cost(large, lambda: action(large))
    # To read six thousand rows takes several hundred hundreds.
    assert many <= max(1.5 * few + 10, 60), f"{few} -> {many} hundred steps"


@pytest.mark.parametrize("sort", ["finished", "priority"])
def test_sorting_what_lies_behind_everything_else_reads_little_of_that(
    desk: Desk, sort: str
) -> None:
    """A lane, and a tag, that were in use long ago: what is newer is not all looked through."""
    old = [job(queue="old", tags=(("batch", "7"),) if n < 400 else ()) for n in range(600)]
    new = [job(priority=1) for _ in range(9_000)]
    for jobs in (old, new):
        desk.store.add(jobs, now=desk.clock.now())
        while claimed := desk.claim(500):
            desk.report(*[success(one) for one in claimed])
        desk.clock.advance(1.0)
    parts: list[tuple[int, dict[str, Any]]] = [
        (600, {"queue": "old"}),
        (400, {"tags": (("batch", "7"),)}),
    ]
    for last, each in parts:
        first, final = range(1, 21), range(last, last - 20, -1)
        for reverse, expected in ((True, first), (False, final)):
            look = partial(desk.find, 20, sort=sort, reverse=reverse, **each)
            assert cost(desk, look) < 500
            assert look() == list(expected)


@pytest.mark.parametrize(("priorities", "most"), [(5, 60), (60, 500)])
def test_what_is_ready_is_sorted_by_its_next_run_without_reading_it_all(
    desk: Desk, priorities: int, most: int
) -> None:
    looks = (
        partial(desk.find, 20, sort="next-run", states=(State.QUEUED,), queue=q)
        for q in (None, "q1")
    )
    jobs = [job(queue=f"q{n % 3}", priority=n // 3 % priorities) for n in range(18_000)]
    desk.store.add(jobs, now=desk.clock.now())
    for look in looks:
        assert cost(desk, look) < most


def test_counting_is_never_done_by_counting(desk: Desk) -> None:
    store = desk.store
    assert isinstance(store, SqliteStore)
    desk.add(delay_s=5.0)
    desk.add()
    statements: list[str] = []
    store._c._db.set_trace_callback(statements.append)
    desk.counts()
    desk.store.holds_drain(None, now=desk.clock.now())
    desk.store.holds_drain(("default",), now=desk.clock.now())
    desk.store.cycle(desk.me, [], Want(1, ("default",), 3), now=desk.clock.now())
    store._c._db.set_trace_callback(None)
    assert len(statements) > 10
    assert not [one for one in statements if "count(" in one.lower()]


def test_a_crowd_falling_due_at_once_costs_each_claim_one_step(desk: Desk) -> None:
    desk.store.add(crowd(20_000), now=desk.clock.now())
    desk.clock.advance(10_000.0)
    desk.add()
    worst, claimed = 0, 0
    for _ in range(20):
        with counted(desk.store) as steps:
            claimed += len(desk.claim(1))
        worst = max(worst, steps.hundreds)
    assert claimed == 20
    # About two hundred steps for each row of one promotion; the rows themselves are 20,000.
    assert worst < 5 * promotion.STEP, f"{worst} hundred steps"


def test_many_priorities_for_later_do_not_slow_the_promotion(desk: Desk) -> None:
    jobs = [job(priority=10_000 + n, delay_s=9e6) for n in range(3000)]
    jobs += [job(priority=1, delay_s=1.0) for _ in range(promotion.STEP * 2)]
    desk.store.add(jobs, now=desk.clock.now())
    desk.clock.advance(1.0)
    assert cost(desk, lambda: desk.claim(1)) < 5 * promotion.STEP
    claimed = 1
    while taken := desk.claim(100):
        claimed += len(taken)
    assert claimed == promotion.STEP * 2


def test_a_job_with_thousands_of_attempts(desk: Desk) -> None:
    desk.add(max_retries=10**6)
    for _ in range(2500):
        desk.report(failure(desk.claim_one()))
        desk.clock.advance(60.0)
    claimed = desk.claim_one()
    assert claimed.attempt_no == 2501
    assert len(desk.store.detail(1).attempts) == 2501
    assert cost(desk, lambda: desk.report(failure(claimed))) < 20
    desk.clock.advance(60.0)
    assert cost(desk, lambda: desk.claim_one()) < 20
    assert cost(desk, lambda: desk.store.owner_token(1)) < 5


def test_a_quiet_finished_job_takes_at_most_500_bytes(tmp_path: Path) -> None:
    desk = Desk(opened(tmp_path / "queue.db"), Clock())
    number = 4000
    jobs = [job("sh", "-c", f"exec gzip -k file-{n:05}.txt") for n in range(number)]
    desk.store.add(jobs, now=desk.clock.now())
    claimed = desk.claim(1)
    while claimed:
        desk.clock.advance(0.0137)
        reports = [success(one, duration_s=0.0123) for one in claimed]
        claimed = desk.store.cycle(desk.me, reports, Want(1, None), now=desk.clock.now()).claimed
    path = Path(desk.store.path)
    desk.store.close()
    assert path.stat().st_size / number <= 500


def test_the_statements_of_a_cycle_are_few(desk: Desk) -> None:
    """What a worker does for each job, while its queue is long."""
    store = desk.store
    assert isinstance(store, SqliteStore)
    for _ in range(4):
        desk.add()
    first = desk.claim_one()
    (second,) = store.cycle(
        desk.me, [success(first)], Want(1, ("default",)), now=desk.clock.now()
    ).claimed
    statements: list[str] = []
    store._c._db.set_trace_callback(statements.append)
    store.cycle(desk.me, [success(second)], Want(1, ("default",)), now=desk.clock.now())
    store._c._db.set_trace_callback(None)
    # What a trigger does is told as the statement that fired it, once more.
    own = [one for one, _repeated in itertools.groupby(statements)]
    assert len(own) <= 14, own
    assert sum("COMMIT" in one for one in own) == 1


def test_every_statement_stands_in_one_place() -> None:
    """The SQL of the store is in sql.py, in the migrations, and where filters are combined."""
    folder = Path(inspect.getfile(sql)).parent
    words = re.compile(r'"(SELECT|INSERT|UPDATE|DELETE) ')
    found = {path.name for path in folder.glob("*.py") if words.search(path.read_text())}
    assert found <= {"sql.py", "finding.py", "sorting.py", "asking.py", "branches.py", "opening.py"}


def test_types_of_sqlite_that_are_tested_here() -> None:
    assert sqlite3.sqlite_version_info >= (3, 31)

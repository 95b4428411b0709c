"""Killed at any statement of any write: all of it happened, or none."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spoolctl.core.records import Capture, Want
from spoolctl.core.states import State
from spoolctl.store import open_store
from tests.conformance.killing import die_at_every_statement
from tests.conformance.kit import Clock, Desk, failure, job, success, worker

TABLES = (
    "jobs",
    "attempts",
    "events",
    "workers",
    "lanes",
    "outputs",
    "tags",
    "inputs",
    "contexts",
    "boots",
    "recoveries",
)


def dump(path: Path) -> dict[str, list[Any]]:
    """Every row of every table, without the random ids."""
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    found = {}
    for table in TABLES:
        cursor = db.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        found[table] = [
            {name: value for name, value in zip(names, row, strict=True) if name != "token"}
            for row in cursor
        ]
    db.close()
    return found


def at(folder: Path) -> Desk:
    """A desk on the queue in the folder, as worker 1; nothing is written by this."""
    desk = object.__new__(Desk)
    desk.store = open_store(str(folder / "queue.db"), create=False, wait_s=1.0)
    desk.clock = Clock()
    desk.clock.advance(1000.0)
    desk.me = 1
    return desk


def attempts(desk: Desk) -> list[Any]:
    """The running attempts, as far as a report needs them."""
    suspects = desk.store.suspects(threshold_s=0.0, now=desk.clock.now())
    return [suspect for suspect in suspects if suspect.worker is not None]


def add(desk: Desk) -> None:
    jobs = [job("x", key="k", tags=(("a", "b"),), stdin=b"in"), job("y", delay_s=5.0)]
    desk.store.add(jobs, now=desk.clock.now())


def cycle(desk: Desk) -> None:
    first, second, *_rest = attempts(desk)
    outcomes = [success(first, stdout=Capture(2, b"hi")), failure(second)]
    desk.store.cycle(1, outcomes, Want(2, None), now=desk.clock.now())


def reap(desk: Desk) -> None:
    assert desk.reap(attempts(desk)[0], stdout=Capture(2, b"hi")) is not None


def prune(desk: Desk) -> None:
    desk.store.prune(
        before=desk.clock.at, states=list(State), dry_run=False, limit=9, now=desk.clock.now()
    )


def register(desk: Desk) -> None:
    desk.store.register(worker("new", clock=desk.clock), now=desk.clock.now())


OPERATIONS: dict[str, Callable[[Desk], object]] = {
    "add": add,
    "cycle": cycle,
    "reap": reap,
    "cancel running": lambda desk: desk.cancel(1),
    "cancel queued": lambda desk: desk.cancel(4),
    "retry": lambda desk: desk.retry(6),
    "force": lambda desk: desk.retry(1, force=True),
    "prune": prune,
    "register": register,
    "heartbeat": lambda desk: desk.store.heartbeat(1, now=desk.clock.now()),
    "note": lambda desk: desk.store.note_recovery(
        [1], verdict="unclear", reason="r", now=desk.clock.now()
    ),
}


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Jobs 1 and 2 run, 3 to 5 wait, 6 is dead, 7 is done with output."""
    folder = tmp_path / "start"
    desk = Desk(open_store(str(folder / "queue.db"), create=True, wait_s=1.0), Clock())
    for number in range(7):
        desk.add(str(number), max_retries=0, tags=(("n", str(number)),), priority=-number)
    one, two, three, four, five, six, seven = desk.claim(7)
    desk.report(failure(six), success(seven, stdout=Capture(3, b"abc")))
    for claimed in (three, four, five):
        desk.retry(claimed.job_id, force=True)
        desk.report(success(claimed))
    assert (one.job_id, two.job_id) == (1, 2)
    desk.store.close()
    return folder


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_all_or_nothing(tmp_path: Path, start: Path, name: str) -> None:
    def operation(folder: Path) -> None:
        desk = at(folder)
        OPERATIONS[name](desk)
        desk.store.close()

    before = dump(start / "queue.db")
    seen: list[dict[str, list[Any]]] = []

    def check(folder: Path, *, finished: bool) -> None:
        found = dump(folder / "queue.db")
        if finished:
            assert found != before
            # What a killed one had committed is what the whole operation commits.
            assert all(one in (before, found) for one in seen)
        else:
            seen.append(found)

    assert die_at_every_statement(tmp_path, start, operation, check) > 5
    assert before in seen

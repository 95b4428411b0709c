"""Layouts: creation by many at once, migration, an older program on a newer file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from spoolctl.core.records import JobFilter
from spoolctl.errors import NotFound, StoreUnusable
from spoolctl.store import open_store
from spoolctl.store.sqlite import opening
from spoolctl.store.sqlite.connection import Connection
from spoolctl.store.sqlite.schema.migrations import MIGRATIONS, SCHEMA_VERSION
from spoolctl.store.sqlite.store import SqliteStore
from tests.conformance.killing import die_at_every_statement
from tests.conformance.kit import Clock, Desk, success
from tests.helpers import ROOT, clean_env

DATA = Path(__file__).parent / "data"
NEXT = (
    *MIGRATIONS,
    (
        "ALTER TABLE jobs ADD COLUMN colour TEXT",
        "CREATE TABLE colours (name TEXT PRIMARY KEY)",
        "INSERT INTO colours SELECT DISTINCT queue FROM jobs",
        "CREATE INDEX jobs_by_colour ON jobs (colour)",
    ),
)
"""The layouts that a coming version knows."""


def opened(path: Path) -> SqliteStore:
    store = open_store(str(path), create=True, wait_s=2.0)
    assert isinstance(store, SqliteStore)
    return store


def migrate(path: Path, migrations: Sequence[Sequence[str]] = NEXT) -> None:
    """What a coming version does when it opens the file."""
    connection = opening._connect(str(path), "mode=rw")
    connection.wait_s = 2.0
    opening.migrate(connection, migrations)
    connection.close()


def layout(path: Path) -> tuple[int, list[str]]:
    """The layout's number, and the names of all that it holds."""
    db = sqlite3.connect(path)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    db.close()
    return version, names


def test_a_migration_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    desk = Desk(opened(path), Clock())
    desk.add(queue="a")
    desk.store.close()
    migrate(path)
    version, names = layout(path)
    assert version == SCHEMA_VERSION + 1
    assert {"colours", "jobs_by_colour"} <= set(names)
    db = sqlite3.connect(path)
    assert db.execute("SELECT queue, colour FROM jobs").fetchall() == [("a", None)]
    assert db.execute("SELECT name FROM colours").fetchall() == [("a",)]
    db.close()
    migrate(path)
    assert layout(path) == (version, names)


def test_a_running_program_stops_when_a_newer_one_migrates_its_file(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    desk = Desk(opened(path), Clock())
    desk.add()
    desk.add()
    claimed = desk.claim_one()
    migrate(path)
    now = desk.clock.now()
    for use in (
        lambda: desk.report(success(claimed)),
        lambda: desk.claim(),
        lambda: desk.add(),
        lambda: desk.cancel(2),
        lambda: desk.store.heartbeat(desk.me, now=now),
        lambda: desk.store.find(JobFilter(), limit=9),
        lambda: desk.store.heal(now=now),
    ):
        with pytest.raises(StoreUnusable) as caught:
            use()
        assert caught.value.kind == "newer"
    db = sqlite3.connect(path, timeout=0)
    db.execute("BEGIN IMMEDIATE")  # it holds no lock
    assert db.execute("SELECT state FROM jobs ORDER BY id").fetchall() == [
        ("running",),
        ("queued",),
    ]
    db.close()
    desk.store.close()
    with pytest.raises(StoreUnusable):
        opened(path)


def test_creation_killed_at_any_statement_is_completed_by_the_next(tmp_path: Path) -> None:
    def create(folder: Path) -> None:
        opened(folder / "queue.db").close()

    def check(folder: Path, *, finished: bool) -> None:
        path = folder / "queue.db"
        try:
            store = open_store(str(path), create=False, wait_s=1.0)
        except NotFound:
            assert not finished
        else:
            assert store.find(JobFilter(), limit=1) == []
            store.close()
        desk = Desk(opened(path), Clock())
        assert desk.add() == 1
        desk.store.close()
        assert layout(path)[0] == SCHEMA_VERSION

    points = die_at_every_statement(tmp_path, None, create, check)
    assert points > len(MIGRATIONS[0])


def test_a_migration_killed_at_any_statement_leaves_old_or_new(tmp_path: Path) -> None:
    start = tmp_path / "start"
    desk = Desk(opened(start / "queue.db"), Clock())
    desk.add(queue="a")
    desk.store.close()
    old = layout(start / "queue.db")
    shutil.copytree(start, tmp_path / "new")
    migrate(tmp_path / "new" / "queue.db")
    new = layout(tmp_path / "new" / "queue.db")

    def check(folder: Path, *, finished: bool) -> None:
        found = layout(folder / "queue.db")
        assert found == new if finished else found in (old, new)
        migrate(folder / "queue.db")
        assert layout(folder / "queue.db") == new

    points = die_at_every_statement(
        tmp_path, start, lambda folder: migrate(folder / "queue.db"), check
    )
    assert points > len(NEXT[-1])


def test_the_choice_of_sync_waits_for_a_lock_too(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.db")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE x (y)")
    other.execute("BEGIN EXCLUSIVE")  # as a creator holds it for a moment
    db = sqlite3.connect(path, timeout=0, isolation_level=None)
    connection = Connection(path, db, None)
    connection.wait_s = 30.0
    release = threading.Timer(0.2, other.execute, ("COMMIT",))
    release.start()
    connection.sync_fully()
    release.join()
    assert connection.ask("PRAGMA synchronous") == 2
    connection.close()
    other.close()


CREATOR = """
import sys
from spoolctl.store import open_store
from tests.conformance.kit import Clock, job
sys.stdin.readline()
store = open_store(sys.argv[1], create=True, wait_s=float(sys.argv[2]))
while True:
    try:
        print(store.add([job(sys.argv[2])], now=Clock().now())[0].job.id, flush=True)
        break
    except Exception as error:
        if type(error).__name__ != "StoreBusy":
            raise
store.close()
"""


def test_creators_that_race_all_get_their_queue(tmp_path: Path) -> None:
    for round_ in range(3):
        path = tmp_path / str(round_) / "new" / "queue.db"
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", CREATOR, str(path), wait_s],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=clean_env(),
            )
            for wait_s in ("0", "5", "0", "5", "0", "5")
        ]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        answers = [racer.communicate(timeout=60)[0] for racer in racers]
        assert sorted(int(answer) for answer in answers) == [1, 2, 3, 4, 5, 6]
        assert os.listdir(path.parent) == ["queue.db"]


RELEASED = sorted(DATA.glob("layout-*.db"))
# Made by 0.1.0 before its release: the checks of layout 1 had another form.
OLDER = [DATA / "before-release.db", *RELEASED]


@pytest.mark.parametrize("released", OLDER, ids=[path.stem for path in OLDER])
def test_files_of_every_released_layout_open(tmp_path: Path, released: Path) -> None:
    path = tmp_path / "queue.db"
    shutil.copy(released, path)
    store = opened(path)
    clock = Clock()
    jobs = {one.note: one for one in store.find(JobFilter(), limit=-1)}
    assert {one.state.value for one in jobs.values()} == {
        "queued",
        "running",
        "done",
        "failed",
        "dead",
        "canceled",
    }
    assert jobs["done"].tags == (("kind", "example"),)
    attempt = store.attempt(jobs["done"].id, None)
    assert attempt is not None
    assert store.stream(attempt.id, "stdout") == b"hello\n"
    assert store.heal(now=clock.now()) == []
    desk = Desk(store, clock)
    desk.add("new")
    clock.advance(1e6)
    assert {one.job_id for one in desk.claim(99)} >= {jobs["scheduled"].id, jobs["waiting"].id}
    store.close()


@pytest.mark.parametrize("released", RELEASED, ids=[path.stem for path in RELEASED])
def test_steps_that_were_released_never_change(tmp_path: Path, released: Path) -> None:
    """An old file, brought up to date, has the very layout of a new one."""
    shutil.copy(released, tmp_path / "old.db")
    schemas = []
    for name in ("old.db", "new.db"):
        store = opened(tmp_path / name)
        found = store._c.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        schemas.append(found)
        store.close()
    assert schemas[0] == schemas[1]


def test_there_is_a_file_of_every_released_layout() -> None:
    assert [path.name for path in RELEASED] == [
        f"layout-{number}.db" for number in range(1, SCHEMA_VERSION + 1)
    ]


def test_only_what_old_sqlite_knows_is_used() -> None:
    for statements in MIGRATIONS:
        for statement in statements:
            words = statement.upper().replace(",", " ").split()
            assert "STRICT" not in words
            assert "RETURNING" not in words
            assert "REPLACE" not in words
            assert not {"DROP", "COLUMN"} <= set(words)


@pytest.mark.parametrize("old", [False, True], ids=["new", "made before"])
def test_types_are_enforced(tmp_path: Path, old: bool) -> None:
    if old:  # its checks have another form
        shutil.copy(DATA / "before-release.db", tmp_path / "queue.db")
    store = opened(tmp_path / "queue.db")
    Desk(store, Clock()).add()
    Desk(store, Clock()).claim_one()
    db = sqlite3.connect(store.path)
    for column, value in {
        "state": "'lost'",
        "priority": "'high'",
        "run_at": "'soon'",
        "argv": "NULL",
        "ready": "2",
        "due": "1.5",
        "attempts": "-1",
        "timeout_s": "x'00'",
        "last_exit_code": "1.5",
        "max_crashes": "1e30",
        "started_at": "'12x'",
        "finished_at": "x'3132'",
        "last_error": "x'6f7073'",
        "queue": "x'61'",
        "crashes": "NULL",
    }.items():
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(f"UPDATE jobs SET {column} = {value}")
    for column, value in {
        "state": "'lost'",
        "token": "'0123456789abcdef'",
        "no": "'first'",
        "gone_at": "'now'",
        "exit_code": "0.5",
        "reason": "x'00'",
    }.items():
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(f"UPDATE attempts SET {column} = {value}")
    db.close()
    store.close()

"""Locked, full, interrupted, damaged by hand: an error that says so, and then on it goes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from spoolctl.core.records import Capture, Cycle, JobFilter, Outcome, Want
from spoolctl.core.states import State
from spoolctl.errors import IllegalTransition, SpoolError, StoreBusy, StoreFull, StoreUnusable
from spoolctl.store import open_store
from spoolctl.store.sqlite import connection
from spoolctl.store.sqlite.connection import SHORTEST_PAUSE_S
from spoolctl.store.sqlite.store import SqliteStore
from tests.conformance.kit import Clock, Desk, failure, job, stopped, success


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    store = open_store(str(tmp_path / "queue.db"), create=True, wait_s=0.0)
    yield Desk(store, Clock())
    store.close()


def sqlite_of(desk: Desk) -> SqliteStore:
    assert isinstance(desk.store, SqliteStore)
    return desk.store


@pytest.fixture
def other(desk: Desk) -> Iterator[sqlite3.Connection]:
    """Another program with the file open."""
    db = sqlite3.connect(desk.store.path, timeout=0, isolation_level=None, check_same_thread=False)
    yield db
    db.close()


# -- locked -----------------------------------------------------------------------------


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_while_another_program_writes(desk: Desk, other: sqlite3.Connection, lock: str) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.add()
    other.execute(lock)
    started = time.monotonic()
    now = desk.clock.now()
    for use in (
        lambda: desk.add(),
        lambda: desk.claim(),
        lambda: desk.report(success(claimed)),
        lambda: desk.cancel(2),
        lambda: desk.store.heartbeat(desk.me, now=now),
    ):
        with pytest.raises(StoreBusy) as caught:
            use()
        assert caught.value.code == "LOCKED"
    assert time.monotonic() - started < 1.0, "a worker's loop must not stand still"
    assert desk.get(1).state is State.RUNNING
    assert desk.counts() == {"queued": 1, "running": 1}
    other.execute("COMMIT")
    assert desk.report_one(success(claimed)).job_state is State.DONE


def test_a_short_verb_waits_for_the_lock(desk: Desk, other: sqlite3.Connection) -> None:
    sqlite_of(desk)._c.wait_s = 0.2
    other.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    with pytest.raises(StoreBusy):
        desk.add()
    assert 0.2 <= time.monotonic() - started < 3.0
    sqlite_of(desk)._c.wait_s = 60.0
    timer = threading.Timer(0.1, other.execute, ["COMMIT"])
    timer.start()
    assert desk.add() == 1
    timer.join()


def test_nothing_of_a_refused_cycle_is_kept(desk: Desk, other: sqlite3.Connection) -> None:
    desk.add()
    desk.add()
    claimed = desk.claim_one()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        desk.store.cycle(desk.me, [failure(claimed)], Want(1, None), now=desk.clock.now())
    other.execute("ROLLBACK")
    cycle = desk.store.cycle(desk.me, [failure(claimed)], Want(1, None), now=desk.clock.now())
    assert cycle.recorded[0].job_state is State.QUEUED
    assert [one.job_id for one in cycle.claimed] == [2]


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_a_cycle_tells_that_another_program_was_in_the_way(
    desk: Desk, other: sqlite3.Connection, wait_s: float
) -> None:
    def cycle(*outcomes: Outcome) -> Cycle:
        return desk.store.cycle(desk.me, outcomes, Want(1, None), now=desk.clock.now())

    for _ in range(3):
        desk.add()
    first = cycle()
    assert not first.waited
    sqlite_of(desk)._c.wait_s = wait_s
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.1, other.execute, ["COMMIT"])
    timer.start()
    if not wait_s:
        with pytest.raises(StoreBusy):
            cycle(success(first.claimed[0]))
        timer.join()
    second = cycle(success(first.claimed[0]))
    timer.join()
    assert second.waited
    assert not cycle(success(second.claimed[0])).waited


def test_who_has_waited_long_looks_more_often(
    desk: Desk, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or among dozens of others, who have just come, a client may wait for ever."""
    pauses: list[tuple[float, float]] = []
    mono = [0.0]

    def sleep(seconds: float) -> None:
        pauses.append((mono[0], seconds))
        mono[0] += seconds

    monkeypatch.setattr("spoolctl.core.pauses.pause", sleep)
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: mono[0]))
    desk.store.wait_s = 3.0
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        desk.add()
    other.execute("ROLLBACK")

    def mean(since: float, until: float) -> float:
        some = [pause for at, pause in pauses if since <= at < until]
        return sum(some) / len(some)

    assert mean(0.0, 0.001) < mean(0.01, 0.1)  # most transactions are over soon
    assert mean(0.01, 0.1) > 2 * mean(1.0, 1.5) > 3 * mean(2.9, 3.0)
    assert min(pause for _, pause in pauses) >= SHORTEST_PAUSE_S / 2


def test_readers_do_not_block_and_are_not_blocked(desk: Desk, other: sqlite3.Connection) -> None:
    desk.add()
    other.execute("BEGIN")
    assert other.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    desk.add()
    assert other.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    other.execute("COMMIT")
    assert other.execute("SELECT count(*) FROM jobs").fetchone() == (2,)


# -- interrupted ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_an_interrupt_leaves_no_lock_and_no_half(
    desk: Desk,
    other: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    def interrupt(*_args: object, **_rest: object) -> None:
        raise error

    desk.add()
    claimed = desk.claim_one()
    monkeypatch.setattr(SqliteStore, "_keep_output", interrupt)
    with pytest.raises(error):
        desk.report(success(claimed))
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    assert desk.get(1).state is State.RUNNING
    monkeypatch.undo()
    assert desk.report_one(success(claimed)).job_state is State.DONE


# -- full -------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_survived(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    db = sqlite_of(desk)._c
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    big = Capture(60_000, os.urandom(60_000))
    for use in (
        lambda: desk.report(success(claimed, stdout=big)),
        lambda: desk.add("x" * 50_000),
    ):
        with pytest.raises(StoreFull) as caught:
            use()
        assert caught.value.code == "INTERNAL"
        assert isinstance(caught.value, StoreBusy), "it may be repeated"
    assert desk.get(1).state is State.RUNNING
    db.execute("PRAGMA max_page_count = 1000000")
    assert desk.report_one(success(claimed, stdout=big)).job_state is State.DONE
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: Path) -> None:
    """Write until there is no room."""
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    desk = Desk(open_store(str(small_disk / "queue.db"), create=True, wait_s=0.0), Clock())
    desk.add()
    claimed = desk.claim_one()
    filler = small_disk / "filler"
    fill(filler)
    failures = 0
    for _ in range(2000):
        try:
            desk.add("y" * 200)
        except StoreFull:
            failures += 1
            if failures > 5:
                break
    assert failures > 5
    known = desk.counts().get("queued", 0)
    with pytest.raises(StoreFull):
        desk.report(success(claimed, stdout=Capture(60_000, bytes(60_000))))
    assert desk.get(1).state is State.RUNNING
    filler.unlink()
    assert desk.report_one(success(claimed)).job_state is State.DONE
    desk.add()
    assert desk.counts() == {"done": 1, "queued": known + 1}
    check = sqlite3.connect(desk.store.path)
    assert check.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    check.close()
    desk.store.close()


def test_a_disk_too_small_for_a_new_queue(small_disk: Path) -> None:
    fill(small_disk / "filler")
    path = str(small_disk / "queue.db")
    with pytest.raises(SpoolError):
        open_store(path, create=True, wait_s=0.0)
    (small_disk / "filler").unlink()
    assert Desk(open_store(path, create=True, wait_s=0.0), Clock()).add() == 1


# -- edited by hand ---------------------------------------------------------------------


def edit(desk: Desk, statement: str) -> None:
    db = sqlite3.connect(desk.store.path, isolation_level=None)
    db.execute(statement)
    db.close()


def counters_are_right(desk: Desk) -> bool:
    by_counting: dict[str, int] = {}
    for one in desk.store.find(JobFilter(), limit=-1):
        by_counting[one.state.value] = by_counting.get(one.state.value, 0) + 1
    return desk.counts() == by_counting


def test_impossible_rows_are_repaired_and_other_jobs_run(desk: Desk) -> None:
    for name in "abcdef":
        desk.add(name, max_retries=0)
    edit(desk, "UPDATE jobs SET state = 'running', ready = 0 WHERE id = 1")
    running = desk.claim(3)
    assert [one.job_id for one in running] == [2, 3, 4]
    edit(desk, "UPDATE jobs SET state = 'queued', ready = 1 WHERE id = 2")
    edit(desk, "UPDATE attempts SET worker = NULL WHERE job = 3")
    edit(desk, "DELETE FROM attempts WHERE job = 4")
    edit(desk, "UPDATE jobs SET ready = 0 WHERE id = 5")
    said = desk.store.heal(now=desk.clock.now())
    assert len(said) == 5
    assert all(f"job {number}" in " ".join(said) for number in (1, 2, 4, 5))
    assert desk.store.heal(now=desk.clock.now()) == []
    assert counters_are_right(desk)
    assert desk.get(2).state is State.QUEUED
    assert not desk.get(2).ready, "its processes may live"
    assert [one.job_id for one in desk.claim(9)] == [1, 4, 5, 6]
    suspects = {one.job_id: one for one in desk.suspects()}
    assert suspects[3].worker is None
    reaped = desk.reap(suspects[3])
    assert reaped is not None
    assert (reaped.job_state, reaped.worker_pid) == (State.QUEUED, 0)
    desk.report(stopped(running[0]))
    assert desk.get(2).ready
    desk.clock.advance(100)
    assert [one.job_id for one in desk.claim(9)] == [2, 3]


def test_an_attempt_that_a_later_one_replaced_waits_to_be_ended(desk: Desk) -> None:
    desk.add()
    first = desk.claim_one()
    edit(desk, "UPDATE jobs SET state = 'queued', ready = 1 WHERE id = 1")
    second = desk.claim_one()
    assert (first.attempt_no, second.attempt_no) == (1, 2)
    (sentence,) = desk.store.heal(now=desk.clock.now())
    assert "attempt 1" in sentence
    assert desk.store.lost(desk.me) == {first.attempt_id}
    desk.retry(1, force=True)
    desk.report(stopped(second))
    assert desk.claim(9) == (), "the first may still have processes"
    desk.report(stopped(first))
    assert desk.claim_one().attempt_no == 3


def test_registering_heals(desk: Desk) -> None:
    desk.add()
    edit(desk, "UPDATE jobs SET state = 'running', ready = 0 WHERE id = 1")
    new = desk.register("next")
    assert desk.claim_one(by=new).job_id == 1


def test_an_attempt_whose_worker_is_missing_is_a_suspect_at_once(desk: Desk) -> None:
    desk.add()
    desk.claim_one()
    edit(desk, "DELETE FROM workers")
    (suspect,) = desk.suspects(threshold_s=1e9)
    assert suspect.worker is None
    detail = desk.store.detail(1)
    assert detail.owner is None
    assert detail.attempts[0].worker_name == "unknown"


def add_afresh(desk: Desk) -> None:
    store = open_store(desk.store.path, create=True, wait_s=0.0)
    try:
        store.add([job()], now=desk.clock.now())
    finally:
        store.close()


def test_damage_met_while_running_is_told_and_holds_no_lock(
    desk: Desk, other: sqlite3.Connection
) -> None:
    other.execute("PRAGMA writable_schema = ON")
    other.execute("UPDATE sqlite_master SET rootpage = 999999 WHERE name = 'events'")
    desk.store.close()
    with pytest.raises(StoreUnusable) as caught:
        add_afresh(desk)
    assert caught.value.kind == "damaged"
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")


NO_TEXT = "CAST(x'5b22ff225d' AS TEXT)"
"""As one flipped bit can leave it: a text that is not UTF-8."""


@pytest.mark.parametrize("value", ["'[1, oops'", NO_TEXT], ids=["no JSON", "no text"])
@pytest.mark.parametrize("column", ["argv", "asked"])
def test_a_value_that_cannot_be_read_is_damage(desk: Desk, column: str, value: str) -> None:
    desk.add()
    edit(desk, f"UPDATE jobs SET {column} = {value}")
    for use in (desk.claim, lambda: desk.get(1)):
        with pytest.raises(StoreUnusable) as caught:
            use()
        assert caught.value.kind == "damaged"
    edit(
        desk,
        f"UPDATE jobs SET {column} = '[]'" if column == "argv" else "UPDATE jobs SET asked = NULL",
    )
    assert [one.job_id for one in desk.claim()] == [1], "no lock was kept, and nothing written"


WRONG = {
    "argv": ["{}", "7", '"true"', "[1]", "[null]", "null", "[" * 100_000],
    "asked": [
        *("[]", "7", '{"cwd": [], "unheard_of": 1}', '{"env": {"A": "B"}}', '{"env": [["A", 7]]}'),
        *('{"policy": []}', '{"policy": {"delays_s": ["x"]}}', '{"policy": {"final_exits": [7]}}'),
        *('{"since": 7}', '{"delay_s": "x"}'),
    ],
    "tags": ["7", "{}", '["ab"]', "[[1, 2]]"],
}


@pytest.mark.parametrize(
    ("column", "text"), [(column, text) for column, texts in WRONG.items() for text in texts]
)
def test_a_value_that_means_something_else_is_damage(desk: Desk, column: str, text: str) -> None:
    """Well-formed JSON of another type, as an edit by hand may leave it."""
    desk.add()
    edit(desk, f"UPDATE jobs SET {column} = '{text}'")
    with pytest.raises(StoreUnusable) as caught:
        desk.get(1)
    assert caught.value.kind == "damaged"
    assert "malformed" in str(caught.value)


@pytest.mark.parametrize("text", ["7", "[]", "{}", '["/", "x", []]', '["/", 2, [["A", 1]]]'])
def test_a_context_that_means_something_else_is_damage(desk: Desk, text: str) -> None:
    desk.add()
    edit(desk, f"UPDATE contexts SET body = '{text}'")
    afresh = open_store(desk.store.path, create=False, wait_s=0.0)
    with closing(afresh), pytest.raises(StoreUnusable) as caught:
        afresh.get(1)
    assert caught.value.kind == "damaged"


@pytest.mark.parametrize("text", ["7", "[7]", '{"stdout": 7}', '{"stdout": {"gap_start": "x"}}'])
def test_a_capture_that_means_something_else_is_damage(desk: Desk, text: str) -> None:
    desk.add()
    desk.report(stopped(desk.claim_one()))
    edit(desk, f"UPDATE attempts SET capture = '{text}'")
    with pytest.raises(StoreUnusable) as caught:
        desk.store.attempt(1, None)
    assert caught.value.kind == "damaged"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE attempts SET job = 1 WHERE id = 2",
        "UPDATE jobs SET state = 'queued' WHERE id = 2",
        "UPDATE jobs SET state = 'done' WHERE id = 2",
        "UPDATE attempts SET state = 'failed' WHERE id = 2",
        "UPDATE attempts SET worker = NULL WHERE id = 2",
        "DELETE FROM jobs WHERE id = 2",
    ],
)
def test_what_an_edit_has_left_is_no_success_and_keeps_none_from_being_one(
    desk: Desk, damage: str
) -> None:
    """Two attempts of one job, one of a job that does not run, or of none: in the same report as
    what is in order."""
    for _ in range(3):
        desk.add()
    claimed = desk.claim(3)
    edit(desk, "DROP INDEX attempts_by_job")
    edit(desk, damage)
    desk.report(*map(success, claimed))
    assert desk.get(1).state is State.DONE
    assert desk.get(3).state is State.DONE
    assert desk.trail(2) == ["added", "claimed"]


def test_a_settled_job_that_is_marked_as_ready_is_not_run_again(desk: Desk) -> None:
    for _ in range(3):
        desk.add()
    db = sqlite3.connect(desk.store.path, isolation_level=None)
    db.execute("PRAGMA ignore_check_constraints = ON")
    db.execute("UPDATE jobs SET state = 'done', ready = 1 WHERE id = 2")
    db.close()
    with pytest.raises(IllegalTransition, match="job 2 is done"):
        desk.claim(3)
    assert desk.get(1).state is State.QUEUED
    assert [one.job_id for one in desk.claim(1)] == [1]

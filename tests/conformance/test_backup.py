"""Backups: a copy of one moment, private, complete, and a queue in its own right."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from spoolctl.core.paths import stream_path
from spoolctl.core.records import Capture, JobFilter
from spoolctl.engine.stream_files import backup
from spoolctl.errors import InvalidInput, SpoolError
from spoolctl.store import open_store
from spoolctl.store.sqlite.connection import Connection
from tests.conformance.kit import Desk, job, success


def test_the_copy_is_the_queue_of_that_moment(desk: Desk, tmp_path: Path) -> None:
    desk.add("in the log, not in the file")
    large, small = desk.add(), desk.add()
    claimed = desk.claim(3)
    desk.report(success(claimed[1], stdout=Capture(10**6, None)))
    desk.report(success(claimed[2], stdout=Capture(2, b"hi")))
    target = tmp_path / "copies" / "copy.db"
    target.parent.mkdir()
    old = os.umask(0)
    try:
        files = desk.store.backup(str(target))
    finally:
        os.umask(old)
    assert files == [(claimed[1].token, "stdout")]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert os.listdir(target.parent) == ["copy.db"]
    desk.add("later")
    copy = open_store(str(target), create=False, wait_s=0.0)
    assert [one.id for one in copy.find(JobFilter(), limit=9)] == [3, 2, 1]
    assert copy.detail(small)._replace(owner=None) == desk.store.detail(small)
    assert copy.stream(claimed[2].attempt_id, "stdout") == b"hi"
    attempt = copy.attempt(large, None)
    assert attempt is not None
    assert attempt.stdout.path == stream_path(str(target), claimed[1].token, "stdout")
    copy.close()
    assert os.listdir(target.parent) == ["copy.db"]


def test_a_copy_is_private_and_readable_whatever_the_umask(desk: Desk, tmp_path: Path) -> None:
    desk.add()
    [attempt] = desk.claim()
    source = Path(stream_path(desk.store.path, attempt.token, "stdout"))
    source.parent.mkdir(parents=True)
    source.write_bytes(b"much")
    desk.report(success(attempt, stdout=Capture(4, None)))
    for umask in (0, 0o777):
        target = tmp_path / f"{umask}.db"
        old = os.umask(umask)
        try:
            assert backup(desk.store, str(target))[0] == 1
        finally:
            os.umask(old)
        copied = Path(stream_path(str(target), attempt.token, "stdout"))
        for path in (target, copied):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for folder in (copied.parent, copied.parent.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_existing_target_is_refused_and_left_alone(desk: Desk, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    with pytest.raises(InvalidInput):
        desk.store.backup(str(target))
    assert target.read_text() == "mine"
    with pytest.raises(InvalidInput):
        desk.store.backup(desk.store.path)
    assert desk.find() == []


def test_a_target_that_cannot_be_made(desk: Desk, tmp_path: Path) -> None:
    for target in (tmp_path / "no" / "folder", tmp_path / "x" / ".." / "y" / "z"):
        with pytest.raises(SpoolError):
            desk.store.backup(str(target))
    assert desk.add() == 1


def test_a_failed_copy_leaves_nothing_behind(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Connection, target: sqlite3.Connection) -> None:
        target.execute("CREATE TABLE half (x)")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Connection, "copy_to", fail)
    target = tmp_path / "folder" / "copy.db"
    target.parent.mkdir()
    with pytest.raises(SpoolError):
        desk.store.backup(str(target))
    assert os.listdir(target.parent) == []
    assert desk.add() == 1


def test_a_writer_does_not_disturb_a_copy(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_store(desk.store.path, create=False, wait_s=1.0)
    desk.store.add([job("x" * 2000) for _ in range(3000)], now=desk.clock.now())
    copy_to = Connection.copy_to

    def while_others_write(self: Connection, target: sqlite3.Connection) -> None:
        other.add([job("during")], now=desk.clock.now())
        copy_to(self, target)

    monkeypatch.setattr(Connection, "copy_to", while_others_write)
    desk.store.backup(str(tmp_path / "copy.db"))
    other.close()
    check = sqlite3.connect(tmp_path / "copy.db")
    assert check.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert check.execute("SELECT count(*) FROM jobs").fetchone()[0] == 3000
    check.close()
    assert len(desk.find(limit=-1)) == 3001


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_log_that_was_left_is_not_played_back_into_a_copy(
    desk: Desk, tmp_path: Path, suffix: str
) -> None:
    """By a queue of the copy's name that was removed after its program had been killed."""
    left = tmp_path / f"copy.db{suffix}"
    left.write_bytes(b"left")
    with pytest.raises(InvalidInput, match=f"copy.db{suffix} exists already"):
        backup(desk.store, str(tmp_path / "copy.db"))
    assert left.read_bytes() == b"left"
    assert not (tmp_path / "copy.db").exists()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", ".d"])
def test_a_copy_is_not_put_where_a_queue_has_its_own_files(
    desk: Desk, tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "other.db").write_bytes(b"")
    with pytest.raises(InvalidInput, match="part of"):
        backup(desk.store, str(tmp_path / f"other.db{suffix}"))
    assert not (tmp_path / f"other.db{suffix}").exists()

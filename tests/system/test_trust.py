"""Whose commands are these? `work` refuses a queue that another user owns or may write to."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from spoolctl import Queue
from tests.helpers import spoolctl

STRANGER = 54321  # a user id that nobody has


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A queue with one job, in a folder of its own."""
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    db = folder / "queue.db"
    assert spoolctl("add", "--db", str(db), "--", "true").returncode == 0
    return db


def assert_refused(db: Path) -> None:
    """The job is not run, unless that is asked for."""
    done = spoolctl("work", "--db", str(db), "--once", "--json")
    envelope = json.loads(done.stdout)
    assert (done.returncode, envelope["errors"][0]["code"]) == (2, "SAFETY_BLOCK")
    assert "--trust" in envelope["errors"][0]["remediation"]
    assert "queued 1" in spoolctl("status", "--db", str(db)).stdout
    assert spoolctl("work", "--db", str(db), "--once", "--trust").returncode == 0
    assert "done 1" in spoolctl("status", "--db", str(db)).stdout


def test_a_queue_of_ones_own_is_worked_on(db: Path) -> None:
    assert spoolctl("work", "--db", str(db), "--once").returncode == 0


@pytest.mark.parametrize("what", ["file", "folder", "support folder"])
def test_a_queue_that_everybody_may_write_to_is_refused(db: Path, what: str) -> None:
    path = {"file": db, "folder": db.parent, "support folder": Path(f"{db}.d")}[what]
    if what == "support folder":
        path.mkdir(exist_ok=True)
    path.chmod(path.stat().st_mode | 0o002)
    assert_refused(db)


def test_in_a_sticky_folder_like_tmp_a_queue_of_ones_own_is_worked_on(db: Path) -> None:
    db.parent.chmod(0o1777)
    assert spoolctl("work", "--db", str(db), "--once").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_queue_of_another_user_is_refused(db: Path, what: str) -> None:
    os.chown(db if what == "file" else db.parent, STRANGER, -1)
    assert_refused(db)


@pytest.fixture
def linked(db: Path) -> Path:
    """A queue whose support folder is a link to another folder of its owner."""
    target = db.parent.parent / "target"
    target.mkdir(mode=0o700)
    support = Path(f"{db}.d")
    shutil.rmtree(support, ignore_errors=True)
    support.symlink_to(target)
    return db


def test_a_link_of_ones_own_is_followed(linked: Path) -> None:
    assert spoolctl("work", "--db", str(linked), "--once").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_link_that_another_user_laid_to_a_folder_of_ours_is_refused(linked: Path) -> None:
    os.lchown(f"{linked}.d", STRANGER, -1)
    assert_refused(linked)


# -- files that SQLite would take for the queue's own ---------------------------------------


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A log, as SQLite leaves it, that holds the pages of a queue with another job."""
    other = tmp_path / "other.db"
    assert spoolctl("add", "--db", str(other), "--", "true").returncode == 0
    with Queue(str(other)) as queue:
        queue.add(["touch", str(tmp_path / "taken over")])
        return Path(shutil.copy(f"{other}-wal", tmp_path / "prepared"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_what_another_user_laid_beside_a_queue_is_not_taken_for_its_log(
    db: Path, prepared: Path, suffix: str
) -> None:
    """In /tmp anybody can make a file of that name; played back, it would put jobs in."""
    db.parent.chmod(0o1777)
    assert spoolctl("work", "--db", str(db), "--once").returncode == 0
    before = db.read_bytes()
    planted = Path(shutil.copy(prepared, f"{db}{suffix}"))
    os.chown(planted, STRANGER, -1)
    for verb in (["work", "--drain"], ["add", "--", "true"], ["status"], ["list"], ["wait", "1"]):
        done = spoolctl(verb[0], "--db", str(db), *verb[1:])
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{planted} belongs to user id {STRANGER}" in done.stderr
    assert str(planted) in spoolctl("doctor", "--db", str(db)).stdout
    assert db.read_bytes() == before
    planted.unlink()
    assert "done 1" in spoolctl("status", "--db", str(db)).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_no_queue_is_made_beside_the_log_of_another_user(tmp_path: Path, prepared: Path) -> None:
    db = tmp_path / "new.db"
    os.chown(shutil.copy(prepared, f"{db}-wal"), STRANGER, -1)
    done = spoolctl("add", "--db", str(db), "--", "true")
    assert (done.returncode, done.stdout) == (1, "")
    assert not db.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_log_of_a_user_who_may_write_to_the_queue_is_its_log(db: Path) -> None:
    with Queue(str(db)) as queue:
        queue.add(["true"])
        for each in (db, f"{db}-wal", f"{db}-shm"):
            os.chmod(each, 0o660)
        os.chown(f"{db}-wal", STRANGER, -1)
        assert "queued 2" in spoolctl("status", "--db", str(db)).stdout

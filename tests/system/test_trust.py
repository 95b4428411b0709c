"""Whose commands are these? `work` refuses a queue that another user owns or may write to."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

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

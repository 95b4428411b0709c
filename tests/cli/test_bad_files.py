"""Paths that are no queue, for every verb that opens one: a code, a sentence, nothing changed."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from spoolctl import Queue
from tests.cli.conftest import Call

OPENING = {
    "add": ["--", "true"],
    "cancel": ["1"],
    "events": [],
    "feedback": ["1"],
    "list": [],
    "output": ["1"],
    "prune": ["--older-than", "0", "--yes"],
    "retry": ["1"],
    "show": ["1"],
    "status": [],
    "wait": ["1"],
    "work": ["--once"],
    "backup": ["copy.db"],
}


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database at all\n" * 500)


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("")


def other_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY)")
    connection.close()


def newer(path: Path) -> None:
    Queue(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()


def truncated(path: Path) -> None:
    with Queue(path) as queue:
        queue.add_many([["true"]] * 100)
    os.truncate(path, 4096 + 100)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    os.symlink(path.name, path)


KINDS = {
    "garbage": (garbage, (1, 3)),
    "folder": (a_folder, (1,)),
    "other_program": (other_program, (1, 3)),
    "newer": (newer, (3,)),
    "truncated": (truncated, (1, 3)),
    "pipe": (a_pipe, (1,)),
    "loop": (a_loop, (1,)),
}


def content(path: Path) -> object:
    if path.is_symlink():
        return os.readlink(path)
    if path.is_dir():
        return sorted(os.listdir(path))
    return path.read_bytes() if path.is_file() else path.lstat().st_mode


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", OPENING)
def test_it_is_refused_and_left_as_it_is(call: Call, kind: str, verb: str) -> None:
    make, statuses = KINDS[kind]
    make(Path("it"))
    before, names = content(Path("it")), sorted(os.listdir())
    done = call(verb, "--json", "--db", "it", *OPENING[verb])
    assert done.status in statuses
    assert done.error["code"] == {1: "INVALID_INPUT", 3: "INTERNAL"}[done.status]
    assert content(Path("it")) == before
    assert [name for name in sorted(os.listdir()) if name not in names] == []
    as_text = call(verb, "--db", "it", *OPENING[verb])
    assert (as_text.status, as_text.out) == (done.status, b"")
    assert len(as_text.err.splitlines()) == 2


@pytest.mark.parametrize("verb", OPENING)
@pytest.mark.parametrize("path", ["file/queue.db", "file/deep/queue.db", ""])
def test_a_path_that_cannot_be(call: Call, verb: str, path: str) -> None:
    Path("file").write_text("a regular file")
    done = call(verb, "--json", "--db", path, *OPENING[verb])
    assert (done.status, done.error["code"]) == (1, "INVALID_INPUT")
    assert sorted(os.listdir()) == ["file"]


def test_an_empty_file_is_a_new_queue(call: Call) -> None:
    Path("it").touch()
    assert call("add", "--db", "it", "true").text == "Added job 1\n"


@pytest.mark.parametrize("verb", [each for each in OPENING if each not in ("add", "work")])
def test_only_add_and_work_make_a_queue(call: Call, verb: str) -> None:
    call(verb, "--db", "new/queue.db", *OPENING[verb])
    Path("empty").touch()
    call(verb, "--db", "empty", *OPENING[verb])
    assert os.listdir() == ["empty"]
    assert Path("empty").stat().st_size == 0


def test_the_environment_and_the_config_are_held_to_the_same(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage(Path("it"))
    os.mkdir(".spoolctl")
    Path(".spoolctl/config.json").write_text('{"db_path": "../it/queue.db"}')
    assert call("status", "--json").error["code"] == "INVALID_INPUT"
    monkeypatch.setenv("SPOOLCTL_DB", "it/queue.db")
    assert call("status", "--json").error["code"] == "INVALID_INPUT"


@pytest.mark.parametrize("name", ["HEARTBEAT_INTERVAL", "REAP_THRESHOLD"])
@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "abc", "86401", "1 "])
def test_bad_variables_for_trials_stop_work_alone(
    call: Call, db: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"SPOOLCTL_TEST_{name}", value)
    done = call("work", "--json", "--db", db, "--once")
    assert done.error["code"] == "INVALID_INPUT"
    assert not os.path.exists(db)
    assert call("add", "--db", db, "true").status == 0


def test_a_lock_that_stays_taken_is_told_after_five_seconds(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        began = time.monotonic()
        done = call("add", "--json", "--db", db, "true")
        assert 4 < time.monotonic() - began < 15
        assert (done.status, done.error["code"]) == (4, "LOCKED")
        # Readers are never blocked by a writer.
        for verb in ("status", "list", "events"):
            assert call(verb, "--json", "--db", db).status == 0
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert call("add", "--db", db, "true").text == "Added job 2\n"


EDITS = {
    "argv": "UPDATE jobs SET argv = '[\"tr' WHERE id = 2",
    "asked": "UPDATE jobs SET asked = '{' WHERE id = 2",
    "tags": "UPDATE jobs SET tags = '7' WHERE id = 2",
    "context": "UPDATE contexts SET body = '['",
    "capture": "UPDATE attempts SET capture = '['",
    "lanes": "UPDATE workers SET lanes = '['",
    "event": "UPDATE events SET event = 'eaten', detail = x'ff'",
    "exit code": "UPDATE attempts SET reason = 'none of ours'",
    "state": "UPDATE attempts SET worker = 99, token = zeroblob(16)",
}


@pytest.mark.parametrize("what", EDITS)
def test_a_row_that_was_edited_by_hand_surprises_no_verb(
    call: Call, tmp_path: Path, what: str
) -> None:
    """It is damage, or it does not matter; it is no error that nobody has thought of."""
    db = tmp_path / "queue.db"
    for script in ("echo out", "true"):
        call("add", "--db", str(db), "--tag", "t=1", "-c", script)
    assert call("work", "--db", str(db), "--once").status == 0
    with sqlite3.connect(db) as connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        assert connection.execute(EDITS[what]).rowcount > 0
    connection.close()
    for verb in [*OPENING, "doctor"]:
        for job in ("1", "2"):
            words = [job if word == "1" else word for word in OPENING.get(verb, [])]
            if verb == "backup":
                words = [str(tmp_path / f"copy-{job}.db")]
            elif verb == "wait":
                words += ["--timeout", "0.1"]
            said = call(verb, "--json", "--db", str(db), *words)
            whole = said.text + said.err
            assert "unexpected" not in whole, (verb, whole)
            assert said.status in (0, 1, 3, 4, 5, 6), (verb, whole)
            if said.status == 3:
                assert f"{db} is damaged" in whole, (verb, whole)


def test_doctor_and_worker_name_the_job_whose_command_cannot_be_read(call: Call, db: str) -> None:
    for _ in range(3):
        call("add", "--db", db, "--", "true")
    with sqlite3.connect(db) as connection:
        connection.execute(EDITS["argv"])
    connection.close()
    doctor = call("doctor", "--json", "--db", db)
    assert doctor.status != 0
    assert "the command of job 2 is a malformed value" in doctor.out.decode()
    worker = call("work", "--db", db, "--drain")
    assert worker.status == 3
    assert "the command of job 2 is a malformed value" in worker.err

"""`doctor`: seven checks, no trace, and what it says of workers and file systems."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spoolctl.cli.doctor import _folder_check
from spoolctl.engine import diagnosis
from tests.cli.contract import call, check
from tests.cli.test_contract_fuzz import fingerprint
from tests.helpers import clean_env, eventually, spoolctl
from tests.system import strace_log

IDS = [
    *("config_valid", "db_path_resolved", "spool_directory_writable", "database_exists"),
    *("sqlite_open_readwrite", "schema_version", "contract_metadata"),
]

Data = dict[str, Any]


def doctor(folder: Path, *words: str, ready: bool, env: dict[str, str] | None = None) -> Data:
    """The data of a call that leaves no trace whatsoever, not even beside the file."""
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    contents = fingerprint(folder)
    result = call("doctor", "--json", *words, cwd=folder, env=env)
    check(result)
    assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before
    assert fingerprint(folder) == contents
    assert result.status == (0 if ready else 3)
    data: Data = result.json()["data"]
    assert [each["id"] for each in data["checks"]] == IDS
    assert data["ready"] == ready
    text = call("doctor", *words, cwd=folder, env=env)
    check(text)
    for each in data["checks"]:
        if each["status"] == "fail":
            assert each["remediation"]
            assert each["id"] in text.stdout.decode()
    return data


def statuses(data: Data) -> str:
    """The first letters of all checks' results: p, w, f, s."""
    return "".join(each["status"][0] for each in data["checks"])


def blocked_by(data: Data) -> list[str | None]:
    return [each["blocked_by"] for each in data["checks"]]


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A folder with a queue at rest: three jobs, one of them done."""
    for _ in range(3):
        spoolctl("add", "--db", "queue.db", "--", "true", cwd=tmp_path)
    spoolctl("work", "--once", "--db", "queue.db", cwd=tmp_path)
    return tmp_path


def test_a_queue_at_rest_is_ready(queue: Path) -> None:
    data = doctor(queue, "--db", "queue.db", ready=True)
    assert statuses(data) == "ppppppp"
    assert data["summary"] == {"passed": 7, "warnings": 0, "failed": 0, "skipped": 0}
    assert data["config"]["db_source"] == "flag"
    assert data["versions"]["schema_version"] >= 1


def test_where_nothing_is_nothing_is_ready(tmp_path: Path) -> None:
    data = doctor(tmp_path, ready=False)
    assert statuses(data) == "ppffssp"
    assert blocked_by(data)[4:6] == ["database_exists"] * 2
    assert list(tmp_path.iterdir()) == []


def test_a_broken_config_file_skips_what_depends_on_it(queue: Path) -> None:
    (queue / ".spoolctl").mkdir()
    (queue / ".spoolctl" / "config.json").write_text("{")
    data = doctor(queue, ready=False)
    assert statuses(data) == "fsssssp"
    assert blocked_by(data)[1:6] == ["config_valid"] * 5
    assert data["config"]["config_valid"] is False
    assert data["config"]["db_path"] is data["config"]["db_source"] is None
    # Named by other means, the queue does not need it.
    assert statuses(doctor(queue, "--db", "queue.db", ready=True)) == "wpppppp"
    named = doctor(queue, env={"SPOOLCTL_DB": "queue.db"}, ready=True)
    assert named["config"]["db_source"] == "environment"


def test_unknown_keys_are_worth_a_warning(queue: Path) -> None:
    (queue / ".spoolctl").mkdir()
    (queue / ".spoolctl" / "config.json").write_text('{"db_path": "../queue.db", "colour": 1}')
    data = doctor(queue, ready=True)
    assert statuses(data) == "wpppppp"
    assert "'colour'" in data["checks"][0]["message"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "ppppfsp"),
        (b"garbage" * 999, "ppppfsp"),
        (b"SQLite format 3\0" + b"\1" * 4096, "ppppfsp"),
    ],
)
def test_what_is_no_queue_is_not_ready(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "it.db").write_bytes(content)
    data = doctor(tmp_path, "--db", "it.db", ready=False)
    assert statuses(data) == expected
    assert blocked_by(data)[5] == "sqlite_open_readwrite"


def test_another_programs_database_is_not_ready(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "it.db")
    db.execute("CREATE TABLE jobs (id)")
    db.close()
    assert statuses(doctor(tmp_path, "--db", "it.db", ready=False)) == "ppppfsp"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "it.db").mkdir()
    assert statuses(doctor(tmp_path, "--db", "it.db", ready=False)) == "pppfssp"


@pytest.mark.parametrize("version", [0, 9999])
def test_another_layout_is_not_ready(version: int, queue: Path) -> None:
    db = sqlite3.connect(queue / "queue.db")
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    assert statuses(doctor(queue, "--db", "queue.db", ready=False)) == "pppppfp"


def test_a_damaged_file_is_not_ready(queue: Path) -> None:
    path = queue / "queue.db"
    content = bytearray(path.read_bytes())
    content[4096 * 3 :] = b"\xa5" * (len(content) - 4096 * 3)
    path.write_bytes(content)
    assert statuses(doctor(queue, "--db", "queue.db", ready=False)) == "ppppfsp"


@pytest.mark.parametrize(("name", "at"), [("", 2), ("queue.db", 4)])
def test_what_cannot_be_written_is_not_ready(
    name: str, at: int, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = os.access  # which says yes to everything, for root

    def access(path: str, mode: int) -> bool:
        denied = bool(mode & os.W_OK) and path == str(queue / name).rstrip("/")
        return not denied and allowed(path, mode)

    monkeypatch.setattr(os, "access", access)
    data = doctor(queue, "--db", "queue.db", ready=False)
    assert data["checks"][at]["status"] == "fail"
    assert "is not writable" in data["checks"][at]["message"]


@pytest.mark.parametrize(
    ("used", "free"),
    [
        ({"f_bavail": 15, "f_bfree": 15}, False),
        ({"f_bavail": 16, "f_bfree": 16}, True),
        ({"f_favail": 0, "f_ffree": 0}, False),
        ({"f_favail": 0, "f_ffree": 0, "f_files": 0}, True),
    ],
)
def test_a_full_disk_is_not_ready(
    used: dict[str, int], free: bool, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"f_frsize": 4096, "f_blocks": 1000, "f_bavail": 900, "f_bfree": 900}
    there |= {"f_files": 500, "f_favail": 400, "f_ffree": 400} | used
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**there))
    check = _folder_check(str(queue), "local")
    assert (check.status == "pass") == free
    assert free or ("no room" in check.message and check.remediation)


def test_it_works_while_a_writer_holds_the_lock(queue: Path) -> None:
    writer = sqlite3.connect(queue / "queue.db", isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE jobs SET priority = 7")
    assert statuses(doctor_beside(queue)) == "ppppppp"
    writer.execute("COMMIT")
    writer.execute("BEGIN IMMEDIATE")
    assert (queue / "queue.db-wal").stat().st_size > 0
    assert statuses(doctor_beside(queue)) == "ppppppp"
    writer.execute("ROLLBACK")
    writer.close()


def doctor_beside(folder: Path) -> Data:
    """The data, asked while somebody else has the file open: nothing comes or goes."""
    names = sorted(folder.iterdir())
    wal = (folder / "queue.db-wal").read_bytes()
    result = call("doctor", "--json", "--db", "queue.db", cwd=folder)
    check(result)
    assert sorted(folder.iterdir()) == names
    assert (folder / "queue.db-wal").read_bytes() == wal
    data: Data = result.json()["data"]
    return data


def test_a_log_without_its_index_is_left_alone(queue: Path) -> None:
    writer = sqlite3.connect(queue / "queue.db", isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE jobs SET priority = 7")
    copy = queue / "copy"
    copy.mkdir()
    for name in ("queue.db", "queue.db-wal"):
        (copy / name).write_bytes((queue / name).read_bytes())
    writer.close()
    data = doctor(copy, "--db", "queue.db", ready=True)
    assert statuses(data) == "ppppwpp"
    assert data["unserved"] is None


@pytest.mark.skipif(not strace_log.can_strace(), reason="needs strace")
@pytest.mark.parametrize("name", ["queue.db", "none.db", "empty.db", "other.db"])
def test_no_system_call_could_change_anything(name: str, queue: Path, tmp_path: Path) -> None:
    (queue / "empty.db").touch()
    other = sqlite3.connect(queue / "other.db")
    other.execute("CREATE TABLE t (x)")
    other.close()
    words = [sys.executable, "-m", "spoolctl", "doctor", "--db", name]
    _, calls = strace_log.watch(words, tmp_path / "log", env=clean_env(), cwd=queue)
    opened = 0
    for each in (each for of_process in calls.values() for each in of_process):
        if each.name.startswith("open") and each.result_path.endswith((name, "-wal", "-shm")):
            opened += 1
            assert "O_RDONLY" in each.words, each
        if each.name in ("write", "pwrite64", "ftruncate"):
            assert str(queue) not in each.path, each
        assert "O_CREAT" not in each.words or "/dev/null" in each.words, each
    assert (opened > 0) == (name in ("queue.db", "other.db"))


# -- workers --------------------------------------------------------------------------------


def start_worker(folder: Path, *flags: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "spoolctl", "work", "--db", "queue.db", *flags],
        cwd=folder,
        env=clean_env({"SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "0.2"}),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that runs a long job of the queue `busy`; its job is the first."""
    spoolctl("add", "--db", "queue.db", "--queue", "busy", "--", "sleep", "60", cwd=tmp_path)
    process = start_worker(tmp_path, "--queue", "busy")
    eventually(lambda: _state(tmp_path) == "running")
    yield process
    process.kill()
    process.wait()


def _state(folder: Path) -> str:
    shown = spoolctl("show", "--json", "--db", "queue.db", "1", cwd=folder)
    return str(json.loads(shown.stdout)["data"]["job"]["state"])


def ask(folder: Path) -> Data:
    result = call("doctor", "--json", "--db", "queue.db", cwd=folder)
    check(result)
    data: Data = result.json()["data"]
    return data


def test_due_jobs_that_nobody_serves_are_named(
    tmp_path: Path, worker: subprocess.Popen[bytes]
) -> None:
    for words in (("--queue", "busy"), ("--queue", "gpu"), ("--queue", "gpu"), ("--after", "1h")):
        spoolctl("add", "--db", "queue.db", *words, "--", "true", cwd=tmp_path)
    data = ask(tmp_path)
    assert [(lane["queue"], lane["due"]) for lane in data["unserved"]] == [("gpu", 2)]
    assert data["workers"] == {"alive": 1, "dead": 0, "unclear": 0}
    assert data["orphaned_attempts"] == 0
    message = data["checks"][4]["message"]
    assert "2 due job(s) wait in queue gpu" in message
    assert "no living worker serves it" in message
    assert "spoolctl work --drain --queue gpu" in data["checks"][4]["remediation"]
    assert "queue gpu" in call("doctor", "--db", "queue.db", cwd=tmp_path).stdout.decode()


def test_jobs_of_dead_workers_are_named(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    assert ask(tmp_path)["orphaned_attempts"] == 0
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    data = ask(tmp_path)
    assert data["workers"] == {"alive": 0, "dead": 1, "unclear": 0}
    assert data["orphaned_attempts"] == 1
    assert data["checks"][4]["status"] == "warn"
    assert "spoolctl work --drain" in data["checks"][4]["remediation"]
    assert data["ready"] is True


def test_status_and_show_say_whose_worker_is_dead(
    tmp_path: Path, worker: subprocess.Popen[bytes]
) -> None:
    words = ("--json", "--db", "queue.db")

    def told() -> tuple[list[str], dict[str, str] | None]:
        status = call("status", *words, cwd=tmp_path)
        shown = call("show", *words, "1", cwd=tmp_path)
        check(status)
        check(shown)
        warnings = [f"{each['code']}: {each['message']}" for each in status.json()["warnings"]]
        return warnings, shown.json()["data"]["job"]["recovery"]

    assert told() == ([], None)
    worker.send_signal(signal.SIGSTOP)
    assert told() == ([], None)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    (warning,), recovery = told()
    assert warning.startswith("OWNER_GONE: running, but the owner is gone: #1; ")
    assert recovery is not None
    assert recovery["verdict"] == "dead"
    assert str(worker.pid) in recovery["reason"]
    shown = call("show", "--db", "queue.db", "1", cwd=tmp_path)
    assert f"recovery: dead: {recovery['reason']}" in shown.stdout.decode()
    # The quickstart shows what people see.
    assert call("status", "--db", "queue.db", cwd=tmp_path).stderr == b""


def test_a_stopped_worker_is_alive(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGSTOP)
    try:
        assert ask(tmp_path)["workers"]["alive"] == 1
    finally:
        worker.send_signal(signal.SIGCONT)


def test_jobs_that_have_waited_long_are_a_warning(queue: Path) -> None:
    db = sqlite3.connect(queue / "queue.db")
    db.execute("UPDATE jobs SET run_at = run_at - 3600 WHERE state = 'queued'")
    db.commit()
    db.close()
    assert statuses(ask(queue)) == "ppppwpp"


# -- file systems ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status", "word"),
    [
        ("local", "pass", "local"),
        ("shared", "warn", "another machine"),
        ("unknown", "warn", "unknown kind"),
        ("network", "fail", "network file system"),
    ],
)
def test_the_file_system_is_named(
    kind: str, status: str, word: str, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "file_system", lambda path: kind)
    data = doctor(queue, "--db", "queue.db", ready=kind != "network")
    assert data["file_system"] == kind
    assert data["checks"][2]["status"] == status
    assert word in data["checks"][2]["message"]


@pytest.mark.parametrize("path", ["", "x" * 5000])
def test_a_path_that_is_none_is_bad_input(path: str, tmp_path: Path) -> None:
    for env in ({}, {"SPOOLCTL_DB": path}):
        words = () if env else ("--db", path)
        result = call("doctor", "--json", *words, cwd=tmp_path, env=env)
        check(result)
        assert result.json()["errors"][0]["code"] == "INVALID_INPUT"

"""What the kernel sees: only SQLite opens the queue's file; what is told is synced first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers import clean_env, spoolctl
from tests.system.strace_log import (
    Call,
    can_strace,
    files_of,
    intrusions,
    opens_of,
    read_calls,
    unsynced_before,
    watch,
)

pytestmark = pytest.mark.skipif(not can_strace(), reason="strace is missing or not allowed")


class Watched:
    """A queue whose verbs are run under strace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "queue.db"
        self.runs = 0

    def run(self, verb: str, *words: str, status: int = 0) -> dict[int, list[Call]]:
        """Run a verb to its end; the calls of each of its processes."""
        self.runs += 1
        call = [sys.executable, "-m", "spoolctl", verb, "--db", str(self.db), *words]
        done, calls = watch(call, self.folder / f"trace{self.runs}", env=clean_env())
        assert done.returncode == status, done.stderr
        return calls

    def main_process(self, calls: dict[int, list[Call]]) -> list[Call]:
        """The calls of spoolctl itself: the process that has the queue open."""
        (found,) = [one for one in calls.values() if opens_of(one, self.db)]
        return found


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


SESSION = (
    ("add", "--", "echo", "hello"),
    ("add", "--max-retries", "0", "--", "sh", "-c", "exit 3"),
    ("add", "--", "sh", "-c", "head -c 200000 /dev/zero"),
    ("add", "--after", "1h", "--", "true"),
    ("work", "--drain", "-j", "2"),
    ("status",),
    ("list",),
    ("show", "1"),
    ("output", "1"),
    ("output", "3", "--stream", "stdout", "--raw"),
    ("events",),
    ("wait", "1", "--timeout", "5"),
    ("retry", "2"),
    ("cancel", "4"),
    ("prune", "--older-than", "0", "--yes"),
    ("doctor",),
)
"""One call of each kind, in an order in which each has something to do."""


@pytest.mark.slow
def test_only_sqlite_opens_the_queues_files(watched: Watched) -> None:
    opened = 0
    for words in SESSION:
        for calls in watched.run(*words).values():
            assert intrusions(calls, watched.db) == [], words
            opened += len(opens_of(calls, watched.db))
    target = watched.folder / "copy.db"
    for calls in watched.run("backup", str(target)).values():
        assert intrusions(calls, watched.db) == []
        assert intrusions(calls, target) == []
    assert opened >= 2 * len(SESSION), "the watch has seen nothing"


FDS_OF_THE_WORKERS_CHILDREN = """
for pid in $(cat /proc/$PPID/task/$PPID/children); do echo "== $pid"; ls -l /proc/$pid/fd; done
"""


def test_jobs_and_guardian_inherit_no_descriptor_of_the_queue(watched: Watched) -> None:
    """A forked copy that ends would drop the locks of the worker's SQLite (see strace_log)."""
    db = str(watched.db)
    spoolctl("add", "--db", db, "--", "sh", "-c", FDS_OF_THE_WORKERS_CHILDREN)
    spoolctl("work", "--db", db, "--once")
    shown = spoolctl("output", "--db", db, "1", "--stream", "stdout", "--raw").stdout
    children = shown.split("== ")[1:]
    assert len(children) == 2, "the guardian and the command"
    assert ".stdout" in shown
    for child in children:
        assert child.count(" -> ") >= 3, shown
        for name in files_of(watched.db):
            assert f"{name}\n" not in child


def test_add_returns_only_after_its_commit_is_synced(watched: Watched) -> None:
    for _ in range(2):
        calls = watched.main_process(watched.run("add", "--", "true"))
        assert unsynced_before(calls, watched.db, "Added job") == []
        assert any("Added job" in call.words for call in calls)


def test_the_folder_of_a_new_queue_is_synced_before_add_returns(watched: Watched) -> None:
    watched.db = watched.folder / "new" / "folder" / "queue.db"
    calls = watched.main_process(watched.run("add", "--", "true"))
    said = next(at for at, call in enumerate(calls) if "Added job" in call.words)
    synced = {call.path for call in calls[:said] if call.name == "fsync" and call.result == 0}
    parents = {str(watched.folder), str(watched.folder / "new"), str(watched.db.parent)}
    assert parents <= synced


@pytest.mark.parametrize(
    ("verb", "words", "saying"),
    [("cancel", ("1",), "Canceled job"), ("retry", ("2",), "Requeued job")],
)
def test_verdicts_of_people_are_synced_before_they_are_told(
    watched: Watched, verb: str, words: tuple[str, ...], saying: str
) -> None:
    for command in ("true", "false"):
        spoolctl("add", "--db", str(watched.db), "--max-retries", "0", "--", command)
    spoolctl("cancel", "--db", str(watched.db), "2")
    calls = watched.main_process(watched.run(verb, *words))
    assert unsynced_before(calls, watched.db, saying) == []
    assert any(saying in call.words for call in calls)


def test_a_result_is_synced_before_the_worker_tells_it(watched: Watched) -> None:
    for command in ("true", "false"):
        spoolctl("add", "--db", str(watched.db), "--max-retries", "0", "--", command)
    calls = watched.main_process(watched.run("work", "--drain"))
    for saying in ("-> done", "-> dead"):
        assert any(saying in call.words for call in calls)
        assert unsynced_before(calls, watched.db, saying) == []


def test_a_large_stream_is_synced_before_its_result_is_told(watched: Watched) -> None:
    large = "head -c 300000 /dev/zero"
    spoolctl("add", "--db", str(watched.db), "--", "sh", "-c", large)
    calls = watched.main_process(watched.run("work", "--drain"))
    said = next(at for at, call in enumerate(calls) if "-> done" in call.words)
    synced = [call.path for call in calls[:said] if call.name in ("fsync", "fdatasync")]
    assert any(path.endswith(".stdout") for path in synced)


# -- the watch itself: it must see what it is there for ------------------------------------------

OPENS_BESIDE = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1])
conn.execute("PRAGMA journal_mode=WAL")
conn.execute("CREATE TABLE t (x)")
open(sys.argv[1], "rb").read(100)
"""

SAYS_UNSYNCED = """
import os, sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("PRAGMA journal_mode=WAL")
conn.execute("PRAGMA synchronous=NORMAL")
conn.execute("CREATE TABLE t (x)")
conn.execute("INSERT INTO t VALUES (1)")
os.write(1, b"Added job 1\\n")
"""


def test_the_watch_notices_a_file_opened_beside_sqlite(tmp_path: Path) -> None:
    db = tmp_path / "queue.db"
    done, calls = watch(
        [sys.executable, "-c", OPENS_BESIDE, str(db)], tmp_path / "trace", env=clean_env()
    )
    assert done.returncode == 0, done.stderr
    found = [text for one in calls.values() for text in intrusions(one, db)]
    assert any("opened" in text for text in found)
    assert any("closed" in text for text in found)


def test_the_watch_notices_a_commit_that_was_told_before_its_sync(tmp_path: Path) -> None:
    db = tmp_path / "queue.db"
    done, calls = watch(
        [sys.executable, "-c", SAYS_UNSYNCED, str(db)], tmp_path / "trace", env=clean_env()
    )
    assert done.returncode == 0, done.stderr
    (found,) = [text for one in calls.values() for text in unsynced_before(one, db, "Added job")]
    assert "synced" in found


def test_logs_of_strace_are_read_as_they_are() -> None:
    log = (
        'openat(AT_FDCWD</t>, "/t/q.db", O_RDWR|O_CREAT|O_NOFOLLOW|O_CLOEXEC, 0644) = 3</t/q.db>\n'
        'pwrite64(4</t/q.db-wal>, "abc"..., 4096, 32) = 4096\n'
        "close(3</t/q.db>)                       = 0\n"
        "+++ exited with 0 +++\n"
    )
    opened, wrote, closed = read_calls(log)
    assert (opened.result, opened.result_path) == (3, "/t/q.db")
    assert (wrote.fd, wrote.path) == (4, "/t/q.db-wal")
    assert (closed.name, closed.fd) == ("close", 3)

"""`retry`, `cancel`, `prune`, `backup`: what they change, and when they refuse."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spoolctl import Queue
from spoolctl.core.states import State
from spoolctl.errors import InvalidInput
from tests.cli.conftest import Call
from tests.helpers import clean_env, eventually, spoolctl


@pytest.fixture
def worker(call: Call, db: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker on the queue."""
    with Queue(db):
        pass
    process = subprocess.Popen(
        [sys.executable, "-m", "spoolctl", "work", "--db", db],
        env=clean_env(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.05)
    process.wait(20)


def state(call: Call, db: str, job_id: int = 1) -> str:
    found: str = call("show", "--json", "--db", db, str(job_id)).data["job"]["state"]
    return found


def running(call: Call, db: str, *words: str) -> None:
    call("add", "--db", db, *words)
    eventually(lambda: state(call, db) == "running")


# -- cancel ---------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--running", "--yes"], ["--yes"], ["-y", "--running"]])
def test_a_waiting_job_is_canceled(call: Call, db: str, words: list[str]) -> None:
    call("add", "--db", db, "true")
    done = call("cancel", "--json", "--db", db, *words, "1")
    assert done.data == {"job_id": 1, "state": "canceled", "was_running": False}
    assert done.warnings == []
    again = call("cancel", "--json", "--db", db, *words, "1")
    assert (again.status, again.error["code"]) == (5, "CONFLICT")


def test_cancel_in_words(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    assert call("cancel", "--db", db, "1").text == "Canceled job 1\n"


def test_running_needs_its_confirmation_before_anything_is_looked_up(call: Call, db: str) -> None:
    done = call("cancel", "--json", "--db", db, "--running", "1")
    assert (done.status, done.error["code"]) == (2, "SAFETY_BLOCK")
    assert "--yes" in done.error["remediation"]
    assert not os.path.exists(db)


@pytest.mark.usefixtures("worker")
def test_a_running_job_is_stopped_when_that_is_confirmed(call: Call, db: str) -> None:
    running(call, db, "--", "sleep", "60")
    refused = call("cancel", "--json", "--db", db, "1")
    assert (refused.status, refused.error["code"]) == (2, "SAFETY_BLOCK")
    assert "--running --yes" in refused.error["remediation"]
    assert state(call, db) == "running"
    began = time.monotonic()
    done = call("cancel", "--json", "--db", db, "--running", "--yes", "1")
    assert time.monotonic() - began < 5
    assert done.data == {"job_id": 1, "state": "canceled", "was_running": True}
    assert done.warnings == []
    (attempt,) = call("show", "--json", "--db", db, "1").data["attempts"]
    assert (attempt["state"], attempt["failure_reason"]) == ("canceled", "canceled")
    assert attempt["gone_at"] is not None
    job = call("show", "--json", "--db", db, "1").data["job"]
    assert (job["attempts"], job["last_failure_reason"]) == (0, "canceled")


def test_an_owner_that_does_not_answer_is_told_of(
    call: Call, db: str, worker: subprocess.Popen[bytes]
) -> None:
    running(call, db, "--", "sleep", "60")
    worker.send_signal(signal.SIGSTOP)
    with Queue(db) as queue:
        began = time.monotonic()
        canceled = queue.cancel(1, running=True, confirm_s=0.3)
        assert 0.3 <= time.monotonic() - began < 5
    assert (canceled.was_running, canceled.gone) == (True, False)
    assert canceled.job.state is State.CANCELED


# -- retry ----------------------------------------------------------------------------------


def test_a_dead_job_gets_a_fresh_budget(call: Call, db: str) -> None:
    call("add", "--db", db, "--no-retry", "--tag", "a=1", "--key", "k", "-c", "exit 3")
    spoolctl("work", "--drain", "--db", db)
    assert call("retry", "--json", "--db", db, "--force", "1").error["code"] == "CONFLICT"
    assert call("retry", "--json", "--db", db, "1").data == {"job_id": 1, "state": "queued"}
    found = call("show", "--json", "--db", db, "1").data
    job = found["job"]
    assert (job["state"], job["attempts"], job["crashes"]) == ("queued", 0, 0)
    assert (job["last_error"], job["last_exit_code"], job["finished_at"]) == (None, None, None)
    assert job["last_failure_reason"] is None
    assert (job["tags"], job["idempotency_key"]) == ({"a": "1"}, "k")
    assert len(found["attempts"]) == 1
    assert [event["event"] for event in found["events"]][-2:] == ["dead", "retried"]
    assert call("retry", "--json", "--db", db, "1").error["code"] == "CONFLICT"


def test_a_canceled_job_comes_back_and_a_done_one_does_not(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    call("cancel", "--db", db, "1")
    assert call("retry", "--db", db, "1").text == "Requeued job 1 with a fresh retry budget\n"
    spoolctl("work", "--drain", "--db", db)
    for words in (["1"], ["--force", "1"]):
        done = call("retry", "--json", "--db", db, *words)
        assert (done.status, done.error["code"]) == (5, "CONFLICT")


@pytest.mark.usefixtures("worker")
def test_a_running_job_is_retried_by_force(call: Call, db: str) -> None:
    running(call, db, "-c", "echo $$ >> pids; sleep 60")
    refused = call("retry", "--json", "--db", db, "1")
    assert (refused.status, refused.error["code"]) == (2, "SAFETY_BLOCK")
    assert "--force" in refused.error["remediation"]
    assert call("retry", "--json", "--db", db, "--force", "1").data["state"] == "queued"

    def attempts() -> list[tuple[str, str | None]]:
        found = call("show", "--json", "--db", db, "1").data["attempts"]
        return [(each["state"], each["failure_reason"]) for each in found]

    eventually(lambda: attempts() == [("abandoned", "canceled"), ("running", None)])
    first, second = eventually(lambda: _two_words("pids"))
    assert not Path(f"/proc/{first}").exists()
    assert first != second


def _two_words(name: str) -> list[str]:
    words = Path(name).read_text().split()
    return words if len(words) == 2 else []


# -- prune ----------------------------------------------------------------------------------


def test_prune_needs_its_confirmation_before_the_queue_is_opened(call: Call, db: str) -> None:
    done = call("prune", "--json", "--db", db, "--older-than", "1d")
    assert (done.status, done.error["code"]) == (2, "SAFETY_BLOCK")
    assert "--yes" in done.error["remediation"]
    assert "--dry-run" in done.error["remediation"]
    missing = call("prune", "--json", "--db", db)
    assert missing.error["code"] == "MISSING_REQUIRED"
    both = call("prune", "--json", "--db", db, "--older-than", "1d", "--yes", "--dry-run")
    assert both.error["code"] == "INVALID_INPUT"
    assert not os.path.exists(os.path.dirname(db))


@pytest.mark.parametrize("states", ["queued", "running", "done,queued", "nonesuch", "", "done,"])
def test_prune_takes_settled_states_only(call: Call, db: str, states: str) -> None:
    done = call("prune", "--json", "--db", db, "--older-than", "0", "--state", states, "--yes")
    assert done.error["code"] == "INVALID_INPUT"


def test_prune_deletes_what_it_announced(call: Call, db: str) -> None:
    for script in ("head -c 100000 /dev/zero", "echo hi", "exit 3"):
        call("add", "--db", db, "--no-retry", "-c", script)
    call("add", "--db", db, "--after", "1h", "true")
    spoolctl("work", "--drain", "--db", db)
    path = call("output", "--json", "--db", db, "1").data["streams"]["stdout"]["path"]
    assert os.path.exists(path)
    young = call("prune", "--json", "--db", db, "--older-than", "1h", "--yes").data
    assert (young["matched"], young["deleted_jobs"]) == (0, 0)
    words = ("--db", db, "--older-than", "0", "--state", "done, dead")
    dry = call("prune", "--json", *words, "--dry-run").data
    real = call("prune", "--json", *words, "--yes").data
    assert real.pop("irreversible") is True
    assert (dry.pop("dry_run"), dry.pop("actual")) == (True, False)
    assert (real.pop("dry_run"), real.pop("actual")) == (False, True)
    assert dry == real
    assert (real["matched"], real["deleted_jobs"], real["deleted_attempts"]) == (3, 3, 3)
    assert real["deleted_events"] == 3 + 3 + 4
    assert real["freed_bytes"] == 100_000 + len("hi\n")
    assert not os.path.exists(path)
    assert [job["id"] for job in call("list", "--json", "--db", db).data["jobs"]] == [4]
    assert call("show", "--json", "--db", db, "1").error["code"] == "NOT_FOUND"
    # Ids are never given again.
    assert call("add", "--db", db, "true").text == "Added job 5\n"
    first = call("events", "--json", "--db", db).data["events"][0]
    assert (first["job_id"], first["id"]) == (4, 4)


def test_prune_in_words(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    spoolctl("work", "--drain", "--db", db)
    words = ("--db", db, "--older-than", "0")
    dry = call("prune", *words, "--dry-run").text
    assert dry.startswith("would prune 1 job(s), freeing ")
    assert call("prune", *words, "-y").text.startswith("pruned 1 job(s), freed ")


def test_a_conflict_says_what_to_do_instead(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    call("add", "--db", db, "--no-retry", "false")
    spoolctl("work", "--drain", "--db", db)
    call("add", "--db", db, "--after", "1h", "true")
    expected = {
        ("retry", "1"): "`spoolctl add`",
        ("retry", "--force", "1"): "`spoolctl add`",
        ("retry", "--force", "2"): "`spoolctl retry 2` is enough",
        ("retry", "3"): "`spoolctl show 3`",
        ("retry", "--force", "3"): "`spoolctl show 3`",
        ("cancel", "1"): "settled",
        ("cancel", "2"): "settled",
    }
    for words, advice in expected.items():
        error = call(words[0], "--json", "--db", db, *words[1:]).error
        assert error["code"] == "CONFLICT"
        assert advice in error["remediation"]


# -- backup ---------------------------------------------------------------------------------


def test_a_backup_is_a_queue_with_all_output(call: Call, db: str) -> None:
    call("add", "--db", db, "-c", "head -c 200000 /dev/urandom; echo small >&2")
    spoolctl("work", "--drain", "--db", db)
    call("add", "--db", db, "true")
    done = call("backup", "--json", "--db", db, "copy.db")
    copy = os.path.join(os.getcwd(), "copy.db")
    assert (done.data["path"], done.data["streams"]) == (copy, 1)
    assert done.data["size_bytes"] >= 200_000
    assert stat.S_IMODE(os.stat(copy).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(f"{copy}.d").st_mode) == 0o700
    with sqlite3.connect(copy) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    for words in (["--stream", "stdout"], ["--stream", "stderr"]):
        raw = [call("output", "--raw", "--db", each, *words, "1").out for each in (db, copy)]
        assert raw[0] == raw[1]
    # The copy stands alone: it works on, and the original is not touched by it.
    assert spoolctl("work", "--drain", "--db", copy).returncode == 0
    assert (state(call, copy, 2), state(call, db, 2)) == ("done", "queued")
    assert call("prune", "--json", "--db", copy, "--older-than", "0", "--yes").data["matched"] == 2
    assert len(call("output", "--raw", "--stream=stdout", "--db", db, "1").out) == 200_000


def test_a_backup_replaces_nothing(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    Path("there").write_text("precious")
    os.mkdir("other.db.d")
    os.symlink("nowhere", "link")
    for name in ("there", "other.db", "no/such/folder/copy.db", db, "link/x"):
        done = call("backup", "--json", "--db", db, name)
        assert done.error["code"] == "INVALID_INPUT", name
    assert Path("there").read_text() == "precious"
    assert sorted(os.listdir()) == ["link", "other.db.d", "there"]


def test_a_folder_that_takes_no_backup_is_bad_input(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    error = call("backup", "--json", "--db", db, "/dev/fd/copy.db").error
    assert error["code"] == "INVALID_INPUT"
    assert error["message"].startswith("cannot write in /")
    assert "--db" not in error["remediation"]  # it is another path that is wrong
    with Queue(db) as queue, pytest.raises(InvalidInput):
        queue.backup("/dev/fd/copy.db")


def test_a_failed_backup_leaves_nothing(
    call: Call, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("add", "--db", db, "-c", "head -c 200000 /dev/zero")
    spoolctl("work", "--drain", "--db", db)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spoolctl.engine.stream_files._copy", full)
    done = call("backup", "--json", "--db", db, "copy.db")
    assert (done.status, done.error["code"]) == (3, "INTERNAL")
    assert "No space left" in done.error["message"]
    assert os.listdir() == []


def test_a_name_that_is_taken_meanwhile_is_not_replaced(
    call: Call, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("add", "--db", db, "true")
    link = os.link

    def taken(source: str, target: str) -> None:
        Path(target).write_text("precious")
        link(source, target)

    monkeypatch.setattr("os.link", taken)
    with Queue(db) as queue, pytest.raises(InvalidInput):
        queue.backup("copy.db")
    assert Path("copy.db").read_text() == "precious"
    assert os.listdir() == ["copy.db"]


def test_a_hole_stays_a_hole(call: Call, db: str) -> None:
    call("add", "--db", db, "-c", "yes | head -c 4000000; sleep 2.5; echo end")
    spoolctl("work", "--drain", "--db", db, "--max-output", "1M")
    original = call("output", "--json", "--db", db, "1").data["streams"]["stdout"]
    if not original["dropped_bytes"]:
        pytest.skip("this file system cannot drop the middle of a file")
    call("backup", "--db", db, "copy.db")
    copied = call("output", "--json", "--db", "copy.db", "1").data["streams"]["stdout"]
    assert copied["size_bytes"] == original["size_bytes"] == 4_000_004
    blocks = [os.stat(each["path"]).st_blocks for each in (original, copied)]
    assert blocks[1] <= blocks[0] + 8

"""`wait` and `events`: awaiting, following, and how they end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spoolctl import Queue
from tests.cli.conftest import Call
from tests.helpers import clean_env, eventually, spoolctl


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "spoolctl", *words],
        env=clean_env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def queue(db: str) -> Iterator[Queue]:
    with Queue(db) as opened:
        yield opened


def later(seconds: float, what: Any) -> threading.Timer:
    timer = threading.Timer(seconds, what)
    timer.start()
    return timer


def waiting(db: str) -> None:
    """Until somebody has hung up a doorbell."""
    folder = Path(f"{db}.d/waiters")
    eventually(lambda: folder.is_dir() and list(folder.glob("*.bell")), what="a doorbell")


# -- wait -----------------------------------------------------------------------------------


def test_settled_jobs_are_told_at_once(call: Call, db: str) -> None:
    for script in ("true", "exit 3"):
        call("add", "--db", db, "--no-retry", "-c", script)
    call("add", "--db", db, "--after", "1h", "true")
    call("cancel", "--db", db, "3")
    spoolctl("work", "--drain", "--db", db)
    done = call("wait", "--json", "--db", db, "--timeout", "0.001", "2", "1", "3", "1")
    assert done.status == 6
    assert done.err == ""
    assert done.data == {
        "all_succeeded": False,
        "jobs": {
            "2": {"state": "dead", "attempts": 1, "last_exit_code": 3, "last_error": "exit 3"},
            "1": {"state": "done", "attempts": 0, "last_exit_code": 0, "last_error": None},
            "3": {
                "state": "canceled",
                "attempts": 0,
                "last_exit_code": None,
                "last_error": None,
            },
        },
    }
    good = call("wait", "--db", db, "1")
    assert (good.status, good.text) == (0, "#1  done\nall succeeded\n")
    bad = call("wait", "--db", db, "1", "2")
    assert (bad.status, bad.text) == (6, "#1  done\n#2  dead\nnot all succeeded\n")


def test_time_is_up(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    done = call("wait", "--json", "--db", db, "--timeout", "0.05", "1")
    assert (done.status, done.error["code"]) == (4, "TIMEOUT")
    assert os.listdir(f"{db}.d/waiters") == []


def test_wait_is_woken_by_the_end(call: Call, db: str, queue: Queue) -> None:
    job = queue.add(["true"])
    process = start("wait", "--db", db, "--timeout", "30", "--json", str(job.id))
    waiting(db)
    assert process.poll() is None
    spoolctl("work", "--once", "--db", db)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert json.loads(out)["data"]["all_succeeded"]


def test_a_doorbell_wakes_long_before_the_poll(call: Call, db: str, queue: Queue) -> None:
    job = queue.add(["true"])
    process = start("wait", "--db", db, "--poll-interval", "600", str(job.id))
    assert process.stderr is not None
    # It looks once more after two seconds, says that no worker is there, and then only sleeps.
    assert b"no live worker" in process.stderr.readline()
    queue.cancel(job.id)
    assert process.wait(10) == 6


def test_wait_is_right_after_a_retry(call: Call, db: str, queue: Queue) -> None:
    job = queue.add(["false"])
    queue.cancel(job.id)
    queue.retry(job.id)
    done = call("wait", "--json", "--db", db, "--timeout", "0.05", str(job.id))
    assert done.error["code"] == "TIMEOUT"


def test_a_job_that_is_pruned_meanwhile_is_not_found(call: Call, db: str, queue: Queue) -> None:
    one, other = queue.add(["true"]), queue.add(["true"])
    process = start("wait", "--json", "--db", db, str(one.id), str(other.id))
    waiting(db)
    queue.cancel(one.id)
    time.sleep(0.3)
    queue.prune(0, states=["canceled"])
    queue.cancel(other.id)
    out, _ = process.communicate(timeout=20)
    envelope = json.loads(out)
    # Seen settled before it was pruned: a regular result; else it is not found.
    if process.returncode == 6:
        assert envelope["data"]["jobs"][str(one.id)]["state"] == "canceled"
    else:
        assert envelope["errors"][0]["code"] == "NOT_FOUND"


def test_a_retried_job_is_waited_for_again(call: Call, db: str, queue: Queue) -> None:
    one, other = queue.add(["true"]), queue.add(["true"])
    queue.cancel(one.id)
    process = start("wait", "--db", db, str(one.id), str(other.id))
    waiting(db)
    queue.retry(one.id)
    queue.cancel(other.id)
    time.sleep(0.3)
    assert process.poll() is None
    queue.cancel(one.id)
    assert process.wait(20) == 6


def test_ctrl_c_ends_a_wait_by_the_signal(call: Call, db: str, queue: Queue) -> None:
    job = queue.add(["true"])
    process = start("wait", "--db", db, str(job.id))
    waiting(db)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (-signal.SIGINT, b"", b"")
    assert os.listdir(f"{db}.d/waiters") == []


def test_waiting_costs_no_cpu(call: Call, db: str, queue: Queue) -> None:
    job = queue.add(["true"])
    process = start("wait", "--db", db, str(job.id))
    waiting(db)

    def ticks() -> int:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    time.sleep(0.3)
    before = ticks()
    time.sleep(2)
    assert ticks() - before <= 1
    queue.cancel(job.id)
    process.wait(10)


def test_wait_by_tag_queue_and_all(call: Call, db: str, queue: Queue) -> None:
    for lane, tags in (("a", {"t": "1"}), ("a", {"t": "2"}), ("b", {"t": "1"}), ("b", {})):
        queue.add(["true"], queue=lane, tags=tags)
    queue.cancel(1)
    waits = {
        "--tag=t=1": {"1", "3"},
        "--tag=t": {"1", "2", "3"},
        "--queue=a": {"2"},
        "--all": {"2", "3", "4"},
    }
    processes = {words: start("wait", "--json", "--db", db, words) for words in waits}
    both = start("wait", "--json", "--db", db, "--queue=a", "--tag=t=1")
    assert both.wait(20) == 6
    eventually(lambda: len(list(Path(f"{db}.d/waiters").glob("*.bell"))) == 4)
    for job_id in (2, 3, 4):
        queue.cancel(job_id)
    for words, ids in waits.items():
        out, _ = processes[words].communicate(timeout=20)
        assert set(json.loads(out)["data"]["jobs"]) == ids
    nothing = call("wait", "--json", "--db", db, "--all")
    assert (nothing.status, nothing.data) == (0, {"all_succeeded": True, "jobs": {}})
    assert call("wait", "--json", "--db", db, "--queue", "a").status == 0
    assert call("wait", "--json", "--db", db, "--tag", "x").error["code"] == "NOT_FOUND"
    assert "tags" in call("wait", "--json", "--db", db, "--tag", "x").error["remediation"]
    for bad in (["--all", "1"], ["--tag", "t", "1"], ["--all", "--queue", "a"], []):
        assert call("wait", "--json", "--db", db, *bad).status == 1


def test_a_lane_without_any_jobs_is_said(call: Call, db: str, queue: Queue) -> None:
    queue.add(["true"], queue="gpu")
    queue.cancel(1)
    assert call("wait", "--json", "--db", db, "--queue", "gpu").warnings == []
    done = call("wait", "--json", "--db", db, "--queue", "gpO")
    assert (done.status, done.warnings) == (0, ["NO_JOBS"])
    assert "there are jobs in gpu" in call("wait", "--db", db, "--queue", "gpO").err
    queue.prune(0, states=["canceled"])
    assert "nor does any other" in call("wait", "--db", db, "--queue", "gpu").err


def test_the_first_to_settle(call: Call, db: str, queue: Queue) -> None:
    queue.add_many([["true"]] * 3)
    process = start("wait", "--json", "--db", db, "--any", "1", "2", "3")
    waiting(db)
    queue.cancel(2)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 6
    assert set(json.loads(out)["data"]["jobs"]) == {"2"}
    assert call("wait", "--json", "--db", db, "--any", "1", "2").data["jobs"].keys() == {"2"}


def test_nobody_to_run_the_job_is_said_after_a_while(call: Call, db: str, queue: Queue) -> None:
    queue.add(["true"], queue="lonely")
    words = ("wait", "--json", "--db", db, "--timeout", "4", "1")
    process = start(*words)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 4
    assert b"no live worker serves the queue lonely" in err
    assert [each["code"] for each in json.loads(out)["warnings"]] == ["NO_WORKER"]
    process = start(*words)
    waiting(db)
    time.sleep(2.5)
    queue.cancel(1)
    out, err = process.communicate(timeout=20)
    assert [each["code"] for each in json.loads(out)["warnings"]] == ["NO_WORKER"]
    worker = start("work", "--db", db, "--all-queues")
    eventually(lambda: queue.unserved(["lonely", "x"]) == frozenset())
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert queue.unserved(["lonely"]) == {"lonely"}


# -- events, one page -----------------------------------------------------------------------


def test_the_ledger_in_order(call: Call, db: str, queue: Queue) -> None:
    for _ in range(3):
        queue.cancel(queue.add(["true"]).id)
    done = call("events", "--json", "--db", db)
    events = done.data["events"]
    assert [event["id"] for event in events] == [1, 2, 3, 4, 5, 6]
    assert [(each["job_id"], each["event"]) for each in events[2:4]] == [
        (2, "added"),
        (2, "canceled"),
    ]
    assert done.envelope["meta"]["pagination"] == {"cursor": 6, "first_id": 1}
    assert "wait" not in done.envelope["meta"]
    cut = call("events", "--json", "--db", db, "--limit", "2", "--since-id", "1")
    assert [event["id"] for event in cut.data["events"]] == [2, 3]
    assert cut.envelope["meta"]["pagination"] == {"cursor": 3, "first_id": 1}
    exact = call("events", "--json", "--db", db, "--limit", "2", "--since-cursor", "4")
    assert exact.envelope["meta"]["pagination"]["cursor"] == 6
    beyond = call("events", "--json", "--db", db, "--since-id", "99")
    assert (beyond.data["count"], beyond.envelope["meta"]["pagination"]["cursor"]) == (0, 99)
    one = call("events", "--json", "--db", db, "--job", "2")
    assert [event["id"] for event in one.data["events"]] == [3, 4]
    assert one.envelope["meta"]["pagination"] == {"cursor": 6, "first_id": 3}
    none = call("events", "--json", "--db", db, "--job", "77")
    assert none.envelope["meta"]["pagination"] == {"cursor": 6, "first_id": None}


def test_a_line_has_the_event_and_the_job(call: Call, db: str) -> None:
    call("add", "--db", db, "-c", "exit 3")
    spoolctl("work", "--once", "--db", db, "--worker-id", "w\u202e 1".replace("\u202e", "ü"))
    lines = call("events", "--db", db).text.splitlines()
    assert lines[0].startswith("1  ")
    assert lines[0].endswith("  #1 added  -  -")
    assert lines[2].endswith("  #1 failed  wü 1  exit 3")


@pytest.mark.parametrize(
    "words",
    [
        ["--wait", "--follow"],
        ["--limit", "1", "--follow"],
        ["--max-events", "1"],
        ["--max-events", "1", "--wait"],
        ["--idle-timeout", "1"],
        ["--idle-timeout", "1", "--wait"],
        ["--follow", "--max-events", "0"],
        ["--follow", "--max-events", "10001"],
        ["--since-id", "-1"],
        ["--limit", "10001"],
    ],
)
def test_flags_of_events_that_do_not_go_together(call: Call, db: str, words: list[str]) -> None:
    done = call("events", "--json", "--db", db, *words)
    assert done.error["code"] == "INVALID_INPUT"


# -- events --wait --------------------------------------------------------------------------


def test_wait_returns_what_is_there(call: Call, db: str, queue: Queue) -> None:
    queue.add(["true"])
    done = call("events", "--json", "--db", db, "--wait")
    assert done.data["count"] == 1
    assert done.envelope["meta"]["wait"]["reason"] == "records_available"
    assert done.envelope["meta"]["wait"]["waited_ms"] < 5000


def test_wait_times_out_in_good_order(call: Call, db: str, queue: Queue) -> None:
    queue.add(["true"])
    done = call("events", "--json", "--db", db, "--wait", "--since-id=1", "--wait-timeout", "0.2")
    assert (done.status, done.data["count"]) == (0, 0)
    assert done.envelope["meta"]["wait"]["reason"] == "timeout"
    assert 150 <= done.envelope["meta"]["wait"]["waited_ms"] < 5000


def test_wait_is_woken_by_an_event_of_the_job(call: Call, db: str, queue: Queue) -> None:
    one, other = queue.add(["true"]), queue.add(["true"])
    process = start(
        *("events", "--json", "--db", db, "--wait", "--job", str(one.id), "--since-id", "2"),
        *("--poll-interval", "600"),
    )
    waiting(db)
    queue.cancel(other.id)
    queue.cancel(one.id)
    out, _ = process.communicate(timeout=20)
    (event,) = json.loads(out)["data"]["events"]
    assert (event["job_id"], event["event"]) == (one.id, "canceled")


def test_wait_sees_a_queue_that_appears(call: Call, db: str) -> None:
    process = start("events", "--json", "--db", db, "--wait")
    time.sleep(0.3)
    call("add", "--db", db, "true")
    out, _ = process.communicate(timeout=20)
    assert json.loads(out)["data"]["count"] == 1


# -- events --follow ------------------------------------------------------------------------


def frames(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_follow_starts_at_the_present(call: Call, db: str, queue: Queue) -> None:
    queue.add(["true"])
    process = start("events", "--follow", "--json", "--db", db, "--max-events", "2")
    waiting(db)
    queue.add(["true"])
    queue.add(["true"])
    out, err = process.communicate(timeout=20)
    *data, end = frames(out)
    assert [(each["id"], each["job_id"], each["event"]) for each in data] == [
        (2, 2, "added"),
        (3, 3, "added"),
    ]
    assert end == {"control": {"type": "end", "reason": "max_events"}}
    assert (process.returncode, err) == (0, b"")


def test_follow_gives_the_backlog_and_counts_it(call: Call, db: str, queue: Queue) -> None:
    queue.add_many([["true"]] * 1200)
    done = call("events", "--follow", "--json", "--db", db, "--since-id", "0", "--max-events=1100")
    *data, end = frames(done.out)
    assert [each["id"] for each in data] == list(range(1, 1101))
    assert end["control"]["reason"] == "max_events"


def test_follow_ends_when_it_is_quiet(call: Call, db: str, queue: Queue) -> None:
    queue.add(["true"])
    timers = [later(0.3 * n, lambda: Queue(db).add(["true"])) for n in (1, 2)]
    began = time.monotonic()
    done = call(
        *("events", "--follow", "--json", "--db", db, "--since-id=0", "--idle-timeout", "0.8"),
        *("--poll-interval", "600"),
    )
    assert 0.6 + 0.8 <= time.monotonic() - began < 10
    *data, end = frames(done.out)
    assert [each["id"] for each in data] == [1, 2, 3]
    assert end == {"control": {"type": "end", "reason": "idle_timeout"}}
    assert done.status == 0
    for timer in timers:
        timer.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_signal_ends_the_stream_in_good_order(
    call: Call, db: str, queue: Queue, number: signal.Signals, as_json: bool
) -> None:
    queue.add(["true"])
    words = ["--json"] if as_json else []
    process = start("events", "--follow", *words, "--db", db, "--since-id", "0")
    assert process.stdout is not None
    first = process.stdout.readline()
    assert b"added" in first
    waiting(db)
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 2
    assert (process.returncode, out, err) == (0, b"", b"")
    assert os.listdir(f"{db}.d/waiters") == []


def test_a_reader_that_goes_away_ends_the_stream(call: Call, db: str, queue: Queue) -> None:
    queue.add(["true"])
    process = start(
        *("events", "--follow", "--json", "--db", db, "--since-id", "0"),
        *("--poll-interval", "600"),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    waiting(db)
    process.stdout.close()
    assert process.wait(5) == -signal.SIGPIPE
    assert process.stderr.read() == b""


def test_follow_without_json_prints_lines_and_nothing_else(
    call: Call, db: str, queue: Queue
) -> None:
    queue.add(["true"])
    done = call("events", "--follow", "--db", db, "--since-id", "0", "--max-events", "1")
    (line,) = done.text.splitlines()
    assert line.endswith("#1 added  -  -")


def test_follow_filters_by_job_and_does_not_mind_gaps(call: Call, db: str, queue: Queue) -> None:
    for _ in range(4):
        queue.cancel(queue.add(["true"]).id)
    queue.prune(0, states=["canceled"])
    kept = queue.add(["true"])
    queue.add(["true"])
    done = call(
        *("events", "--follow", "--json", "--db", db, "--since-id", "1", "--job", str(kept.id)),
        *("--idle-timeout", "0.2"),
    )
    *data, _ = frames(done.out)
    assert [each["job_id"] for each in data] == [kept.id]
    assert data[0]["id"] == 9


def test_a_queue_that_vanishes_ends_the_stream_with_an_error(
    call: Call, db: str, queue: Queue
) -> None:
    queue.add(["true"])
    words = ("--db", db, "--poll-interval", "0.1")
    stream = start("events", "--follow", "--json", *words, "--since-id", "0")
    wait = start("wait", "--json", *words, "1")
    assert stream.stdout is not None
    stream.stdout.readline()
    eventually(lambda: len(list(Path(f"{db}.d/waiters").glob("*.bell"))) == 2)
    shutil.rmtree(os.path.dirname(db))
    out, _ = stream.communicate(timeout=20)
    assert stream.returncode == 3
    (frame,) = frames(out)
    assert frame["control"]["type"] == "error"
    assert (frame["control"]["reason"], frame["control"]["exit_code"]) == ("sqlite_error", 3)
    assert "removed" in frame["control"]["message"]
    out, _ = wait.communicate(timeout=20)
    assert wait.returncode == 3
    assert json.loads(out)["errors"][0]["code"] == "INTERNAL"
    assert not os.path.exists(db)


def test_follow_without_a_queue_waits_for_it(call: Call, db: str) -> None:
    done = call("events", "--follow", "--json", "--db", db, "--idle-timeout", "0.2")
    assert frames(done.out) == [{"control": {"type": "end", "reason": "idle_timeout"}}]
    assert not os.path.exists(db)
    process = start("events", "--follow", "--json", "--db", db, "--max-events=1", "--since-id=0")
    time.sleep(0.3)
    call("add", "--db", db, "true")
    out, _ = process.communicate(timeout=20)
    assert [each.get("event") for each in frames(out)] == ["added", None]

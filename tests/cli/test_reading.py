"""`status`, `list`, `show`: what is found, in which order, and how it is written."""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path

import pytest

from spoolctl import Queue
from spoolctl.cli.show import MASK
from spoolctl.errors import InvalidInput
from tests.cli.conftest import Call
from tests.helpers import spoolctl

NASTY = "a\x1b[2J\r\n\x07\x9b\u202e\u2028b"


def test_without_a_queue_there_is_nothing_and_a_warning(call: Call, tmp_path: Path) -> None:
    status = call("status", "--json")
    assert status.warnings == ["NO_QUEUE"]
    assert set(status.data["counts"].values()) == {0}
    assert (status.data["queues"], status.data["recent_dead"]) == ({}, [])
    listed = call("list", "--json")
    assert (listed.warnings, listed.data) == (["NO_QUEUE"], {"count": 0, "jobs": []})
    assert listed.envelope["meta"]["pagination"]["cursor"] == 0
    assert listed.envelope["meta"]["pagination"]["first_id"] is None
    events = call("events", "--json")
    assert (events.warnings, events.data) == (["NO_QUEUE"], {"count": 0, "events": []})
    pruned = call("prune", "--json", "--older-than", "0", "--yes")
    assert (pruned.warnings, pruned.data["matched"]) == (["NO_QUEUE"], 0)
    as_text = call("status")
    assert as_text.text == "canceled 0  dead 0  done 0  failed 0  queued 0  running 0\n"
    assert as_text.err == f"warning: there is no queue at {os.getcwd()}/.spoolctl/queue.db\n"
    assert call("list").text == "No jobs\n"
    assert call("events").text == "No events\n"
    assert os.listdir() == []


@pytest.mark.parametrize(
    "words",
    [
        ["show", "7"],
        ["wait", "7"],
        ["output", "7"],
        ["cancel", "7"],
        ["retry", "7"],
        ["output", "--follow", "7"],
        ["backup", "copy.db"],
    ],
)
def test_without_a_queue_there_is_no_job(call: Call, words: list[str]) -> None:
    done = call(*words[:1], "--json", *words[1:]) if "--follow" not in words else call(*words)
    assert done.status == 1
    assert f"{os.getcwd()}/.spoolctl/queue.db" in done.err
    assert os.listdir() == []


def test_an_unknown_job_is_not_found(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    for verb in ("show", "output", "cancel", "retry"):
        done = call(verb, "--json", "--db", db, "9223372036854775807")
        assert done.error["code"] == "NOT_FOUND"
        assert db in done.error["message"]
    waited = call("wait", "--json", "--db", db, "1", "8", "9", "8")
    assert waited.error["code"] == "NOT_FOUND"
    assert re.search(r"\b8, 9\b", waited.error["message"])


def test_status_in_words(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    assert call("status", "--db", db).text == (
        "canceled 0  dead 0  done 0  failed 0  queued 1  running 0\n"
    )
    call("add", "--db", db, "--after", "1h", "true")
    call("add", "--db", db, "--queue", "b", "true")
    call("cancel", "--db", db, "3")
    assert call("status", "--db", db).text == (
        "canceled 1  dead 0  done 0  failed 0  queued 2  running 0\n"
        "scheduled 1\n"
        "queues:\n"
        "  b:  canceled 1  dead 0  done 0  failed 0  queued 0  running 0\n"
        "  default:  canceled 0  dead 0  done 0  failed 0  queued 2  running 0  scheduled 1\n"
    )
    data = call("status", "--json", "--db", db).data
    assert data["queues"]["default"]["scheduled"] == data["scheduled"] == 1


def test_the_latest_dead_come_first(call: Call, db: str) -> None:
    for number in range(3):
        call("add", "--db", db, "--no-retry", "-c", f"exit {number + 1}; {'x' * 300}")
    spoolctl("work", "--drain", "--db", db)
    dead = call("status", "--json", "--db", db).data["recent_dead"]
    assert [job["id"] for job in dead] == [3, 2, 1]
    assert [job["last_error"] for job in dead] == ["exit 3", "exit 2", "exit 1"]
    assert {(job["attempts"], job["crashes"]) for job in dead} == {(1, 0)}
    assert call("status", "--json", "--db", db, "--limit", "1").data["recent_dead"] == dead[:1]
    assert call("status", "--json", "--db", db, "--limit", "0").data["recent_dead"] == dead
    lines = call("status", "--db", db, "--limit", "2").text.splitlines()
    assert lines[0].startswith("canceled 0  dead 3  ")
    assert lines[1] == "recent dead:"
    assert [line.split()[0] for line in lines[2:]] == ["#3", "#2"]
    assert "  exit 3  sh -c 'exit 3; xxx" in lines[2], "as `list` shows it"


# -- list -----------------------------------------------------------------------------------


@pytest.fixture
def mixed(call: Call, db: str) -> str:
    """Jobs of several lanes, priorities, tags and states."""
    with Queue(db) as queue:
        for lane, priority, tags in itertools.product(
            ("default", "b"), (0, 5), ({}, {"k": "1"}, {"k": "2", "other": ""})
        ):
            queue.add(["true"], queue=lane, priority=priority, tags=tags)
            queue.cancel(queue.add(["false"], queue=lane, priority=priority, tags=tags).id)
    return db


@pytest.mark.parametrize("state", [None, "queued", "canceled", "queued,canceled", "dead"])
@pytest.mark.parametrize("lane", [None, "b", "none"])
@pytest.mark.parametrize("tags", [[], ["k"], ["k=1"], ["k", "other="], ["k=1", "other"]])
@pytest.mark.parametrize("limit", ["0", "1", "3", "50"])
def test_filters_apply_before_the_limit(
    call: Call, mixed: str, state: str | None, lane: str | None, tags: list[str], limit: str
) -> None:
    every = call("list", "--json", "--db", mixed).data["jobs"]
    words = ["--limit", limit, "--priority-min", "5", *(f"--tag={tag}" for tag in tags)]
    words += ["--state", state] if state else []
    words += ["--queue", lane] if lane else []
    done = call("list", "--json", "--db", mixed, *words)
    expected = [
        job
        for job in every
        if (state is None or job["state"] in state.split(","))
        and (lane is None or job["queue"] == lane)
        and job["priority"] >= 5
        and all(_has(job["tags"], tag) for tag in tags)
    ]
    kept = expected[: int(limit)] if limit != "0" else expected
    assert done.data == {"count": len(kept), "jobs": kept}
    assert done.envelope["meta"]["pagination"] == {
        "cursor": kept[-1]["id"] if kept else 0,
        "first_id": 1,
        "limit": int(limit),
        "truncated": len(kept) < len(expected),
        **({"scanned": len(kept), "scan_limit": 1000} if tags else {}),
    }


def _has(tags: dict[str, str], wanted: str) -> bool:
    key, equals, value = wanted.partition("=")
    return key in tags and (not equals or tags[key] == value)


def test_pages_join_without_a_seam(call: Call, mixed: str) -> None:
    ids: list[int] = []
    words: list[str] = []
    while True:
        page = call("list", "--json", "--db", mixed, "--limit", "7", *words)
        ids += [job["id"] for job in page.data["jobs"]]
        if not page.envelope["meta"]["pagination"]["truncated"]:
            break
        words = ["--before-id", str(page.envelope["meta"]["pagination"]["cursor"])]
    assert ids == list(range(24, 0, -1))


def test_pages_of_the_oldest_first(call: Call, mixed: str) -> None:
    ids: list[int] = []
    words: list[str] = []
    while len(ids) < 24:
        page = call("list", "--json", "--db", mixed, "--limit", "7", "--reverse", *words)
        ids += [job["id"] for job in page.data["jobs"]]
        words = ["--after-id", str(page.envelope["meta"]["pagination"]["cursor"])]
    assert ids == list(range(1, 25))
    assert not page.envelope["meta"]["pagination"]["truncated"]


@pytest.mark.parametrize(
    "words",
    [
        ["--sort", "priority", "--before-id", "3"],
        ["--sort", "finished", "--after-id", "3"],
        ["--before-id", "3", "--reverse"],
    ],
)
def test_an_order_without_pages_takes_no_cursor(call: Call, words: list[str]) -> None:
    refused = call("list", "--json", *words)
    assert refused.error["code"] == "INVALID_INPUT"
    assert words[-2 if words[-1] == "3" else 0] in refused.error["message"]


def test_no_limit_means_every_job_in_text_too(
    call: Call, mixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in (5, 24, 500):
        monkeypatch.setattr("spoolctl.cli.list.PAGE", page)
        for more, ids in ((), range(24, 0, -1)), (("--reverse",), range(1, 25)):
            lines = call("list", "--db", mixed, "--limit", "0", *more).text.splitlines()
            assert [line.split()[0] for line in lines] == [f"#{one}" for one in ids]
    assert call("list", "--db", mixed, "--limit", "0", "--tag", "none").text == "No jobs\n"
    with Queue(mixed) as queue:
        assert len(queue.jobs(limit=0)) == len(queue.jobs(limit=None)) == 24
        assert len(queue.events(limit=0).events) == len(queue.events(limit=None).events) == 36
        with pytest.raises(InvalidInput, match="priority"):
            queue.jobs(sort="age")


def test_since_compares_the_time_of_submission(
    call: Call, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago = time.time() - 7200
    with monkeypatch.context() as patched:
        patched.setattr("spoolctl.engine.clock.time.time", lambda: long_ago)
        call("add", "--db", db, "--", "true")
    call("add", "--db", db, "--", "true")

    def ids(since: str) -> list[int]:
        found = call("list", "--json", "--db", db, "--since", since).data["jobs"]
        return [job["id"] for job in found]

    created = [job["created_at"] for job in call("list", "--json", "--db", db).data["jobs"]]
    assert ids("3h") == ids("2h30m") == [2, 1]
    assert ids("1h") == [2]
    assert ids(repr(created[1])) == [2, 1], "the time itself is in"
    assert ids(repr(created[0] + 1)) == []
    assert ids("tomorrow") == []


@pytest.mark.parametrize("text", ["90", "0", "2031", "20310102", "-1h", "1e9", "soon", ""])
def test_what_is_no_since(call: Call, text: str) -> None:
    refused = call("list", "--json", f"--since={text}")
    assert refused.error["code"] == "INVALID_INPUT"
    assert "90s" in refused.error["remediation"]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("make", [2, 1]),
        ("make te", [1]),
        ("Make", []),
        ("'a b'", [3]),
        ("a b", [3]),
        ("x" * 100 + "end", [4]),
        ("\\e[2J", [5]),
        ("\x1b[2J", []),
        ("sh -c 'echo", [6]),
        ("", [6, 5, 4, 3, 2, 1]),
    ],
)
def test_a_command_is_found_by_what_is_shown_of_it(
    call: Call, db: str, text: str, ids: list[int]
) -> None:
    commands = (
        *(["make", "test"], ["make"], ["printf", "a b"], ["echo", "x" * 3000 + "end"]),
        *(["echo", "\x1b[2J"], ["sh", "-c", "echo hi"]),
    )
    with Queue(db) as queue:
        queue.add_many(commands)
    found = call("list", "--json", "--db", db, "--command", text).data["jobs"]
    assert [job["id"] for job in found] == ids


def test_orders(call: Call, db: str) -> None:
    with Queue(db) as queue:
        for priority, delay in ((0, 60.0), (5, 30.0), (5, None), (-1, 90.0)):
            queue.add(["true"], priority=priority, delay_s=delay)
        for job in (3, 1):
            queue.cancel(job)

    def ids(*words: str) -> list[int]:
        return [job["id"] for job in call("list", "--json", "--db", db, *words).data["jobs"]]

    assert ids("--sort", "priority") == [3, 2, 1, 4]
    assert ids("--sort", "priority", "--reverse") == [4, 1, 2, 3]
    assert ids("--sort", "next-run") == [3, 2, 1, 4]
    assert ids("--sort", "finished") == [1, 3, 4, 2]
    assert ids("--sort", "finished", "--reverse") == [3, 1, 2, 4]
    assert ids("--sort", "started", "--limit", "2") == [4, 3], "none was: by id"
    typo = call("list", "--json", "--sort", "priorit").error
    assert typo["code"] == "INVALID_INPUT"


def test_a_listed_job_is_one_line(call: Call, db: str) -> None:
    call("add", "--db", db, "--queue", "b", "--env", "TOKEN=s3cr3t", "--", "printf", "%s", NASTY)
    line, end = call("list", "--db", db).text.split("\n")
    assert end == ""
    assert re.fullmatch(
        r"#1  queued  queue=b  priority=0  next_run_at=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d"
        r"  attempts=0  printf %s \$'a\\e\[2J\\r\\n\\x07\\u009b\\u202e\\u2028b'",
        line,
    )
    assert "s3cr3t" not in call("list", "--json", "--db", db).text


def test_a_long_command_is_cut(call: Call, db: str) -> None:
    call("add", "--db", db, "--", "echo", "x" * 3000)
    command = call("list", "--db", db).text.rstrip("\n").split("  ")[-1]
    assert len(command) == 80
    assert command.endswith("xxx...")
    for words in ([], ["--limit", "0"]):
        assert call("list", "--wide", "--db", db, *words).text.endswith(f" echo {'x' * 3000}\n")


def test_reads_do_not_change_their_answers(call: Call, mixed: str) -> None:
    for words in (["status"], ["list"], ["show", "1"], ["events"]):
        first, again = (call(words[0], "--json", "--db", mixed, *words[1:]) for _ in range(2))
        assert first.data == again.data
        hashes = {each.envelope["meta"]["data_hash"] for each in (first, again)}
        assert len(hashes) == 1


# -- show -----------------------------------------------------------------------------------


def test_show_in_words(call: Call, db: str) -> None:
    call(
        *("add", "--db", db, "--queue", "b", "--priority", "7", "--key", "k", "--tag", "a=1"),
        *("--note", NASTY, "--env", "TOKEN=s3cr3t", "--", "sh", "-c", "exit 3"),
    )
    spoolctl("work", "--once", "--queue", "b", "--db", db)
    text = call("show", "--db", db, "1").text
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0] == (
        "#1  queued  failure retries used: 1/3  worker crashes: 0 "
        "(tolerated before dead: 20)  sh -c 'exit 3'"
    )
    for part in ("queue: b", "priority: 7", "key: k", "tags: a=1", "env: TOKEN=s3cr3t"):
        assert part in lines
    assert f"cwd: {os.getcwd()}" in lines
    assert "note: a\\e[2J\\r\\n\\x07\\x9b\\u202e\\u2028b" in lines
    assert any(
        line.startswith("  attempt 1  failed  exit=3  worker=") and "error: exit 3" in line
        for line in lines
    )
    assert [line.split()[1] for line in lines[lines.index("events:") + 1 :]] == [
        "added",
        "claimed",
        "failed",
    ]


def test_captured_secrets_are_masked(call: Call, db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_API_TOKEN", "s3cr3t")
    call("add", "--db", db, "true")
    shown = call("show", "--json", "--db", db, "1")
    assert shown.data["job"]["captured"]["env"]["LC_API_TOKEN"] == MASK
    assert "s3cr3t" not in shown.text + call("show", "--db", db, "1").text
    revealed = call("show", "--json", "--reveal", "--db", db, "1").data["job"]["captured"]["env"]
    assert revealed["LC_API_TOKEN"] == "s3cr3t"


def test_how_a_job_is_retried_is_shown(call: Call, db: str) -> None:
    call("add", "--db", db, "--key", "k", "true")
    words = ("--key", "l", "--key-for", "1h", "--retry-delay", "5,90", "--jitter", "0.5")
    call("add", "--db", db, *words, "--retry-for", "2h", "--final-exit", "2,64-78", "true")
    call("add", "--db", db, "--key", "m", "--key-for", "ever", "--retry-max-delay", "5m", "true")
    usual, own, grows = (call("show", "--json", "--db", db, n).data["job"] for n in "123")
    assert usual["key_for_seconds"] is None
    assert usual["retry"] == {
        "delays_seconds": [],
        "backoff": "exponential",
        "first_delay_seconds": 2.0,
        "max_delay_seconds": 60.0,
        "jitter": 0.0,
        "final_exits": [],
        "retry_for_seconds": None,
    }
    assert own["key_for_seconds"] == 3600.0
    assert own["retry"] == usual["retry"] | {
        "delays_seconds": [5.0, 90.0],
        "jitter": 0.5,
        "final_exits": ["2", "64-78"],
        "retry_for_seconds": 7200.0,
    }
    assert grows["retry"]["max_delay_seconds"] == 300.0
    texts = [call("show", "--db", db, n).text for n in "123"]
    assert "retry: " not in texts[0]
    assert "failure retries used: 0 (for 2h 0m)" in texts[1]
    assert (
        "retry: after 5.0s 1m 30s, jitter 0.5, for 2h 0m after the submission, "
        "not after exit 2 64-78\n"
    ) in texts[1]
    assert "key: l (for 1h 0m after the job's end)\n" in texts[1]
    assert "retry: after 2.0s, doubling up to 5m 0s\n" in texts[2]
    assert "key: m (for ever)\n" in texts[2]


def test_what_looks_secret(call: Call, db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {"PGPASS": "x", "DB_PWD": "x", "GH_PAT": "x", "SESSION_COOKIE": "x"}
    addresses = {"MY_URL": "postgres://user:x@host/db", "PROXY": "http://u:x@proxy:3128"}
    plain = {
        "PWD": "/x",
        "MY_PATH": "/x",
        "SITE": "https://host:80/a@b",
        "USER_URL": "ssh://u@host",
    }
    for name, value in (secret | addresses | plain).items():
        monkeypatch.setenv(name, value)
    call("add", "--db", db, "--capture-env", "all", "true")
    shown = call("show", "--json", "--db", db, "1").data["job"]["captured"]["env"]
    assert {shown[name] for name in secret | addresses} == {MASK}
    assert {name: shown[name] for name in plain} == plain


def test_an_attempt_that_ran_is_shown(call: Call, db: str) -> None:
    call("add", "--db", db, "--no-retry", "-c", "echo hi; exit 3")
    call("add", "--db", db, "--", "/no/such/program")
    spoolctl("work", "--once", "--db", db, "--worker-id", "w 1")
    spoolctl("work", "--once", "--db", db)
    found = call("show", "--json", "--db", db, "1").data
    (attempt,) = found["attempts"]
    assert attempt["attempt_no"] == 1
    assert (attempt["state"], attempt["exit_code"]) == ("failed", 3)
    assert (attempt["error"], attempt["failure_reason"]) == ("exit 3", "process_exit")
    assert attempt["worker_id"] == "w 1"
    assert attempt["stored"] == {"stdout": "database", "stderr": "database"}
    assert (attempt["stdout_path"], attempt["stderr_path"]) == (None, None)
    job = found["job"]
    assert (job["state"], job["attempts"], job["last_exit_code"]) == ("dead", 1, 3)
    assert (job["last_error"], job["last_failure_reason"]) == ("exit 3", "process_exit")
    assert (job["locked_by"], job["locked_pid"]) == (None, None)
    other = call("show", "--json", "--db", db, "2").data
    assert other["attempts"][0]["failure_reason"] == "spawn_failed"
    assert other["job"]["last_error"].startswith("spawn failed: ")

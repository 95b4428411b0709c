"""`add` with input, retry policies, in batches, and staying until the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spoolctl import Queue
from spoolctl.cli.add import VERB, build
from spoolctl.cli.batch import Lines, Objects, Reader, read_lines
from spoolctl.cli.parse import parse
from spoolctl.core.records import NewJob
from spoolctl.core.retry import DEFAULT_POLICY, RetryPolicy
from spoolctl.errors import InvalidInput
from spoolctl.submission import FOREVER_S
from tests.cli.conftest import Call
from tests.helpers import clean_env, eventually, spoolctl


def request(*words: str) -> NewJob:
    return build(parse(VERB, words))


def drain(db: str) -> None:
    spoolctl("work", "--drain", "--db", db)


# -- retries --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ([], DEFAULT_POLICY),
        (["--retry-delay", "10,30,1m"], RetryPolicy(delays_s=(10.0, 30.0, 60.0))),
        (["--retry-delay", "5"], RetryPolicy(delays_s=(5.0,))),
        (["--backoff", "fixed"], RetryPolicy(backoff="fixed")),
        (["--backoff", "fixed", "--retry-delay", "5"], RetryPolicy(backoff="fixed", base_s=5.0)),
        (["--backoff", "exponential", "--retry-delay", "5"], RetryPolicy(base_s=5.0)),
        (
            ["--backoff=exponential", "--retry-delay", "90"],
            RetryPolicy(base_s=90.0, max_delay_s=90.0),
        ),
        (["--retry-max-delay", "10m"], RetryPolicy(max_delay_s=600.0)),
        (["--jitter", "0.5"], RetryPolicy(jitter=0.5)),
        (["--final-exit", "2,64-78"], RetryPolicy(final_exits=((2, 2), (64, 78)))),
        (["--retry-for", "2h"], RetryPolicy(retry_for_s=7200.0)),
    ],
)
def test_policies(words: list[str], policy: RetryPolicy) -> None:
    assert request(*words, "true").policy == policy


@pytest.mark.parametrize(
    "words",
    [
        ["--backoff", "fixed", "--retry-delay", "1,2"],
        ["--retry-for", "1h", "--max-retries", "2"],
        ["--retry-for", "1h", "--no-retry"],
        ["--jitter", "1.5"],
        ["--jitter", "-0.1"],
        ["--final-exit", "0"],
        ["--retry-delay", "1,,2"],
        ["--key-for", "1h"],
        ["--shell", "bash"],
        ["--shell", "", "-c", "true"],
        ["--stdin", "no-such-file"],
        ["--lines"],
        ["-0"],
        ["--wait", "--follow"],
        ["--follow", "--json"],
    ],
)
def test_what_makes_no_sense_is_refused(call: Call, db: str, words: list[str]) -> None:
    tail = [] if "-c" in words else ["true"]
    done = call("add", "--db", db, *words, *tail)
    assert done.status == 1
    assert done.err
    assert not os.path.exists(db)


def test_a_final_exit_is_not_tried_again(call: Call, db: str) -> None:
    call("add", "--db", db, "--final-exit", "2", "-c", "exit 2")
    drain(db)
    found = call("show", "--json", "--db", db, "1").data
    assert (found["job"]["state"], found["job"]["attempts"]) == ("failed", 1)
    assert [event["event"] for event in found["events"]][-1] == "failed_final"


def test_a_key_protects_after_the_end(call: Call, db: str) -> None:
    assert request("--key", "k", "--key-for", "1h", "true").key_for_s == 3600
    assert request("--key", "k", "--key-for", "ever", "true").key_for_s == FOREVER_S
    words = ("--db", db, "--key", "k", "--key-for", "ever", "--", "true")
    call("add", *words)
    drain(db)
    again = call("add", "--json", *words).data
    assert (again["job_id"], again["state"], again["deduplicated"]) == (1, "done", True)
    assert call("add", *words).text == "Job 1 has ended already under key 'k' (done)\n"


# -- what the command gets ------------------------------------------------------------------


def test_stdin_from_a_file_and_otherwise_nothing(call: Call, db: str) -> None:
    Path("input").write_bytes(b"a\0\xff\n" * 1000)
    call("add", "--db", db, "--stdin", "input", "--", "cat")
    call("add", "--db", db, "--", "cat")
    os.unlink("input")
    drain(db)
    raw = call("output", "--raw", "--stream", "stdout", "--db", db, "1").out
    assert raw == b"a\0\xff\n" * 1000
    assert call("output", "--raw", "--stream", "stdout", "--db", db, "2").out == b""


def test_stdin_from_ours(tmp_path: Path) -> None:
    db = str(tmp_path / "q.db")
    subprocess.run(
        [sys.executable, "-m", "spoolctl", "add", "--db", db, "--stdin", "-", "--", "cat"],
        env=clean_env(),
        input=b"hello",
        check=True,
        capture_output=True,
    )
    drain(db)
    with Queue(db) as queue:
        assert queue.output(1) == b"hello"


def test_too_much_input_is_refused(call: Call, db: str) -> None:
    with open("large", "wb") as file:
        file.truncate((16 << 20) + 1)
    done = call("add", "--json", "--db", db, "--stdin", "large", "--", "cat")
    assert done.error["code"] == "INVALID_INPUT"


def test_another_shell() -> None:
    assert request("--shell", "bash", "-c", "true").argv == ("bash", "-c", "true")


def test_which_variables_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_X", "1")
    monkeypatch.setenv("MINE", "2")
    monkeypatch.setenv("SPOOLCTL_ATTEMPT_PATH", "never")
    named = dict(request("--capture-env", "MINE, LC_*", "true").context.env)
    assert named["MINE"] == "2"
    assert set(named) == {name for name in os.environ if name == "MINE" or name[:3] == "LC_"}
    assert request("--capture-env", "none", "true").context.env == ()
    whole = dict(request("--capture-env", "all", "true").context.env)
    assert whole["HOME"] == os.environ["HOME"]
    assert "SPOOLCTL_ATTEMPT_PATH" not in whole


# -- batches --------------------------------------------------------------------------------


def test_a_batch_of_objects(call: Call, db: str) -> None:
    lines = [
        {"argv": ["printf", "%s", "a b"], "tags": {"n": "1"}, "priority": 5, "key": "k1"},
        {"c": "echo $A", "env": {"A": "x", "B": "2"}, "timeout": None, "max_retries": 0},
        {
            "argv": ["cat"],
            "stdin": "in",
            "queue": "other",
            "after": "1h",
            "max_crashes": "unlimited",
        },
        {"argv": ["true"], "retry_delay": "1,2", "final_exit": "3", "note": "n", "timeout": 7},
    ]
    Path("batch").write_text("\n".join(json.dumps(line) for line in lines[:2]) + "\n\n \n")
    with open("batch", "a") as file:
        file.writelines(json.dumps(line) + "\r\n" for line in lines[2:])
    done = call("add", "--json", "--db", db, "--batch", "batch", "--tag", "all=1", "--env", "A=0")
    assert done.data["batch"] == {"count": 4, "deduplicated": 0, "job_ids": [1, 2, 3, 4]}
    assert (done.data["job_id"], done.data["priority"]) == (1, 5)
    jobs = [call("show", "--json", "--db", db, str(n)).data["job"] for n in range(1, 5)]
    assert jobs[0]["tags"] == {"all": "1", "n": "1"}
    assert jobs[1]["argv"] == ["sh", "-c", "echo $A"]
    assert (jobs[1]["env"], jobs[1]["timeout_seconds"]) == ({"A": "x", "B": "2"}, None)
    assert (jobs[2]["queue"], jobs[2]["max_crashes"]) == ("other", None)
    assert jobs[2]["next_run_at"] > jobs[2]["created_at"] + 3000
    assert (jobs[3]["note"], jobs[3]["timeout_seconds"]) == ("n", 7)
    again = call("add", "--db", db, "--batch", "batch", "--tag", "all=1", "--env", "A=0")
    assert again.text == "Added 3 job(s): 5-7; 1 already there\n"


def test_a_batch_of_lines(call: Call, db: str) -> None:
    Path("lines").write_text("echo one\n\n  \necho 'two words'\n")
    assert call("add", "--db", db, "--batch", "lines", "--lines").text == "Added 2 job(s): 1-2\n"
    Path("nul").write_bytes(b"echo one\necho more\0echo two\0")
    assert call("add", "--db", db, "-p", "--batch", "nul", "-0").text == "3\n4\n"
    jobs = call("list", "--json", "--db", db).data["jobs"]
    assert [job["argv"][2] for job in jobs] == [
        "echo two",
        "echo one\necho more",
        "echo 'two words'",
        "echo one",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "neither"),
        ('{"argv": []}', "at least one word"),
        ('{"argv": "true"}', "list of texts"),
        ('{"argv": ["a\\u0000"]}', "NUL"),
        ('{"argv": ["\\ud800"]}', "UTF-8"),
        ('{"argv": ["true"], "c": "x"}', "exclude"),
        ('{"c": " "}', "blank"),
        ('{"argv": ["true"], "priorty": 1}', "priorty"),
        ('{"argv": ["true"], "priority": 1.5}', "priority"),
        ('{"argv": ["true"], "priority": true}', "priority"),
        ('{"argv": ["true"], "priority": [1]}', "priority"),
        ('{"argv": ["true"], "tags": ["a"]}', "tags"),
        ('{"argv": ["true"], "tags": {"a": 1}}', "tags"),
        ('{"argv": ["true"], "env": {"A": null}}', "env"),
        ('{"argv": ["true"], "stdin": 1}', "stdin"),
        ('{"argv": ["true"], "db": "x"}', "db"),
        ('{"argv": ["true"], "after": "1h", "at": 99999999.5}', "after and at exclude"),
        ('{"argv": ["true"], "max_retries": 1, "no_retry": true}', "max_retries and no_retry"),
        ('{"argv": ["true"], "max_retries": 1, "retry_for": "1h"}', "max_retries and retry_for"),
        ('{"argv": ["true"], "timeout": 5, "no_timeout": true}', "no_timeout and timeout"),
        ('{"argv": ["true"], "final_exit": []}', "final_exit"),
        ('{"argv": ["true"], "key": "a", "queue": "a b"}', "queue"),
        ("[" * 100_000, "not JSON"),
        ('{"argv": ["one && two"]}', "no program"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_added(
    call: Call, db: str, line: str, said: str
) -> None:
    Path("batch").write_text('{"argv": ["true"]}\n\n' + line + "\n")
    done = call("add", "--json", "--db", db, "--batch", "batch")
    assert done.error["code"] == "INVALID_INPUT"
    assert done.error["message"].startswith("line 3: ")
    assert said in done.error["message"]
    assert not os.path.exists(db)


@pytest.mark.parametrize(
    ("flags", "line", "name", "value"),
    [
        (["--no-retry"], {"max_retries": 5}, "max_retries", 5),
        (["--max-retries", "5"], {"no_retry": True}, "max_retries", 0),
        (["--retry-for", "1h"], {"max_retries": 5}, "policy", DEFAULT_POLICY),
        (["--no-timeout"], {"timeout": 5}, "timeout_s", 5),
        (["--timeout", "5"], {"timeout": None}, "timeout_s", None),
        (["--timeout", "5"], {"no_timeout": True}, "timeout_s", None),
        (["--after", "1h"], {"at": 99999999.5}, "run_at", 99999999.5),
        (["--at", "99999999.5"], {"after": "1h"}, "delay_s", 3600.0),
        ([], {"final_exit": [2, "64-78"]}, "policy", RetryPolicy(final_exits=((2, 2), (64, 78)))),
    ],
)
def test_a_line_overrides_the_flags_of_the_call(
    tmp_path: Path, flags: list[str], line: dict[str, Any], name: str, value: object
) -> None:
    batch = tmp_path / "batch"
    batch.write_text(json.dumps({"argv": ["true"], **line}))
    ((_, job),) = read_lines(parse(VERB, [*flags, "--batch", str(batch)]), [])
    assert getattr(job, name) == value


VALUES: dict[str, list[object]] = {
    "argv": [["true"], ["true", "x"], [], ["a\0"], "true", None, ["one && two"], [1], {"rm": 1}],
    "c": ["true", "echo x", " ", 7, "a\0b", None],
    "key": ["a", "b", "", "a b", 7, None],
    "key_for": ["1h", "ever"],
    "priority": [0, 1, True, 1.0, "1"],
    "tags": [{}, {"a": "1"}, {"a": "2"}, {"a": 1}, ["a"]],
    "env": [{"A": "1"}, {"A": "1", "B": "2"}],
    "retry_delay": [[10], [10, True], [10.0]],
    "capture_env": [["HOME"], ["HOME", "TZ"]],
    "timeout": [5, 5.0, None],
    "no_retry": [True, False, 1],
    "at": [1.0, 4102444800],
    "cwd": ["/", "relative", ""],
    "stdin": ["", "text", 7],
    "force": [True, False],
    "unknown": [1],
}


def members() -> st.SearchStrategy[dict[str, object]]:
    """The members of one line, of which few batches have many."""
    names = st.lists(st.sampled_from(list(VALUES)), max_size=3, unique=True)
    command = st.sampled_from([["argv"], ["argv"], ["c"], []])
    every = st.tuples(command, names).map(lambda both: {*both[0], *both[1]})
    return every.flatmap(
        lambda chosen: st.fixed_dictionaries(
            {name: st.sampled_from(VALUES[name]) for name in sorted(chosen)}
        )
    )


def made(reader: Reader, line: str) -> object:
    """The job and whether its time is past; or what is said against it."""
    try:
        return reader.job(line), reader.is_past
    except InvalidInput as error:
        return str(error), getattr(error, "remediation", None)


@given(st.lists(members(), min_size=2, max_size=2).flatmap(
    lambda two: st.lists(st.sampled_from(two) | members(), min_size=2, max_size=6)
))  # fmt: skip
@example([{"argv": ["true"], "priority": 1}, {"argv": ["true"], "priority": True}])
@example([{"argv": ["true"]}, {"argv": ["true"], "key": "k"}, {"argv": ["true"]}])
@example([{"argv": ["true"]}, {"argv": {"rm": 1, "-rf": 2}}])
@example([{"argv": ["true"]}, *[{"argv": ["true"], "retry_delay": [10, True]}] * 2])
@example([{"c": "true"}, {"argv": ["true"]}, {"argv": ["true"], "c": "x"}])
@example([{"c": "true", "key": "k", "key_for": "1h"}, {"c": "true", "key_for": "1h"}])
def test_a_line_is_read_as_if_it_were_the_only_one(lines: list[dict[str, object]]) -> None:
    """What it has in common with the one before it is not read again."""
    args = parse(VERB, ["--batch", "-"])
    reader = Objects(args)
    for line in map(json.dumps, lines):
        assert made(reader, line) == made(Objects(args), line)


@pytest.mark.parametrize("line", ["true", "a b", " ", "\u3000", "a\0b"])
def test_a_line_for_a_shell_is_read_as_if_it_were_the_only_one(line: str) -> None:
    args = parse(VERB, ["--batch", "-", "--lines", "--shell", "bash"])
    reader = Lines(args)
    reader.job("first")
    assert made(reader, line) == made(Lines(args), line)


def test_a_byte_order_mark_belongs_to_no_command(call: Call, db: str) -> None:
    Path("batch").write_text('{"argv": ["true"]}\n', encoding="utf-8-sig")
    assert call("add", "--db", db, "--batch", "batch").text == "Added 1 job(s): 1\n"
    Path("lines").write_text("true\n", encoding="utf-8-sig")
    assert call("add", "--db", db, "--batch", "lines", "--lines").text == "Added 1 job(s): 2\n"
    assert call("show", "--json", "--db", db, "2").data["job"]["argv"] == ["sh", "-c", "true"]


def test_warnings_of_a_batch_name_the_lines(call: Call, db: str) -> None:
    lines = [{"argv": ["true"], "key": str(n), "note": "a", "at": 1.0} for n in range(8)]
    Path("batch").write_text("\n".join(map(json.dumps, lines)))
    words = ("add", "--json", "--db", db, "--batch", "batch")
    assert call(*words).envelope["warnings"] == [
        {
            "code": "AT_IN_PAST",
            "message": "lines 1, 2, 3, 4, 5 and 3 more: the time is past, the job is due now",
        }
    ]
    Path("batch").write_text(json.dumps({"argv": ["true"], "key": "0", "note": "b"}))
    (warning,) = call(*words).envelope["warnings"]
    assert warning["code"] == "IDEMPOTENCY_METADATA_DIFFERS"
    assert warning["message"].startswith("line 1: ")


def test_shell_lines_without_their_flag_are_told_of_it(call: Call, db: str) -> None:
    Path("batch").write_text("make all\n")
    assert "--lines" in call("add", "--json", "--batch", "batch").error["remediation"]


def test_a_close_member_is_suggested(call: Call, db: str) -> None:
    Path("batch").write_text('{"argv": ["true"], "priorty": 1}\n')
    assert call("add", "--json", "--batch", "batch").error["did_you_mean"] == "priority"


def test_a_conflicting_key_is_named_by_its_line(call: Call, db: str) -> None:
    call("add", "--db", db, "--key", "k", "true")
    Path("batch").write_text('{"argv": ["true"]}\n{"argv": ["false"], "key": "k"}\n')
    done = call("add", "--json", "--db", db, "--batch", "batch")
    assert (done.status, done.error["code"]) == (5, "IDEMPOTENCY_CONFLICT")
    assert done.error["message"].startswith("line 2: ")
    assert call("status", "--json", "--db", db).data["counts"]["queued"] == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--batch", "empty"], "MISSING_REQUIRED"),
        (["--batch", "no-such-file"], "INVALID_INPUT"),
        (["--batch", "."], "INVALID_INPUT"),
        (["--batch", "empty", "true"], "INVALID_INPUT"),
        (["--batch", "empty", "-c", "true"], "INVALID_INPUT"),
        (["--batch", "empty", "--key", "k"], "INVALID_INPUT"),
        (["--batch", "empty", "--wait"], "INVALID_INPUT"),
        (["--batch", "binary", "--lines"], "INVALID_INPUT"),
    ],
)
def test_batches_that_make_no_sense(call: Call, words: list[str], code: str) -> None:
    Path("empty").write_text("\n")
    Path("binary").write_bytes(b"\xff\n")
    done = call("add", "--json", *words)
    assert done.error["code"] == code
    assert not os.path.exists(".spoolctl")


# -- staying --------------------------------------------------------------------------------


@pytest.fixture
def worker(db: str) -> Iterator[None]:
    """A worker that serves the queue already."""
    with Queue(db) as queue:
        process = subprocess.Popen(
            [sys.executable, "-m", "spoolctl", "work", "--db", db],
            env=clean_env(),
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda: not queue.unserved(["default"]))
        yield
    process.send_signal(signal.SIGTERM)
    process.wait(20)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("script", "status"),
    [("true", 0), ("exit 7", 7), ("kill -9 $$", 137), ("exec sleep 9", 6)],
)
def test_add_waits_and_exits_with_the_commands_code(db: str, script: str, status: int) -> None:
    words = ("--db", db, "--no-retry", "--timeout", "1", "-c", script)
    done = spoolctl("add", "--json", "--wait", *words)
    assert (done.returncode, done.stderr) == (status, "")
    data = json.loads(done.stdout)["data"]
    assert data["job_id"] == 1
    assert data["outcome"]["state"] == ("done" if status == 0 else "dead")


@pytest.mark.usefixtures("worker")
def test_the_bare_id_comes_with_wait_too(db: str) -> None:
    done = spoolctl("add", "--db", db, "-p", "--wait", "--", "true")
    assert (done.returncode, done.stdout) == (0, "1\n")


@pytest.mark.usefixtures("worker")
def test_add_follows_both_streams(db: str) -> None:
    script = "echo out; echo err >&2; exit 3"
    done = spoolctl("add", "--db", db, "--no-retry", "--follow", "-c", script)
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert done.stderr == "spoolctl: job 1\nerr\nspoolctl: job 1 dead: exit 3\n"


def test_leaving_does_not_end_the_job(call: Call, db: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "spoolctl", "add", "--db", db, "--wait", "--", "true"],
        env=clean_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == b"spoolctl: job 1\n"
    eventually(lambda: list(Path(f"{db}.d/waiters").glob("*.bell")))
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == -signal.SIGINT
    assert b"job 1 goes on" in process.stderr.read()
    assert call("status", "--json", "--db", db).data["counts"]["queued"] == 1


@pytest.mark.parametrize("flag", ["--wait", "--follow"])
def test_nobody_to_run_it_is_said_while_staying(call: Call, db: str, flag: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "spoolctl", "add", "--db", db, flag, "--", "true"],
        env=clean_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == b"spoolctl: job 1\n"
    assert b"no live worker serves the queue default" in process.stderr.readline()
    drain(db)
    assert process.wait(20) == 0
    assert process.stderr.read() == b""

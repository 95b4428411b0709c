"""`add`: what is stored, what is said, and what is refused before anything is touched."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.helpers import clean_env, spoolctl


def test_the_first_add_makes_a_private_queue(call: Call, db: str) -> None:
    before = os.umask(0)
    try:
        done = call("add", "--db", db, "--", "echo", "hi")
    finally:
        os.umask(before)
    assert (done.status, done.text, done.err) == (0, "Added job 1\n", "")
    for path, mode in ((Path(db), 0o600), (Path(db).parent, 0o700)):
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_ids_count_up(call: Call, db: str) -> None:
    assert [call("add", "--db", db, "true").text for _ in range(3)] == [
        f"Added job {number}\n" for number in (1, 2, 3)
    ]


def test_the_data_of_an_added_job(call: Call, db: str) -> None:
    done = call(
        *("add", "--json", "--db", db, "--queue", "q", "--priority", "-7", "--cwd", "sub/../x"),
        *("--env", "B=secret", "--env", "A=1", "--env", "B=other", "--", "true"),
    )
    data = done.data
    assert abs(data.pop("next_run_at") - time.time()) < 5
    assert data == {
        "job_id": 1,
        "state": "queued",
        "deduplicated": False,
        "priority": -7,
        "queue": "q",
        "cwd": os.path.join(os.getcwd(), "x"),
        "env_keys": ["A", "B"],
    }
    assert done.err == ""
    shown = call("show", "--json", "--db", db, "1").data["job"]
    assert shown["env"] == {"A": "1", "B": "other"}


@pytest.mark.parametrize(("words", "out"), [(["-p"], "1\n"), (["--print", "id"], "1\n")])
def test_the_bare_id(call: Call, db: str, words: list[str], out: str) -> None:
    assert call("add", "--db", db, *words, "--", "true").text == out


def test_a_string_runs_in_a_shell(call: Call, db: str) -> None:
    call("add", "--db", db, "-c", "echo $HOME")
    call("add", "--db", db, "-c=-x")
    jobs = call("list", "--json", "--db", db).data["jobs"]
    assert [job["argv"] for job in jobs] == [["sh", "-c", "-x"], ["sh", "-c", "echo $HOME"]]


def test_no_timeout_no_retry_and_unlimited_crashes(call: Call, db: str) -> None:
    call("add", "--db", db, "--no-timeout", "--no-retry", "--max-crashes", "unlimited", "true")
    job = call("show", "--json", "--db", db, "1").data["job"]
    assert (job["timeout_seconds"], job["max_retries"], job["max_crashes"]) == (None, 0, None)


@pytest.mark.parametrize(("length", "status"), [(4096, 0), (4097, 1)])
def test_the_limit_of_a_folder_is_one_on_what_was_given(
    call: Call, db: str, length: int, status: int
) -> None:
    done = call("add", "--json", "--db", db, "--cwd", "d" * length, "--", "true")
    assert done.status == status
    if status == 0:
        assert done.data["cwd"] == os.path.join(os.getcwd(), "d" * length)
        job = call("show", "--json", "--db", db, "1").data["job"]
        assert job["cwd"] == done.data["cwd"]


def test_a_link_in_the_folder_is_kept(call: Call, db: str) -> None:
    os.mkdir("real")
    os.symlink("real", "link")
    data = call("add", "--json", "--db", db, "--cwd", "./link/.", "true").data
    assert data["cwd"] == os.path.join(os.getcwd(), "link")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "MISSING_REQUIRED"),
        (["--"], "MISSING_REQUIRED"),
        (["-c", " \t"], "MISSING_REQUIRED"),
        (["-c", "true", "--", "true"], "INVALID_INPUT"),
        (["--", ""], "INVALID_INPUT"),
        (["ls", "-l"], "INVALID_INPUT"),
        (["--tag", "a=1", "--tag", "a=2", "true"], "INVALID_INPUT"),
        ([*(f"--tag=k{n}=v" for n in range(17)), "true"], "INVALID_INPUT"),
        (["--after", "1", "--at", "1", "true"], "INVALID_INPUT"),
        (["--cwd", "", "true"], "INVALID_INPUT"),
        (["--cwd", "x" * 4097, "true"], "INVALID_INPUT"),
        (["--note", "x" * 10001, "true"], "INVALID_INPUT"),
        (["--max-retries", "-1", "true"], "INVALID_INPUT"),
        (["--max-crashes", "many", "true"], "INVALID_INPUT"),
        (["--timeout", "0", "true"], "INVALID_INPUT"),
        (["--no-retry", "--max-retries", "1", "true"], "INVALID_INPUT"),
        (["--queue", "a b", "true"], "INVALID_INPUT"),
        (["--bogus", "true"], "UNKNOWN_FLAG"),
        (["--", "x" * (1 << 20)], "INVALID_INPUT"),
        (["echo hi && echo there"], "INVALID_INPUT"),
    ],
)
def test_what_is_refused_makes_no_queue(call: Call, db: str, words: list[str], code: str) -> None:
    done = call("add", "--json", "--db", db, *words)
    assert done.error["code"] == code
    assert done.status == 1
    assert not os.path.exists(os.path.dirname(db))
    as_text = call("add", "--db", db, *words)
    assert as_text.out == b""
    assert as_text.err.startswith("spoolctl: error: ")


def test_a_shell_line_is_refused_with_both_ways_to_write_it(call: Call, db: str) -> None:
    done = call("add", "--db", db, "echo hi | wc -l")
    assert "-c 'echo hi | wc -l'" in done.err
    assert "-- PROGRAM" in done.err
    assert call("add", "--db", db, "--force", "echo hi | wc -l").status == 0


def test_a_program_with_a_blank_in_its_name_is_no_shell_line(call: Call, db: str) -> None:
    Path("my prog").write_text("#!/bin/sh\n")
    assert call("add", "--db", db, "--", "./my prog").status == 0
    assert call("add", "--db", db, "--", "no-such-program").status == 0
    assert call("add", "--db", db, "--", "echo", "a && b").status == 0


def test_folder_umask_and_some_variables_are_captured(
    call: Call, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    monkeypatch.setenv("OTHER", "x")
    monkeypatch.setitem(os.environ, "LC_BAD", "\udcff")
    before = os.umask(0o027)
    try:
        call("add", "--db", db, "true")
    finally:
        assert os.umask(before) == 0o027
    job = call("show", "--json", "--db", db, "1").data["job"]
    assert job["cwd"] == os.getcwd()
    assert job["captured"]["umask"] == "0027"
    captured = job["captured"]["env"]
    assert (captured["LC_ALL"], captured["VIRTUAL_ENV"]) == ("C.UTF-8", "/venv")
    assert captured["PATH"] == os.environ["PATH"]
    assert not {"OTHER", "HOME", "LC_BAD"} & set(captured)


def test_a_deleted_folder_is_told(call: Call, db: str) -> None:
    gone = os.path.join(os.getcwd(), "gone")
    os.mkdir(gone)
    os.chdir(gone)
    os.rmdir(gone)
    done = call("add", "--json", "--db", db, "true")
    assert done.error["code"] == "INVALID_INPUT"
    assert "no longer exists" in done.error["message"]
    assert not os.path.exists(db)
    assert call("add", "--db", db, "--cwd", "/", "true").text == "Added job 1\n"
    for relative in (
        ("add", "--json", "--db", "queue.db", "--cwd", "/", "true"),
        ("backup", "--json", "--db", db, "copy.db"),
        ("config-validate", "--json", "config.json"),
        ("config-validate", "--json"),
        ("status", "--json"),
    ):
        error = call(*relative).error
        assert error["code"] == "INVALID_INPUT"
        assert "no longer exists: give an absolute" in error["message"]


def test_a_folder_whose_name_is_no_text_is_told(call: Call, db: str) -> None:
    odd = os.fsdecode(os.fsencode(os.getcwd()) + b"/\xff")
    try:
        os.mkdir(odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    os.chdir(odd)
    for words in (("status",), ("add", "--cwd", "/", "true"), ("work", "--once"), ("list",)):
        error = call(words[0], "--json", *words[1:]).error
        assert error["code"] == "INVALID_INPUT"
        assert error["message"].startswith("the path '")
        assert "not valid UTF-8: name another queue with --db" in error["message"]
    assert os.listdir(odd) == []
    assert call("add", "--db", db, "--cwd", "/", "true").text == "Added job 1\n"


# -- keys -----------------------------------------------------------------------------------


def test_a_key_gives_the_job_that_is_there(call: Call, db: str) -> None:
    words = ("--db", db, "--key", " k ", "--tag", "a=1", "--note", "n", "--", "true")
    first = call("add", "--json", *words).data
    again = call("add", "--json", *words)
    assert again.data == {
        **first,
        "deduplicated": True,
        "idempotency": {"key": "k", "metadata_differs": False, "metadata_differences": {}},
    }
    assert again.warnings == []
    assert call("add", *words).text == "Job 1 already active under key 'k' (queued)\n"
    assert call("status", "--json", "--db", db).data["counts"]["queued"] == 1


def test_other_metadata_is_reported_and_not_stored(call: Call, db: str) -> None:
    call("add", "--db", db, "--key", "k", "--tag", "a=1", "true")
    words = ("--db", db, "--key", "k", "--note", "new", "--after", "1h", "true")
    again = call("add", "--json", *words)
    assert again.warnings == ["IDEMPOTENCY_METADATA_DIFFERS"]
    found = again.data["idempotency"]
    assert found["metadata_differs"]
    assert found["metadata_differences"]["tags"] == {"existing": {"a": "1"}, "submitted": {}}
    assert found["metadata_differences"]["note"] == {"existing": None, "submitted": "new"}
    assert set(found["metadata_differences"]) == {"tags", "note", "next_run_at"}
    assert call("show", "--json", "--db", db, "1").data["job"]["note"] is None
    as_text = call("add", *words)
    assert as_text.err.startswith("warning: ")
    assert as_text.status == 0


@pytest.mark.parametrize(
    "other",
    [
        ["false"],
        ["--timeout", "5", "true"],
        ["--max-retries", "5", "true"],
        ["--max-crashes", "5", "true"],
        ["--priority", "5", "true"],
        ["--queue", "q", "true"],
        ["--cwd", "/", "true"],
        ["--env", "TOKEN=s3cr3t", "true"],
    ],
)
def test_another_execution_under_the_same_key_is_a_conflict(
    call: Call, db: str, other: list[str]
) -> None:
    call("add", "--db", db, "--key", "k", "true")
    done = call("add", "--json", "--db", db, "--key", "k", *other)
    assert done.status == 5
    assert done.error["code"] == "IDEMPOTENCY_CONFLICT"
    assert "s3cr3t" not in done.out.decode() + done.err


def test_what_was_captured_is_not_compared(
    call: Call, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("add", "--db", db, "--key", "k", "true")
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    monkeypatch.chdir("/")
    again = call("add", "--json", "--db", db, "--key", "k", "true")
    assert again.data["deduplicated"]
    assert again.warnings == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [("5m", ": 300"), ("1h30m", ": 5400"), ("1.5", "at least 1"), ("0", "--no-timeout"), ("x", "")],
)
def test_a_bad_time_limit_says_what_to_write(call: Call, text: str, hint: str) -> None:
    error = call("add", "--json", "--timeout", text, "true").error
    assert error["code"] == "INVALID_INPUT"
    assert error["remediation"].startswith("write whole seconds")
    assert hint in error["remediation"]


# -- times ----------------------------------------------------------------------------------


def test_a_delay_and_a_time(call: Call, db: str) -> None:
    now = time.time()
    later = call("add", "--json", "--db", db, "--after", "1h30m", "true").data["next_run_at"]
    assert 5400 <= later - now < 5410
    at = call("add", "--json", "--db", db, "--at", "2100-01-01T00:00:00Z", "true")
    assert at.data["next_run_at"] == 4102444800
    assert call("status", "--db", db).text.splitlines()[1] == "scheduled 2"


def test_a_time_in_the_past_is_now_and_said(call: Call, db: str) -> None:
    done = call("add", "--json", "--db", db, "--at", "0", "true")
    assert done.warnings == ["AT_IN_PAST"]
    job = call("show", "--json", "--db", db, "1").data["job"]
    assert done.data["next_run_at"] == job["next_run_at"] == job["created_at"]
    assert call("add", "--db", db, "--at", "0", "true").text == "Added job 2\n"


def test_the_present_is_no_past(call: Call, db: str) -> None:
    done = call("add", "--json", "--db", db, "--at", str(int(time.time())), "true")
    assert done.warnings == []


# -- starting up ----------------------------------------------------------------------------

HEAVY = {"subprocess", "logging", "dataclasses", "asyncio", "argparse", "shutil", "socket"}


def test_add_loads_only_what_it_needs(tmp_path: Path) -> None:
    program = (
        "import sys, runpy\n"
        "from spoolctl.cli.main import main\n"
        f"status = main(['add', '--db', {str(tmp_path / 'q.db')!r}, '--', 'true'])\n"
        "import json\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    # Without site-packages: what others hang into every start is not ours.
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=clean_env(),
        capture_output=True,
        text=True,
        check=True,
    )
    said, modules = done.stdout.splitlines()
    assert said == "Added job 1"
    loaded = set(json.loads(modules))
    assert not loaded & HEAVY
    verbs = {name for name in loaded if name.startswith("spoolctl.cli.")}
    assert "spoolctl.cli.add" in verbs
    assert not verbs & {f"spoolctl.cli.{name}" for name in ("work", "show", "schema", "codes")}


def test_python_dash_m_says_the_same(tmp_path: Path) -> None:
    done = spoolctl("add", "--db", str(tmp_path / "q.db"), "--", "echo", "hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Added job 1\n", "")

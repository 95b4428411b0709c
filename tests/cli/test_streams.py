"""Broken pipes, closed and full streams, signals, and errors nobody thought of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spoolctl import Queue
from spoolctl.cli.main import explain
from spoolctl.cli.render import Out, command, fit, visible, width
from spoolctl.cli.verbs import VERBS
from tests.cli.conftest import Call
from tests.helpers import clean_env, spoolctl

PROGRAM = [sys.executable, "-m", "spoolctl"]


def run(*words: str, shell: str = "") -> subprocess.CompletedProcess[bytes]:
    """spoolctl through a shell that redirects its streams."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {shell}', "sh", *PROGRAM, *words],
        env=clean_env(),
        capture_output=True,
        timeout=60,
        check=False,
    )


READING = [["status"], ["list"], ["show", "1"], ["events"], ["output", "1"], ["capabilities"]]


@pytest.fixture
def filled(call: Call, db: str) -> str:
    with Queue(db) as queue:
        queue.add_many([["echo", "x" * 500]] * 2000)
    spoolctl("work", "--once", "--db", db)
    return db


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
@pytest.mark.parametrize("flag", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_leaves_ends_the_verb_quietly(
    filled: str, words: list[str], flag: list[str]
) -> None:
    where = [] if words == ["capabilities"] else ["--db", filled]
    limit = ["--limit", "0"] if words[0] == "list" else []
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*PROGRAM, *words[:1], *where, *limit, *flag, *words[1:]],
        env=clean_env(),
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_head_gets_what_it_wants(filled: str) -> None:
    line = " ".join([*PROGRAM, "list", "--limit", "0", "--db", filled])
    done = subprocess.run(
        ["sh", "-c", f"{line} | head -1"], env=clean_env(), capture_output=True, check=True
    )
    assert done.stdout.startswith(b"#2000  queued")
    assert done.stderr == b""


@pytest.mark.parametrize("words", [["add", "--", "true"], *READING[:3]], ids=lambda w: w[0])
@pytest.mark.parametrize("flag", [[], ["--json"]], ids=["text", "json"])
def test_closed_streams_harm_nothing(filled: str, words: list[str], flag: list[str]) -> None:
    call = [*words[:1], "--db", filled, *flag, *words[1:]]
    assert run(*call, shell=">&-").returncode == 0
    assert run(*call, shell=">&- 2>&- <&-").returncode == 0
    done = run(*call, shell="2>&-")
    assert done.returncode == 0
    assert done.stdout
    failing = run("show", "--db", filled, *flag, "999999", shell=">&- 2>&-")
    assert failing.returncode == 1


def test_a_closed_descriptor_is_not_taken_for_the_queue(tmp_path: Path) -> None:
    db = tmp_path / "q.db"
    for _ in range(2):
        assert run("add", "--db", str(db), "--", "true", shell=">&- 2>&- <&-").returncode == 0
    assert b"Added" not in db.read_bytes()
    assert spoolctl("status", "--db", str(db)).stdout.startswith("canceled 0  dead 0  done 0")


def test_a_full_disk_behind_stdout_is_said(filled: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    for flag in ([], ["--json"]):
        done = run("list", "--db", filled, *flag, shell=">/dev/full")
        assert done.returncode == 3
        assert done.stderr.startswith(b"spoolctl: error: cannot write to stdout: No space left")
        assert len(done.stderr.splitlines()) == 2
    # The job is stored all the same, and that is said; a full stderr is no reason to fail.
    done = run("add", "--db", filled, "--", "true", shell=">/dev/full")
    assert done.returncode == 3
    assert b"the change is made, only its report is lost" in done.stderr
    assert run("add", "--db", filled, "--", "true", shell="2>/dev/full").returncode == 0


def test_a_nonblocking_stdout_gets_everything(filled: str) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    process = subprocess.Popen(
        [*PROGRAM, "list", "--json", "--limit", "0", "--db", filled],
        env=clean_env(),
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    with open(read, "rb") as file:
        whole = file.read()
    assert process.wait(60) == 0
    assert json.loads(whole)["data"]["count"] == 2000


# -- what nobody thought of -----------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a\nb"),
        MemoryError(),
        RecursionError("deep"),
        OSError(28, "full", "/x"),
        KeyError("k"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_unexpected_error_is_one_line(
    call: Call, db: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    call("add", "--db", db, "true")
    monkeypatch.setattr("spoolctl.queue.Queue.counts", fail)
    done = call("status", "--db", db)
    assert (done.status, done.out) == (3, b"")
    assert len(done.err.splitlines()) == 2
    assert done.err.startswith("spoolctl: error: ")
    as_json = call("status", "--json", "--db", db)
    assert as_json.error["code"] == "INTERNAL"
    assert as_json.error["remediation"]


def test_errors_carry_no_control_characters(call: Call) -> None:
    done = call("add", "--queue", "a\x1b[2J", "true")
    assert "\x1b" not in done.err
    done = call("st\x1b[2J")
    assert "\x1b" not in done.err
    assert explain(OSError(2, "No such file", "/a\nb")).message == "No such file: /a\nb"


def test_without_a_verb_something_is_missing(call: Call) -> None:
    assert call().status == 1
    assert call().err.splitlines()[0] == "spoolctl: error: a verb is needed"


@pytest.mark.parametrize(
    ("words", "code", "meant"),
    [
        (["--json"], "UNKNOWN_FLAG", None),
        (["--json", "status"], "UNKNOWN_FLAG", None),
        (["--db", "x", "status", "--json"], "UNKNOWN_FLAG", None),
        (["--hlp", "--json"], "UNKNOWN_FLAG", "--help"),
        (["--version=1", "--json"], "INVALID_INPUT", None),
        (["statu", "--json"], "UNKNOWN_COMMAND", "status"),
        (["", "--json"], "UNKNOWN_COMMAND", None),
        (["Status", "--json"], "UNKNOWN_COMMAND", "status"),
        (["status", "--jso", "--json"], "UNKNOWN_FLAG", "--json"),
        (["status", "--json=1"], "INVALID_INPUT", None),
    ],
)
def test_parse_failures_honour_json(
    call: Call, words: list[str], code: str, meant: str | None
) -> None:
    done = call(*words)
    assert done.status == 1
    assert done.error["code"] == code
    assert done.error.get("did_you_mean") == meant
    assert set(done.envelope) == {
        *("ok", "tool_version", "data", "meta", "warnings", "commands", "errors"),
    }


def test_json_after_the_dashes_belongs_to_the_job(call: Call, db: str) -> None:
    done = call("add", "--db", db, "--", "x", "--json")
    assert done.text == "Added job 1\n"
    assert call("--", "--json").out == b""


# -- help -----------------------------------------------------------------------------------


def test_help_names_every_verb_under_its_heading(call: Call) -> None:
    for word in ("--help", "-h"):
        done = call(word)
        assert (done.status, done.err) == (0, "")
        for name, row in VERBS.items():
            assert f"\n  {name} " in done.text
            assert f"\n{row.group}:\n" in done.text
            assert f"\n  spoolctl {name}" in done.text
        assert all(len(line) < 80 for line in done.text.splitlines())


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_verb_names_every_flag(call: Call, verb: str) -> None:
    from spoolctl.cli.spec import load

    done = call(verb, "--help")
    assert (done.status, done.err) == (0, "")
    for flag in load(verb).flags:
        assert all(each in done.text for each in flag.spellings)
    assert f"\n  spoolctl {verb}" in done.text
    assert "Exit status: 0 success" in done.text
    assert os.listdir() == []


def test_help_tells_what_is_asked_most(call: Call) -> None:
    assert "the highest goes first" in call("add", "--help").text
    assert "  6  every job has settled, but not all are done" in call("wait", "--help").text


def test_version_is_one_line(call: Call) -> None:
    assert call("--version").text == "spoolctl 0.1.0\n"


# -- meta -----------------------------------------------------------------------------------


def test_meta_of_an_envelope(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    metas = [call("status", "--json").envelope["meta"] for _ in range(2)]
    assert set(metas[0]) == {
        *("request_id", "ts_iso", "elapsed_ms", "contract_version", "data_hash"),
    }
    assert metas[0]["contract_version"] == "2"
    assert metas[0]["request_id"] != metas[1]["request_id"]
    assert metas[0]["data_hash"] == metas[1]["data_hash"]
    assert metas[0]["data_hash"] != call("list", "--json").envelope["meta"]["data_hash"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert call("status", "--json").envelope["meta"]["ts_iso"] == "2023-11-14T22:13:20.000Z"
    for bad in ("", "x", "-1", "9" * 40):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", bad)
        assert call("status", "--json").status == 0


# -- texts for a terminal -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢字 🙂", "plain ü 漢字 🙂"),
        ("\x1b]0;x\x07", "\\e]0;x\\x07"),
        ("a\r\n\tb\x7f\x9b", "a\\r\\n\\tb\\x7f\\x9b"),
        ("\u202e\u2066\u200f\ufeff", "\\u202e\\u2066\\u200f\\ufeff"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\udcff", "\\udcff"),
        ("👨\u200d👩", "👨\u200d👩"),
        ("a\u00a0b", "a\u00a0b"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("a b", "'a b'"),
        ("", "''"),
        ("c'd", "'c'\"'\"'d'"),
        ("x\\ny", "'x\\ny'"),
        ("x\ny", "$'x\\ny'"),
        ("x\n\\y'z$HOME", "$'x\\n\\\\y\\'z$HOME'"),
        ("\x07b\x1b[2J", "$'\\x07b\\e[2J'"),
        ("\x9b\xad\u202e\U000e0041", "$'\\u009b\\u00ad\\u202e\\U000e0041'"),
        ("é\t漢", "$'é\\t漢'"),
        ("\udcff", "$'\\xff'"),
    ],
)
def test_a_command_is_shown_as_a_shell_reads_it(word: str, shown: str) -> None:
    assert command(["printf", "%s", word]) == f"printf %s {shown}"
    if sys.platform == "linux":  # the bash of macOS is too old for \\u
        done = subprocess.run(
            ["bash", "-c", f"printf %s {shown}"],
            capture_output=True,
            env={"LC_ALL": "C.UTF-8", "PATH": os.defpath},
            timeout=30,
            check=True,
        )
        assert done.stdout.decode("utf-8", "surrogateescape") == word


@pytest.mark.parametrize(
    ("text", "columns", "cut"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "ab..."),
        ("漢字漢字", 8, "漢字漢字"),
        ("漢字漢字", 7, "漢字..."),
        ("漢字漢字", 6, "漢..."),
        ("abcdef", 2, ".."),
    ],
)
def test_texts_are_cut_to_columns(text: str, columns: int, cut: str) -> None:
    assert fit(text, columns) == cut
    assert width(cut) <= columns


def test_a_stderr_that_cannot_be_written_is_ignored() -> None:
    out = Out(stderr=9999)
    out.note("nobody hears this")
    assert not out.errors_are_seen()


@pytest.mark.parametrize("verb", ["add", "list", "cancel", "prune", "wait", "work", "run"])
def test_too_few_descriptors_are_an_error_like_others(tmp_path: Path, verb: str) -> None:
    """However few: with some numbers it is the report of the error that finds none left."""
    db = str(tmp_path / "queue.db")
    assert spoolctl("add", "--db", db, "--", "true").returncode == 0
    more = {
        "add": ["--", "true"],
        "run": ["--no-retry", "--", "true"],
        "cancel": ["1"],
        "wait": ["--timeout", "1", "1"],
        "prune": ["--older-than", "0", "--yes"],
        "work": ["--once"],
    }
    for most in range(4, 9):
        script = 'ulimit -n "$0" && exec "$@"'
        words = [sys.executable, "-S", "-m", "spoolctl", verb, "--db", db, *more.get(verb, [])]
        done = subprocess.run(
            ["sh", "-c", script, str(most), *words],
            env=clean_env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, most
        assert (done.returncode == 0) == ("error" not in done.stderr), (most, done)


def test_a_descriptor_that_somebody_made_nonblocking_gets_everything() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    data = os.urandom(1 << 20)
    got: list[bytes] = []
    # Not before the pipe is full.
    reader = threading.Timer(0.05, lambda: got.append(open(read, "rb").read()))  # noqa: SIM115
    reader.start()
    Out(stdout=write).write(data)
    os.close(write)
    reader.join()
    assert got == [data]

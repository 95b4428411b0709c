"""`output`: the bytes of an attempt, in every mode, while it runs and after."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spoolctl import Queue
from spoolctl.engine.output import CHUNK_BYTES
from tests.cli.conftest import Call
from tests.helpers import clean_env, eventually, spoolctl

BIG = 300_000


def start(
    *words: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "spoolctl", *words],
        env=clean_env(),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )


@pytest.fixture
def worker(db: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker on the queue, for tests that look at a job while it runs."""
    with Queue(db):
        pass
    process = start("work", "--db", db, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield process
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    process.wait(20)


def add_and_run(call: Call, db: str, script: str) -> None:
    call("add", "--db", db, "--no-retry", "-c", script)
    spoolctl("work", "--drain", "--db", db)


def test_both_streams_under_their_headers(call: Call, db: str) -> None:
    add_and_run(call, db, "echo hello; printf oops >&2")
    done = call("output", "--db", db, "1")
    assert done.text == (
        "=== job 1 attempt 1 stdout ===\nhello\n=== job 1 attempt 1 stderr ===\noops\n"
    )
    assert done.err == ""
    only = call("output", "--db", db, "--stream", "stderr", "1")
    assert only.text == "=== job 1 attempt 1 stderr ===\noops\n"


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("true", b""),
        ("printf 'a'", b"a\n"),
        ("printf 'a\\n'", b"a\n"),
        ("printf 'a\\n\\n\\n'", b"a\n"),
        ("printf '\\n'", b"\n"),
        ("printf '\\n\\na'", b"\n\na\n"),
        ("printf '\\377\\000\\033[2J'", b"\xff\x00\x1b[2J\n"),
    ],
)
def test_content_ends_with_one_newline(call: Call, db: str, script: str, shown: bytes) -> None:
    add_and_run(call, db, script)
    done = call("output", "--db", db, "--stream", "stdout", "1")
    assert done.out == b"=== job 1 attempt 1 stdout ===\n" + shown


def test_newlines_across_pieces_are_kept_inside_and_collapse_at_the_end(
    call: Call, db: str
) -> None:
    size = 2 * CHUNK_BYTES + 7
    add_and_run(call, db, f"head -c {size} /dev/zero | tr '\\0' '\\n'; printf x; printf '\\n\\n'")
    done = call("output", "--db", db, "--stream", "stdout", "1")
    assert done.out.partition(b"\n")[2] == b"\n" * size + b"x\n"


def test_raw_is_exact(call: Call, db: str) -> None:
    add_and_run(call, db, f"head -c {BIG} /dev/urandom | tee copy; printf '\\377' >&2")
    raw = call("output", "--db", db, "--raw", "--stream", "stdout", "1")
    assert raw.out == Path("copy").read_bytes()
    assert len(raw.out) == BIG
    assert call("output", "--db", db, "--raw", "--stream", "stderr", "1").out == b"\xff"


def test_small_streams_are_in_the_database_and_large_ones_in_files(call: Call, db: str) -> None:
    add_and_run(call, db, f"head -c {BIG} /dev/zero; printf '\\303\\251\\377' >&2")
    data = call("output", "--json", "--db", db, "1").data
    assert (data["job_id"], data["attempt_no"], data["attempts_total"]) == (1, 1, 1)
    assert data["attempt_state"] == "succeeded"
    out, err = data["streams"]["stdout"], data["streams"]["stderr"]
    assert (out["stored"], out["size_bytes"], out["preview_truncated"]) == ("file", BIG, True)
    assert out["preview"] == "\0" * 4096
    assert os.path.getsize(out["path"]) == BIG
    assert err == {
        "path": None,
        "preview": "é\ufffd",
        "preview_truncated": False,
        "size_bytes": 3,
        "stored": "database",
        "dropped_bytes": 0,
        "shortened": False,
    }
    assert set(call("output", "--json", "--db", db, "--stream", "stderr", "1").data["streams"]) == {
        "stderr"
    }


def test_a_deleted_file_reads_as_empty_and_is_said(call: Call, db: str) -> None:
    add_and_run(call, db, f"head -c {BIG} /dev/zero; echo kept >&2")
    path = call("output", "--json", "--db", db, "1").data["streams"]["stdout"]["path"]
    os.unlink(path)
    done = call("output", "--json", "--db", db, "1")
    assert done.warnings == ["OUTPUT_MISSING"]
    out = done.data["streams"]["stdout"]
    assert (out["stored"], out["path"], out["size_bytes"]) == ("missing", path, 0)
    as_text = call("output", "--db", db, "1")
    assert as_text.text == (
        "=== job 1 attempt 1 stdout ===\n=== job 1 attempt 1 stderr ===\nkept\n"
    )
    assert as_text.err.startswith("warning: ")
    assert call("show", "--json", "--db", db, "1").data["attempts"][0]["stored"] == {
        "stdout": "missing",
        "stderr": "database",
    }


def test_without_an_attempt_there_is_nothing_yet(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    done = call("output", "--json", "--db", db, "1")
    assert (done.warnings, done.data) == (["NO_ATTEMPTS_YET"], {"attempts": []})
    raw = call("output", "--db", db, "--raw", "--stream", "stdout", "1")
    assert (raw.status, raw.out, raw.err) == (0, b"", "Job 1 has no attempts yet\n")
    assert call("output", "--db", db, "1").text == "Job 1 has no attempts yet\n"


def test_each_attempt_keeps_its_own(call: Call, db: str) -> None:
    call("add", "--db", db, "--no-retry", "-c", "echo $SPOOLCTL_ATTEMPT; exit 1")
    for _ in range(2):
        spoolctl("work", "--drain", "--db", db)
        call("retry", "--db", db, "1")
    for number in ("1", "2"):
        raw = call("output", "--db", db, "--raw", "--stream=stdout", "--attempt", number, "1")
        assert raw.text == f"{number}\n"
    latest = call("output", "--json", "--db", db, "1").data
    assert (latest["attempt_no"], latest["attempts_total"]) == (2, 2)
    absent = call("output", "--json", "--db", db, "--attempt", "3", "1")
    assert absent.error["code"] == "NOT_FOUND"
    assert "1, 2" in absent.error["remediation"]


@pytest.mark.parametrize(
    "words",
    [
        ["--raw", "1"],
        ["--raw", "--stream", "both", "1"],
        ["--raw", "--json", "--stream", "stdout", "1"],
        ["--follow", "--json", "1"],
        ["--retries", "1"],
        ["--tail", "-1", "1"],
        ["--stream", "stdin", "1"],
    ],
)
def test_flags_that_do_not_go_together(call: Call, db: str, words: list[str]) -> None:
    done = call("output", "--db", db, *words)
    assert done.status == 1
    assert not os.path.exists(db)


@pytest.mark.parametrize("size", [10, CHUNK_BYTES, 200_000])
@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("lines", [0, 1, 2, 3, 5])
def test_the_last_lines(call: Call, db: str, size: int, end: str, lines: int) -> None:
    Path("text").write_text("b\n" + "x" * size + f"\nsecond\nthird{end}")
    add_and_run(call, db, "cat text")
    raw = call("output", "--db", db, "--raw", "--stream=stdout", "--tail", str(lines), "1").text
    whole = Path("text").read_text()
    assert raw == "".join(whole.splitlines(keepends=True)[-lines:] if lines else [])
    member = call("output", "--json", "--db", db, "--tail", str(lines), "1").data["streams"][
        "stdout"
    ]
    assert raw.endswith(member["tail"])
    assert member["tail_truncated"] == (len(raw) > len(member["tail"]))


def test_what_the_limit_dropped_is_marked(call: Call, db: str) -> None:
    call("add", "--db", db, "-c", "yes | head -c 400000; sleep 2.5; yes z | head -c 400000")
    spoolctl("work", "--drain", "--db", db, "--max-output", "128K")
    stream = call("output", "--json", "--db", db, "--stream", "stdout", "1").data["streams"][
        "stdout"
    ]
    if not stream["dropped_bytes"]:
        pytest.skip("this file system cannot drop the middle of a file")
    assert stream["size_bytes"] == 800_000
    raw = call("output", "--db", db, "--raw", "--stream", "stdout", "1").out
    assert len(raw) == 800_000 - stream["dropped_bytes"]
    assert set(raw) == set(b"yz\n")
    text = call("output", "--db", db, "--stream", "stdout", "1").text
    assert f"\n[... {stream['dropped_bytes']} bytes dropped by the output limit ...]\n" in text


# -- following ------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_follow_streams_everything_until_the_end(call: Call, db: str) -> None:
    call(
        "add", "--db", db, "-c", "echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 0"
    )
    process = start("output", "--db", db, "--follow", "--raw", "--stream", "stdout", "1")
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    assert process.poll() is None
    Path("go").touch()
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == (b"two\n", b"", 0)


@pytest.mark.usefixtures("worker")
def test_follow_waits_for_the_start_and_names_streams(call: Call, db: str) -> None:
    call("add", "--db", db, "--after", "1", "-c", "printf out; sleep 0.3; echo err >&2")
    done = call("output", "--db", db, "-f", "1")
    assert done.text == (
        "=== job 1 attempt 1 stdout ===\nout\n=== job 1 attempt 1 stderr ===\nerr\n"
    )


def test_follow_of_an_ended_attempt_ends_at_once(call: Call, db: str) -> None:
    add_and_run(call, db, "seq 5; exit 1")
    assert (
        call("output", "--db", db, "-f", "--raw", "--stream=stdout", "1").text == "1\n2\n3\n4\n5\n"
    )
    tail = call("output", "--db", db, "-f", "--raw", "--stream=stdout", "--tail", "2", "1")
    assert tail.text == "4\n5\n"
    call("add", "--db", db, "true")
    call("cancel", "--db", db, "2")
    done = call("output", "--db", db, "-f", "2")
    assert (done.status, done.out) == (0, b"")


@pytest.mark.usefixtures("worker")
def test_follow_goes_on_with_retries_when_asked(call: Call, db: str) -> None:
    call("add", "--db", db, "--max-retries", "1", "-c", "echo $SPOOLCTL_ATTEMPT; exit 1")
    done = call("output", "--db", db, "-f", "--retries", "--stream", "stdout", "1")
    assert done.text == "=== job 1 attempt 1 stdout ===\n1\n=== job 1 attempt 2 stdout ===\n2\n"


@pytest.mark.usefixtures("worker")
def test_follow_ends_with_a_canceled_job(call: Call, db: str) -> None:
    call("add", "--db", db, "-c", "trap 'echo bye; exit' TERM; echo hi; sleep 60 & wait")
    process = start("output", "--db", db, "-f", "--raw", "--stream=stdout", "1")
    assert process.stdout is not None
    assert process.stdout.readline() == b"hi\n"
    assert call("cancel", "--db", db, "--running", "--yes", "1").status == 0
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == (b"bye\n", 0)


@pytest.mark.usefixtures("worker")
def test_ctrl_c_ends_a_follower_by_the_signal(call: Call, db: str) -> None:
    call("add", "--db", db, "-c", "echo hi; sleep 60")
    process = start("output", "--db", db, "-f", "1")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (-signal.SIGINT, b"")
    assert os.listdir(f"{db}.d/waiters") == []


@pytest.mark.usefixtures("worker")
def test_a_follower_notices_that_its_reader_has_gone(call: Call, db: str) -> None:
    call("add", "--db", db, "-c", "echo hi; sleep 60")
    process = start("output", "--db", db, "-f", "1")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == -signal.SIGPIPE
    assert process.stderr is not None
    assert process.stderr.read() == b""


# -- on a terminal --------------------------------------------------------------------------


def on_terminal(*words: str) -> bytes:
    """What a verb writes to a terminal."""
    master, slave = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                return
            parts.append(part)

    process = start(*words, stdout=slave, stderr=slave)
    os.close(slave)
    reader = threading.Thread(target=read)
    reader.start()
    process.wait(20)
    reader.join(20)
    os.close(master)
    return b"".join(parts)


def test_half_a_character_alone_opens_no_line(call: Call, db: str) -> None:
    """It is held back until the attempt has ended."""
    add_and_run(call, db, "printf '\\303'; printf 'x\\n' >&2")
    shown = on_terminal("output", "--db", db, "--follow", "1").replace(b"\r\n", b"\n").decode()
    assert shown == ("=== job 1 attempt 1 stdout ===\n=== job 1 attempt 1 stderr ===\nx\n\ufffd\n")


def test_a_terminal_is_not_obeyed(call: Call, db: str) -> None:
    add_and_run(call, db, "printf 'a\\033]0;x\\007\\033[2J\\tb\\r\\nc\\rd\\302\\233\\377\\n'")
    shown = on_terminal("output", "--db", db, "--stream", "stdout", "1")
    assert shown.replace(b"\r\n", b"\n").decode() == (
        "=== job 1 attempt 1 stdout ===\na\\e]0;x\\x07\\e[2J\tb\nc\\rd\\x9b\ufffd\n"
    )
    raw = on_terminal("output", "--db", db, "--raw", "--stream", "stdout", "1")
    assert b"\x1b]0;x\x07\x1b[2J" in raw


def test_list_is_coloured_and_cut_on_a_terminal_only(
    call: Call, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("add", "--db", db, "--", "echo", "漢字" * 100, "🙂" * 50)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for columns in ("60", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = on_terminal("list", "--db", db).replace(b"\r\n", b"\n").decode()
        assert "\x1b[34mqueued\x1b[0m" in shown
        plain = shown.replace("\x1b[34m", "").replace("\x1b[0m", "").rstrip("\n")
        assert "\n" not in plain
        wide = sum(2 if ord(char) > 0x2E80 else 1 for char in plain)
        assert wide <= int(columns)
    assert b"\x1b" not in on_terminal("list", "--db", db, "--color", "never")
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b" not in on_terminal("list", "--db", db)
    assert b"\x1b" in call("list", "--db", db, "--color", "always").out
    assert b"\x1b" not in call("list", "--db", db).out


# -- cost -----------------------------------------------------------------------------------


@pytest.mark.parametrize("also", ["", " | tr '\\0' '\\n'; echo x"], ids=["zeros", "newlines"])
def test_a_large_stream_is_read_in_constant_memory(call: Call, db: str, also: str) -> None:
    add_and_run(call, db, f"head -c 80000000 /dev/zero{also}")
    program = (
        "import sys, tracemalloc\n"
        "from spoolctl.cli.main import main\n"
        "tracemalloc.start()\n"
        "main(sys.argv[1:])\n"
        "print(tracemalloc.get_traced_memory()[1], file=sys.stderr)\n"
    )
    for words in (["--raw", "--stream", "stdout"], ["--stream", "stdout"], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-c", program, "output", "--db", db, *words, "1"],
            env=clean_env(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=True,
        )
        assert int(done.stderr) < 8_000_000, words


def test_the_output_is_there_when_the_job_is_done(call: Call, db: str) -> None:
    for number in range(20):
        call("add", "--db", db, "-c", f"echo token-{number}")
    with start("work", "--db", db, "--drain", "-j", "4") as process:
        for number in range(20):
            call("wait", "--db", db, str(number + 1))
            raw = call("output", "--db", db, "--raw", "--stream", "stdout", str(number + 1))
            assert raw.text == f"token-{number}\n"
        process.communicate(timeout=30)
    assert eventually(lambda: process.returncode == 0)

"""What people see who sit at a terminal: progress, notes, and what must stay plain."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spoolctl.cli.progress import DrainLine
from spoolctl.cli.render import Out, duration, local_time
from spoolctl.cli.wait import PATIENCE_S
from tests.cli.conftest import Call
from tests.helpers import clean_env, eventually, spoolctl


class Terminal:
    """A verb on a terminal of its own."""

    def __init__(self, *words: str, stdout: int | None = None, term: str = "xterm") -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spoolctl", *words],
            env=clean_env({"TERM": term, "COLUMNS": "80", "NO_COLOR": ""}),
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
        )
        os.close(slave)
        self.parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self.master, 65536)
            except OSError:
                return
            if not part:
                return
            self.parts.append(part)

    def seen(self) -> str:
        """What has been written so far."""
        return b"".join(self.parts).decode().replace("\r\n", "\n")

    def end(self) -> str:
        """All that was written, once the verb has ended."""
        self.process.wait(30)
        self._reader.join(30)
        os.close(self.master)
        return self.seen()


def test_a_drain_shows_how_far_it_is_and_sums_up(call: Call, db: str) -> None:
    for script in ("true", "exit 3", "until [ -e go ]; do sleep 0.02; done"):
        call("add", "--db", db, "--no-retry", "-c", script)
    terminal = Terminal("work", "--drain", "--db", db)
    eventually(lambda: "1 done  1 failed  1 running  0 left" in terminal.seen())
    Path("go").touch()
    text = terminal.end()
    assert terminal.process.returncode == 0
    assert re.search(r"1 done  1 failed  1 running  0 left  [\d.]+/(s|min)  [\d.]+\w+ to go", text)
    last = text.split("\r\x1b[K")[-1]
    assert re.fullmatch(
        r"3 attempts in [\d.]+s: 2 done, 1 failed\nDrained: executed 3 job\(s\)\n", last
    )
    for line in (
        "job 1 attempt 1 succeeded",
        "job 2 attempt 1 failed",
        "job 3 attempt 1 succeeded",
    ):
        assert re.search(rf"\r\x1b\[Kspoolctl: {line} \([\d.]+s\) -> \w+\n", text)


def test_a_drain_into_a_pipe_has_the_plain_lines_only(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    done = spoolctl("work", "--drain", "--db", db)
    assert re.fullmatch(r"spoolctl: job 1 attempt 1 succeeded \(\d+\.\ds\) -> done\n", done.stderr)
    assert done.stdout == "Drained: executed 1 job(s)\n"


def test_a_dumb_terminal_gets_no_line_that_is_drawn_anew(call: Call, db: str) -> None:
    call("add", "--db", db, "true")
    waiting = Terminal("wait", "1", "--db", db, term="dumb")
    eventually(lambda: "no live worker" in waiting.seen())
    working = Terminal("work", "--drain", "--db", db, term="dumb")
    for terminal in (waiting, working):
        assert "\x1b" not in terminal.end()
        assert terminal.process.returncode == 0


def test_the_lines_that_scripts_rely_on_are_plain_on_a_terminal_too(call: Call, db: str) -> None:
    assert Terminal("add", "--db", db, "--", "echo", "hi").end() == "Added job 1\n"
    assert Terminal("status", "--db", db).end() == (
        "canceled 0  dead 0  done 0  failed 0  queued 1  running 0\n"
    )
    worker = Terminal("work", "--db", db)
    eventually(lambda: "-> done" in worker.seen())
    worker.process.send_signal(signal.SIGINT)
    assert re.fullmatch(r"spoolctl: job 1 attempt 1 succeeded \(\d+\.\ds\) -> done\n", worker.end())
    assert Terminal("output", "--db", db, "1").end() == (
        "=== job 1 attempt 1 stdout ===\nhi\n=== job 1 attempt 1 stderr ===\n"
    )


def test_a_delayed_job_is_told_with_its_time(call: Call, db: str) -> None:
    text = Terminal("add", "--db", db, "--after", "2h", "--", "true").end()
    assert re.fullmatch(
        r"starts at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d, in (1h 59m|2h 0m)\nAdded job 1\n",
        text,
    )
    assert call("add", "--db", db, "--after", "2h", "--", "true").err == ""


def test_a_list_has_room_for_the_commands(call: Call, db: str) -> None:
    call("add", "--db", db, "--", "echo", "hi")
    call("add", "--db", db, *("--queue", "b", "--priority", "-1", "--after", "2h"), "--", "true")
    call("add", "--db", db, "--", "echo", "\u65e5" * 200)
    spoolctl("work", "--once", "--db", db)
    wide, other, usual = Terminal("list", "--db", db, "--color", "never").end().splitlines()
    assert wide == "#3  queued  echo '" + "\u65e5" * 29 + "..."
    assert re.fullmatch(r"#2  queued  queue=b  priority=-1  in (1h 59m|2h 0m)  true", other)
    assert usual == "#1  done  echo hi"
    whole = Terminal("list", "--wide", "--db", db, "--color", "never").end().splitlines()
    assert whole == ["#3  queued  echo '" + "\u65e5" * 200 + "'", other, usual]


def test_of_what_runs_it_is_told_for_how_long(call: Call, db: str) -> None:
    """A command without a time limit that hangs is told from one that has just begun."""
    call("add", "--db", db, "--no-timeout", "--", "sleep", "60")
    worker = Terminal("work", "--once", "--db", db)
    eventually(lambda: "running 1" in call("status", "--db", db).text)
    listed = Terminal("list", "--db", db, "--color", "never").end()
    assert re.fullmatch(r"#1  running  for \d+(\.\d)?s  sleep 60\n", listed)
    assert re.search(
        r"attempt 1  running  worker=\S+  for \d+(\.\d)?s\n", call("show", "--db", db, "1").text
    )
    call("cancel", "--db", db, "--running", "--yes", "1")
    worker.end()


def test_wait_shows_how_many_are_open_and_leaves_no_trace(call: Call, db: str) -> None:
    for _ in range(2):
        call("add", "--db", db, "true")
    terminal = Terminal("wait", "--db", db, "1", "2", "--color", "never")
    eventually(lambda: "0 of 2 settled, 0 running" in terminal.seen())
    call("cancel", "--db", db, "1")
    eventually(lambda: "1 of 2 settled, 0 running" in terminal.seen())
    call("cancel", "--db", db, "2")
    assert terminal.end().endswith("\r\x1b[K#1  canceled\n#2  canceled\nnot all succeeded\n")


def test_an_envelope_on_a_terminal_has_no_escapes(call: Call, db: str) -> None:
    call("add", "--db", db, "--note", "\x1b[2J\x9b\u202e", "--", "true")
    for verb in (["show", "1"], ["list"], ["status"]):
        text = Terminal(verb[0], "--json", "--color", "always", "--db", db, *verb[1:]).end()
        assert text.isascii()
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (9.96, "10.0s"),
        (59, "59s"),
        (200, "3m 20s"),
        (7500, "2h 5m"),
        (273600, "3d 4h"),
    ],
)
def test_spans_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times_that_no_calendar_knows_are_numbers() -> None:
    assert local_time(1e18) == "1000000000000000000"


def test_the_line_never_waits_for_a_terminal_that_was_stopped() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    while True:
        try:
            os.write(write, b"x" * 65536)
        except BlockingIOError:
            break
    os.set_blocking(write, True)
    line = DrainLine(Out(stderr=write))
    line(1, 0, 0, 1)
    line.log("spoolctl: job 1")
    line.finish(executed=1, drained=True)
    os.close(read)
    os.close(write)


def test_what_the_terminal_had_no_room_for_is_shown_before_the_summary() -> None:
    read, write = os.pipe()
    line = DrainLine(Out(stderr=write))
    for number in range(3000):
        line.log(f"spoolctl: job {number} {'x' * 50}")
    got: list[bytes] = []

    def read_slowly() -> None:  # so that the end of the log just fits, and the summary does not
        while part := os.read(read, 4096):
            got.append(part)
            time.sleep(0.001)
        os.close(read)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    line.finish(executed=3000, drained=True)
    os.close(write)
    reader.join()
    text = b"".join(got).decode()
    assert re.findall(r"job (\d+) x", text) == [str(number) for number in range(3000)]
    assert re.search(r"3000 attempts in [\d.]+s: 0 done, 0 failed\n$", text)


def test_no_progress_line_stands_amid_the_output_that_is_followed(call: Call, db: str) -> None:
    terminal = Terminal(
        *("add", "--follow", "--no-retry", "--db", db),
        *("-c", "echo one; until [ -e go ]; do sleep 0.02; done; echo two"),
    )
    eventually(lambda: "job 1" in terminal.seen())
    worker = subprocess.Popen(
        [sys.executable, "-m", "spoolctl", "work", "--once", "--db", db],
        env=clean_env(),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    eventually(lambda: "one" in terminal.seen())
    time.sleep(PATIENCE_S + 0.3)  # so long it waits before it asks who would run the job
    Path("go").touch()
    assert terminal.end() == "spoolctl: job 1\none\ntwo\n"
    assert worker.wait(30) == 0


def test_half_a_character_at_the_end_of_what_is_followed_is_shown(call: Call, db: str) -> None:
    call(
        "add",
        "--db",
        db,
        "--max-retries",
        "1",
        "--retry-delay",
        "0",
        "-c",
        r"printf 'x\303'; exit 3",
    )
    spoolctl("work", "--drain", "--db", db)
    text = Terminal("output", "--follow", "--retries", "--attempt", "1", "--db", db, "1").end()
    assert text == (
        "=== job 1 attempt 1 stdout ===\nx\ufffd\n=== job 1 attempt 2 stdout ===\nx\ufffd\n"
    )

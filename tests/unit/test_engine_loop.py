"""Deadlines, signals and the log that never blocks."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import tracemalloc

import pytest

from spoolctl.engine import log as log_module
from spoolctl.engine.log import LineLog
from spoolctl.engine.loop import Deadlines, Sleeper
from tests.helpers import clean_env


def test_deadlines_fall_due_in_order_and_once() -> None:
    deadlines = Deadlines()
    deadlines.set("late", 3.0)
    deadlines.set("early", 1.0)
    deadlines.set(("timeout", 7), 2.0)
    assert deadlines.next_mono() == 1.0
    assert deadlines.due(2.0) == ["early", ("timeout", 7)]
    assert deadlines.due(2.0) == []
    assert deadlines.next_mono() == 3.0


def test_setting_a_deadline_again_replaces_it() -> None:
    deadlines = Deadlines()
    deadlines.set("beat", 1.0)
    deadlines.set("beat", 5.0)
    assert deadlines.due(4.0) == []
    assert deadlines.next_mono() == 5.0
    deadlines.sooner("beat", 9.0)
    assert deadlines.next_mono() == 5.0
    deadlines.sooner("beat", 4.5)
    assert deadlines.due(4.5) == ["beat"]


def test_a_dropped_deadline_never_falls_due() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.drop("a")
    deadlines.drop("a")
    assert deadlines.due(2.0) == []
    assert deadlines.next_mono() is None


def test_deadlines_of_what_has_ended_do_not_pile_up() -> None:
    deadlines = Deadlines()
    deadlines.set("beat", 5.0)
    tracemalloc.start()
    for number in range(20_000):
        deadlines.set(("timeout", number), 86_400.0)
        deadlines.drop(("timeout", number))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 100_000
    assert deadlines.next_mono() == 5.0
    assert deadlines.due(90_000.0) == ["beat"]


def test_the_log_does_not_wait_for_a_reader_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "KEEP_LINES", 1000)
    read, write = os.pipe()
    os.set_blocking(read, False)
    log = LineLog(write)
    lines = [f"line {n} {'x' * 100}" for n in range(3000)]
    for line in lines:
        log(line)
    assert log.behind
    got = b""
    while log.behind:
        got += os.read(read, 1 << 20)
        log.flush()
    log("the last")
    got += os.read(read, 1 << 20)
    told = got.decode().splitlines()
    assert told[0] == lines[0]
    assert told[-1] == "the last"
    assert told[-2].endswith("log lines were lost")
    assert [line for line in told if line.startswith("line")] == lines[: len(told) - 2]
    os.close(read)
    os.close(write)


def test_the_log_does_not_wait_for_a_terminal_that_nobody_reads() -> None:
    # In a process of its own: a write that waits for the reader would be for ever.
    outside, terminal = pty.openpty()
    code = """
import sys
from spoolctl.engine.log import LineLog
log = LineLog(2)
for number in range(3000):
    log(f"line {number}")
    if number % 8 == 0:
        log.all(f"line {number}.{n}" for n in range(8))
assert log.behind
print("went on", flush=True)
sys.stdin.read()
log.finish()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=clean_env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    assert process.stdin
    assert process.stdout
    reader = None
    try:
        assert select.select([process.stdout], [], [], 20)[0]
        process.stdin.close()
        got = bytearray()
        reader = threading.Thread(target=_read_terminal, args=(outside, got))
        reader.start()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if reader is not None:
            reader.join()
        os.close(outside)
    expected = []
    for number in range(3000):
        expected.append(f"line {number}")
        expected += [f"line {number}.{n}" for n in range(8)] if number % 8 == 0 else []
    assert got.decode().splitlines() == expected


def _read_terminal(fd: int, got: bytearray) -> None:
    with contextlib.suppress(OSError):  # EIO: everybody else has closed it (Linux)
        while part := os.read(fd, 65536):
            got += part


def test_a_slow_reader_gets_every_line_before_the_worker_ends() -> None:
    read, write = os.pipe()
    log = LineLog(write)
    for number in range(5000):
        log(f"{number} {'x' * 50}")
    assert log.behind
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(open(read, "rb").read()))  # noqa: SIM115
    reader.start()
    log.finish()
    os.close(write)
    reader.join()
    assert [int(line.split()[0]) for line in got[0].splitlines()] == list(range(5000))


def test_the_log_survives_a_reader_that_has_gone_and_a_closed_descriptor() -> None:
    read, write = os.pipe()
    os.close(read)
    log = LineLog(write)
    log("to nobody")
    os.close(write)
    log("to nothing")
    assert not log.behind


def test_the_log_shows_what_a_terminal_would_obey(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    log, line = LineLog(write), "process 7 (\x1b[31mred\n) does not die"
    log(line)
    assert os.read(read, 4096) == b"process 7 (\\e[31mred\\n) does not die\n"
    monkeypatch.setitem(sys.modules, "unicodedata", None)  # as if it could not be loaded now
    log(line)
    assert os.read(read, 4096) == b"process 7 (\\x1b[31mred\\n) does not die\n"
    os.close(read)
    os.close(write)


SIGNALS = """
import os, signal, sys
from spoolctl.engine.loop import Signals, Sleeper
signals = Signals()
sleeper = Sleeper([signals.fd])
print("ready", flush=True)
while signals.stops() < int(sys.argv[1]):
    sleeper.sleep(None)
    signals.drain()
signals.close()
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


@pytest.mark.parametrize("portable", [False, True])
def test_a_sleeper_tells_what_is_readable(portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if portable:
        monkeypatch.delattr(select, "epoll", raising=False)
    first, second = os.pipe(), os.pipe()
    sleeper = Sleeper([first[0]])
    assert sleeper.sleep(0.0) == frozenset()
    sleeper.add(second[0])
    os.write(first[1], b"1")
    os.write(second[1], b"2")
    assert sleeper.sleep(None) == {first[0], second[0]}
    sleeper.remove(second[0])
    sleeper.remove(second[0])
    assert sleeper.sleep(10.0) == {first[0]}
    os.close(first[1])  # its end is told too
    os.read(first[0], 1)
    assert sleeper.sleep(10.0) == {first[0]}
    sleeper.close()
    for fd in (first[0], *second):
        os.close(fd)


def start_signals(count: int, **kwargs: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SIGNALS, str(count)],
        env=clean_env(),
        stdout=subprocess.PIPE,
        text=True,
        **kwargs,  # type: ignore[call-overload]
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_every_stop_signal_counts() -> None:
    process = start_signals(3)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert out == "True\n"


def test_a_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    process = start_signals(1, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert out == "True\n"

"""The clerk: a second process that records and claims for a worker of many short commands.

While it has the queue's transaction in hand, its worker collects what ends and starts what it
holds: two processors are kept busy instead of one (docs/adr/0016-a-clerk.md). It decides
nothing and owns nothing. What it is asked to do may be done again, by anybody: a result that was
recorded already is recognized, and claims of which its worker never heard are taken back. So it
may be killed at any moment, and its worker only has to be sure that it is dead.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import time
from contextlib import suppress

from spoolctl.core.pauses import pause
from spoolctl.core.records import Cycle, Outcome, Want
from spoolctl.engine.clock import SystemClock
from spoolctl.process.companion import settle, start_companion
from spoolctl.store import open_store
from spoolctl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

CODE = ""
"""A line that runs first in a clerk; for tests, which make it die at bad moments."""

WAIT_S = 0.5
"""How long a clerk waits for the lock before its worker has to see to it by itself."""

LONGEST_BYTES = 32 * 1024
"""What is longer is no message for a clerk: a pipe may take no more at a time (pipe(7))."""

_REQUESTS, _ANSWERS = 3, 4
_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 16
_READY = "ready"
_FAILED = "failed"

_clerks: set[Clerk] = set()


class ClerkGone(Exception):
    """It has ended, or is of no use and has to be; what it was asked for may be done or not."""


class ClerkFailed(Exception):
    """It could not do what it was asked for, and nothing of that was done."""


class Clerk:
    """The worker's side of its clerk. `pid` is its process, `fd` readable when it has answered."""

    def __init__(self, pid: int, requests: int, answers: int) -> None:
        self.pid = pid
        self.fd = answers
        self.ready = False  # to be asked; False while it starts, and while it is at work
        self._requests = requests
        self._input = b""
        self._open = True
        _clerks.add(self)

    @classmethod
    def start(cls, db_path: str, worker: int) -> Clerk:
        """Start a clerk for the worker of this number. Not ready yet: `answer` tells when.

        Raises:
            OSError: it could not be started.
        """
        opened: list[int] = []
        try:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            opened.append(null)
            reading, requests = os.pipe()
            opened += [reading, requests]
            answers, writing = os.pipe()
            opened += [answers, writing]
            for fd in (requests, answers):
                os.set_blocking(fd, False)
            words = [db_path, str(worker), __version__, str(os.getpid())]
            fds = [null, null, null, reading, writing]
            pid = start_companion(__name__, words, fds, title="clerk", code=CODE)
            opened = [null, reading, writing]
        finally:
            for fd in opened:
                os.close(fd)
        return cls(pid, requests, answers)

    def ask(self, outcomes: Sequence[Outcome], want: Want | None) -> bool:
        """Have it record these ends and claim what is wanted; whether that was short enough.

        Raises:
            ClerkGone: it could not be told.
        """
        text = pickle.dumps((tuple(outcomes), want), pickle.HIGHEST_PROTOCOL)
        if len(text) > LONGEST_BYTES:
            return False
        message = len(text).to_bytes(_LENGTH_BYTES, "little") + text
        try:
            written = os.write(self._requests, message)
        except OSError as error:
            raise ClerkGone from error
        if written < len(message):
            raise ClerkGone
        self.ready = False
        return True

    def answer(self) -> Cycle | None:
        """What came of it; None: nothing yet, or it has only just become ready.

        Raises:
            ClerkFailed: nothing came of it.
            ClerkGone: it has ended, or says what cannot be understood.
        """
        message = self._message()
        if message is None:
            return None
        self.ready = True
        if message == _READY:
            return None
        if message == _FAILED:
            raise ClerkFailed
        if not isinstance(message, Cycle):
            raise ClerkGone
        return message

    def _message(self) -> object:
        try:
            while part := os.read(self.fd, _CHUNK_BYTES):
                self._input += part
                if len(self._input) >= _LENGTH_BYTES:
                    end = _LENGTH_BYTES + int.from_bytes(self._input[:_LENGTH_BYTES], "little")
                    if len(self._input) >= end:
                        text, self._input = self._input[_LENGTH_BYTES:end], b""
                        return pickle.loads(text)
        except BlockingIOError:
            return None
        except Exception as error:  # whatever bytes of another version make of themselves
            raise ClerkGone from error
        raise ClerkGone

    def kill(self) -> None:
        """End it at once. To be called only while it is not collected."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Close our ends: one that is at work ends when that is done. May be called twice."""
        if self._open:
            self._open = False
            _clerks.discard(self)
            os.close(self._requests)
            os.close(self.fd)

    def close(self, timeout_s: float) -> bool:
        """Let it finish what it is at, collect it; whether that is over.

        One with nothing in hand is not waited for; nor, after `timeout_s`, one that is stuck.
        """
        if self.ready:
            self.kill()
        self.let_go()
        until = time.monotonic() + timeout_s
        while not self._collect():
            if time.monotonic() >= until:
                self.kill()
                if time.monotonic() >= until + timeout_s:
                    return False
            pause(0.0005)
        return True

    def _collect(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:  # collected by the worker's loop
            return True


def _forget_copies() -> None:
    # A forked copy of the worker would keep its clerk alive after the worker's death.
    for clerk in list(_clerks):
        clerk.let_go()


os.register_at_fork(after_in_child=_forget_copies)


def main() -> None:
    """The clerk's own process. Ends when nobody can ask it for anything any more."""
    path, worker, version, parent = sys.argv[2:6]
    settle(_ANSWERS)
    if version != __version__:  # upgraded since the worker was started
        return
    with suppress(BrokenPipeError):
        _serve(path, int(worker), int(parent))


def _serve(path: str, worker: int, parent: int) -> None:
    store = open_store(path, create=False, wait_s=WAIT_S)
    clock = SystemClock()
    gc.freeze()
    try:
        _say(_READY)
        while (request := _heard()) is not None:
            if os.getppid() != parent:  # what the dead had asked for is others' business by now
                return
            outcomes, want = request
            try:
                answer: object = store.cycle(worker, outcomes, want, now=clock.now())
            except Exception:  # the worker tries the same, and learns why
                answer = _FAILED
            _say(answer)
    finally:
        store.close()


def _heard() -> Any:
    """The next request; None at the end of them."""
    head = _read(_LENGTH_BYTES)
    text = head and _read(int.from_bytes(head, "little"))
    return pickle.loads(text) if text else None


def _read(length: int) -> bytes:
    """So many bytes, or none at the end."""
    data = b""
    while len(data) < length:
        part = os.read(_REQUESTS, length - len(data))
        if not part:
            return b""
        data += part
    return data


def _say(message: object) -> None:
    text = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    left = memoryview(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    while left:
        left = left[os.write(_ANSWERS, left) :]

"""The clerk: a second process that records and claims for a worker of many short commands.

While it has the queue's transaction in hand, its worker collects what ends and starts what it
holds: two processors are kept busy instead of one (docs/adr/0016-a-clerk.md). It decides
nothing and owns nothing. What it is asked to do may be done again, by anybody: a result that was
recorded already is recognized, and claims of which its worker never heard are taken back. So it
may be killed at any moment, and its worker only has to be sure that it is dead.
"""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import time
from contextlib import suppress

from spoolctl.core.records import Cycle, Outcome, Want
from spoolctl.engine import letters
from spoolctl.engine.clock import SystemClock
from spoolctl.engine.letters import FAILED, READY, Answer
from spoolctl.process.companion import Companion, detach, start_companion
from spoolctl.process.spawn import die_with_parent
from spoolctl.store import open_store
from spoolctl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CODE = ""
"""A line that runs first in a clerk; for tests, which make it die at bad moments."""

WAIT_S = 0.5
"""How long a clerk waits for the lock before its worker has to see to it by itself."""

LONGEST_BYTES = 32 * 1024
"""What is longer is no message for a clerk. It must fit into an empty pipe, as nobody waits for
room in it: that has 64 KiB on Linux as a rule, and 16 to 64 on macOS, where it grows."""

MOST_ANSWER_BYTES = 1 << 20
"""What is longer, of claims with much input, is no answer: the worker takes those back, and claims
by itself, without having it copied."""

_REQUESTS, _ANSWERS = 3, 4
_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 16
_CHUNKS = 8  # at most in one turn of the worker's loop, which has more to do than to read


class ClerkGone(Exception):
    """It has ended, or is of no use and has to be; what it was asked for may be done or not."""


class ClerkFailed(Exception):
    """It met an error at what it was asked for, and can be asked again."""


class Clerk(Companion):
    """The worker's side of its clerk.

    `fd` is readable when it has answered. `ready`: it may be asked; not while it starts, nor
    while it is at work.
    """

    def __init__(self, pid: int, requests: int, answers: int) -> None:
        super().__init__(pid, [requests, answers])
        self.fd = answers
        self.ready = False
        self._requests = requests
        self._longest = min(LONGEST_BYTES, _room_in(requests))
        self._started = False
        self._input = bytearray()

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
        """Have it record these ends and claim what is wanted; whether that could be written, and
        was short enough.

        Raises:
            ClerkGone: it could not be told.
        """
        sizes = [len(each.data or b"") for one in outcomes for each in (one.stdout, one.stderr)]
        if sum(sizes) > self._longest:
            return False
        try:
            message = _framed(letters.request(outcomes, want))
        except ValueError:  # a program's own kind of text, as the name of a queue
            return False
        if len(message) > self._longest:
            return False
        try:
            written = os.write(self._requests, message)
        except OSError as error:
            raise ClerkGone from error
        if written < len(message):
            raise ClerkGone
        self.ready = False
        return True

    def answer(self) -> Answer | None:
        """What came of it; None: nothing yet, or it has only just become ready.

        Raises:
            ClerkFailed: an error came of it.
            ClerkGone: it has ended, or says what cannot be understood.
        """
        message = self._message()
        if message is None:
            return None
        if message == READY and not self._started:
            self.ready = self._started = True
            return None
        if not self._started:
            raise ClerkGone
        if message == FAILED:
            self.ready = True
            raise ClerkFailed
        if not isinstance(message, Answer):
            raise ClerkGone
        self.ready = True
        return message

    def _message(self) -> object:
        try:
            for _ in range(_CHUNKS):
                part = os.read(self.fd, _CHUNK_BYTES)
                if not part:
                    raise ClerkGone
                self._input += part
                end = _LENGTH_BYTES + int.from_bytes(self._input[:_LENGTH_BYTES], "little")
                if len(self._input) >= end > _LENGTH_BYTES:
                    text = bytes(self._input[_LENGTH_BYTES:end])
                    self._input.clear()
                    return letters.read_answer(text)
        except BlockingIOError:
            pass
        except Exception as error:  # whatever bytes of another version make of themselves
            raise ClerkGone from error
        return None


def _room_in(pipe: int) -> int:
    """How many bytes an empty pipe takes; users with many pipes get small ones (pipe(7))."""
    try:
        return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    except (AttributeError, OSError):  # not Linux
        return LONGEST_BYTES


def _framed(text: bytes) -> bytes:
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def main() -> None:
    """The clerk's own process. Ends when nobody can ask it for anything any more."""
    path, worker, version, parent = sys.argv[2:6]
    detach(_ANSWERS)
    # Its pipe tells as well, but not one that is stopped with the lock in its hands.
    die_with_parent()
    if version != __version__:  # upgraded since the worker was started
        return
    with suppress(BrokenPipeError):
        _serve(path, int(worker), int(parent))


def _serve(path: str, worker: int, parent: int) -> None:
    # The store imports it with the first command: then everybody would wait, and our worker too.
    import json as json

    store = open_store(path, create=False, wait_s=WAIT_S)
    clock = SystemClock()
    gc.freeze()
    try:
        _say(READY)
        while (request := _heard()) is not None:
            if os.getppid() != parent:  # what the dead had asked for is others' business by now
                return
            outcomes, want = request
            began = time.monotonic()
            try:
                cycle = store.cycle(worker, outcomes, want, now=clock.now())
                answer: Answer | str = Answer(cycle, time.monotonic() - began)
                if _size_of(cycle) > MOST_ANSWER_BYTES:
                    answer = FAILED
            except Exception:  # the worker tries the same, and learns why
                answer = FAILED
            _say(answer)
    finally:
        store.close()


def _size_of(cycle: Cycle) -> int:
    """About how long the answer would be."""
    return sum(
        len(one.stdin or b"") + sum(map(len, one.argv)) + sum(len(k) + len(v) for k, v in one.env)
        for one in cycle.claimed
    )


def _heard() -> tuple[tuple[Outcome, ...], Want | None] | None:
    """The next request; None at the end of them."""
    head = _read(_LENGTH_BYTES)
    text = head and _read(int.from_bytes(head, "little"))
    return letters.read_request(text) if text else None


def _read(length: int) -> bytes:
    """So many bytes, or none at the end."""
    data = b""
    while len(data) < length:
        part = os.read(_REQUESTS, length - len(data))
        if not part:
            return b""
        data += part
    return data


def _say(message: Answer | str) -> None:
    left = memoryview(_framed(letters.answer(message)))
    while left:
        left = left[os.write(_ANSWERS, left) :]

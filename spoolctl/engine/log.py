"""A worker's log lines: never blocking, never fatal.

A reader of the worker's stderr that has gone away, or that does not read, must neither end
nor hang the worker. Lines wait in a bounded buffer; what does not fit is counted.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable

from spoolctl.core.display import visible
from spoolctl.core.pauses import pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Log(Protocol):
        """Where a worker's lines go."""

        @property
        def behind(self) -> bool:
            """Whether lines wait for their reader."""

        def __call__(self, line: str) -> None:
            """Write one line; never waits, never fails."""

        def all(self, lines: Iterable[str]) -> None:
            """Write these lines, as one where that is cheaper."""

        def flush(self) -> None:
            """Write what can be written now."""

        def finish(self) -> None:
            """The worker ends: give a slow reader the rest."""


# A pipe that poll(2) calls writable takes this much without blocking (pipe(7), PIPE_BUF).
CHUNK_BYTES = min(select.PIPE_BUF, 4096)
KEEP_LINES = 100_000
FINISH_S = 1.0


class PlainLog:
    """Hands each line to a function, which must not block."""

    behind = False

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def __call__(self, line: str) -> None:
        """Hand the line on."""
        self._write(line)

    def all(self, lines: Iterable[str]) -> None:
        """Hand the lines on, one by one."""
        for line in lines:
            self._write(line)

    def flush(self) -> None:
        """Nothing waits here."""

    def finish(self) -> None:
        """Nothing waits here."""


class LineLog:
    """Writes lines to a descriptor as far as that is possible without waiting."""

    def __init__(self, fd: int) -> None:
        self._given = fd
        self._fd = _unblocked(fd)
        self._waiting: deque[bytes] = deque()
        self._lost = 0

    def __call__(self, line: str) -> None:
        """Write one line, or keep it until the reader reads."""
        self._add(line)
        self.flush()

    def all(self, lines: Iterable[str]) -> None:
        """Write these lines, or keep them until the reader reads."""
        for line in lines:
            self._add(line)
        self.flush()

    def _add(self, line: str) -> None:
        if len(self._waiting) >= KEEP_LINES:
            self._lost += 1
            return
        if self._lost:
            self._waiting.append(f"spoolctl: {self._lost} log lines were lost\n".encode())
            self._lost = 0
        self._waiting.append(_safe(line).encode("utf-8", "backslashreplace") + b"\n")

    @property
    def behind(self) -> bool:
        """Whether lines wait for their reader."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Write what can be written now."""
        while self._waiting:
            chunk = b""
            try:
                if not writable(self._fd):
                    return
                chunk = self._next_chunk()
                sent = os.write(self._fd, chunk[:CHUNK_BYTES])
            except BlockingIOError:
                self._waiting.appendleft(chunk)
                return
            except OSError:  # closed, reader gone, disk full: the log is not worth a job
                self._waiting.clear()
                return
            if sent < len(chunk):
                self._waiting.appendleft(chunk[sent:])

    def _next_chunk(self) -> bytes:
        """The next line, with those after it that fit into one write."""
        chunk = self._waiting.popleft()
        while self._waiting and len(chunk) + len(self._waiting[0]) <= CHUNK_BYTES:
            chunk += self._waiting.popleft()
        return chunk

    def finish(self) -> None:
        """Wait for a slow reader, as long as it reads: at most `FINISH_S` for its next step.

        Lines may come after it, too.
        """
        left, until = self._left, time.monotonic() + FINISH_S
        while self._waiting and time.monotonic() < until:
            try:
                if not writable(self._fd, FINISH_S):
                    break
            except OSError:
                break
            self.flush()
            if self._left == left:
                pause(FINISH_S / 100)  # a terminal with too little room
            else:
                left, until = self._left, time.monotonic() + FINISH_S
        if self._fd != self._given:
            os.close(self._fd)
            self._fd = self._given

    @property
    def _left(self) -> tuple[int, int]:
        """Changes with everything that is written."""
        return len(self._waiting), len(self._waiting[0]) if self._waiting else 0


def _safe(line: str) -> str:
    """The line with nothing that a terminal obeys: names of programs and of processes stand in
    it, as their makers chose them."""
    try:
        return visible(line)
    except (ImportError, OSError):  # no descriptor left to load what knows all characters
        return repr(line)[1:-1]


def _unblocked(fd: int) -> int:
    """The terminal behind `fd`, opened anew not to wait; what is no terminal, as it is.

    poll(2) calls a terminal writable that has not room for a line, and a write would wait for
    whoever reads it. (O_NONBLOCK at `fd` itself would be for all who share it.)
    """
    try:
        if os.isatty(fd):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(os.ttyname(fd), flags)
    except OSError:  # another user's, or of another container
        pass
    return fd


def writable(fd: int, timeout_s: float = 0.0) -> bool:
    """Whether a short write to `fd` would not block, now or within the time (poll(2))."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(timeout_s * 1000.0))

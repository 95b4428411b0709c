"""A worker's log lines: never blocking, never fatal.

A reader of the worker's stderr that has gone away, or that does not read, must neither end
nor hang the worker. Lines wait in a bounded buffer; what does not fit is counted.
"""

from __future__ import annotations

import os
from collections import deque

from spoolctl.engine.loop import writable

# A pipe that poll(2) calls writable takes this much without blocking (pipe(7), PIPE_BUF; POSIX
# guarantees 512, Linux and macOS give more, so that one short line always fits).
CHUNK_BYTES = 512
KEEP_LINES = 1000


class LineLog:
    """Writes lines to a descriptor as far as that is possible without waiting."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting: deque[bytes] = deque()
        self._lost = 0

    def __call__(self, line: str) -> None:
        """Write one line, or keep it until the reader reads."""
        if len(self._waiting) >= KEEP_LINES:
            self._lost += 1
            return
        if self._lost:
            self._waiting.append(f"spoolctl: {self._lost} log lines were lost\n".encode())
            self._lost = 0
        self._waiting.append(line.encode("utf-8", "backslashreplace") + b"\n")
        self.flush()

    @property
    def behind(self) -> bool:
        """Whether lines wait for their reader."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Write what can be written now."""
        while self._waiting:
            try:
                if not writable(self._fd):
                    return
                line = self._waiting[0]
                sent = os.write(self._fd, line[:CHUNK_BYTES])
            except OSError:  # closed, reader gone, disk full: the log is not worth a job
                self._waiting.clear()
                return
            if sent < len(line):
                self._waiting[0] = line[sent:]
            else:
                self._waiting.popleft()

"""The event loop's parts: signals, deadlines, and sleeping in the kernel until one of them."""

from __future__ import annotations

import errno
import heapq
import os
import select
import signal
from collections.abc import Hashable, Iterable
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

READABLE = 1
"""EPOLLIN, and EVENT_READ of `selectors`."""

STALE_ALLOWED = 64
"""So few stale deadlines are not worth the work of throwing them out."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Deadlines:
    """Named points in time (monotonic seconds), the earliest first.

    Setting a name again replaces its time. Stale heap entries are skipped when met, and thrown
    out when they are the most of it: a worker of short jobs with a time limit of a day would
    keep millions of them.
    """

    def __init__(self) -> None:
        self._at: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._count = 0

    def set(self, name: Hashable, at: float) -> None:
        """Make `name` fall due at `at`."""
        self._at[name] = at
        self._count += 1  # names need not be comparable with each other
        heapq.heappush(self._heap, (at, self._count, name))
        if len(self._heap) > 2 * len(self._at) + STALE_ALLOWED:
            self._heap = [(at, n, name) for n, (name, at) in enumerate(self._at.items())]
            heapq.heapify(self._heap)

    def sooner(self, name: Hashable, at: float) -> None:
        """Like `set`, unless `name` falls due earlier already."""
        if self._at.get(name, at + 1) > at:
            self.set(name, at)

    def drop(self, name: Hashable) -> None:
        """Forget `name`; it need not exist."""
        self._at.pop(name, None)

    def due(self, now: float) -> list[Hashable]:
        """Names whose time has come; they are forgotten."""
        names = []
        while self._heap and self._heap[0][0] <= now:
            at, _, name = heapq.heappop(self._heap)
            if self._at.get(name) == at:
                del self._at[name]
                names.append(name)
        return names

    def next_mono(self) -> float | None:
        """The earliest deadline, which may have passed; None if there is none."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class Signals:
    """Signals as bytes in a pipe that a selector can watch.

    One that was ignored when the process started stays ignored, as under nohup. Must be
    installed in the main thread, before anything slow: a stop request that comes while the
    worker starts is then kept until the loop looks.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._stops = 0
        self._has_terminal = has_terminal()
        self.first_stop: int | None = None
        """The number of the signal that was the first stop request."""
        self._old = {}
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            if signal.getsignal(number) is signal.SIG_IGN and number != signal.SIGCHLD:
                continue
            handler = self._stop if number != signal.SIGCHLD else _noted
            self._old[number] = signal.signal(number, handler)
        # A handler interrupts system calls unless told otherwise; Python restarts them.

    @property
    def fd(self) -> int:
        """Readable when a signal has arrived."""
        return self._read

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        # When a terminal is closed, its shell passes SIGHUP on and ends, upon which the kernel
        # sends one of its own (exit(3)): together they are one request.
        hung_up = number == signal.SIGHUP and self._has_terminal and not has_terminal()
        if hung_up and self._stops:
            return
        self._stops += 1
        if self.first_stop is None:
            self.first_stop = number

    def stops(self) -> int:
        """How many stop requests have come so far."""
        return self._stops

    def drain(self) -> None:
        """Empty the pipe."""
        with suppress(BlockingIOError):
            while len(os.read(self._read, 4096)) == 4096:
                pass

    def close(self) -> None:
        """Give the signals back to whoever had them before."""
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._old_fd)
        os.close(self._read)
        os.close(self._write)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal that was not hung up (tty(4))."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.ENXIO, errno.EIO, errno.ENOENT)
    return True


def _noted(_number: int, _frame: FrameType | None) -> None:
    """The byte in the wake-up pipe is all that is needed."""


class Sleeper:
    """Sleeps in the kernel until a descriptor is readable or time is up."""

    def __init__(self, fds: Iterable[int]) -> None:
        # Not by `selectors`, which takes a millisecond to import, and more time at each turn.
        self._poll = select.epoll() if hasattr(select, "epoll") else Portable()
        for fd in fds:
            self.add(fd)

    def add(self, fd: int) -> None:
        """Watch one more descriptor."""
        self._poll.register(fd, READABLE)

    def remove(self, fd: int) -> None:
        """Stop watching; the descriptor may be closed already."""
        with suppress(OSError, KeyError, ValueError):
            self._poll.unregister(fd)

    def sleep(self, timeout_s: float | None) -> frozenset[int]:
        """The descriptors that became readable within `timeout_s` (None: for ever)."""
        return frozenset(fd for fd, _ in self._poll.poll(timeout_s))

    def close(self) -> None:
        """Release what it holds (not what it watches)."""
        self._poll.close()


class Portable:
    """What a sleeper needs of `select.epoll`, where that is missing."""

    def __init__(self) -> None:
        import selectors

        self._selector = selectors.DefaultSelector()
        self.close = self._selector.close
        self.unregister = self._selector.unregister

    def register(self, fd: int, mask: int) -> None:
        """Watch one more descriptor."""
        self._selector.register(fd, mask)

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """The descriptors that became readable within `timeout_s` (None: for ever)."""
        return [(key.fd, mask) for key, mask in self._selector.select(timeout_s)]

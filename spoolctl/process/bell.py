"""Doorbells: a FIFO per waiter, rung after a commit so that the waiter looks at once.

A bell carries no message. It only ends a sleep: drain it first, then look at the store, and
no ring is lost. Where there can be no FIFOs, waiters poll.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable

_SUFFIX = ".bell"
_FRESH = ".bell-new"
_FRESH_S = 60.0
# Longer than the steps in which a file system that shows fractions of a millisecond, and one
# that does not, count the time of a change.
_FINE_TICK_NS = 100_000_000
_COARSE_TICK_NS = 3_000_000_000
# Reading and writing at once (Linux and macOS allow it on FIFOs): the owner never sees the
# end of file, and who rings is neither refused (ENXIO) nor killed by SIGPIPE.
_OPEN = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class Bell:
    """A doorbell of this process. `fd` becomes readable when it was rung; None: poll."""

    def __init__(self, fd: int | None, path: str) -> None:
        self.fd = fd
        self.path = path

    @classmethod
    def create(cls, folder: str, token: str) -> Bell:
        """Hang up the bell `token` in `folder`; one without `fd` where that is impossible."""
        path = os.path.join(folder, token + _SUFFIX)
        fresh = os.path.join(folder, token + _FRESH)
        try:
            os.mkfifo(fresh, 0o600)
            fd = os.open(fresh, _OPEN)
            try:
                os.fchmod(fd, 0o600)  # whatever the umask
                # Under its own name it always has a reader, so no sweep takes it away.
                os.rename(fresh, path)
            except BaseException:
                os.close(fd)
                raise
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            return cls(None, path)
        return cls(fd, path)

    def drain(self) -> bool:
        """Forget all rings so far; returns whether there were any. Never blocks."""
        rung = False
        if self.fd is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self.fd, 65536):
                    rung = True
        return rung

    def close(self) -> None:
        """Take the bell down. May be called twice."""
        if self.fd is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(self.fd)
        self.fd = None


def ring(folder: str, tokens: Iterable[str] | None) -> None:
    """Ring the bells of `tokens`, or all in `folder` (None).

    Never blocks and never fails: a missing bell, one that nobody listens to and one that has
    been rung so often that it is full are all the same to us.
    """
    if tokens is None:
        names = [name for name in _names(folder) if name.endswith(_SUFFIX)]
    else:
        names = [token + _SUFFIX for token in tokens]
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            fd = os.open(os.path.join(folder, name), _OPEN)
            try:
                if stat.S_ISFIFO(os.fstat(fd).st_mode):
                    os.write(fd, b"!")
            finally:
                os.close(fd)


class Ringer:
    """Rings all bells of a folder but that of `besides`, again and again.

    While nobody waits, a ring costs one system call: a folder that has not changed since it
    was seen to be empty still is.
    """

    def __init__(self, folder: str, besides: str) -> None:
        self._folder = folder
        self._own = besides + _SUFFIX
        self._empty_ns: int | None = None  # when the folder had last changed, if nobody waits

    def ring(self) -> None:
        """Like `ring`: never blocks, never fails."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
        except OSError:
            return
        if changed_ns == self._empty_ns:
            return
        try:
            names = os.listdir(self._folder)
        except OSError:  # too few descriptors: who waits cannot be told, now or by this later
            return
        tokens = [
            name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX) and name != self._own
        ]
        ring(self._folder, tokens)
        # Two changes within one tick of the file system's clock look like one.
        tick_ns = _FINE_TICK_NS if changed_ns % 1_000_000 else _COARSE_TICK_NS
        settled = time.time_ns() - changed_ns > tick_ns
        self._empty_ns = changed_ns if settled and not tokens else None


def sweep(folder: str) -> int:
    """Take down the bells that nobody listens to any more; returns how many."""
    return sum(_take_down(os.path.join(folder, name)) for name in _names(folder))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _take_down(path: str) -> bool:
    try:
        if path.endswith(_FRESH):
            # Being hung up at this moment, or left by one who was killed while doing it.
            if abs(time.time() - os.lstat(path).st_ctime) < _FRESH_S:
                return False
        elif not path.endswith(_SUFFIX):
            return False
        if not stat.S_ISFIFO(os.lstat(path).st_mode) or _has_reader(path):
            return False
        os.unlink(path)
    except OSError:
        return False
    return True


def _has_reader(path: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        import errno

        return error.errno != errno.ENXIO
    os.close(fd)
    return True

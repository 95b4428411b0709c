"""File locks as proof of life: flock(2) on a file of its own.

The kernel drops such a lock when the last copy of the open file is closed, whatever ended the
process, and it is seen across PID namespaces of one kernel. A child that inherits the
descriptor holds the lock as well.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from spoolctl.core.pauses import pause

_PROBE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_TRIES = 50
_TRY_AGAIN_S = 0.002


def take(path: str) -> int | None:
    """Lock the file at `path` for this process alone; returns the descriptor (close-on-exec).

    Creates the file, with mode 0600 whatever the umask. None if somebody holds the lock.
    A probe (`is_held`) that happens at the same moment only delays it.

    Raises:
        OSError: the file cannot be created, or the file system knows no such locks.
    """
    for _ in range(_TRIES):
        fd, opened = _open_private(path)
        try:
            if not _lock(fd, fcntl.LOCK_EX):
                # Probes take it shared: if we can share it, nobody owns it.
                if not _lock(fd, fcntl.LOCK_SH):
                    os.close(fd)
                    return None
            elif _is_at(path, opened):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        pause(_TRY_AGAIN_S)
    return None


def is_held(path: str, dev: int | None = None, ino: int | None = None) -> bool | None:
    """Whether somebody holds the lock of the file at `path`.

    None if that cannot be known: the file is missing, unreadable, or not the one with this
    device and inode. Never creates the file; takes the lock shared, for a moment, without
    waiting. A copy of the descriptor in this very process counts as somebody.
    """
    try:
        fd = os.open(path, _PROBE)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(fd)
        if dev is not None and found.st_dev != dev:
            return None
        if ino is not None and found.st_ino != ino:
            return None
        return not _lock(fd, fcntl.LOCK_SH)
    except OSError:
        return None
    finally:
        os.close(fd)


def remove(path: str) -> bool:
    """Remove the lock file at `path`, unless somebody holds it; whether it is gone.

    The lock is ours, shared, until the name is gone: whoever opened the file before that, to
    take it, finds it locked or without its name, and makes another. What cannot be opened is
    no lock that anybody holds.
    """
    fd = None
    try:
        with suppress(OSError, ValueError):
            fd = os.open(path, _PROBE)
        if fd is not None and not _lock(fd, fcntl.LOCK_SH):
            return False
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True


def _open_private(path: str) -> tuple[int, os.stat_result]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        found = os.fstat(fd)
        if found.st_mode & 0o777 != 0o600:  # a umask may have taken our own bits
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd, found


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: str, opened: os.stat_result) -> bool:
    # A sweep may have unlinked the file between our open and our lock.
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, opened)

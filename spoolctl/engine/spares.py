"""Empty stream files that a worker uses again, as making a file costs as much as a command.

Most commands write little or nothing, and their streams end up in the database. Creating and
unlinking two files for each of them is most of what a short job costs on a file system that
looks for inodes that were not freed a moment ago (ext4). Renaming one is not.

A file is used again only if it cannot be told from a new one: it is empty, as we made it, and
nobody has it open, to write or to read. That is what the kernel's write lease proves (fcntl(2),
F_SETLEASE); where there are no leases, files are made anew.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections import deque
from contextlib import suppress

FILE_MODE = 0o600
"""Nobody else may read a job's output, whatever the umask."""

_OPEN = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Spares:
    """At most `most` files, for the next streams. What is left is removed by `drop`, or swept
    like any file that belongs to no attempt if the worker is killed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._paths: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._paths)

    def offer(self, path: str) -> bool:
        """Keep the empty file of a stream that is no more; False if there are enough."""
        if len(self._paths) >= self._most:
            return False
        self._paths.append(path)
        return True

    def take(self, path: str) -> int | None:
        """Give a spare the name `path`, which must be new; its descriptor, or None."""
        while self._paths:
            # The one that has been here for longest: a process that had not closed its copy yet,
            # between fork and exec, has come further meanwhile.
            spare = self._paths.popleft()
            try:
                os.rename(spare, path)
            except OSError:  # swept, moved, made immutable: whatever it is, it is no spare
                continue
            try:
                # Under a name that no former command knows: who has it open now is all who
                # ever will. (The next attempt's followers may know it; see `engine.output`.)
                fd = os.open(path, _OPEN)
            except OSError:  # a link, a folder, no longer readable; too few descriptors
                _put_aside(path, spare)
                continue
            # In this order: whoever has it open may write until it is closed.
            if _is_nobody_elses(fd) and _is_as_new(fd):
                return fd
            os.close(fd)
            with suppress(OSError):
                os.unlink(path)
        return None

    def drop(self) -> None:
        """Remove all spares."""
        while self._paths:
            with suppress(OSError):
                os.unlink(self._paths.popleft())


def _put_aside(path: str, spare: str) -> None:
    """Free the name `path` of what has turned out to be no spare."""
    with suppress(OSError):
        try:
            os.unlink(path)
        except OSError:  # a folder that the command made in the file's place
            os.rename(path, spare)


def _is_as_new(fd: int) -> bool:
    found = os.fstat(fd)
    return (
        found.st_size == 0
        and found.st_blocks == 0
        and found.st_nlink == 1
        and stat.S_IMODE(found.st_mode) == FILE_MODE
        and found.st_uid == os.geteuid()
    )


def _is_nobody_elses(fd: int) -> bool:
    """Whether `fd`, just opened, is the only way by which any process has the file open.

    What a former command inherited, or mapped, is another opening of it.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (AttributeError, OSError):
        return False
    return True

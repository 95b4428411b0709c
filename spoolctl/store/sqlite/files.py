"""The queue's file as a name in a folder: made privately, looked at by stat(2) only."""

from __future__ import annotations

import errno
import os
import stat
import sys

from spoolctl.core.paths import beside
from spoolctl.errors import SpoolError, StoreFailing, StoreFull, StoreUnusable


def inode(path: str) -> tuple[int, int] | None:
    """Device and inode, or None where nothing is (any more)."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def has_content(path: str) -> bool:
    """Whether there is a file of more than zero bytes."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def planted(path: str, owner: int) -> str | None:
    """What another user has put beside a queue that `owner` alone may write to; None if nothing.

    In a folder like /tmp anybody can make a file of the name of the queue's log, and SQLite
    would play it back into the queue: with jobs of their choice. Root's files are no stranger's.
    """
    for each in beside(path):
        try:
            found = os.lstat(each)
        except (OSError, ValueError):
            continue
        if found.st_uid not in (owner, 0):
            return (
                f"{each} belongs to user id {found.st_uid}, who may not write to {path}: it would"
                " be taken for a part of it; remove it"
            )
    return None


def why(error: Exception) -> str:
    """The reason in an OSError, without the path."""
    return getattr(error, "strerror", None) or str(error)


def uri(path: str, options: str) -> str:
    """The name by which SQLite opens an absolute path."""
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    # Exactly one slash in front: two would start the name of a host.
    return f"file:/{quoted.lstrip('/')}?{options}"


def create_private(path: str) -> None:
    """Make an empty file, 0600 whatever the umask. Raises FileExistsError."""
    from spoolctl.folders import set_mode

    if sys.platform == "linux":
        # mknod(2) makes it without opening it: no descriptor of ours is ever closed on a
        # file in which SQLite, in another thread, may hold locks already.
        os.mknod(path, stat.S_IFREG | 0o600)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    set_mode(path, 0o600)


def refusal(error: OSError, what: str, path: str) -> SpoolError:
    """Why `path` cannot be made or opened: the disk, the process's limits, or the path itself."""
    message = f"{what} {path}: {why(error)}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(message)
    if error.errno in (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return StoreFailing(message)
    kind = "read_only" if error.errno == errno.EROFS else "path"
    return StoreUnusable(message, kind=kind, path=path)

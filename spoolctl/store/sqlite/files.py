"""The queue's file as a name in a folder: made privately, synced, looked at by stat(2) only."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress


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
    if sys.platform == "linux":
        # mknod(2) makes it without opening it: no descriptor of ours is ever closed on a
        # file in which SQLite, in another thread, may hold locks already.
        os.mknod(path, stat.S_IFREG | 0o600)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    _set_mode(path, 0o600)


def create_folder(path: str) -> None:
    """Make a folder and its missing parents, 0700 whatever the umask; their names are synced."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        create_folder(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(20, "Not a directory", path) from None
        return
    _set_mode(path, 0o700)
    sync_folder(parent)


def _set_mode(path: str, mode: int) -> None:
    # A umask that takes rights from the owner too.
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)


def sync_folder(path: str) -> None:
    """Make new names in the folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems cannot sync a folder (EINVAL); they have nothing better to offer.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)

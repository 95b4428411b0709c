"""Private folders whose names survive a power cut; what an OSError says."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

FOLDER_MODE = 0o700

# What a folder's fsync(2) may say when the disk is in trouble. Anything else (EINVAL, ENOSYS,
# EPERM, ...) comes from file systems that cannot sync a folder, and have nothing better to offer.
_SERIOUS = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT})


def make_folder(path: str) -> None:
    """Make a folder and its missing parents, 0700 whatever the umask; their names are synced.

    Raises:
        OSError: it cannot be made (NotADirectoryError: a file is in its place), or not synced.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_folder(parent)
    with suppress(FileExistsError):
        os.mkdir(path, FOLDER_MODE)
        set_mode(path, FOLDER_MODE)
        sync_folder(parent)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def set_mode(path: str, mode: int) -> None:
    """Give what we made these rights: a umask may take some from the owner too."""
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)


def sync_folder(path: str) -> None:
    """Make a folder's entries durable (fsync(2): syncing a file does not do that)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with naming(path):
            os.fsync(fd)
    except OSError as error:
        if error.errno in _SERIOUS:
            raise
    finally:
        os.close(fd)


class naming:  # noqa: N801 - used like a function
    """Let an OSError of a call on a descriptor say which file it is about.

    No generator: it stands on the way of every command that is started.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self._path


def words_of(error: OSError) -> str:
    """The reason and the file, for people."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{reason}: {error.filename}" if error.filename else reason

"""Stream files of ended attempts, as a whole: removed after a prune, copied for a backup."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from spoolctl.core.paths import STREAMS, beside, owners, stream_path, support_dir
from spoolctl.engine.capture import open_recorded
from spoolctl.engine.spares import FILE_MODE
from spoolctl.errors import InvalidInput, StoreUnusable
from spoolctl.folders import make_folder, sync_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.protocol import Store

COPY_BYTES = 1 << 20


def remove_streams(db_path: str, tokens: Iterable[str], *, dry_run: bool = False) -> int:
    """Unlink the files of these attempts, and folders that are empty then; returns how many
    bytes that frees on the disk. Missing files are no error; with `dry_run` only counts."""
    freed = 0
    for token in tokens:
        for stream in STREAMS:
            path = stream_path(db_path, token, stream)
            try:
                # Its length; less where the middle was dropped (a hole).
                found = os.lstat(path)
                size = min(found.st_size, found.st_blocks * 512)
                if not dry_run:
                    os.unlink(path)
            except OSError:
                continue
            freed += size
            if not dry_run:
                with suppress(OSError):  # not empty
                    os.rmdir(os.path.dirname(path))
    return freed


def backup(store: Store, target: str) -> tuple[int, int]:
    """Copy a queue to the new file `target`, and its large streams to `target`.d.

    Everything is written under other names, synced, and renamed at the end: the streams
    first, so that a queue that is there is complete. After a failure nothing is left.
    Returns the number of streams copied and the size of all files.

    Raises:
        InvalidInput: `target`, its support folder or a log of that name exists, or its folder
            cannot be used.
    """
    try:
        path = os.path.realpath(target)
    except FileNotFoundError:  # from getcwd(2)
        raise InvalidInput("the current folder no longer exists: give an absolute path") from None
    folder = os.path.dirname(path)
    _refuse_existing(path)
    if not os.path.isdir(folder):
        raise InvalidInput(f"there is no folder {folder}")
    draft = f"{path}.tmp-{os.urandom(6).hex()}"
    with ExitStack() as undo:
        undo.callback(_remove_draft, draft)
        try:
            wanted = store.backup(draft)
        except StoreUnusable as error:
            if error.path != draft:
                raise
            why = getattr(error.__cause__, "strerror", None) or str(error)
            raise InvalidInput(f"cannot write in {folder}: {why}") from None
        copied, size = _copy_streams(store.path, draft, wanted)
        size += os.stat(draft).st_size
        _publish(draft, path, undo)
        sync_folder(folder)
        undo.pop_all()
    return copied, size


def _refuse_existing(path: str) -> None:
    # A log that was left by a queue of that name would be played back into the copy, and
    # beside a queue the copy itself could be taken for a log.
    for each in (path, support_dir(path), *beside(path)):
        if os.path.lexists(each):
            raise InvalidInput(f"{each} exists already")
    for owner in owners(path):
        if os.path.isfile(owner):
            raise InvalidInput(f"{path} would be taken for a part of {owner}")


def _publish(draft: str, path: str, undo: ExitStack) -> None:
    """Give the draft its name, unless somebody took it in the meantime."""
    if os.path.isdir(support_dir(draft)):
        # Renaming onto an existing folder works only if that is empty: nothing is lost.
        os.rename(support_dir(draft), support_dir(path))
        undo.callback(shutil.rmtree, support_dir(path), ignore_errors=True)
    try:
        # A link, as a rename would replace a file that has appeared.
        os.link(draft, path)
    except FileExistsError:
        raise InvalidInput(f"{path} exists already") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        _refuse_existing(path)  # a file system without links
        os.rename(draft, path)
        undo.callback(_remove_draft, path)
        return
    undo.callback(_remove_draft, path)
    os.unlink(draft)


def _remove_draft(draft: str) -> None:
    shutil.rmtree(support_dir(draft), ignore_errors=True)
    for name in (draft, *beside(draft)):
        with suppress(OSError):
            os.unlink(name)


def _copy_streams(db_path: str, draft: str, wanted: Iterable[tuple[str, str]]) -> tuple[int, int]:
    copied = total = 0
    folders = set()
    for token, stream in wanted:
        target = stream_path(draft, token, stream)
        make_folder(os.path.dirname(target))
        folders.add(os.path.dirname(target))
        size = _copy(stream_path(db_path, token, stream), target)
        if size is not None:
            copied, total = copied + 1, total + size
    for folder in folders:
        sync_folder(folder)
    return copied, total


def _copy(source: str, target: str) -> int | None:
    """Copy one file, holes kept; None if it has been pruned in the meantime."""
    origin = open_recorded(source)
    if origin is None:
        return None
    try:
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.fchmod(copy, FILE_MODE)  # a umask may have taken our own bits
            size = os.fstat(origin).st_size
            os.ftruncate(copy, size)
            for start, end in _data_ranges(origin, size):
                _copy_range(origin, copy, start, end)
            os.fsync(copy)
            return size
        finally:
            os.close(copy)
    finally:
        os.close(origin)


def _copy_range(origin: int, copy: int, start: int, end: int) -> None:
    while start < end:
        piece = os.pread(origin, min(COPY_BYTES, end - start), start)
        if not piece:
            return
        start += os.pwrite(copy, piece, start)


def _data_ranges(fd: int, size: int) -> Iterable[tuple[int, int]]:
    """Where the file has data; all of it where holes cannot be told (lseek(2), SEEK_DATA)."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: only a hole is left
                yield end, size
            return
        yield start, end

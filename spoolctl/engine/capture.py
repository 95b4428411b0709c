"""An attempt's stdout and stderr while it runs, and what becomes of them when it ends.

Each stream is a plain file, opened O_APPEND and handed to the command itself: there is no
pipe to drain, so nothing is lost when the worker dies. The worker keeps its descriptor, so
that it can still read what was written after somebody removed the file.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from spoolctl.core.paths import STREAMS, stream_path
from spoolctl.core.records import Capture
from spoolctl.core.tuples import NamedTuple
from spoolctl.engine.punch import BLOCK_BYTES, punch_hole
from spoolctl.engine.spares import FILE_MODE, Spares
from spoolctl.folders import make_folder, naming, sync_folder

CHUNK_BYTES = 1 << 20

DRAFT = "-new"
"""What the name of a stream that is being copied ends with."""

NOTHING = Capture(size_bytes=0, data=b"")
MISSING = Capture(size_bytes=0, data=None, missing=True)


class Gap(NamedTuple):
    """Bytes [start, end) that were dropped from the middle of a stream."""

    start: int
    end: int


class Stream:
    """One stream of a running attempt."""

    def __init__(self, path: str, spares: Spares | None = None) -> None:
        self.path = path
        fd = spares.take(path) if spares is not None else None
        self.fd = open_stream(path, fresh=True) if fd is None else fd
        self._seen = 0
        self._gap: Gap | None = None
        self._shortened = False

    def look(self, limit_bytes: int) -> bool:
        """Note the size; cut the middle out if it is over the limit.

        Returns False if the stream is too long and this file system cannot drop its middle.
        """
        size = os.fstat(self.fd).st_size
        self._shortened |= size < self._seen
        self._seen = size
        if size - self._dropped() <= limit_bytes:
            return True
        return self._cut(size, limit_bytes)

    def _dropped(self) -> int:
        return self._gap.end - self._gap.start if self._gap else 0

    def _cut(self, size: int, limit_bytes: int) -> bool:
        """Keep the first and the last half of the limit, in whole blocks."""
        half = max(BLOCK_BYTES, limit_bytes // 2 // BLOCK_BYTES * BLOCK_BYTES)
        start = self._gap.start if self._gap else half
        end = (size - half) // BLOCK_BYTES * BLOCK_BYTES
        old_end = self._gap.end if self._gap else start
        if end <= old_end:
            return True
        if not punch_hole(self.fd, old_end, end - old_end):
            return False
        self._gap = Gap(start, end)
        return True

    def finish(self, inline_bytes: int, limit_bytes: int, *, keep: bool) -> Capture:
        """Take stock when the attempt has ended; a stream that stays a file is synced.

        Small ones come back as bytes. With `keep` even an empty one stays a file (survivors
        may still write to it).
        """
        # All writes through the inherited descriptor end at its offset: a file that is now
        # shorter was truncated by the command itself (`>/dev/stderr` opens it anew).
        written = max(self._seen, os.lseek(self.fd, 0, os.SEEK_CUR))
        if not (written or self._shortened or keep) and os.lseek(self.fd, 0, os.SEEK_END) == 0:
            return NOTHING  # what most commands write
        found = os.fstat(self.fd)
        size = found.st_size
        shortened = self._shortened or size < written
        if size == 0 and not keep:
            return Capture(0, b"", shortened=shortened)
        if size > limit_bytes:
            self.look(limit_bytes)
        gap = self._gap or Gap(0, 0)
        kept = size - self._dropped()
        if kept <= inline_bytes and not keep:
            data = read_range(self.fd, 0, gap.start) + read_range(self.fd, gap.end, size)
            return Capture(size, data, gap.end - gap.start, gap.start, shortened)
        if not self._is_in_place(found) and not self._rescue(size, gap):
            return MISSING
        with naming(self.path):
            os.fsync(self.fd)
        return Capture(size, None, gap.end - gap.start, gap.start, shortened)

    def _is_in_place(self, found: os.stat_result) -> bool:
        """Whether the file is where readers look for it."""
        try:
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), found)
        except OSError:
            return False

    def _rescue(self, size: int, gap: Gap) -> bool:
        """Write a file that somebody removed or renamed anew; False if its name is taken by a
        folder. Raises OSError if that cannot be done now; then nothing is left of it.

        Under another name first: a follower would take half a copy for what was written.
        """
        draft = f"{self.path}{DRAFT}"
        # Without O_APPEND: Linux would append whatever the offset says (pwrite(2), BUGS).
        copy = open_stream(draft, append=False, fresh=True)
        try:
            with naming(self.path):
                os.ftruncate(copy, size)
                for start, end in ((0, gap.start), (gap.end, size)):
                    at = start
                    while part := os.pread(self.fd, min(CHUNK_BYTES, end - at), at):
                        at += os.pwrite(copy, part, at)
                with suppress(IsADirectoryError):
                    os.rename(draft, self.path)
                    os.close(self.fd)
                    self.fd, copy = copy, -1
                    return True
        finally:
            if copy >= 0:
                os.close(copy)
                with suppress(OSError):
                    os.unlink(draft)
        return False

    def close(self) -> None:
        """Release the descriptor; the file stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Streams:
    """Both streams of one attempt."""

    def __init__(self, db_path: str, token: str, spares: Spares | None = None) -> None:
        """Create both files, or neither; from `spares` if there are any. Raises OSError."""
        out, err = (stream_path(db_path, token, name) for name in STREAMS)
        self.stdout = Stream(out, spares)
        try:
            self.stderr = Stream(err, spares)
        except OSError:
            self.stdout.close()
            with suppress(OSError):
                os.unlink(out)
            raise

    def look(self, limit_bytes: int) -> bool:
        """See `Stream.look`, for both."""
        return self.stdout.look(limit_bytes) and self.stderr.look(limit_bytes)

    def finish(self, inline_bytes: int, limit_bytes: int, *, keep: bool) -> tuple[Capture, Capture]:
        """See `Stream.finish`, for both. Raises OSError if a file cannot be read or synced."""
        out = self.stdout.finish(inline_bytes, limit_bytes, keep=keep)
        err = self.stderr.finish(inline_bytes, limit_bytes, keep=keep)
        if (out.data is None and not out.missing) or (err.data is None and not err.missing):
            sync_folder(os.path.dirname(self.stdout.path))
        return out, err

    def remove(self, out: Capture, err: Capture, spares: Spares | None = None) -> None:
        """After the commit: unlink what now is in the database, or keep it as a spare."""
        for stream, capture in ((self.stdout, out), (self.stderr, err)):
            if capture.data is None:
                continue
            if spares is not None and capture == NOTHING and spares.offer(stream.path):
                continue
            with suppress(OSError):
                os.unlink(stream.path)

    def close(self) -> None:
        """Release both descriptors."""
        self.stdout.close()
        self.stderr.close()


class NextStreams:
    """The streams of the attempt that is to start next, made before it can: one pair at most."""

    def __init__(self, db_path: str, spares: Spares) -> None:
        self._db_path = db_path
        self._spares = spares
        self._token = ""
        self._streams: Streams | None = None

    def make(self, token: str) -> None:
        """Make those of this attempt, if that is possible and not done; none for an empty token.
        Those of another, which was given back or canceled, are no longer needed."""
        if token == self._token:
            return
        streams = self.take(self._token)
        if streams is not None:
            streams.remove(NOTHING, NOTHING, self._spares)
            streams.close()
        if token:
            with suppress(OSError):  # its start will meet the same, and say so
                self._streams = Streams(self._db_path, token, self._spares)
                self._token = token

    def take(self, token: str) -> Streams | None:
        """Those of this attempt, if they are made; from then on they are the caller's."""
        if token != self._token:
            return None
        streams, self._streams, self._token = self._streams, None, ""
        return streams


def open_stream(path: str, *, append: bool = True, fresh: bool = False) -> int:
    """Create one stream's file (and its folders, 0700); returns the descriptor.

    With `fresh`, for an attempt that is about to start, a file that is there already is
    removed: it can only be what an earlier try could not remove.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | (os.O_APPEND if append else 0)
    for _ in range(10):
        try:
            return os.open(path, flags, FILE_MODE)
        except FileNotFoundError:
            # Again if a sweeping worker removes the folder, still empty, in between.
            make_folder(os.path.dirname(path))
        except FileExistsError:
            if not fresh:
                raise
            os.unlink(path)
    return os.open(path, flags, FILE_MODE)


def open_recorded(path: str) -> int | None:
    """Open the file of a stream to read it; None if there is none.

    A command may have put anything in its place (a folder, a FIFO without a writer), or have
    taken the right to read it from us: that must neither hold us up nor strand its job.
    Raises OSError if it is there but cannot be opened.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        try:
            fd = os.open(path, flags)
        except PermissionError:
            os.chmod(path, FILE_MODE)
            fd = os.open(path, flags)
    except OSError as error:
        # ENXIO: a socket. ELOOP: a link to itself.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ELOOP):
            return None
        raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def read_range(fd: int, start: int, end: int) -> bytes:
    """Bytes [start, end) of a file, fewer if it is shorter."""
    parts = []
    while start < end:
        part = os.pread(fd, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def salvage(db_path: str, token: str, inline_bytes: int) -> tuple[Capture, Capture]:
    """What a dead worker's attempt left behind, stream by stream; for its reaper.

    Raises OSError if a file is there but cannot be read or synced.
    """
    out, err = (_salvage_one(stream_path(db_path, token, name), inline_bytes) for name in STREAMS)
    return out, err


def _salvage_one(path: str, inline_bytes: int) -> Capture:
    fd = open_recorded(path)
    if fd is None:
        return MISSING
    try:
        size = os.fstat(fd).st_size
        if size <= inline_bytes:
            return Capture(size, read_range(fd, 0, size))
        with naming(path):
            os.fsync(fd)
        sync_folder(os.path.dirname(path))
        return Capture(size, None)
    finally:
        os.close(fd)


def remove_stored(db_path: str, token: str, out: Capture, err: Capture) -> None:
    """Unlink the files of those streams that were stored in the database."""
    for name, capture in zip(STREAMS, (out, err), strict=True):
        if capture.data is not None:
            with suppress(OSError):
                os.unlink(stream_path(db_path, token, name))

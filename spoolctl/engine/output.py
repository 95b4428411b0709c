"""Reading what an attempt wrote: beginning, end, all of it, or as it comes.

A stream is a file while its attempt runs; then it moves into the database or stays a file.
Either way a reader sees the bytes that were kept, in constant memory; positions count kept
bytes, so a middle that the output limit dropped is simply not there. Offsets are those of the
file itself: they stay what they are while the limit drops more of it.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from spoolctl.core.paths import STREAMS, stream_path
from spoolctl.core.records import Attempt, Job, StreamInfo
from spoolctl.core.states import SETTLED, AttemptState, Reason
from spoolctl.core.tuples import NamedTuple
from spoolctl.engine.punch import hole_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from spoolctl.store.protocol import Store

CHUNK_BYTES = 64 * 1024
FOLLOW_MIN_S = 0.02
FOLLOW_MAX_S = 0.25
"""While a follower waits, nothing tells it that a file grew: it looks, at a slowing pace."""

CANCEL_PATIENCE_S = 10.0
"""How long a follower waits for the last words of a canceled attempt's processes."""


class Reader:
    """One stream of one attempt, opened. Close it, or use it as a context manager.

    `info` tells where it is stored and how long it is, as found at opening: `size_bytes`
    counts everything that was written, dropped bytes included. `live`: what is dropped is in
    no record yet, and grows; it is looked for in the file.
    """

    def __init__(
        self,
        info: StreamInfo,
        *,
        data: bytes | None = None,
        fd: int | None = None,
        live: bool = False,
    ) -> None:
        self.info = info
        self._data = data or b""
        self._fd = fd
        self._live = live
        self._gap()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def kept_bytes(self) -> int:
        """How many bytes can be read; grows while the attempt runs."""
        start, end = self._gap()
        return max(0, self.end_offset - (end - start))

    @property
    def end_offset(self) -> int:
        """Where the file ends now."""
        return len(self._data) if self._fd is None else os.fstat(self._fd).st_size

    def _gap(self) -> tuple[int, int]:
        """Between which offsets everything was dropped; two equal ones: nowhere."""
        if self._fd is None:
            return 0, 0
        if self._live:
            start, end = hole_in(self._fd)
            self.info = self.info._replace(gap_start=start, dropped_bytes=end - start)
        return self.info.gap_start, self.info.gap_start + self.info.dropped_bytes

    @property
    def is_abandoned(self) -> bool:
        """Whether it reads an empty file that has no name any more."""
        if self._fd is None:
            return False
        found = os.fstat(self._fd)
        return found.st_nlink == 0 and found.st_size == 0

    def read(self, start: int, length: int) -> bytes:
        """At most `length` kept bytes from `start`, and no more than one piece of them."""
        return next(self.chunks(start, end=start + length), b"")

    def chunks(self, start: int = 0, *, end: int | None = None) -> Iterator[bytes]:
        """Everything from `start` (up to `end`) in pieces of bounded size."""
        stop = sys.maxsize if end is None else self.offset_of(end)
        for _, piece in self.pieces(self.offset_of(start), stop):
            yield piece

    def offset_of(self, position: int) -> int:
        """Where the kept byte at `position` is in the file at the moment."""
        start, end = self._gap()
        return position if position <= start else position + end - start

    def pieces(self, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
        """What was kept between these offsets, in pieces, each with the offset after it."""
        while offset < end:
            gap = self._gap()
            if gap[0] <= offset < gap[1]:
                offset = gap[1]
                continue
            length = min(CHUNK_BYTES, end - offset)
            if offset < gap[0]:
                length = min(length, gap[0] - offset)
            piece = self._bytes_at(offset, length)
            if not piece:
                return
            if self._live and self._gap() != gap:
                continue  # it may have been dropped, and read as zeros, just then
            offset += len(piece)
            yield offset, piece

    def _bytes_at(self, offset: int, length: int) -> bytes:
        if self._fd is None:
            return self._data[offset : offset + length]
        return os.pread(self._fd, length, offset)

    def tail(self, length: int) -> bytes:
        """The last `length` kept bytes (fewer if there are fewer)."""
        size = self.kept_bytes
        return b"".join(self.chunks(max(0, size - length), end=size))

    def last_lines(self, lines: int) -> int:
        """Where the last `lines` lines begin. Reads backwards, no more than needed."""
        end = position = self.kept_bytes
        if not lines or not end:
            return end
        # A newline at the very end closes the last line and begins none.
        wanted = lines + 1 if self.tail(1) == b"\n" else lines
        while position > 0:
            start = max(0, position - CHUNK_BYTES)
            piece = b"".join(self.chunks(start, end=position))
            found = piece.count(b"\n")
            if found >= wanted:
                at = len(piece)
                for _ in range(wanted):
                    at = piece.rindex(b"\n", 0, at)
                return start + at + 1
            wanted -= found
            position = start
        return 0


def open_stream(store: Store, attempt: Attempt, stream: str) -> Reader:
    """Open one stream (`stdout` or `stderr`) of an attempt for reading.

    A file that is gone gives an empty reader whose `info.stored` is `missing`.
    """
    info = info_of(attempt, stream)
    if info.stored == "database":
        return Reader(info, data=store.stream(attempt.id, stream))
    path = info.path or stream_path(store.path, attempt.token, stream)
    fd = _open(path)
    if fd is not None:
        return _file_reader(info, path, fd, live=attempt.gone_at is None)
    # It may have moved into the database since the attempt was read.
    fresh = _same_attempt(store, attempt)
    if fresh is not None and info_of(fresh, stream).stored == "database":
        return open_stream(store, fresh, stream)
    return Reader(info._replace(stored="missing", path=path, size_bytes=0, dropped_bytes=0))


def info_of(attempt: Attempt, stream: str) -> StreamInfo:
    """What the queue knows of a stream."""
    return attempt.stdout if stream == "stdout" else attempt.stderr


def inspect(attempt: Attempt, stream: str, *, db_path: str) -> StreamInfo:
    """Where a stream is and how long it is, with a look at its file."""
    info = info_of(attempt, stream)
    if info.stored == "database":
        return info
    path = info.path or stream_path(db_path, attempt.token, stream)
    try:
        size = os.stat(path).st_size
    except OSError:
        return info._replace(stored="missing", path=path)
    return info._replace(stored="file", path=path, size_bytes=size)


def _same_attempt(store: Store, attempt: Attempt) -> Attempt | None:
    from spoolctl.errors import NotFound

    try:
        fresh = store.attempt(attempt.job_id, attempt.attempt_no)
    except NotFound:
        return None
    return fresh if fresh is not None and fresh.id == attempt.id else None


def _open(path: str) -> int | None:
    try:
        # Not blocking, and a plain file only: nobody else's FIFO may hang us.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _file_reader(info: StreamInfo, path: str, fd: int, *, live: bool) -> Reader:
    size = os.fstat(fd).st_size
    return Reader(info._replace(stored="file", path=path, size_bytes=size), fd=fd, live=live)


# -- following ------------------------------------------------------------------------------


class Piece(NamedTuple):
    """What a follower saw next: bytes of one stream of one attempt."""

    attempt_no: int
    stream: str
    data: bytes


class Follower:
    """Follows a job's output from another process, until the attempt has ended.

    `sleep(seconds)` returns early when something may have happened in the queue.
    `attempt_no`: the attempt to begin with; None: the latest. With `waits` it need not have
    begun; the first is waited for in any case.
    `tail_lines`: begin with the last lines of the attempt that is followed first; None: with
    its first byte. `retries`: go on with later attempts until the job has settled; `on_retry`
    is called with the job and the attempt after each that was not its last, unless a worker
    that was stopped has only put it back.
    """

    def __init__(
        self,
        store: Store,
        job_id: int,
        *,
        streams: tuple[str, ...] = STREAMS,
        attempt_no: int | None = None,
        waits: bool = False,
        tail_lines: int | None = None,
        retries: bool = False,
        sleep: Callable[[float], None],
        on_retry: Callable[[Job, Attempt], None] | None = None,
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._streams = streams
        self._attempt_no = attempt_no
        self._waits = waits
        self._tail_lines = tail_lines
        self._retries = retries
        self._sleep = sleep
        self._on_retry = on_retry

    def pieces(self) -> Iterator[Piece]:
        """The pieces, as they come.

        Raises:
            NotFound: no such job or attempt, also if it is pruned meanwhile.
        """
        attempt = self._first()
        while attempt is not None:
            with ExitStack() as stack:
                sources = [
                    stack.enter_context(_Source(self._store, attempt, stream, self._tail_lines))
                    for stream in self._streams
                ]
                yield from self._until_the_end(attempt, sources)
            if self._was_taken_back(attempt):
                attempt = self._next(attempt.attempt_no - 1)
                continue
            self._tail_lines = None
            if self._retries:
                self._tell_retry(attempt)
            attempt = self._next(attempt.attempt_no) if self._retries else None

    def _first(self) -> Attempt | None:
        """The attempt to begin with; waits for the first one of a job not started yet."""
        if self._waits and self._attempt_no is not None:
            return self._next(self._attempt_no - 1)
        attempt = self._store.attempt(self._job_id, self._attempt_no)
        return attempt if attempt is not None else self._next(0)

    def _next(self, after: int) -> Attempt | None:
        """The next attempt, once it has begun; None if the job settled before."""
        while True:
            job = self._store.get(self._job_id)
            attempt = self._store.attempt(self._job_id, None)
            if attempt is not None and attempt.attempt_no == after + 1:
                return attempt  # not looked up again: its claim may be taken back meanwhile
            if attempt is not None and attempt.attempt_no > after:
                # Attempts that began and ended between two looks are not skipped.
                return self._store.attempt(self._job_id, after + 1)
            if job.state in SETTLED:
                return None
            self._store.check_file()
            self._sleep(FOLLOW_MAX_S)

    def _was_taken_back(self, attempt: Attempt) -> bool:
        """Whether its claim was, before it started: the next attempt has its number."""
        if _same_attempt(self._store, attempt) is not None:
            return False
        return bool(self._store.states([self._job_id]))  # else it was pruned

    def _tell_retry(self, attempt: Attempt) -> None:
        fresh = _same_attempt(self._store, attempt)
        if self._on_retry is None or fresh is None:
            return
        job = self._store.get(self._job_id)
        latest = self._store.attempt(self._job_id, None)
        # We may be far behind: the job has settled, but not with this attempt.
        more = job.state not in SETTLED or (latest is not None and latest.id != fresh.id)
        if more and fresh.failure_reason is not Reason.WORKER_SHUTDOWN:
            self._on_retry(job, fresh)

    def _until_the_end(self, attempt: Attempt, sources: list[_Source]) -> Iterator[Piece]:
        watch = _Watch(self._store, attempt)
        pause = FOLLOW_MIN_S
        while True:
            # First whether it is over, then what there is: so nothing is missed.
            over = watch.over()
            news = False
            for source in sources:
                for data in source.news():
                    news = True
                    yield Piece(attempt.attempt_no, source.stream, data)
            if over:
                return
            pause = FOLLOW_MIN_S if news else min(FOLLOW_MAX_S, pause * 1.5)
            self._sleep(pause)


class _Source:
    """One stream that is being followed, and how far it has been read."""

    def __init__(self, store: Store, attempt: Attempt, stream: str, tail_lines: int | None) -> None:
        self.stream = stream
        self._store = store
        self._attempt = attempt
        self._reader = open_stream(store, attempt, stream)
        self._offset = 0
        if tail_lines is not None:
            self._offset = self._reader.offset_of(self._reader.last_lines(tail_lines))

    def __enter__(self) -> _Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.close()

    def news(self) -> Iterator[bytes]:
        """What has been written since the last call."""
        if self._reader.info.stored == "missing" or self._reader.is_abandoned:
            # Claimed, but its files were not made yet, or were made anew as we had a former
            # one open (`engine.spares`); or it has just moved into the database.
            fresh = open_stream(self._store, self._attempt, self.stream)
            if fresh.info.stored != "missing":  # or somebody removed the file that we follow
                self._reader.close()
                self._reader = fresh
        end = self._reader.end_offset
        if end < self._offset:
            # Truncated by the command itself: what follows is new.
            self._offset = 0
        for offset, data in self._reader.pieces(self._offset, end):
            self._offset = offset
            yield data


class _Watch:
    """Tells when an attempt is over; asks the queue only after something was committed."""

    def __init__(self, store: Store, attempt: Attempt) -> None:
        self._store = store
        self._attempt = attempt
        self._changed: int | None = None
        self._ended = False
        self._gone = False
        self._until_mono: float | None = None

    def over(self) -> bool:
        """Whether it has ended and nothing more will come.

        A canceled attempt's processes live a little on: they get ten seconds for last words.
        """
        changed = self._store.changed()
        if changed != self._changed:
            self._changed = changed
            self._look()
        if not self._ended or self._gone:
            return self._ended
        now = time.monotonic()
        if self._until_mono is None:
            self._until_mono = now + CANCEL_PATIENCE_S
        return now >= self._until_mono

    def _look(self) -> None:
        fresh = _same_attempt(self._store, self._attempt)
        self._ended = fresh is None or fresh.state is not AttemptState.RUNNING
        # What a succeeded attempt left running is not waited for.
        self._gone = (
            fresh is None or fresh.gone_at is not None or fresh.state is AttemptState.SUCCEEDED
        )

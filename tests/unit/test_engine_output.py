"""Reading a stream while its attempt runs: nothing is missed, and what the limit dropped is
not there, and no zeros."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spoolctl.core.records import Attempt, Capture, Claimed, StreamInfo
from spoolctl.core.states import AttemptState
from spoolctl.engine.capture import Streams
from spoolctl.engine.output import CHUNK_BYTES, Follower, Reader, _Source, open_stream
from spoolctl.engine.punch import BLOCK_BYTES, punch_hole
from spoolctl.store import open_store
from spoolctl.store.protocol import Store
from tests.conformance.kit import Clock, Desk, failure, never_started, success

TOKEN = "ab" * 16
LIMIT = 8 * BLOCK_BYTES
ATTEMPT = cast(
    Attempt, SimpleNamespace(token=TOKEN, gone_at=None, stdout=StreamInfo("file", None, 0))
)


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    made = Streams(str(tmp_path / "queue.db"), TOKEN)
    if not punch_hole(made.stderr.fd, 0, BLOCK_BYTES):
        pytest.skip("this file system cannot punch holes")
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return cast(Store, SimpleNamespace(path=str(tmp_path / "queue.db")))


def write(streams: Streams, *numbers: int) -> None:
    for number in numbers:
        os.write(streams.stdout.fd, bytes([number]) * BLOCK_BYTES)


def blocks(data: bytes) -> list[int]:
    """The numbers that were written, a block each."""
    assert len(data) % BLOCK_BYTES == 0
    found = [data[at] for at in range(0, len(data), BLOCK_BYTES)]
    assert data == b"".join(bytes([number]) * BLOCK_BYTES for number in found)
    return found


def test_what_the_limit_has_dropped_so_far_is_not_there(streams: Streams, store: Store) -> None:
    write(streams, *range(1, 65))
    assert streams.look(LIMIT)
    kept = [1, 2, 3, 4, 61, 62, 63, 64]
    with open_stream(store, ATTEMPT, "stdout") as reader:
        assert reader.kept_bytes == LIMIT
        assert reader.info.dropped_bytes == 56 * BLOCK_BYTES
        assert blocks(b"".join(reader.chunks())) == kept
        assert blocks(reader.tail(3 * BLOCK_BYTES)) == [62, 63, 64]
        assert blocks(reader.read(3 * BLOCK_BYTES, BLOCK_BYTES)) == [4]
        assert blocks(reader.read(4 * BLOCK_BYTES, BLOCK_BYTES)) == [61]


def test_a_follower_goes_on_where_it_was_when_more_is_dropped(
    streams: Streams, store: Store
) -> None:
    with _Source(store, ATTEMPT, "stdout", None) as follower:
        write(streams, *range(1, 21))
        assert blocks(b"".join(follower.news())) == list(range(1, 21))
        assert streams.look(LIMIT)  # behind it
        write(streams, 21, 22)
        assert blocks(b"".join(follower.news())) == [21, 22]
        write(streams, *range(23, 65))
        assert streams.look(LIMIT)  # before it, too
        assert blocks(b"".join(follower.news())) == [61, 62, 63, 64]


def test_what_is_dropped_while_it_is_read_is_not_taken_for_zeros(
    streams: Streams, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(streams, *range(1, 65))
    pread = os.pread

    def late(fd: int, length: int, offset: int) -> bytes:
        assert streams.look(LIMIT)
        return pread(fd, length, offset)

    with open_stream(store, ATTEMPT, "stdout") as reader:
        assert reader.info.dropped_bytes == 0
        monkeypatch.setattr(os, "pread", late)
        assert blocks(b"".join(reader.chunks())) == [1, 2, 3, 4, 61, 62, 63, 64]


def test_a_large_stream_comes_in_pieces_with_the_offset_after_each() -> None:
    data = os.urandom(CHUNK_BYTES + 5)
    reader = Reader(StreamInfo("database", None, len(data)), data=data)
    assert [offset for offset, _ in reader.pieces(0, len(data))] == [CHUNK_BYTES, len(data)]
    assert b"".join(reader.chunks(7, end=CHUNK_BYTES + 1)) == data[7 : CHUNK_BYTES + 1]


def test_the_last_words_are_seen_that_come_just_before_the_end(tmp_path: Path) -> None:
    streams = Streams(str(tmp_path / "queue.db"), TOKEN)
    attempt = SimpleNamespace(
        id=1, job_id=1, attempt_no=1, token=TOKEN, gone_at=None, state=AttemptState.RUNNING
    )
    attempt.stdout = StreamInfo("file", None, 0)

    def ends() -> int:
        """The attempt ends just before the queue is asked whether it has."""
        os.write(streams.stdout.fd, b"last words")
        attempt.state = AttemptState.SUCCEEDED
        return 1

    store = SimpleNamespace(path=str(tmp_path / "queue.db"), changed=ends)
    store.attempt = lambda *_: attempt
    follower = Follower(cast(Store, store), 1, streams=("stdout",), sleep=lambda seconds: None)
    assert [piece.data for piece in follower.pieces()] == [b"last words"]
    streams.close()


def test_a_claim_that_is_taken_back_is_followed_to_the_next(tmp_path: Path) -> None:
    """It has the same number; what was followed so far never ran."""
    path = str(tmp_path / "queue.db")
    desk = Desk(open_store(path, create=True, wait_s=1.0), Clock())
    reader = open_store(path, create=False, wait_s=1.0)
    desk.add()
    first = desk.claim_one()

    def runs() -> None:
        desk.report(success(desk.claim_one(), stdout=Capture(2, b"hi")))

    happens = [lambda: desk.report(never_started(first)), runs]
    follower = Follower(reader, 1, sleep=lambda seconds: happens.pop(0)() and None)
    assert [(piece.attempt_no, piece.data) for piece in follower.pieces()] == [(1, b"hi")]
    assert not happens
    reader.close()
    desk.store.close()


@pytest.mark.parametrize("failed_before", [0, 1])
def test_a_claim_may_be_taken_back_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed_before: int
) -> None:
    """The follower neither takes the job for settled nor misses the attempt."""
    path = str(tmp_path / "queue.db")
    desk = Desk(open_store(path, create=True, wait_s=1.0), Clock())
    reader = open_store(path, create=False, wait_s=1.0)
    desk.add(max_retries=5)
    for _ in range(failed_before):
        desk.run(failure)
        desk.clock.advance(1000.0)
    held: list[Claimed] = []
    attempt_of = reader.attempt

    def attempt(job_id: int, attempt_no: int | None) -> Attempt | None:
        found = attempt_of(job_id, attempt_no)
        if held and found is not None and found.id == held[0].attempt_id:
            desk.report(never_started(held.pop()))
        return found

    def runs() -> None:
        desk.report(success(desk.claim_one(), stdout=Capture(2, b"hi")))

    monkeypatch.setattr(reader, "attempt", attempt)
    happens = [lambda: held.append(desk.claim_one()), runs]
    no = failed_before + 1
    follower = Follower(
        reader, 1, attempt_no=no, waits=True, sleep=lambda seconds: happens.pop(0)() and None
    )
    assert [(piece.attempt_no, piece.data) for piece in follower.pieces()] == [(no, b"hi")]
    assert not happens
    reader.close()
    desk.store.close()

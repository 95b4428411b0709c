"""Stream files that are used again: only those that cannot be told from new ones."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spoolctl.core.records import Attempt, StreamInfo
from spoolctl.engine.capture import NOTHING, Streams
from spoolctl.engine.output import _Source
from spoolctl.engine.spares import Spares
from spoolctl.store.protocol import Store

pytestmark = pytest.mark.skipif(
    not hasattr(fcntl, "F_SETLEASE"), reason="no leases here: no file is used again"
)
OLD, NEW = "ab" * 16, "cd" * 16


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "queue.db")


@pytest.fixture
def spares() -> Iterator[Spares]:
    kept = Spares(most=2)
    yield kept
    kept.drop()


def files(db: str) -> list[str]:
    return sorted(os.listdir(f"{db}.d/attempts"))


def put_away(streams: Streams, spares: Spares) -> None:
    out, err = streams.finish(1 << 16, 1 << 30, keep=False)
    streams.remove(out, err, spares)
    streams.close()


_held: list[int] = []


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    while _held:
        os.close(_held.pop())


def inodes(streams: Streams) -> set[int]:
    """The files' inodes, whose numbers nobody else can get until the test is over."""
    numbers = {os.fstat(each.fd).st_ino for each in (streams.stdout, streams.stderr)}
    # O_PATH opens no file: it is in no lease's way.
    _held.extend(os.open(each.path, os.O_PATH) for each in (streams.stdout, streams.stderr))
    return numbers


def reused(db: str, spares: Spares, before: set[int]) -> bool:
    """Whether the next attempt's streams are the former files; they must be new in any case."""
    streams = Streams(db, NEW, spares)
    assert files(db) == [f"{NEW}.stderr", f"{NEW}.stdout"]
    for stream in (streams.stdout, streams.stderr):
        found = os.fstat(stream.fd)
        assert (found.st_size, found.st_mode & 0o7777, found.st_nlink) == (0, 0o600, 1)
        assert os.path.samestat(found, os.stat(stream.path))
        assert fcntl.fcntl(stream.fd, fcntl.F_GETFL) & os.O_APPEND
        assert not fcntl.fcntl(stream.fd, fcntl.F_GETFL) & os.O_NONBLOCK
    same = inodes(streams) & before
    assert streams.finish(1 << 16, 1 << 30, keep=False) == (NOTHING, NOTHING)
    streams.close()
    return bool(same)


def test_quiet_files_are_used_again(db: str, spares: Spares) -> None:
    streams = Streams(db, OLD, spares)
    before = inodes(streams)
    put_away(streams, spares)
    assert len(spares) == 2
    assert reused(db, spares, before)


def test_the_one_that_was_put_away_first_is_used_first(db: str) -> None:
    """Nobody has it open any more; of the last ones a process may, that has not executed yet."""
    spares = Spares(most=4)
    first, second = Streams(db, OLD, spares), Streams(db, NEW, spares)
    before = inodes(first)
    put_away(first, spares)
    put_away(second, spares)
    third = Streams(db, "12" * 16, spares)
    assert inodes(third) == before
    third.close()
    spares.drop()


def test_what_a_command_set_on_its_descriptor_stays_with_it(db: str, spares: Spares) -> None:
    streams = Streams(db, OLD, spares)
    before = inodes(streams)
    flags = fcntl.fcntl(streams.stdout.fd, fcntl.F_GETFL)
    fcntl.fcntl(streams.stdout.fd, fcntl.F_SETFL, flags & ~os.O_APPEND | os.O_NONBLOCK)
    os.lseek(streams.stderr.fd, 0, os.SEEK_SET)
    put_away(streams, spares)
    assert reused(db, spares, before)


def test_a_file_with_content_is_not(db: str, spares: Spares) -> None:
    streams = Streams(db, OLD, spares)
    os.write(streams.stdout.fd, b"x")
    os.write(streams.stderr.fd, b"y")
    put_away(streams, spares)
    assert len(spares) == 0
    assert files(db) == []


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_a_file_that_somebody_else_has_open_is_not(db: str, spares: Spares, flags: int) -> None:
    streams = Streams(db, OLD, spares)
    before = inodes(streams)
    others = [os.open(each.path, flags) for each in (streams.stdout, streams.stderr)]
    put_away(streams, spares)
    assert not reused(db, spares, before)
    for fd in others:
        os.close(fd)


def test_a_file_that_a_process_has_inherited_is_not(db: str, spares: Spares) -> None:
    streams = Streams(db, OLD, spares)
    before = inodes(streams)
    child = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=streams.stdout.fd, stderr=streams.stderr.fd
    )
    put_away(streams, spares)
    assert not reused(db, spares, before)
    child.communicate()


def test_a_mapped_file_is_not(db: str, spares: Spares) -> None:
    import mmap

    streams = Streams(db, OLD, spares)
    before = inodes(streams)
    maps = []
    for each in (streams.stdout, streams.stderr):
        os.ftruncate(each.fd, 1)
        maps.append(mmap.mmap(each.fd, 1))
        os.ftruncate(each.fd, 0)
    put_away(streams, spares)
    assert not reused(db, spares, before)
    for each_map in maps:
        each_map.close()


def test_a_file_that_the_command_changed_is_not(db: str, spares: Spares, tmp_path: Path) -> None:
    streams = Streams(db, OLD, spares)
    before = inodes(streams)
    os.fchmod(streams.stdout.fd, 0o644)
    os.link(streams.stderr.path, tmp_path / "another name")
    put_away(streams, spares)
    assert not reused(db, spares, before)


def test_a_file_that_was_swept_or_replaced_is_not(db: str, spares: Spares) -> None:
    streams = Streams(db, OLD, spares)
    before = inodes(streams)
    put_away(streams, spares)
    os.unlink(streams.stdout.path)
    os.unlink(streams.stderr.path)
    assert not reused(db, spares, before)


def before_each_lease(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """`act` is called at the last moment at which others may still have the file open."""
    real = fcntl.fcntl

    def staged(fd: int, command: int, argument: Any = 0) -> Any:
        if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_WRLCK):
            act()
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", staged)


def test_the_last_words_of_somebody_who_then_closes_it_are_not_the_next_attempts(
    db: str, spares: Spares, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(db, OLD, spares)
    before = inodes(streams)
    others = [os.open(each.path, os.O_WRONLY) for each in (streams.stdout, streams.stderr)]
    put_away(streams, spares)

    def write_and_close() -> None:
        while others:
            fd = others.pop()
            os.write(fd, b"late")
            os.close(fd)

    before_each_lease(monkeypatch, write_and_close)
    assert not reused(db, spares, before)


def test_whoever_follows_the_next_attempt_already_sees_what_it_writes(
    db: str, spares: Spares, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file's name is known from the claim on: a follower may have it open by then."""
    put_away(Streams(db, OLD, spares), spares)
    nothing = StreamInfo("file", None, 0)
    attempt = cast(Attempt, SimpleNamespace(token=NEW, gone_at=None, stdout=nothing))
    store = cast(Store, SimpleNamespace(path=db))
    followers: list[_Source] = []

    def follow() -> None:
        if not followers and os.path.exists(f"{db}.d/attempts/{NEW}.stdout"):
            followers.append(_Source(store, attempt, "stdout", None))

    before_each_lease(monkeypatch, follow)
    streams = Streams(db, NEW, spares)
    with followers.pop() as follower:
        os.write(streams.stdout.fd, b"hello")
        assert list(follower.news()) == [b"hello"]
    streams.close()


def test_whoever_follows_a_file_that_somebody_removes_goes_on_with_it(db: str) -> None:
    streams = Streams(db, NEW)
    nothing = StreamInfo("file", None, 0)
    attempt = cast(
        Attempt,
        SimpleNamespace(token=NEW, id=1, job_id=1, attempt_no=1, gone_at=None, stdout=nothing),
    )
    store = cast(Store, SimpleNamespace(path=db, attempt=lambda *_: attempt))
    with _Source(store, attempt, "stdout", None) as follower:
        os.unlink(streams.stdout.path)
        assert list(follower.news()) == []
        os.write(streams.stdout.fd, b"hello")
        assert list(follower.news()) == [b"hello"]
    streams.close()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/null", path)])
def test_what_a_command_put_in_the_place_of_its_file_does_not_harm_the_next(
    db: str, spares: Spares, make: Callable[[str], None]
) -> None:
    streams = Streams(db, OLD, spares)
    before = inodes(streams)
    os.unlink(streams.stdout.path)
    make(streams.stdout.path)
    os.unlink(streams.stderr.path)
    put_away(streams, spares)
    if make is os.mkdir:
        streams = Streams(db, NEW, spares)
        assert files(db) == [f"{OLD}.stdout", f"{NEW}.stderr", f"{NEW}.stdout"]
        streams.close()
    else:
        assert not reused(db, spares, before)


def test_no_more_are_kept_than_can_be_used(db: str, spares: Spares) -> None:
    for token in (OLD, NEW):
        put_away(Streams(db, token), spares)
    assert len(spares) == 2
    assert files(db) == [f"{OLD}.stderr", f"{OLD}.stdout"]
    spares.drop()
    assert files(db) == []


def test_an_open_during_the_lease_does_not_end_a_worker() -> None:
    """The kernel tells the holder by SIGIO, which ends a process that does not expect it."""
    code = "import os, signal; from spoolctl.process.spawn import prepare_signals as p; p();"
    code += "os.kill(os.getpid(), signal.SIGIO)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Streams of an attempt: what is kept, where, and what is said of what is missing."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spoolctl.core.paths import stream_path
from spoolctl.engine.capture import (
    MISSING,
    NOTHING,
    NextStreams,
    Streams,
    open_recorded,
    salvage,
)
from spoolctl.engine.punch import punch_hole
from spoolctl.engine.spares import Spares
from spoolctl.process.spawn import open_descriptors

LIMIT = 1 << 30
TOKEN = "ab" * 16


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "queue.db")


def removed_stdout(db: str) -> Streams:
    """Streams of which one has 200 bytes and no name any more."""
    streams = Streams(db, TOKEN)
    os.write(streams.stdout.fd, b"0123456789" * 20)
    os.unlink(streams.stdout.path)
    return streams


def test_small_streams_come_back_as_bytes_and_their_files_go(db: str) -> None:
    streams = Streams(db, TOKEN)
    os.write(streams.stdout.fd, b"\xff\x00 any bytes\n")
    out, err = streams.finish(64, LIMIT, keep=False)
    assert (out.data, out.size_bytes) == (b"\xff\x00 any bytes\n", 13)
    assert (err.data, err.size_bytes) == (b"", 0)
    streams.remove(out, err)
    streams.close()
    assert not os.path.exists(stream_path(db, TOKEN, "stdout"))
    assert not os.path.exists(stream_path(db, TOKEN, "stderr"))


def test_large_streams_stay_files(db: str) -> None:
    streams = Streams(db, TOKEN)
    os.write(streams.stdout.fd, b"x" * 65)
    out, err = streams.finish(64, LIMIT, keep=False)
    streams.remove(out, err)
    streams.close()
    assert out.data is None
    assert out.size_bytes == 65
    assert Path(stream_path(db, TOKEN, "stdout")).read_bytes() == b"x" * 65


def test_streams_with_survivors_stay_files_even_empty_ones(db: str) -> None:
    streams = Streams(db, TOKEN)
    out, err = streams.finish(64, LIMIT, keep=True)
    streams.remove(out, err)
    streams.close()
    assert out.data is None
    assert err.data is None
    assert os.path.exists(stream_path(db, TOKEN, "stderr"))


def test_files_and_folders_are_private_whatever_the_umask(db: str) -> None:
    old = os.umask(0)
    try:
        streams = Streams(db, TOKEN)
    finally:
        os.umask(old)
    streams.close()
    path = Path(stream_path(db, TOKEN, "stdout"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_was_written_before_the_file_was_removed_is_kept(db: str) -> None:
    small, large = Streams(db, TOKEN), Streams(db, "cd" * 16)
    os.write(small.stdout.fd, b"small")
    os.write(large.stdout.fd, b"0123456789" * 20)
    for streams in (small, large):
        os.unlink(streams.stdout.path)
    assert small.finish(64, LIMIT, keep=False)[0].data == b"small"
    out, _ = large.finish(64, LIMIT, keep=False)
    assert out.data is None
    assert not out.missing
    assert Path(large.stdout.path).read_bytes() == b"0123456789" * 20
    small.close()
    large.close()


@pytest.mark.parametrize("replaced", [False, True], ids=["renamed", "replaced"])
def test_what_its_command_moved_away_is_kept(db: str, replaced: bool) -> None:
    streams = Streams(db, TOKEN)
    path = Path(streams.stdout.path)
    path.rename(path.with_suffix(".moved"))
    os.write(streams.stdout.fd, b"0123456789" * 20)
    if replaced:
        path.write_text("something else")
    out, _ = streams.finish(64, LIMIT, keep=False)
    streams.close()
    assert (out.data, out.missing) == (None, False)
    assert path.read_bytes() == b"0123456789" * 20


def test_a_folder_in_the_place_of_a_stream_is_left_alone(db: str) -> None:
    streams = removed_stdout(db)
    os.mkdir(streams.stdout.path)
    before = sorted(os.listdir(os.path.dirname(streams.stdout.path)))
    assert streams.finish(64, LIMIT, keep=False)[0] == MISSING
    streams.close()
    assert sorted(os.listdir(os.path.dirname(streams.stdout.path))) == before


def test_nobody_sees_half_of_a_file_that_is_being_rescued(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = removed_stdout(db)
    seen = []
    real = os.pwrite

    def watched(*words: Any) -> int:
        seen.append(os.path.exists(streams.stdout.path))
        return real(*words)

    monkeypatch.setattr(os, "pwrite", watched)
    streams.finish(64, LIMIT, keep=False)
    streams.close()
    assert seen == [False]


def test_a_removed_file_that_a_full_disk_keeps_from_being_rescued_is_rescued_later(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = removed_stdout(db)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = len(open_descriptors())
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                streams.finish(64, LIMIT, keep=False)
    assert len(open_descriptors()) == before
    out, _ = streams.finish(64, LIMIT, keep=False)
    assert not out.missing
    assert Path(streams.stdout.path).read_bytes() == b"0123456789" * 20
    streams.close()


def test_a_stream_that_the_command_truncated_is_flagged(db: str) -> None:
    streams = Streams(db, TOKEN)
    script = 'echo a long line that is lost >&2; echo short > "$0"'
    subprocess.run(["sh", "-c", script, streams.stderr.path], stderr=streams.stderr.fd, check=True)
    _, err = streams.finish(64, LIMIT, keep=False)
    streams.close()
    assert err.data == b"short\n"
    assert err.shortened


@pytest.mark.parametrize("way", ["as it has it", "opened anew", "opened anew, and looked at twice"])
def test_one_that_it_truncated_to_nothing_is_flagged_too(db: str, way: str) -> None:
    """If anybody can know: what was written under another opening has to have been seen."""
    streams = Streams(db, TOKEN)
    opened = streams.stdout.fd
    if way != "as it has it":
        opened = os.open(streams.stdout.path, os.O_WRONLY | os.O_APPEND)
    os.write(opened, b"a line that is lost\n")
    assert streams.look(LIMIT)
    os.ftruncate(opened, 0)
    if way == "opened anew, and looked at twice":
        assert streams.look(LIMIT)
    if opened != streams.stdout.fd:
        os.close(opened)
    out, err = streams.finish(64, LIMIT, keep=False)
    streams.close()
    assert (out.data, out.shortened) == (b"", True)
    assert err == NOTHING


def test_over_the_limit_the_middle_is_dropped_and_counted(db: str) -> None:
    streams = Streams(db, TOKEN)
    if not punch_hole(streams.stderr.fd, 0, 4096):
        pytest.skip("this file system cannot punch holes")
    block = bytes(range(256)) * 16  # 4096 bytes
    for number in range(64):
        os.write(streams.stdout.fd, bytes([number]) + block[1:])
        assert streams.look(8 * 4096)
    out, _ = streams.finish(64, 8 * 4096, keep=False)
    assert out.size_bytes == 64 * 4096
    assert out.gap_start == 4 * 4096
    assert out.size_bytes - out.dropped_bytes <= 9 * 4096
    data = Path(streams.stdout.path).read_bytes()
    assert data[0] == 0
    assert data[3 * 4096] == 3
    assert data[-4096] == 63
    assert os.stat(streams.stdout.path).st_blocks * 512 <= 16 * 4096
    streams.close()


def test_the_reaper_finds_what_a_dead_worker_left(db: str) -> None:
    streams = Streams(db, TOKEN)
    os.write(streams.stdout.fd, b"half a line")
    os.write(streams.stderr.fd, b"y" * 100)
    streams.close()
    out, err = salvage(db, TOKEN, 64)
    assert out.data == b"half a line"
    assert (err.data, err.size_bytes) == (None, 100)
    gone, _ = salvage(db, "00" * 16, 64)
    assert gone.missing


def bind(path: str) -> None:
    """Make a socket there; its name may be longer than sockets' are."""
    here = os.open(os.path.dirname(path), os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{here}/s")
    os.rename("s", path, src_dir_fd=here)
    os.close(here)


@pytest.mark.parametrize(
    "make",
    [
        os.mkdir,
        os.mkfifo,
        lambda path: os.symlink(path, path),
        lambda path: os.symlink("/dev/zero", path),
        pytest.param(bind, marks=pytest.mark.skipif(sys.platform != "linux", reason="/proc")),
    ],
    ids=["folder", "fifo", "loop", "device", "socket"],
)
def test_what_a_command_put_in_the_place_of_its_file_strands_nothing(
    db: str, make: Callable[[str], None]
) -> None:
    """Its reaper neither waits for the writer of a FIFO nor fails for good; nor does a backup."""
    streams = Streams(db, TOKEN)
    os.write(streams.stderr.fd, b"err")
    streams.close()
    os.unlink(streams.stdout.path)
    make(streams.stdout.path)
    out, err = salvage(db, TOKEN, 64)
    assert out == MISSING
    assert err.data == b"err"
    assert open_recorded(streams.stdout.path) is None


def test_a_file_that_its_command_made_unreadable_is_read(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(db, TOKEN)
    os.write(streams.stdout.fd, b"out")
    streams.close()
    os.chmod(streams.stdout.path, 0)
    real = os.open

    def refusing(path: str, flags: int, *rest: int) -> int:
        if str(path).startswith(db) and os.stat(path).st_mode & 0o400 == 0:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)  # root may read everything
    out, _ = salvage(db, TOKEN, 64)
    assert out.data == b"out"


OTHER = "cd" * 16


def files(db: str) -> set[str]:
    folder = os.path.dirname(stream_path(db, TOKEN, "stdout"))
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


def test_streams_of_the_next_attempt_are_made_once_and_taken_once(db: str) -> None:
    following = NextStreams(db, Spares(4))
    following.make(TOKEN)
    following.make(TOKEN)
    assert files(db) == {f"{TOKEN}.stdout", f"{TOKEN}.stderr"}
    assert following.take(OTHER) is None
    streams = following.take(TOKEN)
    assert streams is not None
    assert following.take(TOKEN) is None
    os.write(streams.stdout.fd, b"out")
    following.make("")  # no longer its business
    out, err = streams.finish(64, LIMIT, keep=False)
    assert (out.data, err.data) == (b"out", b"")
    streams.close()


def test_streams_that_nobody_needs_any_more_leave_nothing(db: str) -> None:
    spares = Spares(2)
    following = NextStreams(db, spares)
    before = open_descriptors()
    following.make(TOKEN)
    following.make(OTHER)  # the first was given back: its files serve again, or go
    assert files(db) == {f"{OTHER}.stdout", f"{OTHER}.stderr"} | {
        f"{TOKEN}.{name}" for name in ("stdout", "stderr") if len(spares)
    }
    assert following.take(TOKEN) is None
    following.make("")
    spares.drop()
    assert files(db) == set()
    assert open_descriptors() == before


def test_streams_that_cannot_be_made_yet_are_none(db: str) -> None:
    Path(f"{db}.d").write_text("no folder")
    following = NextStreams(db, Spares(2))
    following.make(TOKEN)
    assert following.take(TOKEN) is None
    os.unlink(f"{db}.d")
    following.make(TOKEN)
    streams = following.take(TOKEN)
    assert streams is not None
    streams.close()

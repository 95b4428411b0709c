"""A worker's lock file, which also lists what the worker runs.

The lock proves that the worker lives; the list tells whoever comes after it (its guardian, a
reaper) which attempts it had announced. Records have a fixed size, never cross a page and
are written by one pwrite(2) each: a worker killed at any moment leaves the old or the new one.
They are for this boot only, so nothing is synced.
"""

from __future__ import annotations

import contextlib
import os
import zlib

from spoolctl.core.tuples import NamedTuple
from spoolctl.folders import naming
from spoolctl.process import locks

RECORD_BYTES = 512
"""Divides the page size, so that no record crosses a page."""

_MAGIC = b"spoolctl roster 1\n"


class Entry(NamedTuple):
    """An announced attempt. `pid` and `start` are None until its command was started."""

    slot: int
    token: str
    lock_path: str
    pid: int | None
    start: str | None


_open_rosters: set[Roster] = set()


class Roster:
    """The lock file of this worker, locked for as long as the object is open."""

    def __init__(self, path: str, fd: int, slots: int) -> None:
        found = os.fstat(fd)
        self.path = path
        self.fd = fd
        self.dev = found.st_dev
        self.ino = found.st_ino
        self._folder = os.path.dirname(path)
        self._slots = 0
        self._entries: dict[int, Entry] = {}
        self._open = True
        self._make_room(slots)
        _open_rosters.add(self)

    @classmethod
    def create(cls, path: str, slots: int) -> Roster:
        """Create and lock the file at `path`, with room for `slots` attempts.

        Raises:
            OSError: it cannot be created, there is no room, or another process has it.
        """
        fd = locks.take(path)
        if fd is None:
            raise BlockingIOError(f"another process holds {path}")
        try:
            with naming(path):
                os.ftruncate(fd, 0)
            return cls(path, fd, slots)
        except BaseException:
            os.close(fd)
            raise

    @property
    def is_empty(self) -> bool:
        """Whether nothing is announced: a guardian would find nothing to end."""
        return not self._entries

    def announce(self, slot: int, token: str, lock_path: str) -> None:
        """Say that the attempt `token` is about to start. Before its command is spawned.

        Raises:
            OSError: it could not be written; then do not start the command.
        """
        self._write(Entry(slot, token, lock_path, None, None))

    def spawned(self, slot: int, pid: int, start: str | None) -> None:
        """Say which process the announced attempt's command is."""
        self._write(self._entries[slot]._replace(pid=pid, start=start))

    def clear(self, slot: int, token: str | None = None) -> None:
        """Say that the attempt's end was recorded. Nothing to do for an empty slot, or for one
        in which another attempt than `token` was announced meanwhile."""
        entry = self._entries.get(slot)
        if entry is not None and token in (None, entry.token):
            del self._entries[slot]
            os.pwrite(self.fd, bytes(RECORD_BYTES), (slot + 1) * RECORD_BYTES)

    def close(self, unlink: bool) -> None:
        """Give the lock up, with `unlink` remove the file first. May be called twice."""
        if not self._open:
            return
        self._open = False
        _open_rosters.discard(self)
        if unlink:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        os.close(self.fd)

    def _write(self, entry: Entry) -> None:
        if entry.slot >= self._slots:
            self._make_room(entry.slot + 1)
        with naming(self.path):
            os.pwrite(self.fd, _pack(entry, self._folder), (entry.slot + 1) * RECORD_BYTES)
        self._entries[entry.slot] = entry

    def _make_room(self, slots: int) -> None:
        # Written now, so that a disk that fills up later cannot keep an announcement back.
        start, size = (self._slots + 1) * RECORD_BYTES, (slots - self._slots) * RECORD_BYTES
        with naming(self.path):
            if not self._slots:
                os.pwrite(self.fd, _MAGIC.ljust(RECORD_BYTES, b"\0"), 0)
            if size > 0:
                os.pwrite(self.fd, bytes(size), start)
        self._slots = max(slots, self._slots)


def _close_copies() -> None:
    # A forked copy of the worker would keep the lock of a dead one.
    for roster in list(_open_rosters):
        roster.close(unlink=False)


os.register_at_fork(after_in_child=_close_copies)


def read_roster(source: str | int, folder: str | None = None) -> list[Entry]:
    """What the roster at a path, or behind a descriptor, lists; an absent file lists nothing.

    `folder` is where the roster lies, for a descriptor. Damaged records are left out.

    Raises:
        OSError: it is there but cannot be read now (no descriptors left, for instance).
    """
    if isinstance(source, int):
        data = _read_all(source)
    else:
        folder = os.path.dirname(source)
        try:
            fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            data = _read_all(fd)
        finally:
            os.close(fd)
    if not data.startswith(_MAGIC):
        return []
    records = range(1, len(data) // RECORD_BYTES)
    entries = (_unpack(data, n, folder or "") for n in records)
    return [entry for entry in entries if entry is not None]


def _read_all(fd: int) -> bytes:
    parts = []
    at = 0
    while part := os.pread(fd, 1 << 20, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _pack(entry: Entry, folder: str) -> bytes:
    # Lock files lie beside the roster; the name alone survives a folder that was moved.
    name = entry.lock_path
    if name.startswith(folder) and name.rfind("/") == len(folder):
        name = name[len(folder) + 1 :]
    body = f"\n{entry.token}\0{entry.pid or ''}\0{entry.start or ''}\0{name}\n"
    data = os.fsencode(body)
    record = b"%08x" % zlib.crc32(data) + data
    if len(record) > RECORD_BYTES:
        raise ValueError(f"the lock's path is too long: {entry.lock_path}")
    return record.ljust(RECORD_BYTES, b"\0")


def _unpack(data: bytes, number: int, folder: str) -> Entry | None:
    record = data[number * RECORD_BYTES : (number + 1) * RECORD_BYTES].rstrip(b"\0")
    try:
        if not record or record[:8] != b"%08x" % zlib.crc32(record[8:]):
            return None
        token, pid, start, name = os.fsdecode(record[9:-1]).split("\0")
        lock_path = os.path.join(folder, name)
        return Entry(number - 1, token, lock_path, int(pid) if pid else None, start or None)
    except ValueError:
        return None

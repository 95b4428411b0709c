"""A disk that loses what was not synced: replays a program's writes up to any moment.

The model is harsher than file systems are: a file holds what it held when it was last synced,
and of what was written since then none, all, or any part may have arrived, in any order; a new
name lasts once its folder was synced; a removed one may come back until then (fsync(2)).
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

TRACED = "openat,mknod,mknodat,pwrite64,write,fsync,fdatasync,ftruncate,unlink,unlinkat,close"
_CALL = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+)(?:<(.*?)>)?")
_PATH = re.compile(r"<((?:\\x[0-9a-f]{2})+)>")
_STRINGS = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Write(NamedTuple):
    """Bytes at an offset; `data` None cuts the file there."""

    offset: int
    data: bytes | None


class File:
    """What a file holds for its readers, and what of it would outlast a power cut."""

    def __init__(self) -> None:
        self.synced = b""
        self.pending: list[Write] = []

    def sync(self) -> None:
        """All that was written so far will last."""
        self.synced = apply(self.synced, self.pending)
        self.pending = []


def apply(content: bytes, writes: Sequence[Write]) -> bytes:
    """The content after these writes."""
    held = bytearray(content)
    for write in writes:
        if write.data is None:
            del held[write.offset :]
            held.extend(bytes(max(0, write.offset - len(held))))
            continue
        held.extend(bytes(max(0, write.offset - len(held))))
        held[write.offset : write.offset + len(write.data)] = write.data
    return bytes(held)


class Disk:
    """The files of one folder, as a program's system calls change them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._watched = set(names)
        self.live: dict[str, File] = {}
        self.named: dict[str, File] = {}  # names that would outlast a cut

    def do(self, name: str, words: str, result: int, path: str, result_path: str) -> bool:
        """One system call; whether it made something last."""
        if name == "openat" and "O_CREAT" in words and result_path in self._watched:
            file = self.live.setdefault(result_path, File())
            if "O_TRUNC" in words:
                file.pending.append(Write(0, None))
        elif name in ("mknod", "mknodat") and result == 0 and _text(words) in self._watched:
            self.live.setdefault(_text(words), File())
        elif name in ("unlink", "unlinkat") and result == 0:
            self.live.pop(_text(words), None)
        elif name in ("fsync", "fdatasync") and result == 0:
            return self._sync(path)
        elif path in self.live and result >= 0:
            if name == "pwrite64":
                offset = int(words.rpartition(", ")[2])
                self.live[path].pending.append(Write(offset, _bytes(words)))
            elif name == "ftruncate":
                size = int(words.rpartition(", ")[2])
                self.live[path].pending.append(Write(size, None))
        return False

    def _sync(self, path: str) -> bool:
        if path in self.live:
            self.live[path].sync()
            return True
        if path == os.path.dirname(next(iter(self._watched))):
            self.named = dict(self.live)
            return True
        return False

    def after_cut(self, part: str, chance: random.Random) -> dict[str, bytes]:
        """What is there after a power cut at this moment.

        `part` of what was not synced has arrived: `none`, `all`, or `some`.
        """
        names = self.live if part == "all" else self.named
        found = {}
        for path, file in names.items():
            arrived = [one for one in file.pending if part == "all" or chance.random() < 0.5]
            if part == "some":
                chance.shuffle(arrived)
            found[path] = apply(file.synced, () if part == "none" else arrived)
        return found


class Step(NamedTuple):
    """A moment at which the power may go: what was said to people so far."""

    said: str


def replay(logs: Sequence[str], disk: Disk) -> Iterator[Step]:
    """Apply the logs to the disk, and stop before and after everything that makes it last."""
    said = ""
    for log in logs:
        for line in log.split("\n"):
            # strace -xx writes the paths of descriptors in hex, too.
            match = _CALL.match(_PATH.sub(lambda found: f"<{_plain(found[1])}>", line))
            if match is None:
                continue
            name, words, result, result_path = match.groups()
            fd, _, rest = words.partition("<")
            path = rest.partition(">")[0] if fd.isdigit() else ""
            if name in ("fsync", "fdatasync"):
                yield Step(said)
            if name == "write" and fd in ("1", "2"):
                said += _bytes(words).decode()
                yield Step(said)
            elif disk.do(name, words, int(result), path, result_path or ""):
                yield Step(said)
    yield Step(said)


def _plain(quoted: str) -> str:
    return bytes.fromhex(quoted.replace("\\x", "")).decode()


def _bytes(words: str) -> bytes:
    (quoted,) = _STRINGS.findall(words)
    return bytes.fromhex(quoted.replace("\\x", ""))


def _text(words: str) -> str:
    return _bytes(words).decode()


def write_files(files: dict[str, bytes], source: Path, target: Path) -> Path:
    """Put the files of `source`'s folder into `target`'s; the database's new path."""
    for path, content in files.items():
        (target / os.path.relpath(path, source.parent)).write_bytes(content)
    return target / source.name

"""What the jobs of a storm write down about themselves, outside the queue.

One line per record, appended with one write(2), so that a SIGKILL loses nothing that was
written. Where a record goes on in the next page of the file, a SIGKILL may tear it, and a
reader may see half of it: a record has a mark at its end, and without it does not count.

Times are seconds on the boot clock, which nobody steps. A process notes that it lives every
few milliseconds ("beat"): its life spans at least its first to its last record, and that is
all that a checker may conclude.

`job.py` imports this module without the rest of the project (python -I -S), so it must stay
small and import little.
"""

from __future__ import annotations

import hashlib
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class Record(NamedTuple):
        """One line: process `pid` (started at `start`) of an attempt did something at `at`.

        `kind`: `start` (word: parent's pid), `beat`, `end` (word: exit code), `second`
        (another copy holds the job's lock), `will` and `did` (word: `stdout:BYTES`, the length
        of the stream after the write that is about to begin, or that was made).
        `role`: `main` for the job's own program, else the kind of child.
        """

        at: float
        kind: str
        job: int
        token: str
        number: int
        pid: int
        start: str
        role: str
        word: str

else:
    from collections import namedtuple

    Record = namedtuple("Record", "at kind job token number pid start role word")

LEDGER = "ledger"
LOCKS = "locks"
_END = " ."


def boot_time() -> float:
    """Seconds since boot, suspend included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def write(fd: int, record: Record) -> None:
    """Append one record; `fd` was opened with O_APPEND."""
    os.write(fd, ("\n" + " ".join(map(str, record)) + _END).encode())


def read(folder: str) -> list[Record]:
    """All records of a run, in the order of their times."""
    try:
        with open(os.path.join(folder, LEDGER), encoding="ascii") as file:
            lines = file.read().split("\n")
    except FileNotFoundError:
        return []
    records = [_parse(line) for line in lines if line.endswith(_END)]
    return sorted(records, key=lambda record: record.at)


def _parse(line: str) -> Record:
    at, kind, job, token, number, pid, start, role, word = line.removesuffix(_END).split(" ")
    return Record(float(at), kind, int(job), token, int(number), int(pid), start, role, word)


def content(token: str, stream: str, size: int) -> bytes:
    """The first `size` bytes that the attempt writes to a stream: any bytes, no two alike.

    An extendable hash: a shorter content is a prefix of a longer one.
    """
    return hashlib.shake_128(f"{token} {stream}".encode()).digest(size)


def sound_prefix(token: str, stream: str, data: bytes) -> int:
    """How many bytes at the beginning of `data` are what the attempt wrote there."""
    good = content(token, stream, len(data))
    if data == good:
        return len(data)
    return next(index for index, (a, b) in enumerate(zip(data, good, strict=True)) if a != b)

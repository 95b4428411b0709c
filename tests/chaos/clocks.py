"""A wall clock that can be stepped under a running worker."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from spoolctl.core.records import Instant
from spoolctl.engine.clock import SystemClock

_OFFSET = struct.Struct("d")


class SteppedClock(SystemClock):
    """The machine's clocks, the wall clock off by the seconds in a file at the moment."""

    def __init__(self, path: str) -> None:
        super().__init__()
        with open(path, "rb") as file:
            self._offset = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)

    def now(self) -> Instant:
        """One reading of all clocks."""
        true = super().now()
        (offset,) = _OFFSET.unpack(self._offset[:])
        return true._replace(at=true.at + offset)


def step_clock(path: Path, offset_s: float) -> None:
    """Set (or make) a clock's file; workers that use it see the step at once."""
    if not path.exists():
        path.write_bytes(_OFFSET.pack(offset_s))
    with open(path, "r+b") as file:
        file.write(_OFFSET.pack(offset_s))

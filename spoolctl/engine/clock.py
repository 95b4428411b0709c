"""One reading of all clocks at a time.

Linux: CLOCK_BOOTTIME counts suspend, CLOCK_MONOTONIC does not (clock_gettime(2)). macOS:
CLOCK_MONOTONIC counts sleep, CLOCK_UPTIME_RAW does not (its clock_gettime(3)).
"""

from __future__ import annotations

import sys
import time

from spoolctl.core.records import Instant
from spoolctl.process.boot import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Clock(Protocol):
        """Where time comes from; tests pass their own."""

        def now(self) -> Instant:
            """One reading of all clocks."""
            ...


if sys.platform == "darwin":
    _BOOT, _MONO = time.CLOCK_MONOTONIC, time.CLOCK_UPTIME_RAW
else:
    _BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    _MONO = time.CLOCK_MONOTONIC


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        self._boot_id = boot_id()

    def now(self) -> Instant:
        """One reading of all clocks."""
        read = time.clock_gettime
        return Instant(time.time(), read(_BOOT), read(_MONO), self._boot_id)


def mono() -> float:
    """Seconds on the clock of time limits, which stands still while the machine sleeps."""
    return time.clock_gettime(_MONO)

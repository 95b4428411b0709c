"""How many processors this process may use."""

from __future__ import annotations

import os
from contextlib import suppress

_QUOTA = "/sys/fs/cgroup/cpu.max"
"""The limit of the container that we are in, if any: microseconds, or `max`, in a period
(Linux, Documentation/admin-guide/cgroup-v2.rst)."""


def usable() -> float:
    """The processors that we may run on, and no more than a container's quota of their time."""
    if hasattr(os, "sched_getaffinity"):
        count = float(len(os.sched_getaffinity(0)))
    else:
        count = float(os.cpu_count() or 1)
    with suppress(OSError, ValueError, ZeroDivisionError), open(_QUOTA) as file:
        quota, period = file.read().split()
        return min(count, int(quota) / int(period))
    return count

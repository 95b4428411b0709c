"""What a process costs while nothing happens: wake-ups, time on a core, memory (Linux)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple


class Cost(NamedTuple):
    """Counters of one process since it started."""

    wakeups: int
    core_s: float


def cost(pid: int) -> Cost:
    """Every switch away from a process was followed by a wake-up."""
    status = _status(pid)
    switches = int(status["voluntary_ctxt_switches"]) + int(status["nonvoluntary_ctxt_switches"])
    ran_ns = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return Cost(switches, ran_ns / 1e9)


def resident_mb(pid: int) -> float:
    """Memory that the process has in the machine, shared pages counted in full."""
    return int(_status(pid)["VmRSS"].split()[0]) / 1024


def proportional_mb(pid: int) -> float:
    """Memory with shared pages divided among those who share them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not tell Pss")


def children(pid: int) -> list[int]:
    """The processes that this one has started and not collected yet."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def during(pids: list[int], seconds: float) -> Cost:
    """What these processes cost together in the next so many seconds."""
    before = [cost(pid) for pid in pids]
    time.sleep(seconds)
    after = [cost(pid) for pid in pids]
    pairs = list(zip(before, after, strict=True))
    return Cost(
        sum(new.wakeups - old.wakeups for old, new in pairs),
        sum(new.core_s - old.core_s for old, new in pairs),
    )


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

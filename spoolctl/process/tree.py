"""Find all processes of an attempt, end them, and be sure that none is left.

The parts: `search` (who belongs to an attempt), `ending` (how one attempt's processes are
ended), and here what works on all of them at once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from spoolctl.core.pauses import pause
from spoolctl.process.ending import Ending
from spoolctl.process.search import ALL_NETS, Found, Snapshot, Target
from spoolctl.process.table import Proc

__all__ = [
    "ALL_NETS",
    "Ending",
    "Found",
    "Proc",
    "Snapshot",
    "Target",
    "end_all",
]


def end_all(
    targets: Sequence[Target],
    *,
    grace_s: float,
    until_mono: float | None = None,
    nets: Collection[str] = ALL_NETS,
) -> list[Ending]:
    """End all these attempts side by side; returns those not confirmed gone.

    Blocks until all are gone or, if given, the monotonic clock reaches `until_mono`.
    """
    now = time.monotonic()
    waiting = [
        (now, Ending(target, grace_s=grace_s, now_mono=now, nets=nets)) for target in targets
    ]
    while waiting:
        now = time.monotonic()
        waiting = [
            (now + ending.strike(now) if due <= now else due, ending) for due, ending in waiting
        ]
        if any(due <= now for due, _ in waiting):
            waiting = _step(waiting)
        now = time.monotonic()
        if until_mono is not None and now >= until_mono:
            break
        if waiting:
            wake = min(due for due, _ in waiting)
            if until_mono is not None:
                wake = min(wake, until_mono)
            pause(max(0.0, wake - now))
    return [ending for _, ending in waiting]


def _step(waiting: list[tuple[float, Ending]]) -> list[tuple[float, Ending]]:
    """One look for all that are due; those that remain, each with its next time."""
    snapshot = Snapshot.take()
    now = time.monotonic()
    after = []
    for due, ending in waiting:
        pause = ending.step(snapshot, now) if due <= now else due - now
        if pause is not None:
            after.append((now + pause, ending))
    return after

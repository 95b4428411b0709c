"""How a worker leaves its place: in good order, or with attempts that it could not see ended.

The process may live on, with another worker in it: then nothing of the first must keep others
from recovering what it has left.
"""

from __future__ import annotations

from collections.abc import Callable

from spoolctl.core.pauses import pause
from spoolctl.engine.crew import Crew
from spoolctl.engine.patience import Patience
from spoolctl.engine.station import Station
from spoolctl.errors import SafetyBlock, SpoolError, StoreBusy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.core.records import Instant
    from spoolctl.engine.clock import Clock
    from spoolctl.store.protocol import Store

LEAVE_S = 1.0


def leave(
    store: Store,
    worker: int | None,
    station: Station,
    crew: Crew,
    clock: Clock,
    patience: Patience,
    log: Callable[[str], None],
) -> None:
    """Take the worker's place down. `worker` None: it has no row that could be written.

    What could not be ended is the guardian's, which takes us for dead from now on, and then
    a reaper's: the row stays as that of a dead worker, and so does the roster.
    """
    jobs = sorted(report.claimed.job_id for report in crew.reports if report.outcome.started)
    if jobs:
        numbers = ", ".join(map(str, jobs))
        log(f"spoolctl: how job {numbers} ended could not be recorded; that counts as a crash")
    in_order = not crew.running
    crew.let_all_go()
    if in_order:
        station.relieve_guardian(crew.children)  # it ends while we go on here
    if worker is not None:
        _insist(lambda: _withdraw(store, worker, clock.now()), clock, patience)
    station.close(crew.children, unlink=in_order)


def _withdraw(store: Store, worker: int, now: Instant) -> None:
    try:
        store.unregister(worker, now=now)
    except SafetyBlock:  # also what was claimed and not started, or ended and not recorded
        store.desert(worker)


def _insist(call: Callable[[], None], clock: Clock, patience: Patience) -> None:
    """Change the row; it would make others believe that somebody serves the lanes.

    If that cannot be done in a moment, others sweep it as a dead worker's.
    """
    until = clock.now().mono + LEAVE_S
    while True:
        try:
            call()
        except StoreBusy as busy:
            now = clock.now().mono
            if now < until:
                pause(patience.pause("unregister", busy, now))
                continue
        except (SpoolError, OSError):
            pass
        return

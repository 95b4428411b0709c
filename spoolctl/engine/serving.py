"""Is somebody there: who may run the jobs of a lane, who runs what is running?"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spoolctl.core.paths import worker_lock
from spoolctl.core.records import Identity, Instant, Suspect, WorkerRow
from spoolctl.core.states import AttemptState
from spoolctl.process.identity import Judgement, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.protocol import Store


def unserved(
    store: Store,
    lanes: Iterable[str],
    judge: Callable[[Identity, str], Judgement],
    *,
    counts: Callable[[WorkerRow], bool] = lambda worker: True,
) -> frozenset[str]:
    """Which of these lanes no worker serves that may be alive.

    `judge` is asked with who it is and the path of its lock; only workers that `counts`
    accepts are looked at.
    """
    left = set(lanes)
    for worker in store.workers():
        if not counts(worker) or (worker.lanes is not None and left.isdisjoint(worker.lanes)):
            continue
        lock = worker_lock(store.path, worker.token)
        if judge(worker.identity, lock).verdict is not Verdict.DEAD:
            left -= left if worker.lanes is None else set(worker.lanes)
    return frozenset(left)


def orphans(
    store: Store, judge: Callable[[Identity, str], Judgement], *, now: Instant
) -> dict[int, str]:
    """Running jobs whose worker is proven dead, and by what; nobody took them back yet."""
    found = _orphans(store, judge, now)
    if found:
        # One that ended between the question and the verdict had recorded all before.
        left = {each.attempt_id for each in store.suspects(threshold_s=0.0, now=now)}
        found = [(each, why) for each, why in found if each.attempt_id in left]
    return {each.job_id: why for each, why in found}


def _orphans(
    store: Store, judge: Callable[[Identity, str], Judgement], now: Instant
) -> list[tuple[Suspect, str]]:
    verdicts: dict[int, Judgement] = {}
    found = []
    for each in store.suspects(threshold_s=0.0, now=now):
        worker = each.worker
        if worker is None or each.attempt_state is not AttemptState.RUNNING:
            continue
        if worker.id not in verdicts:
            lock = worker_lock(store.path, worker.token)
            verdicts[worker.id] = judge(worker.identity, lock)
        if verdicts[worker.id].verdict is Verdict.DEAD:
            found.append((each, verdicts[worker.id].reason))
    return found

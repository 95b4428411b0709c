"""Is somebody there who may run the jobs of a lane?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from spoolctl.core.paths import workers_dir
from spoolctl.core.records import Identity, WorkerRow
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
    left, folder = set(lanes), workers_dir(store.path)
    for worker in store.workers():
        if not counts(worker) or (worker.lanes is not None and left.isdisjoint(worker.lanes)):
            continue
        lock = os.path.join(folder, f"{worker.token}.lock")
        if judge(worker.identity, lock).verdict is not Verdict.DEAD:
            left -= left if worker.lanes is None else set(worker.lanes)
    return frozenset(left)

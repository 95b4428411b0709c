"""Deleting old jobs, with all they left behind, beside workers that go on working."""

from __future__ import annotations

from spoolctl.core.pauses import pause
from spoolctl.core.tuples import NamedTuple
from spoolctl.engine.stream_files import remove_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.core.records import Instant
    from spoolctl.core.states import State
    from spoolctl.store.protocol import Store

STEP_JOBS = 1000
"""Jobs deleted in one transaction: a step keeps the write lock for some milliseconds only."""

PAUSE_S = 0.006
"""Between two steps the lock is free for longer than a waiting writer sleeps between two tries
(5 ms at most), or steps in a row would starve it."""

COMPACT_PAGES = 256
"""Pages that go back to the file system in one transaction."""


class PruneResult(NamedTuple):
    """What a prune deleted, or would delete. `freed_bytes`: in the database and in files."""

    jobs: int
    attempts: int
    events: int
    freed_bytes: int


def prune(
    store: Store, *, before: float, states: tuple[State, ...], dry_run: bool, now: Instant
) -> PruneResult:
    """Delete jobs in these states that finished before `before`, and make the file smaller.

    Raises what `Store.prune` raises; steps that are done stay done.
    """
    jobs = attempts = events = freed = 0
    more = True
    while more:
        step = store.prune(before=before, states=states, dry_run=dry_run, limit=STEP_JOBS, now=now)
        jobs += step.jobs
        attempts += step.attempts
        events += step.events
        freed += step.database_bytes
        freed += remove_streams(store.path, step.tokens, dry_run=dry_run)
        more = step.more
        if more:
            pause(PAUSE_S)
    if jobs and not dry_run:
        while store.compact(pages=COMPACT_PAGES):
            pause(PAUSE_S)
    return PruneResult(jobs, attempts, events, freed)

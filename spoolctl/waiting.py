"""Sleeping until something happens in a queue: a doorbell, and a poll where there is none."""

from __future__ import annotations

import math
import os
import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from spoolctl.core.paths import waiters_dir
from spoolctl.core.pauses import pause
from spoolctl.core.states import SETTLED
from spoolctl.engine.clock import mono
from spoolctl.errors import NotFound, WaitTimeout
from spoolctl.folders import make_folder
from spoolctl.process.bell import Bell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.core.records import Job
    from spoolctl.store.protocol import Store

POLL_S = 0.5
"""How often to look where no doorbell can be hung (a read-only folder)."""

BURST_LOOK_S = 0.003
"""Who waits for jobs among thousands that end looks no more often than that."""

NET_S = 5.0
"""How often to look although there is a doorbell: its ringer may be killed before it rings."""


class Waiter:
    """A doorbell in the queue's support folder that workers and verbs ring after commits.

    Make it before the state is read: what happens in between then rings. Close it, or use
    it as a context manager. `poll_s`: look at least that often; None: as seldom as is safe.
    """

    def __init__(self, db_path: str, *, poll_s: float | None = None) -> None:
        folder = waiters_dir(db_path)
        with suppress(OSError):  # then there is no bell, and we look more often
            make_folder(folder)
        self._bell = Bell.create(folder, os.urandom(16).hex())
        default = POLL_S if self._bell.fd is None else NET_S
        self.poll_s = default if poll_s is None else poll_s

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the doorbell down."""
        self._bell.close()

    def sleep(self, seconds: float | None = None, *, watch: int | None = None) -> bool:
        """Until the bell rings, the next look is due, or so many seconds have passed.

        False if nobody reads any more what is written to the descriptor `watch`.
        """
        timeout_s = self.poll_s if seconds is None else min(seconds, self.poll_s)
        poll = select.poll()
        if self._bell.fd is not None:
            poll.register(self._bell.fd, select.POLLIN)
        if watch is not None:
            poll.register(watch, 0)  # errors are always reported (poll(2))
        happened = dict(poll.poll(max(0.0, timeout_s) * 1000))
        if self._bell.fd in happened:
            self._bell.drain()
        return watch not in happened


def until_settled(
    store: Store,
    waiter: Waiter,
    ids: Sequence[int],
    *,
    first: bool,
    timeout_s: float | None,
    watch: Callable[[Mapping[int, Job]], float | None] | None,
) -> dict[int, Job]:
    """Sleep until these jobs have settled; see `Queue.wait`, which says what is raised."""
    until = math.inf if timeout_s is None else mono() + timeout_s
    seen: dict[int, Job] = {}
    while True:
        looked_mono = mono()
        changed = store.changed()
        pending = look_for_settled(store, ids, seen)
        if not pending or (first and len(pending) < len(ids)):
            return {i: seen[i] for i in ids if is_settled(seen[i])}
        again_s = watch({i: seen[i] for i in pending}) if watch is not None else None
        look_at = math.inf if again_s is None else mono() + again_s
        while store.changed() == changed and mono() < look_at:
            left = until - mono()
            if left <= 0:
                raise wait_timeout(pending)
            waiter.sleep(min(left, look_at - mono()))
        pause(max(0.0, looked_mono + BURST_LOOK_S - mono()))


def look_for_settled(store: Store, ids: Sequence[int], seen: dict[int, Job]) -> tuple[int, ...]:
    """Bring `seen` up to date; returns the ids that are not settled.

    Settled ones are looked at again only when all others have settled, too: they may have
    been retried in the meantime.

    Raises:
        NotFound: unknown ids, all of them named.
    """
    pending = tuple(i for i in ids if not is_settled(seen.get(i)))
    for wanted in (pending, ids):
        found = store.states(wanted)
        missing = [i for i in wanted if i not in found and not is_settled(seen.get(i))]
        if missing:
            names = ", ".join(map(str, missing))
            raise NotFound(f"no such job: {names}", job_ids=tuple(missing), where=store.path)
        seen.update(found)
        pending = tuple(i for i in wanted if not is_settled(seen[i]))
        if pending:
            break
    return pending


def is_settled(job: Job | None) -> bool:
    """Whether it is known, and waited for no more."""
    return job is not None and job.state in SETTLED


def wait_timeout(pending: Sequence[int]) -> WaitTimeout:
    """The error for those who gave these jobs no more time."""
    names = ", ".join(str(each) for each in pending[:20])
    return WaitTimeout(f"time is up; not settled: {names}", pending=tuple(pending))

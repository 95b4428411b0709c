"""A worker without commands: claims jobs and says that they succeeded.

    python3 -m benchmarks.handmade DB       cycles in lane `alive` until terminated

It uses the store as a worker does, so that what is measured is the store alone. As a
program it prints how long each of its cycles took, in milliseconds, waits for the lock
included.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spoolctl import Queue
from spoolctl.core.records import Capture, Claimed, Identity, Instant, NewWorker, Outcome, Want
from spoolctl.core.states import AttemptState
from spoolctl.engine.clock import SystemClock
from spoolctl.errors import StoreBusy
from spoolctl.process.identity import self_identity
from spoolctl.submission import new_job

NOTHING = Capture(size_bytes=0, data=b"")


class Hand:
    """A queue with a registered worker, and what it has claimed and not finished (`mine`).

    `later_s` is how far ahead of the real time the hand believes to be.
    """

    def __init__(self, path: Path, *, wait_s: float = 5.0) -> None:
        self.queue = Queue(path, wait_s=wait_s)
        self.store = self.queue._store
        self.mine: list[Claimed] = []
        self.later_s = 0.0
        self._clock = SystemClock()
        who: Identity = self_identity(0, 0)
        worker = NewWorker(os.urandom(16).hex(), "hand", who, None, 1, 3600.0)
        self._id = self.store.register(worker, now=self.now()).worker_id
        self._some_done: int | None = None

    def __enter__(self) -> Hand:
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.close()

    def now(self) -> Instant:
        """The time that the hand believes in."""
        now = self._clock.now()
        later = self.later_s
        return now._replace(at=now.at + later, boot=now.boot + later, mono=now.mono + later)

    def add(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Add jobs, given as arguments of `Queue.add`, in one transaction."""
        context = new_job(["true"], capture_env=()).context
        made = [new_job(**{"context": context, **job}) for job in jobs]
        self.store.add(made, now=self.now())

    def claim(self, limit: int, lanes: tuple[str, ...] | None) -> list[Claimed]:
        """Claim jobs."""
        return list(self.store.claim(self._id, Want(limit, lanes), now=self.now()))

    def finish(self, claimed: Sequence[Claimed]) -> None:
        """Report success."""
        self.store.finish(self._id, [_success(one) for one in claimed], now=self.now())

    def cycle(self, claimed: Sequence[Claimed], want: Want) -> list[Claimed]:
        """Report success and claim more, in one transaction."""
        outcomes = [_success(one) for one in claimed]
        return list(self.store.cycle(self._id, outcomes, want, now=self.now()).claimed)

    def waiting(self) -> bool:
        """Whether a job of the queue is still waiting for its time."""
        found = self.store._c.execute("SELECT waiting FROM lanes WHERE queue = 'default'")  # type: ignore[attr-defined]
        return bool(found.fetchone()[0])

    def checkpoint(self) -> None:
        """Move everything from the log into the file."""
        self.store._c.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # type: ignore[attr-defined]

    @property
    def some_done(self) -> int:
        """A job in the middle that is done."""
        if self._some_done is None:
            done = self.queue.jobs(states=["done"], limit=400)
            self._some_done = done[-1].id
        return self._some_done

    @property
    def late_event(self) -> int:
        """The id of an event near the end."""
        return max(0, self.queue.events(since_id=1 << 60, limit=1).last_id - 20)


def _success(claimed: Claimed) -> Outcome:
    state = AttemptState.SUCCEEDED
    return Outcome(claimed.attempt_id, state, None, 0, None, 0.001, 0, NOTHING, NOTHING)


def finish_all(hand: Hand, lanes: tuple[str, ...], *, step: int = 1000) -> None:
    """Run the lanes dry."""
    claimed: list[Claimed] = []
    while True:
        claimed = hand.cycle(claimed, Want(step, lanes))
        if not claimed:
            return


def main() -> None:
    """Cycle until terminated, then print the times."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    times = []
    with Hand(Path(sys.argv[1]), wait_s=0.0) as hand:
        want = Want(1, ("alive",))
        claimed: list[Claimed] = []
        while not stopped:
            began = time.perf_counter()
            while not stopped:
                try:
                    claimed = hand.cycle(claimed, want)
                except StoreBusy:
                    time.sleep(0.002)
                    continue
                break
            if not stopped:
                times.append(1000 * (time.perf_counter() - began))
            time.sleep(0.01)
    print("\n".join(f"{each:.3f}" for each in times))


if __name__ == "__main__":
    main()

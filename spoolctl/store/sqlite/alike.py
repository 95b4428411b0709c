"""Claims and successes, many in one transaction by a few statements for all of them.

That is what nearly every job goes through, and one by one a cycle of short commands spends more
on statements than on rows. What is out of the ordinary is left to `store.sqlite.working`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from spoolctl.core.records import Capture, Instant, Outcome, Recorded
from spoolctl.core.states import Event, State, move
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.base import Base, pieces
from spoolctl.store.sqlite.rows import Ready

TOKEN_BYTES = 16


class Alike(Base):
    """The part of the store that begins and ends attempts by the dozen."""

    def _record_successes(
        self, worker: int, outcomes: Sequence[Outcome], now: Instant
    ) -> dict[int, Recorded]:
        """Record those of these successes that are nothing else: of attempts that still are the
        worker's; by attempt. The rest is left to whoever asks."""
        succeeded: dict[int, Outcome] = {}
        for each in outcomes:
            succeeded.setdefault(each.attempt_id, each)
        found: dict[int, int] = {}
        for ids in pieces(list(succeeded)):
            found.update(self._c.execute(sql.RUNNING_WITH_JOB[len(ids)], (worker, *ids)))
        # Each job once: in a damaged file two attempts of it may seem to run.
        jobs: dict[int, int] = {}
        for attempt_id in succeeded:
            if attempt_id in found:
                jobs.setdefault(found[attempt_id], attempt_id)
        if not jobs:
            return {}
        ends = [succeeded[attempt_id] for attempt_id in jobs.values()]
        written = self._c.executemany(sql.END_ATTEMPT, [_end_of(each, now) for each in ends])
        assert written.rowcount == len(ends), "the rows were just read"
        for end in ends:
            self._keep_output(end.attempt_id, end.stdout, end.stderr)
        moves = [
            (job, (now.at, end.exit_code, None, None)) for job, end in zip(jobs, ends, strict=True)
        ]
        self._move_alike(moves, State.RUNNING, Event.SUCCEEDED, now=now, worker=worker)
        return {
            attempt_id: Recorded(attempt_id, job, State.DONE, None)
            for job, attempt_id in jobs.items()
        }

    def _begin_attempts(
        self, ready: Sequence[Ready], worker: int, now: Instant
    ) -> list[tuple[Ready, int, bytes]]:
        """Make jobs that are ready attempts of the worker; with each its attempt's id and token."""
        for each in ready:
            if each.state != State.QUEUED.value:  # a damaged file
                move(State(each.state), Event.CLAIMED, job_id=each.id)
        # The moment it becomes one: nobody else can take a job that is not queued.
        moves = [(each.id, (0, now.at)) for each in ready]
        self._move_alike(moves, State.QUEUED, Event.CLAIMED, now=now, worker=worker)
        noise = os.urandom(TOKEN_BYTES * len(ready))
        tokens = [noise[at : at + TOKEN_BYTES] for at in range(0, len(noise), TOKEN_BYTES)]
        given = [
            (each.id, each.no, token, worker, now.at)
            for each, token in zip(ready, tokens, strict=True)
        ]
        numbers = self._insert(sql.ADD_ATTEMPTS, given)
        return list(zip(ready, numbers, tokens, strict=True))

    def _end_attempt(self, outcome: Outcome, now: Instant) -> None:
        self._c.execute(sql.END_ATTEMPT, _end_of(outcome, now))
        self._keep_output(outcome.attempt_id, outcome.stdout, outcome.stderr)

    def _keep_output(self, attempt_id: int, stdout: Capture, stderr: Capture) -> None:
        for stream, capture in (("stdout", stdout), ("stderr", stderr)):
            if capture.data:
                self._c.execute(sql.ADD_OUTPUT, (attempt_id, stream, capture.data))


def _end_of(outcome: Outcome, now: Instant) -> tuple[object, ...]:
    """The values of `sql.END_ATTEMPT`."""
    reason = outcome.reason
    return (
        outcome.state.value,
        now.at,
        float(outcome.duration_s),
        now.at,
        outcome.exit_code,
        None if outcome.error is None else rows.storable(outcome.error),
        None if reason is None else reason.value,
        outcome.survivors,
        outcome.stdout.size_bytes,
        outcome.stderr.size_bytes,
        rows.in_files(outcome.stdout, outcome.stderr),
        rows.capture_text(outcome.stdout, outcome.stderr),
        outcome.attempt_id,
    )

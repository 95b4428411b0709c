"""Retention: old jobs go, in steps so short that no worker has to wait for them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from spoolctl.core.records import Instant, Pruned
from spoolctl.core.states import State
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.base import Base

STEP_S = 0.025
"""How long one step of a prune may hold the write lock (roughly: it ends a job later)."""


class _Tally:
    def __init__(self) -> None:
        self.jobs = self.attempts = self.events = self.database_bytes = 0
        self.tokens: list[str] = []

    def pruned(self, *, more: bool) -> Pruned:
        return Pruned(
            self.jobs, self.attempts, self.events, self.database_bytes, tuple(self.tokens), more
        )


class Retention(Base):
    """The part of the store that deletes."""

    def prune(
        self,
        *,
        before: float,
        states: Sequence[State],
        dry_run: bool,
        limit: int,
        now: Instant,
    ) -> Pruned:
        """Delete some settled jobs that finished before `before`. See the protocol."""
        tally = _Tally()
        if dry_run:
            with self._c.read():
                for job_id in self._old(states, before, -1):
                    self._weigh(job_id, tally)
            return tally.pruned(more=False)
        with self._c.write(eager=True):
            until = time.monotonic() + STEP_S
            old = self._old(states, before, limit + 1)
            for done, job_id in enumerate(old):
                if done >= limit or (done and time.monotonic() >= until):
                    return tally.pruned(more=True)
                self._weigh(job_id, tally, delete=True)
            self._c.execute(sql.DELETE_UNUSED_CONTEXTS)
            self._c.execute(sql.DELETE_OLD_WORKERS)
        return tally.pruned(more=False)

    def _old(self, states: Sequence[State], before: float, limit: int) -> list[int]:
        ids: list[int] = []
        for state in dict.fromkeys(states):
            left = limit - len(ids) if limit >= 0 else -1
            found = self._c.execute(sql.OLD_JOBS, (state.value, before, left)).fetchall()
            ids += [row[0] for row in found]
        return ids

    def _weigh(self, job_id: int, tally: _Tally, *, delete: bool = False) -> None:
        """Count what belongs to the job, and delete it if asked to."""
        execute = self._c.execute
        tally.jobs += 1
        for attempt_id, token, bits in execute(sql.ATTEMPTS_TO_PRUNE, (job_id,)).fetchall():
            tally.attempts += 1
            if bits:
                tally.tokens.append(token.hex())
            if bits != sum(rows.IN_FILE.values()):
                tally.database_bytes += execute(sql.OUTPUT_BYTES, (attempt_id,)).fetchone()[0]
                if delete:
                    execute(sql.DELETE_OUTPUTS, (attempt_id,))
        if not delete:
            tally.events += execute(sql.EVENTS_TO_PRUNE, (job_id,)).fetchone()[0]
            return
        tally.events += execute(sql.DELETE_EVENTS, (job_id,)).rowcount
        execute(sql.DELETE_ATTEMPTS, (job_id,))
        execute(sql.DELETE_TAGS, (job_id,))
        execute(sql.DELETE_INPUT, (job_id,))
        execute(sql.DELETE_JOB, (job_id,))

    def compact(self, *, pages: int) -> bool:
        """Return up to `pages` free pages to the file system; True if more are left."""
        with self._c.write(full=False, eager=True):
            left = self._c.execute("PRAGMA freelist_count").fetchone()[0]
            for _ in range(min(pages, left)):
                # Page by page: Python 3.11 stops after the first, however many are asked for.
                self._c.execute("PRAGMA incremental_vacuum(1)").fetchall()
            left = self._c.execute("PRAGMA freelist_count").fetchone()[0]
        if left:
            return True
        # The file itself shrinks when the log is written back. The first form never blocks a
        # writer and does the work; the second then cuts the log, if nobody is in the way.
        try:
            self._c.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._c.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise self._c.translate(error) from error
        return False

"""Retention: old jobs go, in steps so short that no worker has to wait for them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence

from spoolctl.core.records import Instant, Pruned
from spoolctl.core.states import State
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.base import Base, pieces

STEP_S = 0.015
"""How long one step of a prune may hold the write lock (roughly: it ends some jobs later)."""


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
                for ids in pieces(self._old(states, before, -1)):
                    self._weigh(ids, tally)
                    tally.events += self._sum(sql.EVENTS_TO_PRUNE, ids)
            return tally.pruned(more=False)
        with self._c.write(eager=True):
            until = time.monotonic() + STEP_S
            old = self._old(states, before, limit + 1)
            for ids in pieces(old[:limit]):
                if tally.jobs and time.monotonic() >= until:
                    return tally.pruned(more=True)
                self._delete(ids, tally)
            if len(old) > limit:
                return tally.pruned(more=True)
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

    def _weigh(self, jobs: Sequence[int | None], tally: _Tally) -> list[int]:
        """Count the jobs and what their attempts have; those that have it in the database."""
        tally.jobs += len(jobs) - jobs.count(None)
        stored = []
        found = self._c.execute(sql.ATTEMPTS_TO_PRUNE[len(jobs)], jobs).fetchall()
        for attempt_id, token, bits in found:
            tally.attempts += 1
            if bits:
                tally.tokens.append(token.hex())
            if bits != sum(rows.IN_FILE.values()):
                stored.append(attempt_id)
        for ids in pieces(stored):
            tally.database_bytes += self._sum(sql.OUTPUT_BYTES, ids)
        return stored

    def _sum(self, statements: Mapping[int, str], ids: Sequence[int | None]) -> int:
        return int(self._c.execute(statements[len(ids)], ids).fetchone()[0])

    def _delete(self, jobs: Sequence[int | None], tally: _Tally) -> None:
        """Count the jobs and all that belongs to them, and delete it."""
        stored = self._weigh(jobs, tally)
        execute = self._c.executemany
        execute(sql.DELETE_OUTPUTS, [(attempt_id,) for attempt_id in stored])
        each = [(job,) for job in jobs if job is not None]
        tally.events += execute(sql.DELETE_EVENTS, each).rowcount
        execute(sql.DELETE_ATTEMPTS, each)
        execute(sql.DELETE_TAGS, each)
        execute(sql.DELETE_INPUT, each)
        execute(sql.DELETE_JOB, each)

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

"""What all parts of the SQLite store share, above all the one door for a job's state."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from spoolctl.core.records import Context, Instant
from spoolctl.core.states import Event, Ledger, Reason, State, move
from spoolctl.core.tuples import NamedTuple
from spoolctl.errors import NotFound
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.connection import Connection
from spoolctl.store.sqlite.rows import StoredJob

# These do not name a worker: a person, or the queue itself, did them.
_UNSIGNED = frozenset({Ledger.ADDED, Ledger.RETRIED, Ledger.CANCELED})

# Contexts never change under their id; a cache of them cannot be out of date.
_CONTEXTS_KEPT = 1000


class Due(NamedTuple):
    """When a job may run again: the marks that `migrations.py` explains."""

    ready: int
    clock: int | None
    due: float | None
    run_at: float


class Base:
    """One connection, and what every operation needs."""

    def __init__(self, connection: Connection) -> None:
        self._c = connection
        self.path = connection.path
        self._contexts: dict[int, Context] = {}
        # While a list: what the transaction adds to the ledger, written in one go at its end.
        self._notes: list[tuple[object, ...]] | None = None

    def close(self) -> None:
        """Release the file. May be called twice."""
        self._c.close()

    @property
    def wait_s(self) -> float:
        """How long a write waits for the lock before StoreBusy. May be set at any time."""
        return self._c.wait_s

    @wait_s.setter
    def wait_s(self, seconds: float) -> None:
        self._c.wait_s = seconds

    def check_file(self) -> None:
        """Raise StoreGone if the file (or its log) at `path` is not the one that is open."""
        self._c.check_file()

    # -- the one door -------------------------------------------------------------------

    def _move(
        self,
        job: StoredJob,
        event: Event,
        *,
        now: Instant,
        due: Due | None = None,
        worker: int | None = None,
        details: tuple[str | None, ...] = (None, None),
        attempts: int | None = None,
        crashes: int | None = None,
        finished_at: float | None = None,
        exit_code: int | None = None,
        error: str | None = None,
        reason: Reason | None = None,
    ) -> State:
        """Change the job's state by what happened, and write it into the ledger.

        Called inside a write transaction. Counters that are None stay as they are; the time of
        the end too, except that a manual retry clears it. `details` belong to the ledger
        entries in their order. `due` is given exactly where the move leads back to the queue.
        Not for claims and successes: those come by `_move_alike`.

        Raises: IllegalTransition; nothing was written.
        """
        to, writes = move(State(job.state), event, job_id=job.id)
        assert (due is not None) == (to is State.QUEUED)
        if finished_at is None and event not in (Event.RETRIED, Event.FORCED):
            finished_at = job.finished_at
        values = (
            *(due or Due(0, None, None, job.run_at)),
            job.attempts if attempts is None else attempts,
            job.crashes if crashes is None else crashes,
            job.started_at,
            finished_at,
            exit_code,
            error,
            None if reason is None else reason.value,
        )
        changed = self._c.execute(sql.MOVE_JOB[to], (to.value, *values, job.id, job.state)).rowcount
        assert changed == 1, "the row was read in this very transaction"
        for entry, detail in zip(writes, details, strict=False):
            self._note(job.id, entry, now=now, worker=worker, detail=detail)
        return to

    def _move_alike(
        self,
        jobs: Sequence[tuple[int, tuple[object, ...]]],
        source: State,
        event: Event,
        *,
        now: Instant,
        worker: int,
    ) -> None:
        """`_move` for jobs in the same state to which the same has happened, by one statement:
        most jobs make two such moves in their lives, when they are claimed and when they succeed.

        Of each its id and the values for the columns in `sql.MOVES`. Their rows were read in
        this very transaction.
        """
        to, writes = move(source, event)
        given = [(to.value, *values, job, source.value) for job, values in jobs]
        changed = self._c.executemany(sql.MOVE_JOB[to], given).rowcount
        assert changed == len(jobs), "the rows were read in this very transaction"
        for job, _values in jobs:
            for entry in writes:
                self._note(job, entry, now=now, worker=worker, detail=None)

    def _note(
        self, job_id: int, entry: Ledger, *, now: Instant, worker: int | None, detail: str | None
    ) -> None:
        signed = None if entry in _UNSIGNED else worker
        row = (job_id, now.at, entry.value, signed, detail)
        if self._notes is None:
            self._c.execute(sql.ADD_EVENT, row)
        else:
            self._notes.append(row)

    def _write_notes(self) -> None:
        """Write what was collected, in the order in which it happened."""
        notes, self._notes = self._notes or [], []
        self._insert(sql.ADD_EVENTS, notes)

    def _insert(self, statements: Sequence[str], some: Sequence[tuple[object, ...]]) -> list[int]:
        """Insert rows; `statements[n]` takes n of them. Returns their numbers, in that order."""
        most = len(statements) - 1
        numbers: list[int] = []
        for start in range(0, len(some), most):
            part = some[start : start + most]
            values = [value for row in part for value in row]
            last = self._c.execute(statements[len(part)], values).lastrowid or 0
            # Those that one statement inserts follow each other (sqlite.org/autoinc.html).
            numbers += range(last - len(part) + 1, last + 1)
        return numbers

    # -- shared look-ups ----------------------------------------------------------------

    def _job(self, job_id: int) -> StoredJob:
        row = None
        if 0 < job_id < 1 << 63:
            row = self._c.execute(sql.JOB, (job_id,)).fetchone()
        if row is None:
            raise NotFound(f"no job {job_id} in {self.path}", job_ids=(job_id,), where=self.path)
        return StoredJob(*row)

    def _context(self, context_id: int) -> Context:
        known = self._contexts.get(context_id)
        if known is None:
            row = self._c.execute(sql.CONTEXT, (context_id,)).fetchone()
            if row is None:
                return Context(None, None, ())  # a damaged file: the worker's own then holds
            known = rows.context_of(row[0])
            if len(self._contexts) >= _CONTEXTS_KEPT:
                self._contexts.clear()
            self._contexts[context_id] = known
        return known

    def _context_id(self, context: Context) -> int:
        """The id of an equal captured context, stored now if there is none."""
        body = rows.context_text(context)
        key = (zlib.crc32(body.encode()), body)
        row = self._c.execute(sql.CONTEXT_ID, key).fetchone()
        if row is not None:
            return int(row[0])
        return int(self._c.execute(sql.ADD_CONTEXT, key).lastrowid or 0)

    def _boot(self, now: Instant, *, add: bool = False) -> int:
        """The number of this boot among the clocks; 0 if no job has ever waited by it."""
        row = self._c.execute(sql.BOOT_ID, (now.boot_id,)).fetchone()
        if row is not None:
            return int(row[0])
        if not add:
            return 0
        return int(self._c.execute(sql.ADD_BOOT, (now.boot_id,)).lastrowid or 0)

    def _after(self, delay_s: float, now: Instant) -> Due:
        """Due in `delay_s` seconds, by the boot clock as long as this boot lasts."""
        run_at = now.at + delay_s
        if delay_s <= 0:
            return Due(1, None, None, now.at)
        return Due(0, self._boot(now, add=True), now.boot + delay_s, run_at)

    def _is_living(self, job_id: int) -> bool:
        """Whether processes of an attempt of the job may still live."""
        return self._c.execute(sql.IS_LIVING, (job_id,)).fetchone() is not None

    def _at_once(self, job_id: int, now: Instant) -> Due:
        """Due now; held while processes of an earlier attempt may live."""
        return Due(0 if self._is_living(job_id) else 1, None, None, now.at)


def pieces(ids: Sequence[int]) -> Iterator[list[int | None]]:
    """The numbers in pieces for which there are statements, the last one filled up with nulls."""
    most = sql.PIECES[-1]
    for start in range(0, len(ids), most):
        piece: list[int | None] = list(ids[start : start + most])
        places = next(size for size in sql.PIECES if size >= len(piece))
        yield piece + [None] * (places - len(piece))

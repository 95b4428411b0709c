"""Submitting jobs, with idempotency keys; cancel; retry."""

from __future__ import annotations

from collections.abc import Sequence

from spoolctl.core.records import Added, Context, Instant, Job, NewJob
from spoolctl.core.states import AttemptState, Event, Ledger, Reason, State
from spoolctl.errors import IllegalTransition, KeyConflict, SafetyBlock
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.base import Base, Due
from spoolctl.store.sqlite.rows import Row, StoredJob

_ACTIVE = (State.RUNNING, State.QUEUED)
_SETTLED = (State.DONE, State.FAILED, State.DEAD, State.CANCELED)


# So many jobs are worth the 4 ms that the module `json` takes to import.
_MANY = 500


class Batch:
    """The rows of one `add`, collected first and then written table by table."""

    def __init__(self, next_id: int) -> None:
        self.next_id = next_id
        self.jobs: list[Row] = []
        self.events: list[Row] = []
        self.tags: list[Row] = []
        self.inputs: list[Row] = []
        self.contexts: dict[Context, int] = {}
        self.last_context: tuple[Context, int] | None = None
        self._asked: tuple[rows.Asked, str | None] = (rows.NOTHING_ASKED, None)
        # Keys of jobs that are new in this batch: they are in no table yet.
        self.keys: dict[str, tuple[NewJob, Job]] = {}

    def asked_text(self, asked: rows.Asked) -> str | None:
        """`rows.asked_text`; most jobs of a batch ask for the same as the one before."""
        if asked != self._asked[0]:
            self._asked = (asked, rows.asked_text(asked))
        return self._asked[1]


class Submitting(Base):
    """The part of the store that submitters use."""

    def add(self, jobs: Sequence[NewJob], *, now: Instant) -> list[Added]:
        """Add all jobs, or none. See the protocol."""
        if len(jobs) >= _MANY:
            rows.import_json()
        with self._c.write():
            row = self._c.execute(sql.LAST_JOB_ID).fetchone()
            batch = Batch(1 + (row[0] if row else 0))
            added = []
            for index, job in enumerate(jobs):
                try:
                    added.append(self._add_one(job, batch, now))
                except KeyConflict as conflict:
                    conflict.index = index
                    raise
            self._write(batch)
        return added

    def _add_one(self, job: NewJob, batch: Batch, now: Instant) -> Added:
        if job.key is not None:
            known = self._known(job, batch, now)
            if known is not None:
                return known
        job_id = batch.next_id
        batch.next_id += 1
        due = self._first_due(job, now)
        asked = rows.asked_in(job)
        if job.policy.retry_for_s is not None:
            asked = asked._replace(since=(now.at, now.boot, now.boot_id))
        tags = rows.to_json(job.tags) if job.tags else None
        batch.jobs.append(
            (
                job_id,
                due.ready,
                rows.storable(job.queue),
                job.priority,
                due.run_at,
                due.clock,
                due.due,
                job.max_retries,
                job.max_crashes,
                job.timeout_s,
                now.at,
                self._batch_context(job.context, batch),
                rows.words_to_json(job.argv),
                job.key if job.key is None else rows.storable(job.key),
                tags,
                job.note if job.note is None else rows.storable(job.note),
                batch.asked_text(asked),
            )
        )
        batch.events.append((job_id, now.at, Ledger.ADDED.value, None, None))
        for key, value in job.tags:
            batch.tags.append((rows.storable(key), rows.storable(value), job_id))
        if job.stdin is not None:
            batch.inputs.append((job_id, job.stdin))
        record = _new_record(job_id, job, due, now)
        if job.key is not None:
            batch.keys[job.key] = (job, record)
        return Added(record, False)

    def _batch_context(self, context: Context, batch: Batch) -> int:
        # Nearly always the same object for the whole batch.
        if batch.last_context is not None and batch.last_context[0] is context:
            return batch.last_context[1]
        context_id = batch.contexts.get(context)
        if context_id is None:
            context_id = batch.contexts[context] = self._context_id(context)
        batch.last_context = (context, context_id)
        return context_id

    def _first_due(self, job: NewJob, now: Instant) -> Due:
        if job.delay_s:
            return self._after(job.delay_s, now)
        if job.run_at is not None and job.run_at > now.at:
            return Due(0, 0, job.run_at, job.run_at)
        return Due(1, None, None, now.at)

    def _write(self, batch: Batch) -> None:
        self._insert(sql.ADD_JOBS, batch.jobs)
        self._insert(sql.ADD_EVENTS, batch.events)
        if batch.tags:
            self._c.executemany(sql.ADD_TAG, batch.tags)
        if batch.inputs:
            self._c.executemany(sql.ADD_INPUT, batch.inputs)

    # -- keys ---------------------------------------------------------------------------

    def _known(self, job: NewJob, batch: Batch, now: Instant) -> Added | None:
        """The answer for a job whose key is taken, or None if the key is free."""
        assert job.key is not None
        if job.key in batch.keys:
            first, record = batch.keys[job.key]
            return _answer(job, record, rows.asked_in(first), first.stdin, now)
        stored = self._active(rows.storable(job.key), now)
        if stored is None:
            return None
        record = rows.job_of(stored, self._context(stored.context))
        row = self._c.execute(sql.INPUT, (stored.id,)).fetchone()
        stdin = row[0] if row else None
        return _answer(job, record, rows.asked_of(stored.asked), stdin, now)

    def _active(self, key: str, now: Instant) -> StoredJob | None:
        """The job that holds the key: a waiting or running one, or one that protects on."""
        if self._c.execute(sql.IS_KEY_KNOWN, (key,)).fetchone() is None:
            return None  # by far the most frequent answer, for one look
        for state in _ACTIVE:
            row = self._c.execute(sql.JOB_OF_KEY, (key, state.value)).fetchone()
            if row is not None:
                return StoredJob(*row)
        protecting = []
        for state in _SETTLED:
            row = self._c.execute(sql.JOB_OF_KEY, (key, state.value)).fetchone()
            if row is not None and _protects(StoredJob(*row), now):
                protecting.append(StoredJob(*row))
        return max(protecting, default=None)

    # -- cancel -------------------------------------------------------------------------

    def cancel(self, job_id: int, *, running: bool, now: Instant) -> bool:
        """Cancel a queued or (with `running`) a running job. See the protocol."""
        with self._c.write():
            job = self._job(job_id)
            if job.state == State.RUNNING.value:
                if not running:
                    raise SafetyBlock(f"job {job_id} is running", action="cancel", job_id=job_id)
                self._stop(job, AttemptState.CANCELED, "canceled", now)
                started, detail = True, "forced (was running)"
            else:
                started = self._c.execute(sql.HAS_ATTEMPT, (job_id,)).fetchone() is not None
                detail = None
            self._move(
                job,
                Event.CANCELED,
                now=now,
                details=(detail,),
                finished_at=now.at,
                error="canceled" if started else None,
                reason=Reason.CANCELED if started else None,
            )
            return job.state == State.RUNNING.value

    def _stop(self, job: StoredJob, state: AttemptState, error: str, now: Instant) -> None:
        """End the running attempt in the books; its processes live until they are reported gone."""
        row = self._c.execute(sql.RUNNING_ATTEMPT, (job.id,)).fetchone()
        if row is not None:
            self._c.execute(
                sql.STOP_ATTEMPT, (state.value, now.at, error, Reason.CANCELED.value, row[0])
            )

    # -- retry --------------------------------------------------------------------------

    def retry(self, job_id: int, *, force: bool, now: Instant) -> State:
        """Give the job a fresh budget. See the protocol."""
        with self._c.write():
            job = self._job(job_id)
            was = State(job.state)
            if was is State.RUNNING:
                if not force:
                    raise SafetyBlock(f"job {job_id} is running", action="retry", job_id=job_id)
                self._stop(job, AttemptState.ABANDONED, "force-retried", now)
                event, detail = Event.FORCED, "forced"
            elif force:
                raise IllegalTransition(was.value, Event.FORCED.value, job_id=job_id)
            else:
                event, detail = Event.RETRIED, None
            self._move(
                job,
                event,
                now=now,
                due=self._at_once(job_id, now),
                details=(detail,),
                attempts=0,
                crashes=0,
            )
            asked = rows.asked_of(job.asked)
            if asked.since is not None:
                asked = asked._replace(since=(now.at, now.boot, now.boot_id))
                self._c.execute(sql.SET_ASKED, (rows.asked_text(asked), job_id))
            return was


def _new_record(job_id: int, job: NewJob, due: Due, now: Instant) -> Job:
    return Job(
        job_id,
        job.argv,
        State.QUEUED,
        0,
        0,
        job.max_retries,
        job.max_crashes,
        job.timeout_s,
        now.at,
        None,
        None,
        due.run_at,
        job.priority,
        job.queue,
        _folder(job),
        None,
        None,
        None,
        job.key,
        job.tags,
        job.note,
        bool(due.ready),
    )


def _folder(job: NewJob) -> str | None:
    """Where it will run: as asked for, or else as captured."""
    return job.context.cwd if job.cwd is None else job.cwd


def _protects(stored: StoredJob, now: Instant) -> bool:
    """Whether a settled job's key is still taken, as its submitter asked (`key_for_s`)."""
    key_for_s = rows.asked_of(stored.asked).key_for_s
    if key_for_s is None or stored.finished_at is None:
        return False
    return now.at - stored.finished_at < key_for_s


def _answer(
    job: NewJob, record: Job, asked: rows.Asked, stdin: bytes | None, now: Instant
) -> Added:
    """The existing job for an equal request.

    Raises: KeyConflict with the names of what differs in the execution.
    """
    wanted = rows.asked_in(job)
    compared = (
        ("argv", record.argv, job.argv),
        ("timeout", record.timeout_s, job.timeout_s),
        ("max_retries", record.max_retries, job.max_retries),
        ("max_crashes", record.max_crashes, job.max_crashes),
        ("priority", record.priority, job.priority),
        ("queue", record.queue, job.queue),
        ("cwd", asked.cwd, asked.cwd if _folder(job) == record.cwd else wanted.cwd),
        ("env", dict(asked.env), dict(wanted.env)),
        ("retry_policy", asked.policy, wanted.policy),
        ("stdin", stdin, job.stdin),
    )
    fields = tuple(name for name, existing, submitted in compared if existing != submitted)
    if fields:
        assert job.key is not None
        raise KeyConflict(job.key, record.id, record.state.value, fields)
    differences: list[tuple[str, object, object]] = []
    if dict(record.tags) != dict(job.tags):
        differences.append(("tags", dict(record.tags), dict(job.tags)))
    if record.note != job.note:
        differences.append(("note", record.note, job.note))
    # What was asked for is compared, not where backoff has moved the job since.
    if (asked.delay_s, asked.run_at) != (wanted.delay_s, wanted.run_at):
        wished = max(now.at, wanted.run_at or now.at + (wanted.delay_s or 0.0))
        differences.append(("next_run_at", record.next_run_at, wished))
    return Added(record, True, tuple(differences))

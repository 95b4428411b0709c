"""A worker's side: registering, one transaction per cycle, promotion, claims."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from spoolctl.core.records import (
    LEFT,
    Capture,
    Claimed,
    Cycle,
    Instant,
    NewWorker,
    Outcome,
    Recorded,
    Registered,
    Want,
)
from spoolctl.core.retry import Budget, Verdict, after_crash, after_failure, spread
from spoolctl.core.states import AttemptState, Event, Reason, State
from spoolctl.errors import SafetyBlock
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.alike import Alike
from spoolctl.store.sqlite.connection import Connection
from spoolctl.store.sqlite.healing import Healing
from spoolctl.store.sqlite.promotion import Promotion
from spoolctl.store.sqlite.rows import Ready, StoredJob

SPARE_CRASHES = 10
"""How many crashes a job must have left to be claimed before there is a slot for it."""


class Working(Healing, Promotion, Alike):
    """The part of the store that workers use."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        # Workers of this process whose rows have names to keep (see `_forget`).
        self._used: set[int] = set()
        self._met = 0  # locks, up to the last cycle

    def register(self, worker: NewWorker, *, now: Instant) -> Registered:
        """Make the worker known, and heal. See the protocol."""
        rows.import_json()
        who = worker.identity
        # Unsynced, like a heartbeat: the claims that name the worker are synced, and what was
        # written before them with them; whoever has claimed nothing does not outlive the power.
        execute = self._c.execute
        with self._c.write(full=False):
            healed = self._heal(now)
            number = execute(
                sql.ADD_WORKER,
                (
                    worker.token,
                    rows.storable(worker.name),
                    who.boot_id,
                    who.pid_ns,
                    who.pid,
                    who.start,
                    rows.signed(who.lock_dev),
                    rows.signed(who.lock_ino),
                    None if worker.lanes is None else rows.to_json(worker.lanes),
                    worker.slots,
                    worker.interval_s,
                    now.at,
                    now.at,
                    now.boot,
                ),
            ).lastrowid
            ready = self._ready_in(worker.lanes)
            alone = execute(sql.ANOTHER_WORKER, (number,)).fetchone() is None
        return Registered(int(number or 0), tuple(healed), ready, alone)

    def _ready_in(self, lanes: Sequence[str] | None) -> int:
        execute = self._c.execute
        if lanes is None:
            return int(execute(sql.READY).fetchone()[0])
        return sum(int(execute(sql.READY_IN, (lane,)).fetchone()[0]) for lane in lanes)

    def unregister(self, worker: int, *, now: Instant) -> None:
        """Forget a worker that ends in good order.

        Raises: SafetyBlock while it owns attempts that are not confirmed gone.
        """
        # Unsynced: a row that a power cut brings back is that of a worker of an earlier boot.
        with self._c.write(full=False):
            if self._c.execute(sql.OWNS_LIVING, (worker,)).fetchone() is not None:
                raise SafetyBlock("the worker still owns attempts", action="unregister")
            self._forget(worker, now)

    def desert(self, worker: int) -> None:
        """The worker ends, and leaves attempts to others. See the protocol."""
        # Unsynced: after a power cut nobody takes its process for alive.
        with self._c.write(full=False):
            self._c.execute(sql.DESERT, (LEFT, worker))

    def _forget(self, worker: int, now: Instant) -> None:
        """Its row goes, or stays as the name behind attempts and events until a prune."""
        self._c.execute(sql.DELETE_UNUSED_WORKER, (worker,))
        self._c.execute(sql.END_WORKER, (now.at, worker))

    def heartbeat(self, worker: int, *, now: Instant) -> bool:
        """Renew the heartbeat; False if the worker is not registered any more."""
        with self._c.write(full=False):
            return self._c.execute(sql.HEARTBEAT, (now.at, now.boot, worker)).rowcount == 1

    def lost(self, worker: int) -> frozenset[int]:
        """Attempts of the worker that were canceled or forced, and are not yet gone."""
        with self._c.read():
            return frozenset(row[0] for row in self._c.execute(sql.LOST, (worker,)))

    def living(self, worker: int) -> frozenset[int]:
        """All attempts of the worker that are not gone."""
        with self._c.read():
            return frozenset(row[0] for row in self._c.execute(sql.LIVING, (worker,)))

    # -- the cycle ----------------------------------------------------------------------

    def cycle(
        self, worker: int, outcomes: Sequence[Outcome], want: Want | None, *, now: Instant
    ) -> Cycle:
        """Record what has finished, claim what comes next. See the protocol."""
        if not outcomes:
            # An idle worker that looks around must not stand in the way of those who write.
            self._c.check_file()
            with self._c.read():
                idle, next_due_s = self._nothing_to_do(want, now)
            if idle:
                return Cycle((), (), next_due_s)
        with self._c.write(full=bool(outcomes) or want is not None):
            self._notes = []
            try:
                done = self._turn(worker, outcomes, want, now)
                self._write_notes()
            finally:
                self._notes = None
        if self._c.locks_met != self._met:
            self._met = self._c.locks_met
            done = done._replace(waited=True)
        if done.claimed:
            self._used.add(worker)
        return done

    def _turn(
        self, worker: int, outcomes: Sequence[Outcome], want: Want | None, now: Instant
    ) -> Cycle:
        """What a cycle does inside its transaction."""
        lanes = want.lanes if want is not None else None
        recorded = self._record_all(worker, outcomes, now)
        # Asked once, after all that this cycle makes wait: a claim adds nothing to it.
        waiting = self._waiting(lanes)
        more = self._promote(waiting, now)
        claimed = () if want is None else self._claim(worker, want, now)
        return Cycle(recorded, claimed, 0.0 if more else self._next_due_s(waiting, now))

    def finish(
        self, worker: int, outcomes: Sequence[Outcome], *, now: Instant
    ) -> tuple[Recorded, ...]:
        """`cycle` without a claim."""
        with self._c.write():
            return self._record_all(worker, outcomes, now)

    def claim(self, worker: int, want: Want, *, now: Instant) -> tuple[Claimed, ...]:
        """`cycle` without reports."""
        return self.cycle(worker, (), want, now=now).claimed

    def _nothing_to_do(self, want: Want | None, now: Instant) -> tuple[bool, float | None]:
        """Whether nothing is due or ready in the lanes, and how long until something is."""
        lanes = want.lanes if want is not None else None
        next_due_s = self._next_due_s(self._waiting(lanes), now)
        if next_due_s == 0.0:
            return False, next_due_s
        if want is None or want.limit <= 0:
            return True, next_due_s
        if want.job_id is not None:
            return self._c.execute(sql.IS_READY, (want.job_id,)).fetchone() is None, next_due_s
        if lanes is None:
            return self._c.execute(sql.ANY_READY).fetchone() is None, next_due_s
        ready = (self._c.execute(sql.LANE, (lane,)).fetchone() for lane in lanes)
        return not any(row is not None and row[0] > 0 for row in ready), next_due_s

    def holds_drain(self, lanes: Sequence[str] | None, *, now: Instant) -> bool:
        """Whether a drain of the lanes has to go on. See the protocol."""
        with self._c.read():
            if lanes is None:
                if self._c.execute(sql.BUSY_LANE).fetchone() is not None:
                    return True
            else:
                for lane in lanes:
                    row = self._c.execute(sql.LANE, (lane,)).fetchone()
                    if row is None:
                        continue
                    ready, _waiting, running, retrying, living = row
                    if ready > 0 or running > 0 or retrying > 0 or living > 0:
                        return True
            return self._next_due_s(self._waiting(lanes), now) == 0.0

    # -- recording ----------------------------------------------------------------------

    def _record_all(
        self, worker: int, outcomes: Sequence[Outcome], now: Instant
    ) -> tuple[Recorded, ...]:
        recorded = []
        # One run of successes after the other, lest the ledger get another order.
        for successes, run in groupby(outcomes, _is_success):
            some = list(run)
            done = self._record_successes(worker, some, now) if successes else {}
            for each in some:
                # Once: what is told again is compared with what is recorded by now.
                known = done.pop(each.attempt_id, None) if done else None
                recorded.append(self._record(worker, each, now) if known is None else known)
        return tuple(recorded)

    def _record(self, worker: int, outcome: Outcome, now: Instant) -> Recorded:
        row = self._c.execute(sql.ATTEMPT_WITH_JOB, (outcome.attempt_id,)).fetchone()
        if row is None:
            return Recorded(outcome.attempt_id, 0, None, None)
        job_id, state, owner, gone_at = row[:4]
        job = StoredJob(*row[4:])
        discarded = Recorded(outcome.attempt_id, job_id, None, None)
        if owner != worker:
            return discarded  # not its to report
        if gone_at is not None:
            if state != outcome.state.value:
                return discarded
            # Reported before: that commit succeeded, but its caller did not learn of it.
            return discarded._replace(job_state=State(job.state), next_run_at=job.run_at)
        if state != AttemptState.RUNNING.value:
            # Canceled or forced before the success was recorded: what it left running is
            # no success's to leave. The owner ends it and reports again.
            if outcome.survivors == 0:
                self._confirm_gone(outcome.attempt_id, job_id, outcome, now)
            return discarded
        if not outcome.started:
            return self._take_back(job, outcome, worker, now)
        self._end_attempt(outcome, now)
        if job.state != State.RUNNING.value:  # a damaged file
            self._c.execute(sql.LET_GO, (job_id,))
            return discarded
        return self._follow_up(job, outcome, worker, now)

    def _take_back(self, job: StoredJob, outcome: Outcome, worker: int, now: Instant) -> Recorded:
        """Undo a claim whose command was not started: the job stands where it stood."""
        self._c.execute(sql.DELETE_ATTEMPT, (outcome.attempt_id,))
        if job.state != State.RUNNING.value:  # a damaged file
            self._c.execute(sql.LET_GO, (job.id,))
            return Recorded(outcome.attempt_id, job.id, None, None)
        last = self._c.execute(sql.LAST_START, (job.id,)).fetchone()
        to = self._move(
            job._replace(started_at=last[0] if last else None),
            Event.RELEASED,
            now=now,
            worker=worker,
            due=self._at_once(job.id, now)._replace(run_at=job.run_at),
            exit_code=job.last_exit_code,
            error=job.last_error,
        )
        return Recorded(outcome.attempt_id, job.id, to, job.run_at)

    def _follow_up(self, job: StoredJob, outcome: Outcome, worker: int, now: Instant) -> Recorded:
        """Move the job on after its attempt has ended without success, by its owner's report."""
        if outcome.reason is Reason.WORKER_SHUTDOWN:
            due = self._at_once(job.id, now)
            to = self._move(
                job,
                Event.RELEASED,
                now=now,
                worker=worker,
                due=due,
                finished_at=now.at,
                exit_code=job.last_exit_code,
                error=job.last_error,
            )
            return Recorded(outcome.attempt_id, job.id, to, due.run_at)
        return self._unsuccessful(job, outcome, worker, now)

    def _unsuccessful(
        self, job: StoredJob, outcome: Outcome, worker: int, now: Instant
    ) -> Recorded:
        budget = Budget(job.attempts, job.crashes, job.max_retries, job.max_crashes)
        asked = rows.asked_of(job.asked)
        reason = outcome.reason or Reason.UNKNOWN
        if outcome.state is AttemptState.ABANDONED:
            verdict = after_crash(budget, asked.policy, spread=spread())
        else:
            verdict = after_failure(
                budget,
                asked.policy,
                state=outcome.state,
                reason=reason,
                exit_code=outcome.exit_code,
                age_s=_age_s(asked, now),
                spread=spread(),
            )
        error = None if outcome.error is None else rows.storable(outcome.error)
        to, run_at = self._retry_or_bury(
            job, verdict, now, worker, (error, error), outcome.exit_code, error, reason
        )
        return Recorded(outcome.attempt_id, job.id, to, run_at)

    def _retry_or_bury(
        self,
        job: StoredJob,
        verdict: Verdict,
        now: Instant,
        worker: int | None,
        details: tuple[str | None, str | None],
        exit_code: int | None,
        error: str | None,
        reason: Reason,
    ) -> tuple[State, float | None]:
        """Do what `core.retry` decided: back to the queue after a wait, or settled."""
        again = verdict.event in (Event.FAILED, Event.TIMED_OUT, Event.REAPED)
        due = None
        if again:
            due = self._after(verdict.delay_s, now)
            if due.ready and self._is_living(job.id):
                due = due._replace(ready=0)
        to = self._move(
            job,
            verdict.event,
            now=now,
            due=due,
            worker=worker,
            details=details,
            attempts=verdict.attempts,
            crashes=verdict.crashes,
            finished_at=now.at,
            exit_code=exit_code,
            error=error,
            reason=None if again else reason,
        )
        return to, due.run_at if due else None

    def _confirm_gone(self, attempt_id: int, job_id: int, seen: Outcome, now: Instant) -> None:
        """The end of an attempt that was canceled or forced: gone, with what it had written."""
        self._set_gone(
            attempt_id, job_id, seen.duration_s, seen.survivors, seen.stdout, seen.stderr, now
        )

    def _set_gone(
        self,
        attempt_id: int,
        job_id: int,
        duration_s: float | None,
        survivors: int | None,
        stdout: Capture,
        stderr: Capture,
        now: Instant,
    ) -> None:
        self._c.execute(
            sql.ATTEMPT_IS_GONE,
            (
                now.at,
                None if duration_s is None else float(duration_s),
                survivors,
                stdout.size_bytes,
                stderr.size_bytes,
                rows.in_files(stdout, stderr),
                rows.capture_text(stdout, stderr),
                attempt_id,
            ),
        )
        self._keep_output(attempt_id, stdout, stderr)
        self._c.execute(sql.LET_GO, (job_id,))

    # -- claiming -----------------------------------------------------------------------

    def _claim(self, worker: int, want: Want, now: Instant) -> tuple[Claimed, ...]:
        found = self._claimable(want)
        if not found or self._c.execute(sql.WORKER_HERE, (worker,)).fetchone() is None:
            # Without a row nobody could tell whether the owner lives: it gets nothing.
            return ()
        if want.ahead:
            found = _hardy(found, want.limit - want.ahead)
        if worker not in self._used:
            self._c.execute(sql.MARK_USED, (worker,))
        begun = self._begin_attempts(found, worker, now)
        return tuple([self._claimed(*attempt) for attempt in begun])

    def _claimable(self, want: Want) -> list[Ready]:
        """The jobs to take, in order."""
        if want.limit <= 0:
            return []
        if want.job_id is not None:
            return self._ready(sql.CLAIMABLE_JOB, (want.job_id,))
        if want.lanes is not None:
            taken: list[Ready] = []
            for lane in want.lanes:
                left = want.limit - len(taken)
                if left <= 0:
                    break
                taken += self._claimable_in(lane, left, want.ceiling)
            return taken
        if want.ceiling is None:
            return self._ready(sql.CLAIMABLE_ANYWHERE, (want.limit,))
        merged: list[Ready] = []
        for lane, _living in self._c.execute(sql.LANES_READY).fetchall():
            merged += self._claimable_in(lane, want.limit, want.ceiling)
        merged.sort(key=_order)
        return merged[: want.limit]

    def _claimable_in(self, lane: str, limit: int, ceiling: int | None) -> list[Ready]:
        if ceiling is not None:
            row = self._c.execute(sql.LANE, (lane,)).fetchone()
            limit = min(limit, ceiling - row[4]) if row is not None else 0
            if limit <= 0:
                return []
        return self._ready(sql.CLAIMABLE_IN_LANE, (lane, limit))

    def _ready(self, statement: str, values: tuple[object, ...]) -> list[Ready]:
        return [Ready(*row) for row in self._c.execute(statement, values)]

    def _claimed(self, job: Ready, attempt_id: int, token: bytes) -> Claimed:
        context = self._context(job.context)
        asked = rows.asked_of(job.asked)
        env = context.env
        if asked.env:
            env = tuple({**dict(env), **dict(asked.env)}.items())
        return Claimed(
            attempt_id=attempt_id,
            token=token.hex(),
            job_id=job.id,
            attempt_no=job.no,
            argv=rows.command_of(job),
            queue=job.queue,
            key=job.key,
            cwd=context.cwd if asked.cwd is None else asked.cwd,
            umask=context.umask,
            env=env,
            timeout_s=job.timeout_s,
            stdin=job.stdin,
        )


def _is_success(outcome: Outcome) -> bool:
    return outcome.state is AttemptState.SUCCEEDED and outcome.started


def _order(job: Ready) -> tuple[int, float, int]:
    return -job.priority, job.run_at, job.id


def _hardy(found: list[Ready], slots: int) -> list[Ready]:
    """The rows up to the first beyond `slots` that must not be charged a crash for nothing.

    It would wait for a slot in the hands of its worker, whose death counts as its crash.
    """
    for place, job in enumerate(found[slots:], slots):
        if job.max_crashes is not None and job.max_crashes - job.crashes < SPARE_CRASHES:
            return found[:place]
    return found


def _age_s(asked: rows.Asked, now: Instant) -> float:
    """Seconds since the start of the retry window, by the boot clock where it can tell."""
    if asked.since is None:
        return 0.0
    at, boot, boot_id = asked.since
    return now.boot - boot if boot_id == now.boot_id else max(0.0, now.at - at)

"""Recovery: silent owners, taking back, forgetting the dead."""

from __future__ import annotations

from collections.abc import Sequence

from spoolctl.core.records import Capture, Instant, Reaped, Suspect, WorkerRow
from spoolctl.core.retry import Budget, after_crash, spread
from spoolctl.core.states import AttemptState, Reason, State
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.working import Working


class Recovering(Working):
    """The part of the store that reapers use."""

    def suspects(self, *, threshold_s: float | None, now: Instant) -> list[Suspect]:
        """Attempts that are not gone and whose worker is silent. See the protocol."""
        with self._c.read():
            found = self._c.execute(sql.LIVING_ATTEMPTS).fetchall()
        suspects = []
        for attempt_id, token, job_id, no, state, *rest in found:
            worker = None if rest[0] is None else rows.worker_of(tuple(rest))
            if worker is None or worker.is_silent(threshold_s, now):
                suspects.append(
                    Suspect(attempt_id, token.hex(), job_id, no, AttemptState(state), worker)
                )
        return suspects

    def reap(
        self,
        suspect: Suspect,
        *,
        by: int,
        error: str,
        survivors: int | None,
        stdout: Capture,
        stderr: Capture,
        now: Instant,
    ) -> Reaped | None:
        """Take the attempt back from its dead owner. See the protocol."""
        attempt_id = suspect.attempt_id
        with self._c.write():
            row = self._c.execute(sql.ATTEMPT_STATUS, (attempt_id,)).fetchone()
            if row is None:
                return None
            job_id, no, state, owner, gone_at = row
            if gone_at is not None or not self._is_still(suspect.worker, owner):
                return None
            pid = suspect.worker.identity.pid if suspect.worker is not None else 0
            error = rows.storable(error)
            taken = state == AttemptState.RUNNING.value
            if taken:
                self._c.execute(
                    sql.STOP_ATTEMPT,
                    (
                        AttemptState.ABANDONED.value,
                        now.at,
                        error,
                        Reason.WORKER_CRASH.value,
                        attempt_id,
                    ),
                )
            self._set_gone(attempt_id, job_id, None, survivors, stdout, stderr, now)
            to = self._after_crash(job_id, by, pid, error, now) if taken else None
            return Reaped(job_id, no, pid, to)

    def _is_still(self, worker: WorkerRow | None, owner: int | None) -> bool:
        """Whether the owner is as silent as when it was suspected."""
        row = self._c.execute(sql.WORKER_HERE, (owner,)).fetchone()
        if worker is None:
            return row is None
        return bool(row == (worker.identity.pid, worker.identity.boot_id, worker.heartbeat_boot))

    def _after_crash(
        self, job_id: int, by: int, pid: int, error: str, now: Instant
    ) -> State | None:
        row = self._c.execute(sql.JOB, (job_id,)).fetchone()
        if row is None or row[2] != State.RUNNING.value:
            return None
        job = rows.StoredJob(*row)
        budget = Budget(job.attempts, job.crashes, job.max_retries, job.max_crashes)
        verdict = after_crash(budget, rows.asked_of(job.asked).policy, spread=spread())
        self._c.execute(sql.MARK_USED, (by,))
        to, _run_at = self._retry_or_bury(
            job,
            verdict,
            now,
            by,
            (f"dead worker pid {pid}", error),
            None,
            error,
            Reason.WORKER_CRASH,
        )
        return to

    def note_recovery(
        self, attempt_ids: Sequence[int], *, verdict: str, reason: str, now: Instant
    ) -> None:
        """Keep, for `show`, why these attempts cannot be taken back. Not synced."""
        reason = rows.storable(reason)
        with self._c.write(full=False):
            for attempt_id in attempt_ids:
                row = self._c.execute(sql.HEARTBEAT_OF_ATTEMPT, (attempt_id,)).fetchone()
                note = (verdict, reason, now.at, row[0] if row else None, attempt_id)
                if self._c.execute(sql.NOTE_RECOVERY, note).rowcount == 0:
                    self._c.execute(sql.ADD_RECOVERY, note)

    def silent_workers(self, *, threshold_s: float | None, now: Instant) -> list[WorkerRow]:
        """Silent workers without living attempts. See the protocol."""
        with self._c.read():
            idle = [rows.worker_of(row) for row in self._c.execute(sql.IDLE_WORKERS)]
        return [worker for worker in idle if worker.is_silent(threshold_s, now)]

    def workers(self) -> list[WorkerRow]:
        """All registered workers, dead or alive."""
        with self._c.read():
            return [rows.worker_of(row) for row in self._c.execute(sql.WORKERS)]

    def forget(self, worker_ids: Sequence[int], *, now: Instant) -> None:
        """Delete rows of dead workers; one that still owns living attempts stays."""
        with self._c.write():
            for worker in worker_ids:
                self._forget(worker, now)

"""Healing: rows that cannot be, in a file that was damaged or edited by hand."""

from __future__ import annotations

from spoolctl.core.records import Instant
from spoolctl.core.states import AttemptState, Event, Reason
from spoolctl.store.sqlite import sql
from spoolctl.store.sqlite.base import Base
from spoolctl.store.sqlite.rows import StoredJob


class Healing(Base):
    """Repairs that let every job go on to an end, and never start a second copy."""

    def heal(self, *, now: Instant) -> list[str]:
        """Repair impossible rows; one sentence for each. See the protocol."""
        with self._c.read():
            if not self._is_ill():
                return []
        with self._c.write():
            return self._heal(now)

    def _is_ill(self) -> bool:
        questions = (
            sql.RUNNING_WITHOUT_ATTEMPT,
            sql.RUNNING_FOR_NOTHING,
            sql.READY_BUT_LIVING,
            sql.HELD_FOR_NOTHING,
            sql.WITHOUT_JOB,
        )
        return any(self._c.execute(question).fetchone() is not None for question in questions)

    def _heal(self, now: Instant) -> list[str]:
        said = []
        for attempt_id, no, job_id in self._c.execute(sql.WITHOUT_JOB).fetchall():
            self._set_adrift(attempt_id, now)
            said.append(f"attempt {no} of job {job_id} had no job; it waits to be ended")
        for attempt_id, job_id, no in self._c.execute(sql.RUNNING_FOR_NOTHING).fetchall():
            self._set_adrift(attempt_id, now)
            said.append(f"attempt {no} ran although job {job_id} did not; it waits to be ended")
        for row in self._c.execute(sql.RUNNING_WITHOUT_ATTEMPT).fetchall():
            job = StoredJob(*row)
            self._move(
                job,
                Event.RELEASED,
                now=now,
                due=self._at_once(job.id, now),
                details=("had no attempt",),
                exit_code=job.last_exit_code,
                error=job.last_error,
            )
            said.append(f"job {job.id} was running without an attempt; it is queued again")
        for (job_id,) in self._c.execute(sql.READY_BUT_LIVING).fetchall():
            self._c.execute(sql.HOLD, (job_id,))
            said.append(f"job {job_id} waits until its earlier attempt is confirmed gone")
        for (job_id,) in self._c.execute(sql.HELD_FOR_NOTHING).fetchall():
            self._c.execute(sql.LET_GO, (job_id,))
            said.append(f"job {job_id} waited for nothing; it may run")
        return said

    def _set_adrift(self, attempt_id: int, now: Instant) -> None:
        """Its processes, if there are any, are found and ended by whoever reaps."""
        self._c.execute(
            sql.STOP_ATTEMPT,
            (
                AttemptState.ABANDONED.value,
                now.at,
                "its job was not running",
                Reason.UNKNOWN.value,
                attempt_id,
            ),
        )

"""Questions. Each is answered from one snapshot; no reader is ever blocked by a writer."""

from __future__ import annotations

from collections.abc import Sequence

from spoolctl.core.paths import STREAMS
from spoolctl.core.records import (
    Attempt,
    Counts,
    EventRow,
    Instant,
    Job,
    JobDetail,
    JobFilter,
    Owner,
    Recovery,
)
from spoolctl.core.states import State
from spoolctl.errors import NotFound
from spoolctl.store.sqlite import rows, sql
from spoolctl.store.sqlite.opening import backup
from spoolctl.store.sqlite.promotion import Promotion
from spoolctl.store.sqlite.rows import Row, StoredJob

# SQLite allows at least 999 parameters in a statement.
_IDS_AT_ONCE = 500


class Asking(Promotion):
    """The part of the store that readers use."""

    def _record_of(self, row: Row) -> Job:
        return rows.job_of(row, self._context(StoredJob(*row).context))

    def get(self, job_id: int) -> Job:
        """One job. Raises NotFound."""
        with self._c.read():
            return self._record_of(self._job(job_id))

    def detail(self, job_id: int) -> JobDetail:
        """One job with everything known of it. Raises NotFound."""
        with self._c.read():
            stored = self._job(job_id)
            context = self._context(stored.context)
            attempts = self._c.execute(sql.ATTEMPTS_OF_JOB, (job_id,)).fetchall()
            events = self._c.execute(sql.EVENTS_OF_JOB, (job_id, 0, -1)).fetchall()
            owner = recovery = None
            if stored.state == State.RUNNING.value:
                owner = self._c.execute(sql.OWNER, (job_id,)).fetchone()
            recovery = self._c.execute(sql.RECOVERY, (job_id,)).fetchone()
            asked = rows.asked_of(stored.asked)
            return JobDetail(
                job=rows.job_of(stored, context),
                env=asked.env,
                context=context,
                owner=None if owner is None else Owner(*owner),
                recovery=None if recovery is None else Recovery(*recovery),
                attempts=tuple(rows.attempt_of(row, self.path) for row in attempts),
                events=tuple(rows.event_of(row) for row in events),
                policy=asked.policy,
                key_for_s=asked.key_for_s,
            )

    def states(self, job_ids: Sequence[int]) -> dict[int, Job]:
        """The jobs among these ids that exist."""
        wanted = [job_id for job_id in dict.fromkeys(job_ids) if 0 < job_id < 1 << 63]
        with self._c.read():
            return self._records(wanted)

    def _records(self, ids: Sequence[int]) -> dict[int, Job]:
        found: dict[int, Job] = {}
        for start in range(0, len(ids), _IDS_AT_ONCE):
            some = ids[start : start + _IDS_AT_ONCE]
            marks = ",".join("?" * len(some))
            query = f"SELECT {rows.JOB_COLUMNS} FROM jobs WHERE id IN ({marks})"
            for row in self._c.execute(query, some).fetchall():
                found[row[0]] = self._record_of(row)
        return found

    def find(
        self, job_filter: JobFilter, *, limit: int, sort: str = "id", reverse: bool = False
    ) -> list[Job]:
        """Matching jobs in the order that is asked for. See the protocol."""
        from spoolctl.store.sqlite.finding import Finding

        with self._c.read():
            return Finding(self).find(job_filter, limit=limit, sort=sort, reverse=reverse)

    def first_job_id(self) -> int | None:
        """The lowest job id in the queue."""
        with self._c.read():
            first: int | None = self._c.execute(sql.FIRST_JOB_ID).fetchone()[0]
        return first

    def counts(self, *, now: Instant) -> Counts:
        """Jobs per state and queue, from counters."""
        with self._c.read():
            lanes = self._c.execute(sql.LANE_COUNTS).fetchall()
            due = self._due_unpromoted(now) if any(lane[7] for lane in lanes) else {}
        queues: dict[str, tuple[dict[State, int], int]] = {}
        totals = dict.fromkeys(State, 0)
        scheduled = 0
        for queue, *numbers, waiting in lanes:
            counts = dict(zip(State, numbers, strict=True))
            if not any(numbers):
                continue
            later = waiting - due.get(queue, 0)
            queues[queue] = (counts, later)
            scheduled += later
            for state, number in counts.items():
                totals[state] += number
        return Counts(totals, scheduled, queues)

    def _due_unpromoted(self, now: Instant) -> dict[str, int]:
        """Jobs per queue whose time has come, but whom no worker has promoted yet."""
        boot = self._boot(now)
        found: dict[str, int] = {}
        results = [
            self._c.execute(sql.DUE_BY_LANE, (clock, reading)).fetchall()
            for clock, reading in self._clocks(boot, now)
        ]
        if self._c.execute(sql.OTHER_BOOTS, (boot, boot, 1)).fetchone() is not None:
            results.append(
                self._c.execute(sql.DUE_BY_LANE_ON_OTHER_BOOTS, (boot, now.at)).fetchall()
            )
        for result in results:
            for queue, number in result:
                found[queue] = found.get(queue, 0) + number
        return found

    def recent_dead(self, limit: int) -> list[tuple[Job, Attempt | None]]:
        """Dead and finally failed jobs, latest finish first. See the protocol."""
        most = limit or -1
        with self._c.read():
            ended: list[StoredJob] = []
            for state in (State.DEAD, State.FAILED):
                found = self._c.execute(sql.RECENTLY_ENDED, (state.value, most)).fetchall()
                ended += [StoredJob(*row) for row in found]
            ended.sort(key=lambda job: (job.finished_at or 0.0, job.id), reverse=True)
            return [
                (self._record_of(stored), self._latest_attempt(stored.id))
                for stored in ended[: limit or None]
            ]

    def _latest_attempt(self, job_id: int) -> Attempt | None:
        row = self._c.execute(sql.LATEST_ATTEMPT, (job_id,)).fetchone()
        return None if row is None else rows.attempt_of(row, self.path)

    def attempt(self, job_id: int, attempt_no: int | None) -> Attempt | None:
        """One attempt, by default the latest. See the protocol."""
        with self._c.read():
            self._job(job_id)
            if attempt_no is None:
                return self._latest_attempt(job_id)
            row = None
            if 0 < attempt_no < 1 << 63:
                row = self._c.execute(sql.ATTEMPT_OF_NO, (job_id, attempt_no)).fetchone()
            if row is not None:
                return rows.attempt_of(row, self.path)
            known = tuple(no for (no,) in self._c.execute(sql.ATTEMPT_NOS, (job_id,)))
        if not known:
            return None
        raise NotFound(
            f"job {job_id} has no attempt {attempt_no}",
            job_ids=(job_id,),
            attempt_no=attempt_no,
            known_attempts=known,
            where=self.path,
        )

    def stream(self, attempt_id: int, stream: str) -> bytes:
        """The bytes of a stream that is stored in the database."""
        with self._c.read():
            row = self._c.execute(sql.OUTPUT, (attempt_id, stream)).fetchone()
        return b"" if row is None else bytes(row[0])

    def events(
        self, *, since_id: int, job_id: int | None, limit: int | None
    ) -> tuple[list[EventRow], int, int | None]:
        """Entries above `since_id`; the highest id ever; the lowest retained."""
        most = -1 if limit is None else limit
        with self._c.read():
            if job_id is None:
                found = self._c.execute(sql.EVENTS, (since_id, most)).fetchall()
                first = self._c.execute(sql.FIRST_EVENT_ID).fetchone()[0]
            else:
                found = self._c.execute(sql.EVENTS_OF_JOB, (job_id, since_id, most)).fetchall()
                first = self._c.execute(sql.FIRST_EVENT_ID_OF_JOB, (job_id,)).fetchone()[0]
            last = self._c.execute(sql.LAST_EVENT_ID).fetchone()
            return [rows.event_of(row) for row in found], last[0] if last else 0, first

    def changed(self) -> int:
        """A number that differs whenever another connection has committed since."""
        self._c.check_file()
        return self._c.data_version()

    def stream_names(self) -> frozenset[str]:
        """What may lie in the folder of streams. See the protocol."""
        with self._c.read():
            living = self._c.execute(sql.LIVING_TOKENS).fetchall()
            kept = self._streams_in_files()
        # While an attempt may live its streams are files, whatever its row says.
        names = {f"{row[0].hex()}.{name}" for row in living for name in (*STREAMS, "stdin")}
        return frozenset(names.union(f"{token}.{stream}" for token, stream in kept))

    def _streams_in_files(self) -> list[tuple[str, str]]:
        return [
            (token.hex(), stream)
            for token, bits in self._c.execute(sql.STREAMS_IN_FILES)
            for stream, bit in rows.IN_FILE.items()
            if bits & bit
        ]

    def bells(self, queue: str | None) -> list[str]:
        """Tokens of registered workers that serve the queue (None: of all)."""
        with self._c.read():
            return [
                token
                for token, lanes in self._c.execute(sql.SERVING).fetchall()
                if queue is None or lanes is None or queue in rows.words_of(lanes)
            ]

    def owner_token(self, job_id: int) -> str | None:
        """Token of the worker whose attempt of the job is not gone yet."""
        with self._c.read():
            row = self._c.execute(sql.OWNER_TOKEN, (job_id,)).fetchone()
        return None if row is None else str(row[0])

    def backup(self, target: str) -> list[tuple[str, str]]:
        """Copy the queue to the new file `target`. See the protocol."""
        with self._c.read():
            backup(self._c, target)
            return self._streams_in_files()

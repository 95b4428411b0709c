"""A look into the file that leaves no trace, not even a `-shm`."""

from __future__ import annotations

import os
import sqlite3

from spoolctl.core.records import Instant
from spoolctl.errors import SpoolError, StoreUnusable
from spoolctl.store.examination import Contents, DueLane, Examination
from spoolctl.store.sqlite import sql
from spoolctl.store.sqlite.opening import read_only
from spoolctl.store.sqlite.probe import probe
from spoolctl.store.sqlite.rows import worker_of
from spoolctl.store.sqlite.schema.migrations import SCHEMA_VERSION
from spoolctl.store.sqlite.store import SqliteStore

CHECKED_BYTES = 32 << 20
"""Files up to this size are checked page by page (a second at most); larger ones are not."""

CHECKED_JOBS = 10_000
"""Of so many unsettled jobs the command and what else was asked for is read (0.1 s)."""

PATIENCE_S = 1.0
"""How long to try while another program has locked even readers out."""


def examine(path: str, *, now: Instant) -> Examination:
    """See `store.examination.examine`."""
    seen = probe(path)
    if seen.kind != "queue":
        kind = "path" if seen.kind == "failing" else seen.kind
        return Examination(kind, seen.version, seen.message)
    if seen.version < SCHEMA_VERSION:
        message = f"layout {seen.version}; this program writes {SCHEMA_VERSION}"
        return Examination("older", seen.version, message)
    if _log_bytes(path) and not os.path.exists(path + "-shm"):
        # To read the log, SQLite would have to make an index of it: a new file.
        return Examination("queue", seen.version, "its log has to be read first, by any other verb")
    try:
        return Examination("queue", seen.version, contents=_contents(path, now))
    except StoreUnusable as error:
        return Examination(error.kind, seen.version, str(error))
    except SpoolError as error:
        return Examination("queue", seen.version, str(error))


def _contents(path: str, now: Instant) -> Contents:
    if not _log_bytes(path):
        # At rest: all there is stands in the file itself, which can be read without locks.
        try:
            found = _read(path, now, immutable=True)
        except SpoolError:
            if not _log_bytes(path):
                raise
        else:
            if not _log_bytes(path):
                return found
        # Somebody has begun to write meanwhile: that reading is worth nothing.
    return _read(path, now, immutable=False)


def _log_bytes(path: str) -> int:
    try:
        return os.stat(path + "-wal").st_size
    except OSError:
        return 0


def _read(path: str, now: Instant, *, immutable: bool) -> Contents:
    connection = read_only(path, immutable=immutable)
    connection.wait_s = PATIENCE_S
    try:
        return _Look(connection).contents(now)
    except sqlite3.Error as error:
        raise connection.translate(error) from error
    finally:
        connection.close()


class _Look(SqliteStore):
    """The store's own questions, on a connection that cannot write."""

    def contents(self, now: Instant) -> Contents:
        """Everything, from one snapshot."""
        with self._c.read():
            self._check_pages()
            self._check_jobs()
            living = self._c.execute(sql.LIVING_BY_WORKER).fetchall()
            workers = self._c.execute(sql.WORKERS).fetchall()
            return Contents(
                self._due_lanes(now), tuple(worker_of(row) for row in workers), dict(living)
            )

    def _check_pages(self) -> None:
        if os.stat(self.path).st_size > CHECKED_BYTES:
            return
        verdict = self._c.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise StoreUnusable(
                f"{self.path} is damaged: {verdict}", kind="damaged", path=self.path
            )

    def _check_jobs(self) -> None:
        """That what workers are to run next can be read; raises as they would."""
        for row in self._c.execute(sql.UNSETTLED, (CHECKED_JOBS,)).fetchall():
            self._record_of(row)

    def _due_lanes(self, now: Instant) -> tuple[DueLane, ...]:
        """Jobs that are due, whether or not a worker has marked them ready already."""
        boot = self._boot(now)
        rows = self._c.execute(sql.READY_SINCE).fetchall()
        for clock, reading in self._clocks(boot, now):
            rows += self._c.execute(sql.DUE_SINCE, (clock, reading)).fetchall()
        rows += self._c.execute(sql.DUE_SINCE_ON_OTHER_BOOTS, (boot, now.at)).fetchall()
        lanes: dict[str, DueLane] = {}
        for queue, number, oldest_at in rows:
            before = lanes.get(queue, DueLane(queue, 0, oldest_at))
            lanes[queue] = DueLane(queue, before.due + number, min(before.oldest_at, oldest_at))
        return tuple(lanes[queue] for queue in sorted(lanes))

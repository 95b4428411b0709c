"""The store in one SQLite file: its parts put together. See `store/protocol.py`."""

from __future__ import annotations

from spoolctl.store.sqlite.finding import Finding
from spoolctl.store.sqlite.opening import open_connection
from spoolctl.store.sqlite.recovering import Recovering
from spoolctl.store.sqlite.retention import Retention
from spoolctl.store.sqlite.submitting import Submitting


class SqliteStore(Submitting, Recovering, Retention, Finding):
    """A queue in one SQLite file. Not thread-safe: one instance per thread."""

    @classmethod
    def open(cls, path: str, *, create: bool, wait_s: float) -> SqliteStore:
        """Open the queue at `path`; see `open_store`."""
        return cls(open_connection(path, create=create, wait_s=wait_s))

"""The store in one SQLite file: its parts put together. See `store/protocol.py`."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from spoolctl.store.sqlite import rows
from spoolctl.store.sqlite.asking import Asking
from spoolctl.store.sqlite.opening import open_connection
from spoolctl.store.sqlite.recovering import Recovering
from spoolctl.store.sqlite.retention import Retention
from spoolctl.store.sqlite.submitting import Submitting

_LATER = (
    "ctypes",
    "re",
    "shlex",
    "unicodedata",
    "spoolctl.core.display",
    "spoolctl.store.sqlite.sorting",
)
"""What some operations import, beside `json`."""


class SqliteStore(Submitting, Recovering, Retention, Asking):
    """A queue in one SQLite file. Not thread-safe: one instance per thread."""

    @classmethod
    def open(cls, path: str, *, create: bool, wait_s: float) -> SqliteStore:
        """Open the queue at `path`; see `open_store`."""
        return cls(open_connection(path, create=create, wait_s=wait_s))

    def prepare(self) -> None:
        """Make ready for a long life; see the protocol."""
        rows.import_json()
        for name in _LATER:
            with suppress(ImportError):  # `ctypes` is not everywhere
                import_module(name)
        self._c.expect_no_close()

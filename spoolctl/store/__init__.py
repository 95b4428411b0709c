"""The durable queue: one protocol (`protocol.py`), one folder per kind of store."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.protocol import Store


def open_store(path: str, *, create: bool, wait_s: float) -> Store:
    """Open the queue at `path`; imports only the store that is asked for.

    `create`: make the file (0600) and missing folders (0700) if there is none.
    `wait_s`: how long a write waits for the lock before StoreBusy; a worker waits for a
    moment only, and tries again from its loop.

    Raises:
        NotFound: there is no file, and `create` is false.
        StoreUnusable: the file cannot serve as a queue. It was not changed.
        StoreBusy: it was locked for longer than `wait_s`.
    """
    from spoolctl.store.sqlite.store import SqliteStore

    return SqliteStore.open(path, create=create, wait_s=wait_s)

"""spoolctl: a durable local job queue for shell commands.

from spoolctl import Queue
with Queue("queue.db") as queue:
    job = queue.add(["echo", "hello"])
"""

from __future__ import annotations

from spoolctl.version import __version__

__all__ = ["Queue", "__version__"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.queue import Queue


def __getattr__(name: str) -> object:
    # Lazily: the guardian and `--version` import this package and must stay small.
    if name == "Queue":
        from spoolctl.queue import Queue

        return Queue
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

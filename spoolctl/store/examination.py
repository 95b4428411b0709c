"""Looking at a queue's file without touching it: for `doctor`, which must change nothing."""

from __future__ import annotations

from spoolctl.core.records import Instant, WorkerRow
from spoolctl.core.tuples import NamedTuple


class DueLane(NamedTuple):
    """Jobs of one queue that could run now. `oldest_at`: since when the first of them could."""

    queue: str
    due: int
    oldest_at: float


class Contents(NamedTuple):
    """What is in a queue, as far as its health is concerned.

    `living`: worker id -> how many of its attempts are not confirmed gone; None stands for
    workers whose rows are missing.
    """

    lanes: tuple[DueLane, ...]
    workers: tuple[WorkerRow, ...]
    living: dict[int | None, int]


class Examination(NamedTuple):
    """What a look at the path has shown.

    `kind`: `missing`, `empty`, `queue`, `older` or `newer` (another layout than this
    program's), or one of the kinds of StoreUnusable. `layout` is the file's (0: unknown).
    `message`: what is wrong, or why `contents` is None although the file is a queue.
    """

    kind: str
    layout: int = 0
    message: str = ""
    contents: Contents | None = None


def examine(path: str, *, now: Instant) -> Examination:
    """Look at the queue at `path`; creates, locks, migrates, recovers and writes nothing.

    Works while others write. Never raises for what the file is like.
    """
    from spoolctl.store.sqlite.examine import examine as look

    return look(path, now=now)


def layout_version() -> int:
    """The number of the layout that this program writes."""
    from spoolctl.store.sqlite.schema.migrations import SCHEMA_VERSION

    return SCHEMA_VERSION

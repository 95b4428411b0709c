"""Where a queue keeps what does not live in its database. Computes names, touches nothing.

queue.db                        the queue
queue.db.d/                     its support folder (0700)
  workers/<token>.lock          held by a worker for its life; lists its running attempts
  workers/<token>.guard         held by that worker's guardian
  workers/<token>.bell          the worker's doorbell (FIFO)
  workers/<token>.<slot>.<n>    attempt locks, inherited by the commands of one slot
  waiters/<token>.bell          doorbells of `wait`, `events --wait` and the like
  attempts/<token>.stdout       a running attempt's streams, or large ones that stay
  attempts/<token>.stdin        its input, for the moment in which it is written
"""

from __future__ import annotations

import os

STREAMS = ("stdout", "stderr")

_BESIDE = ("-wal", "-shm", "-journal")


def support_dir(db_path: str) -> str:
    """The support folder of the queue at `db_path`."""
    return db_path + ".d"


def beside(db_path: str) -> list[str]:
    """What SQLite takes for its own beside a file, whoever made it: it reads and removes them."""
    return [db_path + suffix for suffix in _BESIDE]


def owners(path: str) -> list[str]:
    """The queues that would take a file at `path` for one that is theirs."""
    suffixes = (*_BESIDE, ".d")
    return [path.removesuffix(suffix) for suffix in suffixes if path.endswith(suffix)]


def workers_dir(db_path: str) -> str:
    """Where workers keep locks and doorbells."""
    return os.path.join(db_path + ".d", "workers")


def worker_lock(db_path: str, token: str) -> str:
    """The lock file that the worker with this random id holds while it lives; its roster."""
    return os.path.join(workers_dir(db_path), f"{token}.lock")


def waiters_dir(db_path: str) -> str:
    """Where those who wait for an event keep their doorbells."""
    return os.path.join(db_path + ".d", "waiters")


def stream_path(db_path: str, token: str, stream: str) -> str:
    """The file of one stream (`stdout` or `stderr`) of the attempt with this random id.

    Named by the random id and not by job and attempt numbers, so that an older copy of the
    database that is put beside a newer folder never shows another job's output. One folder
    for all: file systems of today index their folders, and a million quiet jobs leave none.
    """
    return f"{db_path}.d/attempts/{token}.{stream}"

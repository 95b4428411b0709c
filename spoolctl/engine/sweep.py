"""Remove what dead workers left lying about: locks, doorbells, streams, rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from spoolctl.core.paths import support_dir, waiters_dir, worker_lock, workers_dir
from spoolctl.core.records import Identity, Instant
from spoolctl.engine.capture import DRAFT
from spoolctl.process import bell, locks
from spoolctl.process.identity import Judgement, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.protocol import Store

# What a worker or a waiter puts there; anything else is not ours to remove.
# (By hand: to compile a pattern takes a third of a millisecond, at the start of each worker.)
_HEX = frozenset("0123456789abcdef")
_WORKER_FILES = frozenset({"lock", "guard", "bell", "bell-new"})
_STREAM_FILES = frozenset({"stdout", "stderr", "stdin", f"stdout{DRAFT}", f"stderr{DRAFT}"})


def sweep(
    store: Store,
    *,
    threshold_s: float | None,
    judge: Callable[[Identity, str], Judgement],
    now: Instant,
) -> None:
    """Forget dead workers without attempts, then unlink files that belong to nobody.

    Raises StoreBusy and the like; may be repeated at any time, by several workers at once.
    """
    folder = workers_dir(store.path)
    dead = [
        worker.id
        for worker in store.silent_workers(threshold_s=threshold_s, now=now)
        if judge(worker.identity, worker_lock(store.path, worker.token)).verdict is Verdict.DEAD
    ]
    if dead:
        store.forget(dead, now=now)
    _sweep_workers(store, folder)
    bell.sweep(waiters_dir(store.path))
    _sweep_streams(store)


def _sweep_workers(store: Store, folder: str) -> None:
    # Listed before the rows are read: a worker that registers in between is not in the list.
    # One that has made its files but not registered yet holds its lock.
    names = _names(folder)
    if not names:
        return
    known = {worker.token for worker in store.workers()}
    for name in names:
        token, kind = _parts(name)
        if not token or token in known or not (kind in _WORKER_FILES or _is_attempt_lock(kind)):
            continue
        path = os.path.join(folder, name)
        if locks.is_held(worker_lock(store.path, token)) is True:
            continue
        if name.endswith((".bell", ".bell-new")):
            with suppress(OSError):
                os.unlink(path)
        else:
            locks.remove(path)


def _sweep_streams(store: Store) -> None:
    """Unlink streams that no attempt refers to.

    Listed before the attempts are read: a file is made after the claim of its attempt was
    committed, so one that is in the list and in no row belongs to an attempt that has moved
    that stream into the database, or that was pruned.
    """
    root = os.path.join(support_dir(store.path), "attempts")
    names = []
    for name in _names(root):
        token, kind = _parts(name)
        if token and kind in _STREAM_FILES:
            names.append(name)
    if not names:
        return
    wanted = store.stream_names()
    for name in names:
        if name.removesuffix(DRAFT) not in wanted:
            with suppress(OSError):
                os.unlink(os.path.join(root, name))


def _parts(name: str) -> tuple[str, str]:
    """The token at the beginning of a file's name, empty if there is none, and the rest."""
    token, _, kind = name.partition(".")
    return (token if len(token) == 32 and _HEX.issuperset(token) else ""), kind


def _is_attempt_lock(kind: str) -> bool:
    slot, _, number = kind.partition(".")
    return slot.isdecimal() and number.isdecimal()


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []

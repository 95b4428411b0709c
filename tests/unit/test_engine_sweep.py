"""What dead workers left lying about is removed; what belongs to somebody stays."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from spoolctl.engine import sweep
from spoolctl.engine.clock import SystemClock
from spoolctl.process import locks
from spoolctl.process.identity import Evidence, judge
from spoolctl.store import open_store

DEAD, BORN = "ab" * 16, "cd" * 16
OF_WORKERS = ["lock", "guard", "bell", "bell-new", "0.0", "1.12"]


def fill(folder: Path, token: str) -> set[str]:
    """All that a worker may have in `folder`, by name."""
    for suffix in OF_WORKERS:
        path = folder / f"{token}.{suffix}"
        if "bell" in suffix:
            os.mkfifo(path, 0o600)
        else:
            path.touch(0o600)
    return {f"{token}.{suffix}" for suffix in OF_WORKERS}


def clean(db: str) -> None:
    store = open_store(db, create=True, wait_s=5.0)
    try:
        evidence = Evidence(db)
        sweep.sweep(
            store,
            threshold_s=None,
            judge=lambda who, lock: judge(who, lock, evidence=evidence),
            now=SystemClock().now(),
        )
    finally:
        store.close()


def test_all_that_a_killed_worker_left_goes_and_nothing_else(tmp_path: Path) -> None:
    """Killed at any moment of its start, too: its row is not there yet, or no more."""
    db = str(tmp_path / "queue.db")
    workers, attempts = (Path(f"{db}.d", name) for name in ("workers", "attempts"))
    workers.mkdir(parents=True)
    attempts.mkdir()
    fill(workers, DEAD)
    kept = fill(workers, BORN) | {"notes.txt", f"{DEAD}.lock.txt"}
    for name in kept:
        (workers / name).exists() or (workers / name).touch()
    for name in (
        f"{DEAD}.stdout",
        f"{DEAD}.stderr",
        f"{DEAD}.stdin",
        f"{DEAD}.stdout-new",
        "notes.txt",
    ):
        (attempts / name).touch()
    held = locks.take(str(workers / f"{BORN}.lock"))
    assert held is not None
    clean(db)
    os.close(held)
    assert set(os.listdir(workers)) == kept
    assert os.listdir(attempts) == ["notes.txt"]


def test_a_worker_that_starts_just_then_does_not_lose_its_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = str(tmp_path / "queue.db")
    workers = Path(f"{db}.d", "workers")
    workers.mkdir(parents=True)
    path = str(workers / f"{BORN}.lock")
    Path(path).touch()  # as it is between its worker's open and its lock
    taken: list[int | None] = []
    starting = threading.Thread(target=lambda: taken.append(locks.take(path)))
    unlink = os.unlink

    def slowly(name: str) -> None:
        if name == path:
            starting.start()
            starting.join(0.02)
        unlink(name)

    monkeypatch.setattr(os, "unlink", slowly)
    clean(db)
    starting.join()
    (held,) = taken
    assert held is not None
    assert os.path.samestat(os.fstat(held), os.stat(path))
    os.close(held)

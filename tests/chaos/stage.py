"""Steps of a directed scenario: begin a job, wait for what it notes, kill its worker."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from tests.chaos import gather, ledger
from tests.chaos.fleet import Member
from tests.chaos.run import Run
from tests.helpers import eventually


def wait_for(run: Run, kind: str, role: str = "main", number: int = 1) -> None:
    """Wait until the ledger has a record of this kind."""
    name = (kind, role, number)
    eventually(
        lambda: any(
            (one.kind, one.role, one.number) == name for one in ledger.read(str(run.ledger))
        ),
        what=f"{kind} of {role}",
    )


def add(run: Run, **words: Any) -> int:
    """Add a job that behaves as these words say."""
    options = {key: words.pop(key) for key in ("timeout_s",) if key in words}
    job_id = run.add(run.command(**words), **options)
    assert job_id is not None
    return job_id


def begin(run: Run, role: str = "main", **words: Any) -> Member:
    """A job, and a worker that has started it, down to its child of this role."""
    add(run, **words)
    worker = run.fleet.start()
    wait_for(run, "start", role)
    return worker


def wait_here(run: Run, number: int) -> None:
    """Wait until so many workers have registered: a busy machine takes a while to start one."""

    def are_here() -> bool:
        with closing(sqlite3.connect(f"file:{run.db}?mode=ro", uri=True)) as db:
            (count,) = db.execute("SELECT count(*) FROM workers WHERE ended_at IS NULL").fetchone()
        return bool(count >= number)

    eventually(are_here, what=f"{number} workers")


def wait_dead(run: Run, worker: Member) -> None:
    """Wait until the worker's end has been seen."""
    eventually(lambda: (run.fleet.poll() and False) or worker not in run.fleet.alive)


def wait_quiet(run: Run) -> None:
    """Wait until no process of the jobs is left."""
    eventually(lambda: not gather.living(run.db, run.ledger), what="no process left")


def kill_with_guardian(run: Run, worker: Member) -> None:
    """The first net torn: neither the worker nor its guardian sees the other's end."""
    run.fleet.kill(worker, guardian=True)
    wait_dead(run, worker)
    wait_for(run, "end")  # by itself: only its children are left

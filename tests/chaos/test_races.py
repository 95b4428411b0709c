"""Orders of events that were faults once, or could be: each at its exact point."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from spoolctl.core.paths import workers_dir
from tests.chaos.checker import check
from tests.chaos.run import Run
from tests.chaos.stage import add, wait_dead, wait_for
from tests.helpers import eventually

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["cancel and retry", "force"])
def test_survivors_of_a_success_that_came_too_late(how: str, make_run: Callable[..., Run]) -> None:
    """It exits with 0, leaving a child, and is canceled before that is recorded: no success."""
    run = make_run([])
    job = add(run, life=0.1, child="setsid", child_life=4, later=0.5)
    worker = run.fleet.start(without=["slow to commit"])
    eventually(lambda: "slow to commit" in run.fleet.log(worker))
    if how == "force":
        assert run.retry(job, force=True)
    else:
        assert run.cancel(job)
        assert run.retry(job)
    run.drain()
    run.fleet.terminate(worker)
    wait_dead(run, worker)
    assert check(run.history()) == []


def test_a_stop_request_while_the_queue_is_locked_at_the_start(
    make_run: Callable[..., Run],
) -> None:
    run = make_run([])
    with closing(sqlite3.connect(run.db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        worker = run.fleet.start()
        # Its lock is there: it has begun and cannot register.
        eventually(lambda: list(Path(workers_dir(str(run.db))).glob("*.lock")))
        run.fleet.terminate(worker)
        wait_dead(run, worker)
        other.execute("ROLLBACK")
    assert run.fleet.faults == []


def test_a_cancel_is_heard_although_the_queue_was_busy(make_run: Callable[..., Run]) -> None:
    run = make_run([])
    job = add(run, life=20)
    mishap = "busy when asked what it has lost"
    worker = run.fleet.start(without=[mishap], heartbeat_interval_s=60.0)
    wait_for(run, "start")
    began = time.monotonic()
    done = run.queue.cancel(job, running=True, confirm_s=9)
    assert done.gone
    assert time.monotonic() - began < 5
    run.fleet.terminate(worker)
    wait_dead(run, worker)

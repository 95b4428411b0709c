"""Orders of events that were faults once, or could be: each at its exact point."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.checker import check
from tests.chaos.run import Run
from tests.chaos.stage import add, wait_dead
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

"""A worker dies at any point whatsoever: at the n-th call of one of its functions."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.chaos.ablation import DIES_AT
from tests.chaos.checker import check
from tests.chaos.run import Run
from tests.chaos.stage import add, begin, kill_with_guardian, wait_dead

pytestmark = pytest.mark.slow

# Other points every time; the ids of the tests tell which.
_rng = random.Random()


def dying(run: Run, number: int) -> None:
    """A worker that dies at this call, or lives to the end of its work."""
    worker = run.fleet.start(without=[f"{DIES_AT}{number}"], jobs=2, idle_timeout_s=1.0)
    wait_dead(run, worker)


@pytest.mark.parametrize("number", [_rng.randint(1, 4500) for _ in range(4)])
def test_a_worker_that_dies_anywhere(number: int, make_run: Callable[..., Run]) -> None:
    run = make_run([])
    add(run, life=0, out=3000, err=100)
    add(run, life=0, exit=3, child="setsid", child_life=5, later=0)
    add(run, life=0, out=90_000)
    dying(run, number)
    run.drain()
    assert check(run.history()) == []


@pytest.mark.parametrize("number", [_rng.randint(1, 3000) for _ in range(4)])
def test_a_reaper_that_dies_anywhere(number: int, make_run: Callable[..., Run]) -> None:
    run = make_run([])
    worker = begin(run, "double", life=0.2, out=3000, child="double", child_life=5, later=0)
    kill_with_guardian(run, worker)
    dying(run, number)
    run.drain()
    assert check(run.history()) == []

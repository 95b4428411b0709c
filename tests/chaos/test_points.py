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

# The points are drawn in the tests: every process of a parallel run must collect the same ids.
TRIES = range(4)


def dying(run: Run, calls: int) -> None:
    """A worker that dies at one of so many calls, or lives to the end of its work."""
    number = random.randint(1, calls)
    print(f"the worker dies at call {number}")  # shown where the test fails
    worker = run.fleet.start(without=[f"{DIES_AT}{number}"], jobs=2, idle_timeout_s=1.0)
    wait_dead(run, worker)


@pytest.mark.parametrize("nth", TRIES)
def test_a_worker_that_dies_anywhere(nth: int, make_run: Callable[..., Run]) -> None:
    run = make_run([])
    add(run, life=0, out=3000, err=100)
    add(run, life=0, exit=3, child="setsid", child_life=5, later=0)
    add(run, life=0, out=90_000)
    dying(run, 4500)
    run.drain()
    assert check(run.history()) == []


@pytest.mark.parametrize("nth", TRIES)
def test_a_reaper_that_dies_anywhere(nth: int, make_run: Callable[..., Run]) -> None:
    run = make_run([])
    worker = begin(run, "double", life=0.2, out=3000, child="double", child_life=5, later=0)
    kill_with_guardian(run, worker)
    dying(run, 3000)
    run.drain()
    assert check(run.history()) == []

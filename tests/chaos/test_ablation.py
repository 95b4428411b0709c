"""Each mechanism switched off: the suite finds the fault that it prevents; with it, none.

Every scenario runs twice, the same but for the mechanism.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.chaos.checker import check
from tests.chaos.run import Run
from tests.chaos.stage import (
    add,
    begin,
    kill_with_guardian,
    wait_dead,
    wait_for,
    wait_here,
    wait_quiet,
)

pytestmark = pytest.mark.slow

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


class Scenario(NamedTuple):
    """What is done to a queue, and the rules of which one is broken without the mechanism."""

    act: Callable[[Run], None]
    breaks: str
    or_breaks: str = ""


# -- three nets -----------------------------------------------------------------------------


def worker_dies(run: Run) -> None:
    run.grace_s = 4
    worker = begin(run, life=6, later=0)
    run.fleet.kill(worker)
    wait_dead(run, worker)
    wait_quiet(run)
    run.drain()


def worker_dies_while_it_starts_a_job(run: Run) -> None:
    run.grace_s = 4
    add(run, life=6, later=0)
    worker = run.fleet.start(without=[*run.fleet.without, "dies after the spawn"])
    wait_dead(run, worker)
    wait_quiet(run)
    run.drain()


def daemon_without_files(run: Run) -> None:
    worker = begin(run, "bare", life=0.2, child="bare", child_life=6, later=0.5)
    kill_with_guardian(run, worker)
    run.drain()


def daemon_without_environment(run: Run) -> None:
    worker = begin(run, "clean", life=0.2, child="clean", child_life=6, later=0.5)
    kill_with_guardian(run, worker)
    run.drain()


def only_in_the_session(run: Run) -> None:
    worker = begin(run, "mute", life=0.2, child="mute", child_life=6, later=0.5)
    kill_with_guardian(run, worker)
    run.drain()


def only_a_child(run: Run) -> None:
    # Beside an older command of its worker it cannot be told whose orphan it would be.
    add(run, life=3)
    add(run, life=30, timeout_s=1, child="hidden", child_life=4, later=0.5)
    run.drain()


def only_an_orphan(run: Run) -> None:
    add(run, life=0.2, exit=3, child="hidden", child_life=3, later=0.5)
    run.drain()


def child_of_a_failure(run: Run) -> None:
    add(run, life=0.2, exit=3, child="setsid", child_life=2, later=0.5)
    run.drain()


# -- proof ----------------------------------------------------------------------------------


def frozen_worker(run: Run) -> None:
    first = begin(run, life=2.5, later=0)
    run.fleet.stop(first)
    second = run.fleet.start()
    until = time.monotonic() + 2
    while time.monotonic() < until and not any(one.event == "reaped" for one in run.seen):
        run.watch()
        time.sleep(0.01)
    run.fleet.resume(first)
    for worker in (first, second):
        run.fleet.terminate(worker)
        wait_dead(run, worker)
    run.drain()


def reused_pid(run: Run) -> None:
    if not os.access(LAST_PID, os.W_OK):
        pytest.skip("needs the right to choose the next pid")
    worker = begin(run, life=0.3, later=0)
    kill_with_guardian(run, worker)
    stranger = become(worker.pid)
    try:
        run.drain(timeout_s=4)
    finally:
        stranger.kill()
        stranger.wait()


def become(pid: int) -> subprocess.Popen[bytes]:
    """A stranger under a pid that was another's.

    Programs of other tests may be given it first; most of them are short.
    """
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        LAST_PID.write_text(str(pid - 1))
        stranger = subprocess.Popen(["sleep", "60"])
        if stranger.pid == pid:
            return stranger
        stranger.kill()
        stranger.wait()
    raise AssertionError(f"cannot become {pid}")


def clock_ahead(run: Run) -> None:
    run.fleet.set_clock("ahead", 3600)
    add(run, life=0.3, later=0)
    worker = run.fleet.start(clock="ahead")
    wait_for(run, "start")
    kill_with_guardian(run, worker)
    run.drain(timeout_s=4)


# -- gates of the store ---------------------------------------------------------------------


def canceled_and_retried(run: Run) -> None:
    job = add(run, life=5, term="ignore", later=0.5)
    workers = [run.fleet.start(grace_s=1.5)]
    wait_for(run, "start")
    workers.append(run.fleet.start())
    wait_here(run, 2)
    assert run.cancel(job)
    assert run.retry(job)
    wait_for(run, "end", number=2)
    for worker in workers:
        run.fleet.terminate(worker)
        wait_dead(run, worker)
    run.drain()


def canceled_under_a_ceiling(run: Run) -> None:
    run.ceilings = {"default": 1}
    job = add(run, life=5, term="ignore")
    workers = [run.fleet.start(grace_s=1.5, slots=1) for _ in range(2)]
    wait_for(run, "start")
    assert run.cancel(job)
    add(run, life=0.3)
    run.drain([{"slots": 1}])
    for worker in workers:
        run.fleet.terminate(worker)
        wait_dead(run, worker)


def forced_while_the_owner_is_frozen(run: Run) -> None:
    worker = begin(run, life=0.5, later=0)
    run.fleet.stop(worker)
    wait_for(run, "end")
    assert run.retry(1, force=True)
    run.fleet.resume(worker)
    run.drain()
    run.fleet.terminate(worker)
    wait_dead(run, worker)


def two_reapers(run: Run) -> None:
    # Busy elsewhere, they are there to take back, not to run it.
    reapers = [run.fleet.start(lanes=["other"]) for _ in range(2)]
    worker = begin(run, life=0.2, later=0)
    kill_with_guardian(run, worker)
    run.drain(timeout_s=10)
    for reaper in reapers:
        run.fleet.terminate(reaper)
        wait_dead(run, reaper)


def worker_dies_before_the_commit(run: Run) -> None:
    add(run, life=0, out=5000, later=0)
    worker = run.fleet.start(without=[*run.fleet.without, "dies before the commit"])
    wait_dead(run, worker)
    run.drain()


SCENARIOS = {
    "guardian": Scenario(worker_dies, "orphans"),
    "announcement": Scenario(worker_dies_while_it_starts_a_job, "orphans"),
    "search": Scenario(daemon_without_files, "overlap"),
    "net of environment": Scenario(daemon_without_files, "overlap"),
    "attempt lock": Scenario(daemon_without_environment, "second copy"),
    "net of session": Scenario(only_in_the_session, "overlap"),
    "net of descendants": Scenario(only_a_child, "overlap"),
    "collection of orphans": Scenario(only_an_orphan, "overlap"),
    "whole tree": Scenario(child_of_a_failure, "overlap"),
    "proof of death": Scenario(frozen_worker, "robbed"),
    "start time": Scenario(reused_pid, "misbehaved"),
    "boot clock": Scenario(clock_ahead, "misbehaved"),
    "gate of gone_at": Scenario(canceled_and_retried, "overlap"),
    "orphans in slots": Scenario(canceled_under_a_ceiling, "slots"),
    "owner's guard": Scenario(forced_while_the_owner_is_frozen, "trail"),
    "reaper's guard": Scenario(two_reapers, "trail", "unsettled"),
    "output outlives the commit": Scenario(worker_dies_before_the_commit, "output"),
}


@pytest.mark.parametrize("mechanism", SCENARIOS)
def test_with_the_mechanism_all_is_well(mechanism: str, make_run: Callable[..., Run]) -> None:
    run = make_run([])
    SCENARIOS[mechanism].act(run)
    assert check(run.history()) == []


@pytest.mark.parametrize("mechanism", SCENARIOS)
def test_without_it_the_checker_finds_the_fault(
    mechanism: str, make_run: Callable[..., Run]
) -> None:
    run = make_run([mechanism])
    SCENARIOS[mechanism].act(run)
    _, *rules = SCENARIOS[mechanism]
    assert {one.rule for one in check(run.history())} & set(rules)


def test_every_mechanism_has_a_scenario() -> None:
    from tests.chaos.ablation import ABLATIONS

    assert SCENARIOS.keys() == ABLATIONS.keys()

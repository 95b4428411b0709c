"""Every process of an attempt is found, by each net alone where the net promises it, and ended."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spoolctl.process import table
from spoolctl.process.tree import Ending, Snapshot, end_all
from tests.helpers import clean_env, eventually
from tests.process.staging import HERE, Attempt, Stage, needs_namespaces, step_until_gone

# What hides a process from which net.
HIDES_FROM = {
    "session": "session",
    "orphan": "descendants",
    "environ": "environment",
    "descriptors": "lock",
}
COMBINATIONS = [
    ways for n in range(len(HIDES_FROM) + 1) for ways in itertools.combinations(HIDES_FROM, n)
]
ALL_BUT_THE_WORST = [ways for ways in COMBINATIONS if len(ways) < len(HIDES_FROM)]


def _id(ways: tuple[str, ...]) -> str:
    return "+".join(ways) or "none"


@pytest.mark.parametrize("ways", COMBINATIONS, ids=_id)
def test_each_net_alone_finds_all_that_do_not_hide_from_it(
    stage: Stage, ways: tuple[str, ...]
) -> None:
    attempt = stage.hide(_id(ways))
    (hidden,) = stage.sleepers()
    for way, net in HIDES_FROM.items():
        if net == "lock":
            continue  # asked only when nobody else is found: below
        found = attempt.members(nets={net})
        assert attempt.pid in found
        assert (hidden in found) == (way not in ways), net


@pytest.mark.parametrize("ways", ["session+orphan+environ", "session+orphan+environ+descriptors"])
def test_the_lock_net_finds_whoever_has_the_attempts_lock_open(stage: Stage, ways: str) -> None:
    attempt = stage.hide(ways, leader="exits")
    attempt.collect()
    expected = [] if "descriptors" in ways else stage.sleepers()
    assert attempt.members(nets={"lock"}) == expected


@pytest.mark.parametrize("ways", ALL_BUT_THE_WORST, ids=_id)
def test_whoever_any_net_finds_is_ended(stage: Stage, ways: tuple[str, ...]) -> None:
    attempt = stage.hide(_id(ways))
    assert attempt.end(grace_s=60) < 50
    assert stage.alive() == []


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("ways", [w for w in COMBINATIONS if "orphan" in w][:-1], ids=_id)
def test_the_same_when_the_command_has_exited(
    stage: Stage, ways: tuple[str, ...], collected: bool
) -> None:
    # Uncollected, the command keeps its number, and the session is certainly its own.
    attempt = stage.hide(_id(ways), leader="exits")
    if collected:
        attempt.collect()
        if set(ways) >= {"environ", "descriptors"}:
            _test_unsure(attempt, stage)
            return
    assert attempt.end(grace_s=60) < 50
    assert stage.alive() == []


def _test_unsure(attempt: Attempt, stage: Stage) -> None:
    # Only the session's number speaks for it, and that may have been given away.
    ending = Ending(attempt.target, grace_s=0, now_mono=0.0)
    for now in (0.0, 1.0, 4.0):
        assert ending.step(Snapshot.take(), now) is not None
    (survivor,) = stage.alive()
    assert ending.stuck is not None
    assert f"process {survivor} (sleep) is in a session" in ending.stuck
    os.kill(survivor, signal.SIGKILL)
    step_until_gone(ending)


SHELL_TREES = {
    "plain": ("sh", "sleep U", 1),
    "background": ("sh", "sleep U & sleep U & wait", 2),
    "pipeline": ("sh", "sleep U | sleep U | sleep U", 3),
    "job control": ("bash", "set -m; sleep U & sleep U & sleep U & wait", 3),
    "job control, nested": ("bash", "set -m; bash -c 'set -m; sleep U & wait' & wait", 1),
    "double fork": ("sh", "(sleep U &) ; (sleep U &) ; sleep U", 3),
    "setsid": ("sh", "setsid sleep U & setsid sh -c 'setsid sleep U & wait' & wait", 2),
    "setsid, orphaned": ("sh", "(setsid sleep U &) ; sleep U", 2),
    "nohup": ("sh", "nohup sleep U & nohup setsid sleep U & wait", 2),
    "leader gone": ("sh", "sleep U & (setsid sleep U &) ; exit 3", 2),
    "environment cleared": ("sh", "env -i sleep U & env -i sh -c 'sleep U & wait' & wait", 2),
    "own group": ("bash", "set -m; (set -m; sleep U & sleep U & wait) & wait", 2),
}


@pytest.mark.parametrize("name", SHELL_TREES)
def test_shell_trees_end_at_once_when_all_obey(stage: Stage, name: str) -> None:
    shell, script, sleepers = SHELL_TREES[name]
    attempt = stage.start(shell, "-c", script)
    stage.settle(sleepers)
    assert attempt.end(grace_s=60) < 50
    assert stage.alive() == []


def test_job_control_really_makes_other_groups(stage: Stage) -> None:
    attempt = stage.start("bash", "-c", SHELL_TREES["job control"][1])
    stage.settle(3)
    assert len({os.getpgid(pid) for pid in stage.sleepers()} | {attempt.pid}) == 4


STUBBORN = {
    "ignores": "ignore",
    "stopped": "stop",
    "ignores and stopped": "ignore+stop",
    "own group, ignores": "group+ignore",
    "ignores, setsid, stopped": "ignore+session+stop",
    "ignores, setsid, orphaned, no environment": "ignore+session+orphan+environ",
    "ignores, no environment, no descriptors": "ignore+environ+descriptors",
    "ignores, setsid, orphaned, no descriptors, stopped": "ignore+session+orphan+descriptors+stop",
}


@pytest.mark.parametrize("name", STUBBORN)
def test_the_stubborn_are_killed_after_the_grace(stage: Stage, name: str) -> None:
    ways = STUBBORN[name]
    attempt = stage.hide(ways, leader="exits")
    took = attempt.end(grace_s=0.4)
    assert stage.alive() == []
    assert took < 30
    if "ignore" in ways:
        assert took >= 0.4


def test_a_stopped_process_gets_its_term_and_may_clean_up(stage: Stage) -> None:
    done = stage.folder / "cleaned"
    script = f"trap 'touch {done}; exit' TERM; sleep U & wait"
    attempt = stage.start("sh", "-c", script)
    stage.settle(1)
    os.kill(attempt.pid, signal.SIGSTOP)
    assert attempt.end(grace_s=60) < 50
    assert done.exists()


def test_what_a_process_starts_to_clean_up_may_do_its_work(stage: Stage) -> None:
    done = stage.folder / "cleaned"
    script = f"trap 'sh -c \"sleep 0.3; touch {done}\"; exit' TERM; sleep U & wait"
    attempt = stage.start("sh", "-c", script)
    stage.settle(1)
    assert 0.3 <= attempt.end(grace_s=60) < 50
    assert done.exists()


def test_an_orphan_that_came_too_late_for_the_first_term_gets_its_own(stage: Stage) -> None:
    # The shell starts it when it is asked to end, and then leaves it alone.
    script = "trap 'setsid sleep U & exit' TERM; sleep U & wait"
    attempt = stage.start("sh", "-c", script)
    stage.settle(1)
    assert attempt.end(grace_s=60) < 50
    assert stage.alive() == []


def test_everybody_gets_one_term_only(stage: Stage) -> None:
    log = stage.folder / "log"
    script = f"trap 'echo term >> {log}' TERM; while :; do sleep U; done"
    attempt = stage.start("sh", "-c", script)
    stage.settle(1)
    attempt.end(grace_s=0.5)
    assert log.read_text() == "term\n"


@pytest.mark.parametrize("how", ["refused", "unknown"])
def test_without_pidfds_trees_end_as_well(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def refuse(_pid: int, _flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if how == "refused":
        monkeypatch.setattr(os, "pidfd_open", refuse)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    attempt = stage.hide("session+ignore", leader="exits")
    attempt.end(grace_s=0.1)
    assert stage.alive() == []


def test_force_leaves_no_grace(stage: Stage) -> None:
    attempt = stage.hide("ignore")
    ending = Ending(attempt.target, grace_s=30, now_mono=time.monotonic(), force=True)
    began = time.monotonic()
    step_until_gone(ending)
    assert time.monotonic() - began < 10
    assert stage.alive() == []


@pytest.mark.slow(seconds=7)
@pytest.mark.parametrize("kind", ["wide", "hop", "hop-session", "respawn"])
def test_a_fork_storm_is_ended(stage: Stage, kind: str) -> None:
    attempt = stage.start(sys.executable, "-I", "-S", str(HERE / "storm.py"), kind, "U")
    eventually(lambda: len(stage.alive()) >= 1)
    time.sleep(0.1)  # let it get going: what is to be met is its middle, not its start
    attempt.end(grace_s=0.2)
    assert stage.alive() == []


def test_a_process_whose_first_thread_has_ended_is_found_and_ended(stage: Stage) -> None:
    attempt = stage.start("sh", "-c", f"setsid {sys.executable} -I {HERE}/headless.py U & wait")
    headless = eventually(lambda: [pid for pid in stage.alive() if _is_headless(pid)])
    assert attempt.members(nets={"environment"}) == [attempt.pid, *headless]
    attempt.end(grace_s=5)
    assert stage.alive() == []


def _is_headless(pid: int) -> bool:
    proc = table.read_proc(pid)
    return proc is not None and proc.state == "Z" and proc.lives


def test_zombies_count_as_gone(stage: Stage) -> None:
    attempt = stage.start("true")
    eventually(lambda: _state(attempt.pid) == "Z")
    assert attempt.members() == []
    assert attempt.end(grace_s=60) < 50  # and it is still there to be collected
    assert attempt.collect() == 0


def _state(pid: int) -> str | None:
    proc = table.read_proc(pid)
    return proc.state if proc is not None else None


def test_a_member_once_seen_stays_one(stage: Stage) -> None:
    attempt = stage.start("sh", "-c", "setsid sh -c 'sleep U & wait' & sleep U & wait")
    stage.settle(2)
    snapshot = Snapshot.take()
    known = {(proc.pid, proc.start) for proc in snapshot.members(attempt.target)}
    leader = next(pid for pid in stage.alive() if os.getsid(pid) == attempt.pid)
    assert leader
    os.kill(attempt.pid, signal.SIGKILL)
    eventually(lambda: _state(attempt.pid) == "Z")
    # Without mark, lock and descent, only memory tells who belongs to the attempt.
    found = attempt.members(known=known, nets=set())
    assert set(stage.sleepers()) <= set(found)


def test_other_attempts_and_bystanders_are_left_alone(stage: Stage) -> None:
    mine = stage.start("sh", "-c", "setsid sleep U & sleep U & wait")
    stage.settle(2)
    other = stage.start("sh", "-c", "setsid sleep U & sleep U & wait")
    stage.settle(4)
    others = set(other.members())
    assert len(others) == 3
    mine.end(grace_s=5)
    assert set(stage.alive()) == others


def test_the_searcher_inside_the_attempt_touches_nobody_and_says_so(stage: Stage) -> None:
    attempt = stage.start("sh", "-c", "sleep U & wait")
    stage.settle(1)
    snapshot = Snapshot.take()
    inside = Snapshot(snapshot.procs, me=stage.sleepers()[0])
    ending = Ending(attempt.target, grace_s=0, now_mono=0.0, force=True)
    assert ending.step(inside, 1.0) is not None
    assert ending.stuck == "this process itself belongs to the attempt"
    assert len(stage.alive()) == 2
    assert not ending.gone


def test_two_looks_are_needed_and_the_same_one_twice_is_no_second_look(stage: Stage) -> None:
    attempt = stage.start("true")
    eventually(lambda: _state(attempt.pid) == "Z")
    ending = Ending(attempt.target, grace_s=5, now_mono=0.0)
    first = Snapshot.take()
    assert ending.step(first, 0.1) is not None
    assert ending.step(first, 0.2) is not None
    assert not ending.gone
    assert ending.step(Snapshot.take(), 0.3) is None
    assert ending.gone
    assert ending.step(Snapshot.take(), 0.4) is None


def test_a_held_lock_keeps_the_attempt_present(stage: Stage) -> None:
    from spoolctl.process import locks

    attempt = stage.start("true")
    eventually(lambda: _state(attempt.pid) == "Z")
    held = locks.take(attempt.lock_path)
    assert held is not None
    try:
        ending = Ending(attempt.target, grace_s=0, now_mono=0.0)
        for now in (0.0, 0.1, 1.0, 3.0):
            assert ending.step(Snapshot.take(), now) is not None
        assert ending.stuck == "a process that cannot be found holds the attempt's lock"
        assert not ending.gone
    finally:
        os.close(held)
    step_until_gone(ending)
    assert ending.stuck is None


def test_a_missing_lock_file_keeps_nobody(stage: Stage) -> None:
    attempt = stage.start("sh", "-c", "setsid sleep U & wait")
    stage.settle(1)
    os.unlink(attempt.lock_path)
    attempt.end(grace_s=5)
    assert stage.alive() == []


def test_many_attempts_end_side_by_side(stage: Stage) -> None:
    attempts = [stage.start("sh", "-c", "trap '' TERM; sleep U & wait; wait") for _ in range(20)]
    stage.settle(20)
    began = time.monotonic()
    assert end_all([one.target for one in attempts], grace_s=0.3, until_mono=began + 10) == []
    assert time.monotonic() - began < 10
    assert stage.alive() == []


def test_end_all_gives_up_at_its_deadline(stage: Stage) -> None:
    attempt = stage.hide("ignore")
    began = time.monotonic()
    (left,) = end_all([attempt.target], grace_s=30, until_mono=began + 0.2)
    assert 0.15 < time.monotonic() - began < 10
    assert left.target == attempt.target
    assert not left.gone


def test_what_a_success_left_running_is_found_and_counted(stage: Stage) -> None:
    attempt = stage.start("sh", "-c", "setsid sleep U & sleep U & exit 0")
    stage.settle(2)
    assert attempt.collect() == 0
    assert len(attempt.members()) == 2


def test_without_descriptors_nobody_is_declared_gone(stage: Stage) -> None:
    # In a process that has no descriptor left, the table of processes looks empty.
    attempt = stage.start("sh", "-c", "setsid sleep U & wait")
    stage.settle(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (writing + 20, writing + 20))
            with contextlib.suppress(OSError):
                while True:
                    os.open(os.devnull, os.O_RDONLY)
            ending = Ending(attempt.target, grace_s=0, now_mono=0.0)
            for now in (0.0, 1.0, 2.0, 5.0):
                ending.step(Snapshot.take(), now)
            os.write(writing, f"{ending.gone} {ending.stuck}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    words = os.read(reading, 4096).decode()
    os.close(reading)
    assert words.startswith("False there are not enough file descriptors")
    assert len(stage.alive()) == 2
    attempt.end(grace_s=5)


ADOPTER = """
import os, sys, time
from pathlib import Path
from spoolctl.process.ending import Ending
from spoolctl.process.search import Snapshot
from spoolctl.process.spawn import become_subreaper
from tests.helpers import clean_env, eventually
from tests.process.staging import Stage, step_until_gone
assert become_subreaper()
stage = Stage(Path(sys.argv[1]))
try:
    attempt = stage.hide("session+orphan+environ+descriptors+ignore", leader="exits")
    snapshot = Snapshot.take()
    assert snapshot.members(attempt.target) == []
    (hidden,) = snapshot.adopted({attempt.pid}, attempt.target)
    assert [hidden.pid] == stage.alive()
    ending = Ending(attempt.target, grace_s=0.1, now_mono=time.monotonic())
    ending.include([hidden])
    step_until_gone(ending)
    assert stage.alive() == []
finally:
    stage.clear()
print("ended")
"""


def test_a_subreaper_ends_even_what_hides_from_every_net(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTER, str(tmp_path)],
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "ended\n", done.stderr


BLIND = """
import os, sys, time
from spoolctl.process import locks, table
from spoolctl.process.spawn import spawn
from spoolctl.process.tree import Target, end_all
assert not table.is_ours()
path = sys.argv[1] + "/lock"
lock = locks.take(path)
null = os.open(os.devnull, os.O_RDWR)
ready = sys.argv[1] + "/ready"
script = "trap '' TERM; touch " + ready + "; sleep 60 & wait"
pid = spawn(["sh", "-c", script], cwd="/", env=dict(os.environ), umask=None,
            stdin_fd=null, stdout_fd=null, stderr_fd=null, lock_fd=lock)
os.close(lock)
while not os.path.exists(ready):
    time.sleep(0.01)
began = time.monotonic()
assert end_all([Target("f" * 32, pid, None, path)], grace_s=0.3, until_mono=began + 10) == []
assert time.monotonic() - began < 3
assert os.waitpid(pid, os.WNOHANG) == (pid, 9)
print("ended")
"""


@needs_namespaces
def test_without_a_proc_of_its_own_a_worker_still_ends_its_commands_group(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "-p", "-f", sys.executable, "-c", BLIND, str(tmp_path)],
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "ended\n", done.stderr

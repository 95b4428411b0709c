"""Who is known is signaled before the first look at all processes, which may take seconds."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spoolctl.process import table, tree
from spoolctl.process.ending import Ending, Signals
from spoolctl.process.family import family
from spoolctl.process.search import Snapshot
from tests.helpers import eventually
from tests.process.staging import Attempt, Stage

if sys.platform != "linux":
    pytest.skip("elsewhere all processes are looked at first", allow_module_level=True)

TREE = "setsid sleep U & sleep U & wait"


@pytest.fixture
def slow_look(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Lets every look at all processes wait until something has happened."""

    def wait_for(condition: Callable[[], bool]) -> None:
        real = Snapshot.take

        def take() -> Snapshot:
            eventually(condition, timeout_s=60, what="it has to happen without a look")
            return real()

        monkeypatch.setattr(tree.Snapshot, "take", take)

    return wait_for


def test_a_tree_ends_before_the_first_look(
    stage: Stage, slow_look: Callable[[Callable[[], bool]], None]
) -> None:
    attempts = [stage.start("sh", "-c", TREE) for _ in range(3)]
    stage.settle(6)
    slow_look(lambda: not stage.alive())
    assert tree.end_all([one.target for one in attempts], grace_s=60) == []


def test_the_stubborn_are_killed_after_the_grace_without_another_look(
    stage: Stage, slow_look: Callable[[Callable[[], bool]], None]
) -> None:
    attempt = stage.start("sh", "-c", "trap '' TERM; setsid sleep U & sleep U & wait")
    stage.settle(2)
    ending = Ending(attempt.target, grace_s=0.2, now_mono=0.0)
    assert ending.strike(0.0)
    assert ending.step(Snapshot.take(), 0.1) is not None
    assert len(stage.alive()) == 3
    assert ending.strike(0.3)
    eventually(lambda: not stage.alive(), timeout_s=60)
    slow_look(lambda: not stage.alive())
    assert tree.end_all([attempt.target], grace_s=0.0) == []


def test_it_strikes_once_with_each_signal(stage: Stage) -> None:
    sent: list[tuple[int, int]] = []

    class Watched(Signals):
        def one(self, proc: table.Proc, number: int) -> str:
            sent.append((proc.pid, number))
            return "sent"

    attempt = stage.start("sh", "-c", TREE)
    stage.settle(2)
    ending = Ending(attempt.target, grace_s=1.0, now_mono=0.0, signals=Watched())
    for now in (0.0, 0.1, 0.2, 1.0, 1.1):
        ending.strike(now)
    for number in (signal.SIGTERM, signal.SIGKILL):
        assert sorted(pid for pid, each in sent if each == number) == sorted(attempt.members())


def test_who_was_asked_before_the_look_is_not_asked_again(stage: Stage) -> None:
    log = stage.folder / "log"
    script = f"trap 'echo term >> {log}' TERM; echo up > {log}; while :; do sleep 0.01; done"
    attempt = stage.start(
        "sh", "-c", f'sh -c "{script.replace(str(log), str(log) + "2")}" U & {script}'
    )
    logs = [log, Path(f"{log}2")]
    eventually(lambda: all(one.exists() and one.read_text() for one in logs))
    attempt.end(grace_s=0.5)
    assert [one.read_text() for one in logs] == ["up\nterm\n"] * 2


def test_what_hides_in_the_session_is_found_when_its_leader_went_first(stage: Stage) -> None:
    """An orphan without mark and files: nothing but the session tells whose it is."""
    attempt = stage.hide("orphan+environ+descriptors")
    (hidden,) = stage.sleepers()
    ticks = os.sysconf("SC_CLK_TCK")
    eventually(lambda: _age_ticks(hidden) > 1, what=f"it is older than a tick of 1/{ticks} s")
    ending = Ending(attempt.target, grace_s=60, now_mono=0.0)
    assert ending.strike(0.0)
    assert attempt.collect() == -signal.SIGTERM
    assert stage.alive() == [hidden]
    deadline = time.monotonic() + 30
    while (pause := ending.step(Snapshot.take(), 0.1)) is not None:
        assert time.monotonic() < deadline, ending.stuck
        time.sleep(pause)
    assert stage.alive() == []


def _age_ticks(pid: int) -> int:
    proc, now = table.read_proc(pid), table.now_ticks()
    assert proc is not None
    assert now is not None
    return now - int(proc.start)


def test_a_stranger_with_the_same_number_is_left_alone(stage: Stage) -> None:
    attempt = stage.start("sh", "-c", TREE)
    stage.settle(2)
    assert attempt.target.start is not None
    reused = attempt.target._replace(start=str(int(attempt.target.start) - 1))
    assert Ending(reused, grace_s=0.0, now_mono=0.0).strike(0.0) == 0.0
    assert len(stage.alive()) == 3


def test_it_does_not_strike_itself() -> None:
    start = table.read_proc(os.getpid())
    assert start is not None
    assert family(os.getpid(), start.start) is None


@pytest.mark.parametrize("what", ["the namespace", "the children", "the clock"])
def test_where_descendants_cannot_be_known_it_leaves_all_to_the_look(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    attempt = stage.start("sh", "-c", TREE)
    stage.settle(2)
    if what == "the namespace":
        monkeypatch.setattr(table, "is_ours", lambda: False)
    elif what == "the children":
        monkeypatch.setattr(table, "children_of", lambda _pid: None)
    else:
        monkeypatch.setattr(table, "now_ticks", lambda: None)
    assert Ending(attempt.target, grace_s=0.0, now_mono=0.0).strike(0.0) == 0.0
    assert len(stage.alive()) == 3


def test_a_child_that_was_asked_before_its_execve_is_asked_again(stage: Stage) -> None:
    """Between fork and execve a child catches signals with what its parent had set up."""
    sent: list[int] = []

    class Swallowed(Signals):
        def one(self, proc: table.Proc, number: int) -> str:
            sent.append(proc.pid)
            return "sent"

    fifo = stage.folder / "fifo"
    os.mkfifo(fifo)
    attempt = stage.start("sh", "-c", f"read line < {fifo}; exec sleep U")
    shell = eventually(lambda: _settled(attempt))
    ending = Ending(attempt.target, grace_s=60.0, now_mono=0.0, signals=Swallowed())
    ending.strike(0.0)
    ending.step(Snapshot.take(), 0.1)
    assert sent == [attempt.pid]
    fifo.write_text("go\n")
    eventually(lambda: shell.name != "sleep" and stage.sleepers())
    ending.step(Snapshot.take(), 0.2)
    ending.step(Snapshot.take(), 0.3)
    assert sent == [attempt.pid] * 2


def _settled(attempt: Attempt) -> table.Proc | None:
    """The command, once it has become its shell and waits."""
    proc = table.read_proc(attempt.pid)
    return proc if proc is not None and proc.name == "sh" and proc.state == "S" else None

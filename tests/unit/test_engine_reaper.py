"""Taking back: what one call achieved is told, whatever becomes of the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spoolctl.core.records import Identity, Instant, Reaped, Suspect, WorkerRow
from spoolctl.core.states import AttemptState, State
from spoolctl.engine.reaper import Reaper
from spoolctl.errors import StoreBusy
from spoolctl.process.identity import Evidence, Judgement, Verdict
from spoolctl.process.tree import Snapshot


class Queue:
    """A store with the attempts of workers that are not registered any more."""

    def __init__(self, path: Path, attempts: int) -> None:
        self.path = str(path / "queue.db")
        self.free = dict.fromkeys(range(1, attempts + 1), True)  # not locked by others
        self.left = {
            number: Suspect(number, f"{number:032x}", number, 1, AttemptState.RUNNING, None)
            for number in self.free
        }

    def suspects(self, **_: object) -> list[Suspect]:
        return list(self.left.values())

    def reap(self, suspect: Suspect, **_: object) -> Reaped:
        if not self.free[suspect.attempt_id]:
            raise StoreBusy("locked")
        del self.left[suspect.attempt_id]
        return Reaped(suspect.job_id, 1, 0, State.QUEUED)


def at(mono: float) -> Instant:
    return Instant(1e9 + mono, mono, mono, "boot")


def reaper_of(queue: Queue) -> Reaper:
    store: Any = queue
    return Reaper(
        store,
        9,
        threshold_s=None,
        inline_bytes=64,
        grace_s=0.0,
        log=lambda line: None,
        evidence=Evidence(queue.path),
    )


def nobody() -> Snapshot:
    return Snapshot({}, me=os.getpid())


def test_what_was_taken_back_before_the_lock_was_taken_is_told(tmp_path: Path) -> None:
    queue = Queue(tmp_path, 2)
    reaper = reaper_of(queue)
    reaper.scan(at(0.0))
    queue.free[2] = False
    assert reaper.step(nobody, at(1.0)) == []  # one look proves nothing
    assert [one.job_id for one in reaper.step(nobody, at(2.0))] == [1]
    with pytest.raises(StoreBusy):
        reaper.step(nobody, at(4.0))
    queue.free[2] = True
    assert [one.job_id for one in reaper.step(nobody, at(5.0))] == [2]
    assert reaper.next_mono() is None


def test_it_never_asks_about_its_own_worker(tmp_path: Path) -> None:
    """After a long sleep of the machine its heartbeat is as old as anybody's."""
    queue = Queue(tmp_path, 2)
    who = Identity("boot", "", 1, "1", 1, 1)
    for number, worker in ((1, 9), (2, 10)):
        row = WorkerRow(worker, "", "", who, None, 1, 5.0, 0.0, 0.0, 0.0)
        queue.left[number] = queue.left[number]._replace(worker=row)
    asked = []
    reaper = reaper_of(queue)

    def dead(_who: Identity, lock: str) -> Judgement:
        asked.append(lock)
        return Judgement(Verdict.DEAD, "it is dead")

    reaper.judge = dead
    reaper.scan(at(0.0))
    reaper.step(nobody, at(1.0))
    assert [one.job_id for one in reaper.step(nobody, at(2.0))] == [2]
    assert len(asked) == 1

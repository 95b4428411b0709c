"""Taking back: what one call achieved is told, whatever becomes of the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spoolctl.core.records import Instant, Reaped, Suspect
from spoolctl.core.states import AttemptState, State
from spoolctl.engine.reaper import Reaper
from spoolctl.errors import StoreBusy
from spoolctl.process.identity import Evidence
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

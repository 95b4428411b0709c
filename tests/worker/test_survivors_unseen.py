"""A lock that is held, and nobody to be seen who holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spoolctl.engine.crew import Crew
from spoolctl.process.search import Found, Target
from spoolctl.process.tree import Snapshot
from tests.worker.conftest import idle_crew


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    crew, station = idle_crew(str(tmp_path / "queue.db"), mono=lambda: 0.0)
    yield crew
    crew.children.close()
    station.close(crew.children)


def test_then_it_is_not_known_that_there_are_no_survivors(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon forks twice: between one look at a process and the next it is another one."""
    nobody = Found(members=[], unsure=[], inside=False, complete=True, settled=True)
    monkeypatch.setattr(Snapshot, "search", lambda _self, _target: nobody)
    slot = crew._free[0]
    holder = os.dup(slot.lock())
    slot.handed_over()
    running: Any = SimpleNamespace(
        slot=slot, target=Target("00" * 16, None, None, slot.lock_path), unlock=lambda: None
    )
    assert crew._leftovers.survivors(running) is None
    os.close(holder)
    assert crew._leftovers.survivors(running) == 0

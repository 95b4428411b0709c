"""A worker's place: all of it, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spoolctl.core.paths import waiters_dir, workers_dir
from spoolctl.engine.station import Station
from spoolctl.process.spawn import open_descriptors


def test_where_it_cannot_be_made_nothing_is_left(tmp_path: Path) -> None:
    db = str(tmp_path / "queue.db")
    os.mkdir(f"{db}.d")
    Path(waiters_dir(db)).touch()
    before = len(open_descriptors())
    with pytest.raises(NotADirectoryError):
        Station(db, 1, grace_s=1.0, waits=True)
    assert len(open_descriptors()) == before
    assert os.listdir(workers_dir(db)) == []

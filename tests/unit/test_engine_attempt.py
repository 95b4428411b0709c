"""Starting an attempt when the machine is short of something."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spoolctl.core.paths import workers_dir
from spoolctl.core.records import Claimed
from spoolctl.engine import attempt
from spoolctl.engine.attempt import NoResources, Slot
from spoolctl.engine.spares import Spares
from spoolctl.process.roster import Roster

TOKEN = "ab" * 16


def test_no_room_for_the_input_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = str(tmp_path / "queue.db")
    claimed = Claimed(1, TOKEN, 1, 1, ("cat",), "default", None, None, None, (), None, b"input")
    os.makedirs(workers_dir(db))
    roster = Roster.create(os.path.join(workers_dir(db), f"{TOKEN}.lock"), 1)
    slot = Slot(db, TOKEN, 0)
    slot.lock()

    def full(_fd: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    before = set(os.listdir("/dev/fd"))
    for _ in range(3):
        with pytest.raises(NoResources):
            attempt.start(
                claimed, slot, roster, db_path=db, base_env={}, spares=Spares(0), mono=0.0
            )
    assert set(os.listdir("/dev/fd")) == before
    assert os.listdir(tmp_path / "queue.db.d" / "attempts") == []
    slot.close()
    roster.close(unlink=True)

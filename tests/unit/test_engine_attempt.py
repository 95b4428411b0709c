"""Starting an attempt: its environment, and when the machine is short of something."""

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


@pytest.mark.parametrize("key", [None, "build-7"])
def test_a_job_inside_of_a_job_sees_its_own_variables(key: str | None) -> None:
    """A worker that is started by a command has the variables of that command's job."""
    outer = {f"SPOOLCTL_{name}": "outer" for name in ("JOB_ID", "KEY", "QUEUE", "SLOT", "DB")}
    outer["SPOOLCTL_ATTEMPT_PATH"] = "cd" * 16
    claimed = Claimed(7, TOKEN, 3, 2, ("true",), "lane", key, None, None, (), None, None)
    env = attempt.environment(claimed, 1, "/queue.db", outer)
    assert env == {
        "SPOOLCTL_JOB_ID": "3",
        "SPOOLCTL_ATTEMPT": "2",
        "SPOOLCTL_ATTEMPT_ID": TOKEN,
        "SPOOLCTL_ATTEMPT_PATH": f"{'cd' * 16}:{TOKEN}",
        "SPOOLCTL_QUEUE": "lane",
        "SPOOLCTL_DB": "/queue.db",
        "SPOOLCTL_SLOT": "1",
        **({} if key is None else {"SPOOLCTL_KEY": key}),
    }


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
                claimed,
                slot,
                roster,
                db_path=db,
                base_env={},
                spares=Spares(0),
                streams=None,
                mono=0.0,
            )
    assert set(os.listdir("/dev/fd")) == before
    assert os.listdir(tmp_path / "queue.db.d" / "attempts") == []
    slot.close()
    roster.close(unlink=True)

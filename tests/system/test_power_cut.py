"""After a power cut at any moment everything that was acknowledged is there, and is whole."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spoolctl import Queue
from tests.helpers import clean_env
from tests.system.power_cut import TRACED, Disk, replay, write_files
from tests.system.strace_log import can_strace

pytestmark = [
    pytest.mark.slow(seconds=30),
    pytest.mark.skipif(not can_strace(), reason="strace is missing or not allowed"),
]

SESSION = (
    ("add", "--", "echo", "hello"),
    ("add", "--key", "k", "-c", "echo text; exit 3"),
    ("add", "--after", "1h", "--", "true"),
    ("work", "--once"),
    ("cancel", "3"),
    ("work", "--once"),
    ("retry", "3"),
    ("add", "--lines", "--batch", "LINES"),
    ("work", "--drain", "-j", "2"),
    ("add", "--", "echo", "the last"),
)

PARTS = ("none", "some", "all")
"""How much of what was not synced is on the disk after a cut."""

# What people were told, and the entry of the ledger that must be there then.
TOLD = (
    (re.compile(r"^Added job (\d+)$", re.M), "added"),
    (re.compile(r"^Canceled job (\d+)$", re.M), "canceled"),
    (re.compile(r"^Requeued job (\d+) ", re.M), "retried"),
    (re.compile(r"^spoolctl: job (\d+) attempt \d+ succeeded ", re.M), "succeeded"),
    (re.compile(r"^spoolctl: job (\d+) attempt \d+ failed ", re.M), "failed"),
)


def record(folder: Path, *, other_has_it_open: bool) -> tuple[Path, list[str]]:
    """Run the session under strace; the database's path and one log per program."""
    db = folder / "live" / "queue.db"
    db.parent.mkdir()
    lines = folder / "lines"
    # Enough to fill the log beyond the size at which SQLite moves it into the database.
    lines.write_text("".join(f"echo {number}\n" for number in range(150)))
    logs = []
    other: sqlite3.Connection | None = None
    for number, (verb, *words) in enumerate(SESSION):
        words = [str(lines) if word == "LINES" else word for word in words]
        log = folder / f"log{number}"
        strace = ["strace", "-qq", "-y", "-xx", "-s", "1000000", "-e", f"trace={TRACED}"]
        call = [sys.executable, "-m", "spoolctl", verb, "--db", str(db), *words]
        subprocess.run(
            [*strace, "-o", str(log), *call],
            env=clean_env(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=120,
        )
        logs.append(log.read_text())
        if other_has_it_open and other is None:
            other = sqlite3.connect(db)
            other.execute("SELECT count(*) FROM jobs").fetchall()
    if other is not None:
        other.close()
    return db, logs


@pytest.fixture(params=[False, True], ids=["alone", "also open elsewhere"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    return record(tmp_path, other_has_it_open=request.param)


def missing(db: Path, said: str) -> Iterator[str]:
    """What was told and is not there."""
    told = {(int(job), event) for text, event in TOLD for job in text.findall(said)}
    if not told:
        return
    with closing(sqlite3.connect(db)) as conn:
        (verdict,) = conn.execute("PRAGMA integrity_check").fetchone()
        if verdict != "ok":
            yield f"integrity_check: {verdict}"
    with Queue(db, create=False) as queue:
        there = {(one.job_id, one.event.value) for one in queue.events(limit=None).events}
        for job, event in sorted(told - there):
            yield f"job {job} {event}"


def test_what_was_acknowledged_survives_a_cut_at_any_moment(
    recorded: tuple[Path, list[str]], tmp_path: Path
) -> None:
    db, logs = recorded
    disk = Disk([str(db), f"{db}-wal", f"{db}-journal"])
    chance = random.Random(7)
    cuts, lost = 0, []
    for number, step in enumerate(replay(logs, disk)):
        # All three ways after every second step, one of them after the others.
        for part in PARTS if number % 2 else PARTS[number // 2 % 3 :][:1]:
            copy = tmp_path / f"cut{number}{part}"
            copy.mkdir(mode=0o700)
            cut = write_files(disk.after_cut(part, chance), db, copy)
            lost += [f"{one} ({part}, cut {number})" for one in missing(cut, step.said)]
            shutil.rmtree(copy)
            cuts += 1
    assert lost == []
    assert cuts > 300

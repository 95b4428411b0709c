"""The list of running attempts: old or new, never half, whatever kills its writer."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spoolctl.process.roster import RECORD_BYTES, Entry, Roster, read_roster
from tests.helpers import clean_env

TOKEN = "0123456789abcdef" * 2


@pytest.fixture
def roster(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Roster.create(str(tmp_path / "w.lock"), 2)
    yield made
    made.close(unlink=True)


def test_an_attempts_life_in_the_roster(roster: Roster, tmp_path: Path) -> None:
    lock = str(tmp_path / "w.0.0")
    assert read_roster(roster.path) == []
    roster.announce(0, TOKEN, lock)
    assert read_roster(roster.path) == [Entry(0, TOKEN, lock, None, None)]
    roster.spawned(0, 4711, "123456")
    assert read_roster(roster.path) == [Entry(0, TOKEN, lock, 4711, "123456")]
    roster.announce(1, TOKEN[::-1], lock)
    assert [entry.slot for entry in read_roster(roster.path)] == [0, 1]
    roster.clear(0)
    roster.clear(0)
    assert read_roster(roster.path) == [Entry(1, TOKEN[::-1], lock, None, None)]


def test_an_end_that_is_recorded_late_does_not_take_out_who_came_next(roster: Roster) -> None:
    lock = os.path.join(os.path.dirname(roster.path), "w.0.0")
    roster.announce(0, TOKEN, lock)
    roster.announce(0, TOKEN[::-1], lock)
    roster.clear(0, TOKEN)
    assert [entry.token for entry in read_roster(roster.path)] == [TOKEN[::-1]]
    roster.clear(0, TOKEN[::-1])
    assert read_roster(roster.path) == []


def test_it_can_be_read_through_a_descriptor(roster: Roster, tmp_path: Path) -> None:
    lock = str(tmp_path / "w.0.0")
    roster.announce(0, TOKEN, lock)
    assert read_roster(roster.fd, str(tmp_path)) == read_roster(roster.path)
    elsewhere = read_roster(roster.fd, "/moved")
    assert elsewhere[0].lock_path == "/moved/w.0.0"


def test_it_grows(roster: Roster, tmp_path: Path) -> None:
    roster.announce(40, TOKEN, str(tmp_path / "l"))
    roster.announce(7, TOKEN, str(tmp_path / "l"))
    assert [entry.slot for entry in read_roster(roster.path)] == [7, 40]


@pytest.mark.parametrize("name", ["blank and\nnewline", "\udcff\udcfe", "ü" * 120, "a" * 255])
def test_any_file_name_is_kept(roster: Roster, tmp_path: Path, name: str) -> None:
    lock = str(tmp_path / name)
    roster.announce(0, TOKEN, lock)
    assert read_roster(roster.path)[0].lock_path == lock


def test_a_lock_elsewhere_is_named_in_full_and_a_path_too_long_is_refused(roster: Roster) -> None:
    roster.announce(0, TOKEN, "/somewhere/else")
    assert read_roster(roster.path)[0].lock_path == "/somewhere/else"
    with pytest.raises(ValueError, match="too long"):
        roster.announce(1, TOKEN, "/" + "x" * 600)
    assert len(read_roster(roster.path)) == 1


def test_absent_foreign_and_damaged_files_list_nothing_wrong(
    roster: Roster, tmp_path: Path
) -> None:
    assert read_roster(str(tmp_path / "none")) == []
    assert read_roster(str(tmp_path / "w.lock" / "under")) == []
    other = tmp_path / "other"
    for content in (b"", b"x", os.urandom(4096), bytes(4096)):
        other.write_bytes(content)
        assert read_roster(str(other)) == []
    roster.announce(0, TOKEN, str(tmp_path / "l"))
    roster.announce(1, TOKEN, str(tmp_path / "l"))
    good = Path(roster.path).read_bytes()
    for _ in range(300):
        bad = bytearray(good)
        bad[RECORD_BYTES + random.randrange(80)] ^= 1 << random.randrange(8)
        other.write_bytes(bad)
        assert [entry.slot for entry in read_roster(str(other))] == [1]
    other.write_bytes(good[: 2 * RECORD_BYTES + 100])
    assert [entry.slot for entry in read_roster(str(other))] == [0]


def test_room_is_made_when_it_is_created(tmp_path: Path) -> None:
    roster = Roster.create(str(tmp_path / "w.lock"), 50)
    size = os.stat(roster.path).st_size
    for slot in range(50):
        roster.announce(slot, TOKEN, str(tmp_path / "l"))
    assert os.stat(roster.path).st_size == size == 51 * RECORD_BYTES
    assert os.stat(roster.path).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(roster.fd)
    roster.close(unlink=True)


def test_a_writer_killed_at_any_moment_leaves_whole_records(tmp_path: Path) -> None:
    path = str(tmp_path / "w.lock")
    for _ in range(15):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, path],
            env=clean_env(),
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(random.uniform(0, 0.02))
        writer.kill()
        writer.wait()
        writer.stdout.close()
        entries = read_roster(path)
        # Slot 0 is never cleared: it is in every state of the file.
        assert entries[0].slot == 0
        for entry in entries:
            assert entry.token == f"{entry.pid or 0:032d}"[-32:] or entry.pid is None
        written = [
            data
            for n in range(1, 4)
            if (
                data := Path(path)
                .read_bytes()[n * RECORD_BYTES : (n + 1) * RECORD_BYTES]
                .strip(b"\0")
            )
        ]
        assert len(written) == len(entries)


_WRITER = """
import sys
from spoolctl.process.roster import Roster
roster = Roster.create(sys.argv[1], 3)
n = 0
roster.announce(0, "0" * 32, sys.argv[1])
print("ready", flush=True)
while True:
    n += 1
    for slot in range(3):
        roster.announce(slot, f"{n:032d}", sys.argv[1])
        roster.spawned(slot, n, str(n))
        if slot:
            roster.clear(slot)
"""

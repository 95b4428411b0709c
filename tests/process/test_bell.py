"""Doorbells end a sleep, lose no ring, and never hold up who rings."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spoolctl.process import bell
from spoolctl.process.bell import Bell, Ringer, ring, sweep
from tests.helpers import clean_env


def _rings(*bells: Bell) -> list[bool]:
    fds = [one.fd for one in bells if one.fd is not None]
    ready, _, _ = select.select(fds, [], [], 0)
    return [one.fd in ready for one in bells]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def test_a_ring_is_heard_once_it_was_made(folder: str) -> None:
    one, two = Bell.create(folder, "one"), Bell.create(folder, "two")
    assert _rings(one, two) == [False, False]
    ring(folder, ["one"])
    assert _rings(one, two) == [True, False]
    assert one.drain() is True
    assert one.drain() is False
    assert _rings(one, two) == [False, False]
    ring(folder, None)
    assert _rings(one, two) == [True, True]
    one.close()
    two.close()
    assert os.listdir(folder) == []


def test_a_ring_before_the_sleep_ends_the_sleep(folder: str) -> None:
    # Drain, look, sleep: whatever rings after the drain is still there at the sleep.
    one = Bell.create(folder, "one")
    for _ in range(1000):
        one.drain()
        ring(folder, ["one"])
        assert _rings(one) == [True]
    one.close()


def test_hundreds_of_thousands_of_rings_do_not_block_and_are_one(folder: str) -> None:
    one = Bell.create(folder, "one")
    assert one.fd is not None
    fd = os.open(one.path, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(fd, bytes(4096)):
            pass
    os.close(fd)
    began = time.monotonic()
    for _ in range(500):
        ring(folder, ["one"])
    assert time.monotonic() - began < 2
    assert _rings(one) == [True]
    assert one.drain() is True
    assert _rings(one) == [False]
    one.close()


def test_nobody_home_is_no_error(folder: str) -> None:
    ring(folder, ["nobody"])
    ring(folder + "/none", None)
    ring(folder + "/none", ["nobody"])
    ring(folder, ["nul\0"])
    assert os.listdir(folder) == []
    os.mkfifo(os.path.join(folder, "dead.bell"))
    ring(folder, None)
    ring(folder, ["dead"])
    plain = Path(folder, "plain.bell")
    plain.write_bytes(b"keep")
    ring(folder, None)
    assert plain.read_bytes() == b"keep"


def test_who_rings_is_not_killed_by_a_broken_pipe(folder: str) -> None:
    # Also where SIGPIPE kills, and the reader goes away at that very moment.
    code = """
import os, signal, sys, threading
from spoolctl.process.bell import Bell, ring
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
def come_and_go():
    for _ in range(1500):
        Bell.create(sys.argv[1], "one").close()
thread = threading.Thread(target=come_and_go)
thread.start()
while thread.is_alive():
    ring(sys.argv[1], ["one"])
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, folder], env=clean_env(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"alive\n"), done.stderr


def test_a_ringer_rings_whoever_came_however_soon(folder: str) -> None:
    """Also one who comes within the same tick of the file system's clock as the last look."""
    ringer = Ringer(folder, besides="own")
    own = Bell.create(folder, "own")
    for number in range(300):
        ringer.ring()
        with contextlib.closing(Bell.create(folder, f"guest{number}")) as guest:
            ringer.ring()
            assert _rings(own, guest) == [False, True]
    ringer.ring()


@pytest.mark.parametrize("fraction_ns", [0, 123_456], ids=["whole milliseconds", "fine"])
def test_a_ringer_looks_again_only_after_a_change(
    folder: str, fraction_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    names = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (looks.append(path), names(path))[1])
    ringer = Ringer(folder, besides="own")
    long_ago_ns = time.time_ns() // 10**9 * 10**9 - 60 * 10**9 + fraction_ns
    os.utime(folder, ns=(long_ago_ns, long_ago_ns))
    for _ in range(5):
        ringer.ring()
    assert looks == [folder]
    with contextlib.closing(Bell.create(folder, "guest")) as guest:
        for _ in range(3):  # as long as somebody is there
            ringer.ring()
            assert _rings(guest) == [True]
            guest.drain()
    assert len(looks) == 4
    ringer.ring()
    assert len(looks) == 5
    # It changed a moment ago: the next change may show the same time.
    ringer.ring()
    assert len(looks) == 6


def test_a_ringer_that_cannot_look_does_not_take_it_for_nobody(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor_left(path: str) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    ringer = Ringer(folder, besides="own")
    with contextlib.closing(Bell.create(folder, "guest")) as guest:
        long_ago_ns = time.time_ns() - 60 * 10**9
        os.utime(folder, ns=(long_ago_ns, long_ago_ns))
        with monkeypatch.context() as scarce:
            scarce.setattr(os, "listdir", no_descriptor_left)
            ringer.ring()
        ringer.ring()
        assert _rings(guest) == [True]


def test_a_ringer_lives_with_a_folder_that_comes_and_goes(tmp_path: Path) -> None:
    folder = tmp_path / "waiters"
    ringer = Ringer(str(folder), besides="own")
    ringer.ring()
    for _ in range(2):
        folder.mkdir()
        with contextlib.closing(Bell.create(str(folder), "guest")) as guest:
            ringer.ring()
            assert _rings(guest) == [True]
        folder.rmdir()
        ringer.ring()


@pytest.mark.parametrize("umask", [0, 0o777])
def test_a_bell_is_private_and_not_inherited(folder: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        one = Bell.create(folder, "one")
    finally:
        os.umask(before)
    assert one.fd is not None
    mode = os.stat(one.path).st_mode
    assert stat.S_ISFIFO(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert not os.get_inheritable(one.fd)
    one.close()
    one.close()


def test_sweep_takes_down_the_bells_of_the_dead_alone(folder: str) -> None:
    live = Bell.create(folder, "live")
    code = "import sys, os, signal; from spoolctl.process.bell import Bell;"
    code += "b = Bell.create(sys.argv[1], 'dead'); os.kill(os.getpid(), signal.SIGKILL)"
    died = subprocess.run(
        [sys.executable, "-c", code, folder], env=clean_env(), check=False
    ).returncode
    assert died == -signal.SIGKILL
    os.mkfifo(os.path.join(folder, "hanging-up.bell-new"))
    for name in ("other", "plain.bell"):
        Path(folder, name).touch()
    assert sweep(folder) == 1
    assert sorted(os.listdir(folder)) == [
        "hanging-up.bell-new",
        "live.bell",
        "other",
        "plain.bell",
    ]
    assert sweep(folder + "/none") == 0
    live.close()


def test_sweep_takes_what_a_killed_creator_left(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(os.path.join(folder, "left.bell-new"))
    monkeypatch.setattr(bell, "_FRESH_S", 0.0)
    assert sweep(folder) == 1
    assert os.listdir(folder) == []


def test_no_fifo_possible_is_a_bell_without_descriptor(folder: str) -> None:
    for place in (folder + "/none", "/proc"):
        mute = Bell.create(place, "one")
        assert mute.fd is None
        assert mute.drain() is False
        mute.close()


def test_a_sweep_at_any_moment_of_the_creation_is_harmless(folder: str) -> None:
    code = "import sys\nfrom spoolctl.process.bell import sweep\nprint(flush=True)\n"
    code += "while True: sweep(sys.argv[1])"
    sweeper = subprocess.Popen(
        [sys.executable, "-c", code, folder], env=clean_env(), stdout=subprocess.PIPE
    )
    assert sweeper.stdout is not None
    sweeper.stdout.readline()
    try:
        for n in range(500):
            one = Bell.create(folder, f"bell-{n}")
            assert one.fd is not None
            ring(folder, [f"bell-{n}"])
            assert _rings(one) == [True]
            one.close()
    finally:
        sweeper.kill()
        sweeper.wait()
        sweeper.stdout.close()

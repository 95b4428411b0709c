"""The table of processes is read right, whatever processes are called and carry."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spoolctl.process import locks, table
from spoolctl.process.table import MARK, Proc, parse_marks, read_all, read_marks, read_proc
from tests.helpers import clean_env, eventually

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")


@pytest.fixture
def run() -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def start(env: Mapping[str, str], *argv: str, **more: Any) -> Proc:
        child = subprocess.Popen(argv or ("/bin/sleep", "60"), env=env, **more)
        started.append(child)
        return seen(child.pid)

    yield start
    for child in started:
        child.kill()
        child.wait()


def seen(pid: int) -> Proc:
    proc = read_proc(pid)
    assert proc is not None
    return proc


def test_a_process_is_read_right(run: Any) -> None:
    proc = run({}, start_new_session=True)
    assert (proc.ppid, proc.pgid, proc.sid) == (os.getpid(), proc.pid, proc.pid)
    assert proc.lives
    assert not proc.kernel
    assert read_all().procs[proc.pid][:5] == proc[:5]


@pytest.mark.parametrize("name", [") R 1 1 1", "((", "a b", "ü\n", "x) Z 0 ("])
def test_a_name_cannot_forge_the_rest(run: Any, tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    proc = run({}, str(program), "60")
    assert proc.ppid == os.getpid()
    assert proc.name == name[:15]
    assert proc.lives


def test_the_kernels_threads_are_told_apart() -> None:
    if os.geteuid() == 0 and Path("/proc/2/comm").read_text() == "kthreadd\n":
        assert seen(2).kernel
    assert not seen(1).kernel
    assert not seen(os.getpid()).kernel


def test_nobody_is_none() -> None:
    assert read_proc(2**22 + 1) is None
    assert read_proc(10**12) is None


@pytest.mark.parametrize(
    ("block", "marks"),
    [
        (b"", ()),
        (b"A=1\0", ()),
        (b"SPOOLCTL_ATTEMPT_PATH=a\0", ("a",)),
        (b"A=1\0SPOOLCTL_ATTEMPT_PATH=a:b\0B=2\0", ("a", "b")),
        (b"SPOOLCTL_ATTEMPT_PATH=a", ("a",)),  # overwritten by the program: no end
        (b"XSPOOLCTL_ATTEMPT_PATH=a\0", ()),
        (b"A=SPOOLCTL_ATTEMPT_PATH=a\0SPOOLCTL_ATTEMPT_PATH=b\0", ("b",)),
        (b"A=\nSPOOLCTL_ATTEMPT_PATH=a\0", ()),
        (b"SPOOLCTL_ATTEMPT_PATH=\xff\0", ("\ufffd",)),
    ],
)
def test_marks_in_a_block(block: bytes, marks: tuple[str, ...]) -> None:
    padded = block + b"SPOOLCTL_ATTEMPT_PATH=left-over\0"  # of an earlier, longer block
    assert parse_marks(padded, len(block)) == marks


def marks_of(proc: Proc) -> tuple[str, ...] | None:
    """Its marks, when it has become what it was started as."""
    while True:
        try:
            return read_marks(seen(proc.pid))
        except table.Unsettled:
            time.sleep(0.001)


def test_marks_of_real_processes(run: Any) -> None:
    assert marks_of(run({MARK: "a:b"})) == ("a", "b")
    assert marks_of(run({})) == ()
    assert marks_of(run({"A": "1"})) == ()
    large = {f"V{n}": "x" * 100_000 for n in range(12)}
    assert marks_of(run({**large, MARK: "last"})) == ("last",)
    assert marks_of(run({MARK: "first", **large})) == ("first",)


MOMENTS = """
import collections, os
from spoolctl.process import table
env = {b"SPOOLCTL_ATTEMPT_PATH": b"child"} | {b"V%d" % n: b"x" * 100_000 for n in range(18)}
seen = collections.Counter()
for _ in range(500):
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], env)
    try:
        seen[str(table.read_marks(table.read_proc(pid)))] += 1
    except table.Unsettled:
        seen["unsettled"] += 1
    os.kill(pid, 9)
    os.waitpid(pid, 0)
print(*sorted(seen), sep="|")
"""


def test_a_marked_process_is_at_no_moment_of_its_start_taken_for_unmarked() -> None:
    # posix_spawn returns while the child is still within execve: it shows its parent's
    # environment, then an empty one, which takes a while to fill where it is large.
    done = subprocess.run(
        [sys.executable, "-c", MOMENTS],
        env=clean_env({MARK: "parent"}),
        capture_output=True,
        text=True,
        check=True,
    )
    seen = set(done.stdout.strip().split("|"))
    assert seen <= {"('child',)", "('parent',)", "unsettled"}
    assert "unsettled" in seen  # else none of those moments was met


def test_one_without_memory_is_unsettled_an_empty_environment_is_not(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = run({})
    assert marks_of(empty) == ()
    zombie = subprocess.Popen(["true"])
    eventually(lambda: seen(zombie.pid).state == "Z")
    monkeypatch.setattr(table, "_marks_in", lambda path: None)
    with pytest.raises(table.Unsettled):
        read_marks(seen(zombie.pid)._replace(state="S"))
    assert marks_of(empty) == ()
    zombie.wait()


def test_the_memory_of_one_in_uninterruptible_sleep_is_not_touched(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_marks_in", lambda path: pytest.fail("touched"))
    with pytest.raises(table.Unsettled):
        read_marks(run({MARK: "a"})._replace(state="D"))


def test_one_that_has_gone_has_no_marks(run: Any) -> None:
    proc = run({MARK: "a"})
    assert read_marks(proc._replace(pid=2**22 + 1, state="S")) is None


def test_holders_are_those_that_can_write_not_those_that_probe(run: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fd = locks.take(path)
    assert fd is not None
    probe = os.open(path, os.O_RDONLY)
    owner = run({}, pass_fds=(fd,))
    prober = run({}, pass_fds=(probe,))
    other = run({})
    two = tmp_path / "two"  # the same name, another file
    two.mkdir()
    namesake = os.open(two / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    double = run({}, pass_fds=(namesake,))
    everybody = [owner, prober, other, double]
    assert table.holders(everybody, path) == [owner]
    assert table.holders(everybody, str(two / "lock")) == [double]
    with pytest.raises(FileNotFoundError):
        table.holders(everybody, str(tmp_path / "none"))
    for one in (fd, probe, namesake):
        os.close(one)


def test_files_of_strangers_are_not_touched(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "lock")
    os.close(os.open(path, os.O_RDWR | os.O_CREAT))
    other = run({})
    real = os.stat

    def stat(place: Any, **kwargs: Any) -> os.stat_result:
        assert not str(place).startswith(f"/proc/{other.pid}/fd"), "could hang for ever"
        return real(place, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    assert table.holders([other], path) == []


HIDDEN = """
import json, os, sys
from spoolctl.core.records import Identity
from spoolctl.process import boot, table
from spoolctl.process.identity import Evidence, judge
os.setresgid(54321, 54321, 54321)
os.setresuid(54321, 54321, 54321)
pid = int(sys.argv[1])
try:
    answer = str(table.read_proc(pid))
except table.Hidden as hidden:
    answer = str(hidden)
who = Identity(boot.boot_id(), boot.pid_namespace(), pid, sys.argv[2], 0, 0)
verdict = judge(who, "/no/such/lock", evidence=Evidence("/tmp")).verdict.value
gone = judge(who._replace(pid=2**22 + 1), "/no/such/lock", evidence=Evidence("/tmp")).verdict.value
print(json.dumps([answer, verdict, gone]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount and to become another user")
@pytest.mark.parametrize("hidepid", [0, 1, 2])
def test_a_process_that_proc_hides_is_not_taken_for_dead(run: Any, hidepid: int) -> None:
    proc = run({})
    script = f'mount -t proc -o hidepid={hidepid} proc /proc && exec "$@"'
    words = [sys.executable, "-c", HIDDEN, str(proc.pid), proc.start]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *words],
        env=clean_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    answer, verdict, gone = json.loads(done.stdout)
    assert verdict == ("unclear" if hidepid else "alive")
    assert answer.startswith(f"process {proc.pid}" if hidepid else "Proc(")
    assert gone == "dead"


def test_a_table_with_gaps_for_want_of_descriptors_is_not_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = table._read_stat

    def read(pid: int) -> Proc:
        if pid == os.getpid():
            raise OSError(errno.EMFILE, "Too many open files")
        if pid == os.getppid():
            raise FileNotFoundError(errno.ENOENT, "ended")
        return real(pid)

    assert read_all().complete
    monkeypatch.setattr(table, "_read_stat", read)
    assert not read_all().complete
    monkeypatch.setattr(os, "getpid", lambda: 0)
    assert read_all().complete


FEW_CHILDREN = """
import os, sys
from spoolctl.process import table
own = table.OwnChildren()
assert own.pids() == set(), own.pids()
pids = [os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ) for _ in range(int(sys.argv[1]))]
try:
    assert own.pids() == set(pids) == table.children_of("self")
    os.kill(pids[0], 9)
    os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
    assert own.pids() == set(pids)  # one that is not collected counts
    os.waitpid(pids.pop(0), 0)
    assert own.pids() == set(pids)
    copy = os.fork()
    if not copy:
        os._exit(0 if own.pids() == set() else 1)  # of its own, not of its parent
    assert os.waitpid(copy, 0)[1] == 0
    assert own.pids() == set(pids)
    own.close()
    own.close()
    assert own.pids() == set(pids)  # it opens its files again
finally:
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("number", [1, 3, 700], ids=["one", "few", "more than a page"])
def test_own_children_are_all_seen(number: int) -> None:
    words = [sys.executable, "-c", FEW_CHILDREN, str(number)]
    subprocess.run(words, env=clean_env(), check=True)


def test_own_children_are_unknown_where_the_table_shows_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "is_ours", lambda: False)
    assert table.OwnChildren().pids() is None

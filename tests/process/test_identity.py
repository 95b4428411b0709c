"""Alive, dead or unclear: the verdict table row by row, staged and with real processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spoolctl.core.records import LEFT, Identity
from spoolctl.process import boot, filesystem, identity, locks
from spoolctl.process.identity import (
    Evidence,
    Judgement,
    Sighting,
    Verdict,
    judge,
    self_identity,
)
from tests.helpers import clean_env, eventually
from tests.process.staging import HERE, needs_namespaces

WHO = Identity("boot-1", "pid:[1]", 77, "1000", 5, 6)
ALIVE, DEAD, UNCLEAR = Verdict.ALIVE, Verdict.DEAD, Verdict.UNCLEAR


class Staged(Evidence):
    """What the operating system would say."""

    def __init__(
        self,
        *,
        boot: str = "boot-1",
        space: str = "pid:[1]",
        ours: bool = True,
        seen: Sighting = Sighting("runs", "1000"),  # noqa: B008 (immutable)
        held: bool | None = None,
        kind: str = "local",
    ) -> None:
        super().__init__("/nowhere/queue.db")
        self.boot, self.space, self.ours = boot, space, ours
        self.seen, self.held, self.kind = seen, held, kind

    def boot_id(self) -> str:
        return self.boot

    def pid_namespace(self) -> str:
        return self.space

    def table_is_ours(self) -> bool:
        return self.ours

    def look(self, pid: int) -> Sighting:
        assert pid == WHO.pid
        return self.seen

    def lock_is_held(self, path: str, dev: int, ino: int) -> bool | None:
        assert (dev, ino) == (WHO.lock_dev, WHO.lock_ino)
        return self.held

    def file_system(self) -> str:
        return self.kind


def staged(who: Identity = WHO, **evidence: object) -> Judgement:
    return judge(who, "/nowhere/lock", evidence=Staged(**evidence))  # type: ignore[arg-type]


GONE, HIDDEN = Sighting("gone", ""), Sighting("hidden", "")
ROWS = [
    # Row 1: our boot and namespace: pid and start time decide, whatever the lock says.
    (ALIVE, {"seen": Sighting("runs", "1000"), "held": False}),
    (ALIVE, {"seen": Sighting("runs", "1000"), "held": None}),
    (DEAD, {"seen": GONE, "held": True}),
    (DEAD, {"seen": Sighting("zombie", "1000"), "held": True}),
    (DEAD, {"seen": Sighting("runs", "1001"), "held": True}),
    (DEAD, {"seen": Sighting("zombie", "1001"), "held": True}),
    # Row 2: the lock is held.
    (ALIVE, {"seen": HIDDEN, "held": True}),
    (ALIVE, {"ours": False, "seen": GONE, "held": True}),
    (ALIVE, {"space": "pid:[2]", "held": True}),
    (ALIVE, {"boot": "boot-2", "held": True}),
    (ALIVE, {"boot": "boot-2", "space": "pid:[2]", "held": True, "kind": "shared"}),
    (ALIVE, {"boot": "", "held": True}),
    # Row 3: another boot.
    (DEAD, {"boot": "boot-2", "held": False}),
    (DEAD, {"boot": "boot-2", "held": None}),
    (DEAD, {"boot": "boot-2", "space": "pid:[2]", "held": None}),
    (UNCLEAR, {"boot": "boot-2", "held": False, "kind": "shared"}),
    (UNCLEAR, {"boot": "boot-2", "held": None, "kind": "network"}),
    (UNCLEAR, {"boot": "boot-2", "held": None, "kind": "unknown"}),
    # Row 4: our boot, another namespace, the lock can be had.
    (DEAD, {"space": "pid:[2]", "held": False}),
    (DEAD, {"space": "pid:[2]", "held": False, "ours": False}),
    (DEAD, {"space": "pid:[2]", "held": False, "kind": "shared"}),
    # Row 5: the rest.
    (UNCLEAR, {"space": "pid:[2]", "held": None}),
    (UNCLEAR, {"seen": HIDDEN, "held": False}),
    (UNCLEAR, {"seen": HIDDEN, "held": None}),
    (UNCLEAR, {"ours": False, "held": False}),
    (UNCLEAR, {"ours": False, "held": None}),
    (UNCLEAR, {"boot": "", "held": False}),
    (UNCLEAR, {"boot": "", "space": "pid:[2]", "held": False}),
]


@pytest.mark.parametrize(("verdict", "evidence"), ROWS, ids=str)
def test_the_verdict_table(verdict: Verdict, evidence: dict[str, object]) -> None:
    judgement = staged(**evidence)
    assert judgement.verdict is verdict
    assert judgement.reason


def test_a_worker_that_left_is_dead_though_its_process_lives() -> None:
    for seen in (Sighting("runs", "1000"), HIDDEN, GONE):
        assert staged(WHO._replace(start=LEFT), seen=seen, held=None).verdict is DEAD


def test_an_owner_of_unknown_start_is_never_dead_by_its_pid() -> None:
    for seen in (Sighting("runs", "1000"), Sighting("zombie", "1000")):
        assert staged(WHO._replace(start=""), seen=seen).verdict is UNCLEAR
    assert staged(WHO._replace(start=""), seen=GONE).verdict is DEAD


def test_no_combination_calls_a_lock_holder_elsewhere_dead_or_raises() -> None:
    choices = {
        "boot": ["boot-1", "boot-2", ""],
        "space": ["pid:[1]", "pid:[2]", ""],
        "ours": [True, False],
        "seen": [GONE, HIDDEN, Sighting("zombie", "1000"), Sighting("runs", "1000")],
        "held": [True, False, None],
        "kind": ["local", "shared", "network", "unknown"],
    }
    for values in itertools.product(*choices.values()):
        evidence = dict(zip(choices, values, strict=True))
        verdict = staged(**evidence).verdict
        first_row = (evidence["boot"], evidence["space"], evidence["ours"]) == (
            "boot-1",
            "pid:[1]",
            True,
        )
        if evidence["held"] and not first_row:
            assert verdict is ALIVE
        if verdict is DEAD and not first_row:
            assert evidence["held"] is not True


# -- with real processes --------------------------------------------------------------------


class Owner:
    """A real process that holds a real lock; `owner.py` in a namespace of its own if asked."""

    def __init__(self, folder: Path, *prefix: str) -> None:
        self.lock_path = str(folder / "owner.lock")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(HERE / "owner.py"), self.lock_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_env(),
            text=True,
        )
        assert self.process.stdout is not None
        self.who = Identity(*json.loads(self.process.stdout.readline()))
        self.evidence = Evidence(str(folder / "queue.db"))

    def verdict(self) -> Verdict:
        """The judgement on it, from here."""
        return judge(self.who, self.lock_path, evidence=self.evidence).verdict

    def kill(self) -> None:
        """SIGKILL it and everything that it started, and collect it."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()  # unshare waits for its child, and that for this
            self.process.wait(10)


@pytest.fixture
def owner(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Owner(tmp_path)
    yield made
    if made.process.returncode is None:
        made.process.send_signal(signal.SIGCONT)
    made.kill()


def test_a_live_owner_is_alive(owner: Owner) -> None:
    assert owner.verdict() is ALIVE


def test_a_stopped_owner_is_alive(owner: Owner) -> None:
    owner.process.send_signal(signal.SIGSTOP)
    eventually(lambda: _state(owner.process.pid) == "T")
    assert owner.verdict() is ALIVE


def test_a_zombie_is_dead(owner: Owner) -> None:
    os.kill(owner.process.pid, signal.SIGKILL)
    eventually(lambda: _state(owner.process.pid) == "Z")
    assert owner.verdict() is DEAD


def test_a_killed_owner_is_dead(owner: Owner) -> None:
    owner.process.kill()
    owner.process.wait()
    assert owner.verdict() is DEAD


def test_a_pid_that_another_process_has_now_is_dead(owner: Owner) -> None:
    other = owner.who._replace(start=str(int(owner.who.start) - 1))
    found = judge(other, owner.lock_path, evidence=owner.evidence)
    assert found == Judgement(DEAD, f"pid {owner.who.pid} now belongs to another process")


def test_another_boot_is_dead_on_a_local_file_system_alone(owner: Owner, tmp_path: Path) -> None:
    owner.kill()
    before = owner.who._replace(boot_id="0f5d5f9a-0000-4000-8000-000000000000")

    class OnNinePFS(Evidence):
        def file_system(self) -> str:
            return "shared"

    assert judge(before, owner.lock_path, evidence=owner.evidence).verdict is DEAD
    shared = OnNinePFS(str(tmp_path / "queue.db"))
    assert judge(before, owner.lock_path, evidence=shared).verdict is UNCLEAR


@needs_namespaces
def test_an_owner_in_another_namespace_is_judged_by_its_lock(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "unshare", "-p", "-f", "--mount-proc")
    assert owner.who.pid < 10  # its own count
    assert owner.who.pid_ns != boot.pid_namespace()
    assert owner.verdict() is ALIVE
    owner.kill()
    assert owner.verdict() is DEAD


@needs_namespaces
@pytest.mark.parametrize("fault", ["missing", "replaced"])
def test_a_lost_lock_file_of_another_namespace_proves_nothing(tmp_path: Path, fault: str) -> None:
    owner = Owner(tmp_path, "unshare", "-p", "-f", "--mount-proc")
    os.rename(owner.lock_path, owner.lock_path + ".kept")
    if fault == "replaced":
        fd = locks.take(owner.lock_path)
        assert fd is not None
        os.close(fd)
    assert owner.verdict() is UNCLEAR
    owner.kill()
    assert owner.verdict() is UNCLEAR


@needs_namespaces
def test_proc_of_another_namespace_is_not_believed(tmp_path: Path) -> None:
    # Inside a namespace whose /proc is still the outer one, its numbers name strangers.
    done = subprocess.run(
        ["unshare", "-p", "-f", sys.executable, str(HERE / "owner.py"), "--judge", str(tmp_path)],
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {
        "table_is_ours": False,
        "alive_with_lock": "alive",
        "dead_without_lock": "unclear",
        "blind": True,
    }


@needs_namespaces
def test_an_owner_in_a_time_namespace_is_judged_by_its_lock(tmp_path: Path) -> None:
    # There, all start times are shifted: the same process has another one than here.
    if subprocess.run(["unshare", "-T", "--boottime", "1000", "true"], check=False).returncode:
        pytest.skip("no time namespaces here")
    owner = Owner(tmp_path, "unshare", "-T", "--boottime", "1000", "-f")
    assert owner.who.pid_ns.startswith(boot.pid_namespace() + "+time:")
    assert owner.who.start != identity.start_of(owner.who.pid)
    assert owner.verdict() is ALIVE
    owner.kill()
    assert owner.verdict() is DEAD


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_start_of_is_constant_and_ends_with_the_process() -> None:
    child = subprocess.Popen(["sleep", "60"])
    start = identity.start_of(child.pid)
    assert start is not None
    assert start.isdecimal()
    assert identity.start_of(child.pid) == start
    child.kill()
    eventually(lambda: _state(child.pid) == "Z")
    assert identity.start_of(child.pid) == start  # a zombie still has it
    child.wait()
    assert identity.start_of(child.pid) is None


def test_self_identity_is_what_others_see(tmp_path: Path) -> None:
    fd = locks.take(str(tmp_path / "lock"))
    assert fd is not None
    found = os.fstat(fd)
    who = self_identity(found.st_dev, found.st_ino)
    assert who.pid == os.getpid()
    assert who.start == identity.start_of(os.getpid())
    assert who.boot_id == boot.boot_id() != ""
    evidence = Evidence(str(tmp_path))
    assert judge(who, str(tmp_path / "lock"), evidence=evidence).verdict is ALIVE
    os.close(fd)


# -- file systems ---------------------------------------------------------------------------


def test_this_machines_file_systems_are_known(tmp_path: Path) -> None:
    assert filesystem.file_system(str(tmp_path)) == "local"
    assert filesystem.file_system(str(tmp_path / "not" / "yet" / "there.db")) == "local"
    assert filesystem.file_system_type("/proc") == "proc"
    assert filesystem.file_system("/proc") == "unknown"
    assert filesystem.file_system_type("/dev/shm") == "tmpfs"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ext4", "local"),
        ("overlay", "local"),
        ("apfs", "local"),
        ("fuseblk", "local"),
        ("virtiofs", "shared"),
        ("9p", "shared"),
        ("fuse", "shared"),
        ("fuse.gvfsd-fuse", "shared"),
        ("fuse.sshfs", "network"),
        ("nfs4", "network"),
        ("cifs", "network"),
        ("proc", "unknown"),
        ("", "unknown"),
    ],
)
def test_kinds(monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    monkeypatch.setattr(filesystem, "file_system_type", lambda path: name)
    assert filesystem.file_system("/anywhere") == kind


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_the_mount_on_top_counts(tmp_path: Path) -> None:
    below = tmp_path / "a b\\c\nd" / "below"
    below.mkdir(parents=True)
    # The last one hides the ramfs under it, which stays in the list of mounts.
    script = """
        set -e
        mount -t ramfs none "$1"; "$3" -c "$4" "$1"
        mount -t tmpfs none "$2"; mkdir "$1"; "$3" -c "$4" "$1"
    """
    code = "import sys; from spoolctl.process import filesystem as f;"
    code += "print(f.file_system_type(sys.argv[1]), f.file_system_type(sys.argv[1] + '/no/file'))"
    words = [str(below), str(below.parent), sys.executable, code]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *words],
        env=clean_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["ramfs", "ramfs", "tmpfs", "tmpfs"], done.stderr


def test_a_relative_path_counts_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/dev/shm")
    assert filesystem.file_system_type("queue.db") == "tmpfs"
    assert filesystem.file_system_type("not/there/queue.db") == "tmpfs"
    assert filesystem.file_system_type("") == "tmpfs"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert filesystem.file_system_type("queue.db") in ("", filesystem.file_system_type("/tmp"))

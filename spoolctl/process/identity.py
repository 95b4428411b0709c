"""Who a process is, and whether the owner of an attempt still lives.

A pid alone means nothing: pids are reused, counted per PID namespace, and start again with
every boot. The verdict follows the table in docs/guarantees.md, row by row from the top, and
only DEAD lets a reaper act.
"""

from __future__ import annotations

import os
import sys

from spoolctl.core.records import LEFT, Identity
from spoolctl.core.tuples import NamedTuple
from spoolctl.core.words import Enum
from spoolctl.process import boot, filesystem, locks, table


class Verdict(Enum):
    """What is known about an owner. UNCLEAR means: leave its attempts alone."""

    ALIVE = "alive"
    DEAD = "dead"
    UNCLEAR = "unclear"


class Judgement(NamedTuple):
    """A verdict, and the reason in words for people."""

    verdict: Verdict
    reason: str


class Sighting(NamedTuple):
    """What a look at one pid of our own namespace showed.

    `state`: `gone`, `zombie`, `runs`, or `hidden` where this user may not look. `start` as
    in `core.records.Identity`, empty for `gone` and `hidden`.
    """

    state: str
    start: str


class Evidence:
    """The questions that a judgement asks of the operating system. Tests stage their own.

    `db_path` is the queue whose file system counts.
    """

    def __init__(self, db_path: str) -> None:
        self._db_path = db_path

    def boot_id(self) -> str:
        """Which boot this is; empty if unknown."""
        return boot.boot_id()

    def pid_namespace(self) -> str:
        """Our PID namespace; empty where there is none."""
        return boot.pid_namespace()

    def table_is_ours(self) -> bool:
        """Whether the process table that we see is that of our PID namespace."""
        return table.is_ours()

    def look(self, pid: int) -> Sighting:
        """What runs under this pid now."""
        try:
            proc = table.read_proc(pid)
        except table.Hidden:
            return Sighting("hidden", "")
        if proc is None:
            return Sighting("gone", "")
        return Sighting("runs" if proc.lives else "zombie", proc.start)

    def lock_is_held(self, path: str, dev: int, ino: int) -> bool | None:
        """Whether that very file is locked; None if it is missing, replaced or unreadable."""
        return locks.is_held(path, dev, ino)

    def file_system(self) -> str:
        """What holds the queue: `local`, `shared`, `network` or `unknown`."""
        return filesystem.file_system(self._db_path)

    def same_namespace(self, who: Identity) -> bool:
        """Whether that process's pid means here what it meant to itself."""
        return who.pid_ns == self.pid_namespace()


def judge(who: Identity, lock_path: str, *, evidence: Evidence) -> Judgement:
    """Whether the process `who`, which holds the lock at `lock_path` for its life, lives.

    The first row that fits decides: (1) our boot and namespace: pid and start time, (2) the
    lock is held: alive, (3) another boot: dead on a local file system, (4) our boot, another
    namespace, and its lock is free: dead, (5) anything else is unclear.
    """
    boot = evidence.boot_id()
    boot_known = bool(boot and who.boot_id)
    same_boot = boot_known and boot == who.boot_id
    same_space = evidence.same_namespace(who)
    why_unclear = ""
    if same_boot and same_space:
        if evidence.table_is_ours():
            by_pid = _by_pid(who, evidence.look(who.pid))
            if by_pid.verdict is not Verdict.UNCLEAR:
                return by_pid
            why_unclear = by_pid.reason
        else:
            why_unclear = "/proc does not show this process's own PID namespace"
    held = evidence.lock_is_held(lock_path, who.lock_dev, who.lock_ino)
    if held:
        return Judgement(Verdict.ALIVE, f"it holds its lock {lock_path}")
    if boot_known and not same_boot:
        return _by_boot(evidence)
    if same_boot and not same_space and held is False:
        return Judgement(
            Verdict.DEAD, "it ran in another PID namespace, and its lock has been released"
        )
    if not why_unclear:
        why_unclear = _why_unclear(boot_known, same_space)
    return Judgement(Verdict.UNCLEAR, why_unclear)


def _by_pid(who: Identity, seen: Sighting) -> Judgement:
    if who.start == LEFT:
        return Judgement(Verdict.DEAD, f"the worker in process {who.pid} has ended")
    if seen.state == "hidden":
        return Judgement(Verdict.UNCLEAR, f"process {who.pid} is hidden from this user")
    if seen.state == "gone":
        return Judgement(Verdict.DEAD, f"there is no process {who.pid} any more")
    if not who.start:
        return Judgement(Verdict.UNCLEAR, f"it is unknown when process {who.pid} had started")
    if seen.start != who.start:
        return Judgement(Verdict.DEAD, f"pid {who.pid} now belongs to another process")
    if seen.state == "zombie":
        return Judgement(Verdict.DEAD, f"process {who.pid} has ended (a zombie is left of it)")
    return Judgement(Verdict.ALIVE, f"process {who.pid} lives")


def _by_boot(evidence: Evidence) -> Judgement:
    kind = evidence.file_system()
    if kind == "local":
        return Judgement(Verdict.DEAD, "the machine was started anew since it ran")
    return Judgement(
        Verdict.UNCLEAR,
        f"it ran under another boot id, and on a file system of kind '{kind}' that may be"
        " another machine that lives",
    )


def _why_unclear(boot_known: bool, same_space: bool) -> str:
    if not boot_known:
        return "the id of this boot or of its own is unknown"
    if not same_space:
        return "it ran in another PID namespace, and its lock file is missing or was replaced"
    return "the evidence is contradictory"


def self_identity(lock_dev: int, lock_ino: int) -> Identity:
    """This process, holding the lock file with that device and inode.

    Raises:
        OSError: it cannot be found out for want of descriptors or memory. An identity with
            gaps would leave others in doubt about it for ever.
    """
    pid = os.getpid()
    start = start_of(pid) if sys.platform == "darwin" else _own_start()
    return Identity(boot.boot_id(), boot.pid_namespace(), pid, start or "", lock_dev, lock_ino)


def start_of(pid: int) -> str | None:
    """When the process started (see `core.records.Identity`); None if it cannot be seen.

    A zombie that was not collected yet still has its start time.
    """
    try:
        proc = table.read_proc(pid)
    except table.Hidden:
        return None
    return proc.start if proc is not None else None


def _own_start() -> str | None:
    # By this name, as /proc of an outer namespace knows us too, under another number.
    try:
        with open("/proc/self/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except IndexError:
        return None
    except OSError as error:
        if error.errno in boot.SCARCE:
            raise
        return None

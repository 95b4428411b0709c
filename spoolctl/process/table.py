"""The table of processes as the operating system shows it. Linux: `/proc` (proc(5)).

`darwin.py` answers the same questions on macOS. Nothing here decides anything.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from spoolctl.core.tuples import NamedTuple
from spoolctl.process.boot import SCARCE

MARK = "SPOOLCTL_ATTEMPT_PATH"
"""The environment variable that holds the random ids of an attempt and of those around it."""

_PF_KTHREAD = 0x00200000  # include/linux/sched.h; shown in field 9 of /proc/PID/stat
_MARK_BYTES = MARK.encode() + b"="
_buffer = bytearray(65536)


class Proc(NamedTuple):
    """One process. `pid` and `start` together name it; `start` as in `core.records.Identity`.

    `state` is the letter of proc(5). `kernel`: a thread of the kernel. `name`: for messages.
    `image`: changes with each execve(2), where that can be seen.
    """

    pid: int
    start: str
    ppid: int
    pgid: int
    sid: int
    state: str
    threads: int
    kernel: bool
    name: str
    image: str = ""

    @property
    def lives(self) -> bool:
        """Whether it can still run code.

        A process whose first thread has ended shows as a zombie while its other threads
        run on; a true zombie has one thread left to count.
        """
        return self.state not in "ZXx" or self.threads > 1


class Hidden(Exception):
    """The process exists, or may exist, but cannot be looked at."""


class Unsettled(Exception):
    """The process cannot be looked at just now."""


def is_ours() -> bool:
    """Whether the table shows our own PID namespace, so that its numbers mean our processes."""
    if sys.platform == "darwin":
        return True
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def read_proc(pid: int) -> Proc | None:
    """The process `pid`, a zombie too; None if there is none.

    Raises:
        Hidden: it may exist, but this user may not see it (a `/proc` with `hidepid`).
    """
    if sys.platform == "darwin":
        from spoolctl.process import darwin

        return darwin.read_proc(pid)
    try:
        return _read_stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        if _exists(pid):
            raise Hidden(f"process {pid} is hidden from this user") from None
        return None
    except OSError as error:
        raise Hidden(f"process {pid} cannot be read: {error.strerror}") from None


class Table(NamedTuple):
    """Processes by pid. `complete`: none was left out for want of descriptors or memory."""

    procs: dict[int, Proc]
    complete: bool


def read_all() -> Table:
    """Every process that this user may see, in one pass (zombies included).

    Lists the numbers again until none is new: a process that was forked during the pass,
    by a parent that had ended before it was read, is not missed.
    """
    if sys.platform == "darwin":
        from spoolctl.process import darwin

        return Table(darwin.read_all(), True)
    procs: dict[int, Proc] = {}
    tried: set[int] = set()
    complete = True
    for _ in range(8):  # a machine that forks without end must not keep us here
        try:
            fresh = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        except OSError:
            return Table(procs, False)
        fresh = [pid for pid in fresh if pid not in tried]
        if not fresh:
            break
        tried.update(fresh)
        for pid in fresh:
            try:
                procs[pid] = _read_stat(pid)
            except OSError as error:
                complete = complete and error.errno not in SCARCE
    return Table(procs, complete)


def read_marks(proc: Proc) -> tuple[str, ...] | None:
    """The random ids in the process's `SPOOLCTL_ATTEMPT_PATH`; None if this user may not look.

    What execve(2) left in memory, not what the program made of its environment later. A
    child between vfork(2) and execve(2) still shows its parent's.

    Raises:
        Unsettled: it is in the middle of execve(2), of its end or of a system call that
            cannot be interrupted: look again.
        OSError: no descriptor or no memory to look with.
    """
    if sys.platform == "darwin":
        from spoolctl.process import darwin

        return darwin.read_marks(proc)
    if proc.state == "D":
        # It may hold the lock of its memory, for ever on a dead network file system, and
        # whoever reads its environment would wait for that.
        raise Unsettled(f"process {proc.pid} is in uninterruptible sleep")
    try:
        if proc.state == "Z":
            return _marks_of_threads(proc.pid)
        marks = _marks_in(f"/proc/{proc.pid}/environ")
        if marks is None:
            if _has_no_program(proc.pid):
                raise Unsettled(f"process {proc.pid} is between two programs")
            # Empty, or only just put there.
            marks = _marks_in(f"/proc/{proc.pid}/environ")
    except OSError as error:
        if error.errno in SCARCE:
            raise
        return None
    return marks or ()


def holders(procs: Iterable[Proc], path: str) -> list[Proc]:
    """Those of `procs` that have the file at `path` open for reading and writing.

    Commands inherit an attempt's lock that way; who only probes it opens it read-only.

    Raises:
        OSError: the file is missing, or there is no descriptor or no memory to look with.
    """
    if sys.platform == "darwin":
        return []
    lock = os.stat(path, follow_symlinks=False)
    name = os.path.basename(path)
    return [proc for proc in procs if not proc.kernel and _holds(proc.pid, name, lock)]


def children_of(pid: int | str) -> set[int] | None:
    """The children of the process `pid` (`"self"`: of this one), uncollected ones included.

    None if unknown. Exact only while none of them ends or is collected (proc(5), `children`).
    """
    if sys.platform == "darwin":
        return None
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found.update(map(int, _content(f"/proc/{pid}/task/{thread}/children").split()))
    except (OSError, ValueError):
        return None
    return found


class OwnChildren:
    """The children of this process, for those who look often: two system calls a look.

    As exact as `children_of`. Descriptors are opened at the first look.
    """

    def __init__(self) -> None:
        self._fds: tuple[int, int] | None = None
        self._pid = 0

    def pids(self) -> set[int] | None:
        """Their pids, uncollected ones included; None if unknown. May be called after `close`."""
        try:
            if self._pid != os.getpid():
                self._open()
            if self._fds is not None:
                threads, children = self._fds
                # A folder has two links and one for each folder in it.
                if os.fstat(threads).st_nlink == 3:
                    found = os.pread(children, 4096, 0)
                    if len(found) < 2048:  # else there may be more than one page
                        return set(map(int, found.split()))
        except (OSError, ValueError):
            pass
        return children_of("self") if is_ours() else None

    def close(self) -> None:
        """Release the descriptors. May be called twice."""
        if self._fds is not None and self._pid == os.getpid():
            for fd in self._fds:
                os.close(fd)
        self._fds, self._pid = None, 0

    def _open(self) -> None:
        # What a fork has copied shows the parent's children, and is the parent's to close.
        self._fds, self._pid = None, 0
        if sys.platform == "darwin" or not is_ours():
            return
        pid, flags = os.getpid(), os.O_RDONLY | os.O_CLOEXEC
        threads = os.open("/proc/self/task", flags | os.O_DIRECTORY)
        try:
            self._fds = threads, os.open(f"/proc/self/task/{pid}/children", flags)
        except OSError:
            os.close(threads)
            raise
        self._pid = pid


def now_ticks() -> int | None:
    """This moment in the unit of `Proc.start`; None where that is not known."""
    if sys.platform == "darwin":
        return None
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:
        return False
    except OSError:
        return True
    return True


def _content(path: str) -> bytes:
    """What a file of /proc says (`open` would cost as much as the rest). Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(fd, 4096)]
        while parts[-1]:
            parts.append(os.read(fd, 65536))
    finally:
        os.close(fd)
    return b"".join(parts)


def _read_stat(pid: int) -> Proc:
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, 4096)
    finally:
        os.close(fd)
    # The name may hold anything, also ") R 1": the last parenthesis ends it.
    end = data.rindex(b")")
    part = data[end + 2 :].split(None, 26)
    return Proc(
        pid,
        part[19].decode(),
        int(part[1]),
        int(part[2]),
        int(part[3]),
        part[0].decode(),
        int(part[17]),
        int(part[6]) & _PF_KTHREAD != 0,
        data[data.index(b"(") + 1 : end].decode("utf-8", "replace"),
        # Where its stack begins: another place, by chance, for each program.
        part[25].decode(),
    )


def _marks_in(path: str) -> tuple[str, ...] | None:
    """The marks in an environment; None if it is empty."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.readv(fd, [_buffer])
        if size < len(_buffer):
            return parse_marks(_buffer, size) if size else None
        data = bytearray(_buffer)
        while more := os.read(fd, 1 << 20):
            data += more
    finally:
        os.close(fd)
    return parse_marks(data, len(data))


def _has_no_program(pid: int) -> bool:
    # execve fills the new memory in an order (binfmt_elf.c): first the environment is empty,
    # then it is there, and last comes where the program's code ends (field 27).
    with open(f"/proc/{pid}/stat", "rb") as file:
        part = file.read().rpartition(b")")[2].split()
    return part[24] == b"0"


def parse_marks(data: bytes | bytearray, size: int) -> tuple[str, ...]:
    """The ids in the first `size` bytes of an environment block (NUL-terminated strings)."""
    at = data.find(_MARK_BYTES, 0, size)
    while at > 0 and data[at - 1] != 0:
        at = data.find(_MARK_BYTES, at + 1, size)
    if at < 0:
        return ()
    end = data.find(b"\0", at, size)
    value = data[at + len(_MARK_BYTES) : end if end >= 0 else size]
    return tuple(value.decode("ascii", "replace").split(":"))


def _marks_of_threads(pid: int) -> tuple[str, ...]:
    # The first thread's memory is gone with it; another thread still shows it.
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            marks = _marks_in(f"/proc/{pid}/task/{thread}/environ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if marks:
            return marks
    return ()


def _holds(pid: int, name: str, lock: os.stat_result) -> bool:
    try:
        return any(_is_lock(pid, fd, name, lock) for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError as error:
        if error.errno in SCARCE:
            raise
        return False


def _is_lock(pid: int, fd: str, name: str, lock: os.stat_result) -> bool:
    link = f"/proc/{pid}/fd/{fd}"
    try:
        # By its name first: to look at a stranger's file on a dead network file system
        # would take for ever.
        if os.path.basename(os.readlink(link)) != name or not os.path.samestat(os.stat(link), lock):
            return False
        with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as file:
            flags = file.read().partition(b"flags:")[2].split(None, 1)[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False
    return int(flags, 8) & os.O_ACCMODE == os.O_RDWR

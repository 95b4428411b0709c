"""What macOS tells of processes, through its system library (libproc, sysctl(3)).

Imported on macOS alone. What it does not show: the environment of protected system binaries
(SIP) and of other users' processes, so the mark is not seen there; who holds a file open.
"""

from __future__ import annotations

import ctypes
import os
import struct

from spoolctl.process.table import Hidden, Proc, parse_marks

_CTL_KERN, _KERN_PROCARGS2 = 1, 49  # <sys/sysctl.h>
_PROC_PIDTBSDINFO = 3  # <sys/proc_info.h>
_WITH_ZOMBIES = 1
_STATES = {1: "I", 2: "R", 3: "S", 4: "T", 5: "Z"}  # pbi_status: SIDL, SRUN, SSLEEP, SSTOP, SZOMB
# struct proc_bsdinfo: 12 words, pbi_comm[16], pbi_name[32], 6 words, start seconds and
# microseconds.
_BSDINFO = struct.Struct("=12I16s32s5Ii2Q")
_MNT_NAME_AT, _MNT_NAME_BYTES = 72, 16  # f_fstypename in struct statfs with 64-bit inodes

_system = ctypes.CDLL(None, use_errno=True)
# On Intel the plain name is that of an older structure.
_statfs = getattr(_system, "statfs$INODE64", None) or _system.statfs


def read_proc(pid: int) -> Proc | None:
    """As `table.read_proc`."""
    proc = _bsdinfo(pid)
    if proc is not None:
        return proc
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:
        pass
    raise Hidden(f"process {pid} is hidden from this user")


def read_all() -> dict[int, Proc]:
    """As `table.read_all`. Zombies of other parents may be missing; they are gone anyway."""
    procs: dict[int, Proc] = {}
    tried: set[int] = set()
    for _ in range(8):
        fresh = [pid for pid in _list_pids() if pid not in tried]
        if not fresh:
            break
        tried.update(fresh)
        for pid in fresh:
            proc = _bsdinfo(pid)
            if proc is not None:
                procs[pid] = proc
    return procs


def read_marks(proc: Proc) -> tuple[str, ...] | None:
    """As `table.read_marks`; None too for binaries whose environment the system protects."""
    data = _sysctl((_CTL_KERN, _KERN_PROCARGS2, proc.pid))
    if data is None or len(data) < 4:
        return None
    # int argc, the executable's path, padding NULs, the arguments, the environment.
    (left,) = struct.unpack_from("=i", data)
    at = data.find(b"\0", 4)
    while 0 <= at < len(data) and data[at] == 0:
        at += 1
    for _ in range(left):
        end = data.find(b"\0", at)
        if at < 0 or end < 0:
            return None
        at = end + 1
    environment = data[at:]
    return parse_marks(environment, len(environment))


def boot_session() -> str:
    """The id that every boot draws anew; empty if the system has none."""
    data = _sysctl_by_name(b"kern.bootsessionuuid")
    return data.rstrip(b"\0").decode("ascii", "replace") if data else ""


def file_system_type(folder: str) -> str:
    """The name of the file system that holds `folder` (statfs(2)); empty if unknown."""
    buffer = ctypes.create_string_buffer(4096)
    if _statfs(os.fsencode(folder), buffer) != 0:
        return ""
    name = buffer.raw[_MNT_NAME_AT : _MNT_NAME_AT + _MNT_NAME_BYTES]
    return name.partition(b"\0")[0].decode("ascii", "replace")


def _list_pids() -> list[int]:
    count = _system.proc_listallpids(None, 0)
    if count <= 0:
        return []
    buffer = (ctypes.c_int * (count + 64))()
    count = _system.proc_listallpids(buffer, ctypes.sizeof(buffer))
    return [pid for pid in buffer[: max(count, 0)] if pid > 0]


def _bsdinfo(pid: int) -> Proc | None:
    buffer = ctypes.create_string_buffer(_BSDINFO.size)
    size = _system.proc_pidinfo(
        ctypes.c_int(pid),
        ctypes.c_int(_PROC_PIDTBSDINFO),
        ctypes.c_uint64(_WITH_ZOMBIES),
        buffer,
        ctypes.c_int(_BSDINFO.size),
    )
    if size != _BSDINFO.size:
        return None
    part = _BSDINFO.unpack(buffer.raw)
    try:
        sid = os.getsid(pid)
    except OSError:  # a zombie, or ended just now
        sid = 0
    return Proc(
        pid=part[3],
        # Wall-clock time, noted once at fork: later steps of the clock do not change it.
        start=str(part[20] * 1_000_000 + part[21]),
        ppid=part[4],
        pgid=part[15],
        sid=sid,
        state=_STATES.get(part[1], "?"),
        threads=1,
        kernel=False,
        name=part[12].partition(b"\0")[0].decode("utf-8", "replace"),
    )


def _sysctl(name: tuple[int, ...]) -> bytes | None:
    mib = (ctypes.c_int * len(name))(*name)
    size = ctypes.c_size_t(0)
    if _system.sysctl(mib, len(name), None, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    if _system.sysctl(mib, len(name), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return buffer.raw[: size.value]


def _sysctl_by_name(name: bytes) -> bytes | None:
    buffer = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(256)
    if _system.sysctlbyname(name, buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return buffer.raw[: size.value]

"""Facts about the machine that a figure was measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import time
from pathlib import Path


def facts(scratch: Path) -> dict[str, str]:
    """What somebody needs to know to compare figures; nothing that names the machine."""
    from spoolctl.process.filesystem import file_system
    from spoolctl.version import __version__

    return {
        "spoolctl": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": _memory(),
        "file system": f"{_file_system(scratch)} ({file_system(str(scratch))})",
        "one synced append of 8 KiB": f"{_sync_us(scratch):.0f} us",
        "load at start": f"{os.getloadavg()[0]:.2f}",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (ValueError, OSError):
        return "unknown"


def _file_system(path: Path) -> str:
    """The type of the file system, by the longest mount point above the path (Linux)."""
    best, kind = "", sys.platform
    try:
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, point, name, *_ = line.split()
            inside = point == "/" or str(path) == point or str(path).startswith(point + "/")
            if inside and len(point) >= len(best):
                best, kind = point, name
    except OSError:
        pass
    return kind


def _sync_us(scratch: Path) -> float:
    """The median time of a synced append, in microseconds."""
    times = []
    path = scratch / "sync"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(200):
            began = time.perf_counter()
            os.write(fd, b"x" * 8192)
            os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)
            times.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()
    return sorted(times)[100] * 1e6

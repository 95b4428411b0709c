"""Dropping the middle of a file that is still being written to (Linux: fallocate(2))."""

from __future__ import annotations

import os
import sys

# A hole frees whole file-system blocks only; 4 KiB is the block of the common ones, and a
# multiple of it serves the larger ones.
BLOCK_BYTES = 4096

_FALLOC_FL_KEEP_SIZE = 0x01  # linux/falloc.h
_FALLOC_FL_PUNCH_HOLE = 0x02


def punch_hole(fd: int, start: int, length: int) -> bool:
    """Free bytes [start, start + length) of the file; its size stays. False if it cannot be.

    The kernel or the file system may not support it (EOPNOTSUPP), and macOS has no such call
    on a file that another process has open for appending.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # only here: it costs a worker memory that nearly none needs

    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(libc, "fallocate64", None) or libc.fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    return bool(fallocate(fd, mode, start, length) == 0)


def hole_in(fd: int) -> tuple[int, int]:
    """Between which offsets the file's first hole is; two equal ones if it has none.

    Moves the descriptor's offset (lseek(2), SEEK_HOLE). Where there is no punching nothing is
    looked for: what a command leaves out itself is a part of its output.
    """
    if not sys.platform.startswith("linux"):
        return 0, 0
    try:
        start = os.lseek(fd, 0, os.SEEK_HOLE)
        return start, os.lseek(fd, start, os.SEEK_DATA)
    except OSError:  # ENXIO: it is empty, or the hole is its end
        return 0, 0

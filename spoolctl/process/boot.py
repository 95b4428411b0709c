"""Where a pid and a start time name one process: in one boot, in one PID namespace.

Apart from `identity`, since every `Queue` reads the boot for its clocks, and few need the rest.
"""

from __future__ import annotations

import errno
import os
import sys

SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of a look for which there was no descriptor or no memory."""

_boot_id: str | None = None


def boot_id() -> str:
    """An id that every boot of this kernel draws anew; empty if it cannot be read.

    Raises:
        OSError: not now, for want of descriptors or memory.
    """
    global _boot_id
    if _boot_id is None:
        _boot_id = _read_boot_id()
    return _boot_id


def _read_boot_id() -> str:
    if sys.platform == "darwin":
        from spoolctl.process import darwin

        return darwin.boot_session()
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode()
    except OSError as error:
        if error.errno in SCARCE:
            raise
        return ""


def pid_namespace() -> str:
    """The space in which a pid and a start time name one process; empty where there is none.

    The PID namespace's id. In a time namespace whose boot clock is shifted, start times are
    shifted too (time_namespaces(7)), so its id belongs to the name.

    Raises:
        OSError: not now, for want of descriptors or memory.
    """
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError as error:
        if error.errno in SCARCE:
            raise
        return ""
    try:
        with open("/proc/self/timens_offsets", "rb") as file:
            offsets = dict(line.split(None, 1) for line in file)
        if any(int(part) for part in offsets.get(b"boottime", b"").split()):
            space += "+" + os.readlink("/proc/self/ns/time")
    except ValueError:
        pass
    except OSError as error:
        if error.errno in SCARCE:
            raise
    return space

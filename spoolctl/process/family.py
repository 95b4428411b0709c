"""A process and its descendants, without a look at all processes of the machine.

Where thousands of processes and many that want a processor share a machine, a look at all of
them takes seconds; the way down from a process that is known takes a millisecond.
"""

from __future__ import annotations

import os

from spoolctl.process import table
from spoolctl.process.table import Proc


def family(pid: int, start: str) -> list[Proc] | None:
    """The process `pid` that started then, and its descendants, parents first.

    Empty if it has ended. None if that cannot be known, or if this process is one of them.
    """
    if not table.is_ours():
        return None
    try:
        head = table.read_proc(pid)
        if head is None or head.start != start:
            return []
        found = [head]
        for parent in found:  # grows meanwhile
            children = table.children_of(parent.pid)
            if children is None:
                # It has ended meanwhile, or the kernel does not tell.
                if table.read_proc(parent.pid) is None:
                    continue
                return None
            found += [
                child
                for child in map(table.read_proc, children)
                # Another parent, or an older child: the number changed hands.
                if child and child.ppid == parent.pid and int(child.start) >= int(parent.start)
            ]
    except table.Hidden:
        return None
    return None if any(proc.pid == os.getpid() for proc in found) else found

"""Dying by SIGKILL at every statement of an operation, one child after the other."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Check(Protocol):
    """Looks at the folder that a child has left."""

    def __call__(self, folder: Path, *, finished: bool) -> None: ...


def die_at_every_statement(
    tmp_path: Path, start: Path | None, operation: Callable[[Path], None], check: Check
) -> int:
    """Run the operation in a child that kills itself when it comes to its first statement,
    then one that gets to the second, and so on; check what each has left.

    Each begins with a fresh copy of the folder `start` (None: an empty one). Returns how
    many points there were. The operation must open the queue itself.
    """
    point = 0
    while True:
        folder = tmp_path / f"point-{point}"
        if start is None:
            folder.mkdir()
        else:
            shutil.copytree(start, folder)
        finished = _run(folder, operation, point)
        check(folder, finished=finished)
        shutil.rmtree(folder)
        if finished:
            return point
        point += 1


def _run(folder: Path, operation: Callable[[Path], None], point: int) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _arm(point)
            operation(folder)
            status = 0
        finally:
            os._exit(status)
    _pid, result = os.waitpid(pid, 0)
    if os.WIFSIGNALED(result):
        assert os.WTERMSIG(result) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(result) == 0, "the operation failed in the child"
    return True


def _arm(point: int) -> None:
    """From here on, every statement that this process executes counts down to its end."""
    left = [point]

    def tick(_statement: str) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    connect = sqlite3.connect

    def connect_counting(*args: Any, **rest: Any) -> sqlite3.Connection:
        connection = connect(*args, **rest)
        connection.set_trace_callback(tick)
        return connection

    sqlite3.connect = connect_counting  # type: ignore[assignment]

"""Start a process of this program's own beside a worker: its guardian, its clerk.

It runs in a session of its own with every signal blocked, so that what is meant for the worker
or its terminal does not reach it, and sees its worker's end at a pipe of which only the worker
holds the other side.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
from collections.abc import Sequence

from spoolctl.process import spawn

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
with contextlib.suppress(OSError):  # our folder may be gone, and with it relative paths
    _ROOT = os.path.abspath(_ROOT)

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); {}\nfrom {} import main; main()"


def start_companion(
    module: str, words: Sequence[str], fds: Sequence[int], *, title: str, code: str = ""
) -> int:
    """Run `main` of `module`, which finds `words` from `sys.argv[2]` on; returns the pid.

    `fds` become its descriptors 0, 1 and so on. It needs neither our folder nor PATH nor what
    the environment says to Python; `title` is what readers of ps(1) see. `code`, one line, runs
    before `module` is imported.

    Raises:
        OSError: it could not be started.
    """
    # Numbers above all targets first: a source must not be overwritten by another's copy.
    copies: list[int] = []
    line = ["-I", "-S", "-c", _CODE.format(code, module), _ROOT, *words]
    try:
        copies.extend(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in fds)
        return _start_python([*line, f"spoolctl {title} of {os.getpid()}"], copies)
    except ValueError as error:
        raise OSError(f"cannot start {sys.executable}: {error}") from None
    finally:
        for fd in copies:
            os.close(fd)


def _start_python(words: list[str], fds: list[int]) -> int:
    python = sys.executable or ""
    if not os.access(python, os.X_OK) and sys.platform.startswith("linux"):
        python = "/proc/self/exe"  # replaced by an upgrade while we run
    start = functools.partial(
        os.posix_spawn,
        python,
        [sys.executable or "python3", *words],
        # Whole, the mark of an attempt around the worker included: it ends the companion too.
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate(fds)],
        # Blocked from its first instruction on: there is no moment at which a signal for
        # the worker's group, or a careless `kill`, ends the companion.
        setsigmask=spawn.ALL_SIGNALS,
    )
    try:
        return start(setsid=True)
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID: see `settle`
        return start()


def settle(last_fd: int) -> None:
    """In the new process, first of all: nothing of the worker's that was not meant for it.

    Descriptors above `last_fd` are those that the worker itself had inherited without
    close-on-exec.
    """
    with contextlib.suppress(PermissionError):  # it leads one already
        os.setsid()
    os.chdir("/")
    for fd in spawn.open_descriptors():
        if fd > last_fd:
            with contextlib.suppress(OSError):
                os.close(fd)

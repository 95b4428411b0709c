"""Watches the system calls of a program (with strace) and looks for what must not happen.

POSIX locks of a file vanish when any descriptor of it is closed in the process (fcntl(2)), and
with them the protection of what SQLite does at that moment. So while a connection is open,
nobody else may open the database, its `-wal` or its `-shm` in that process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CALLS = "open,openat,openat2,creat,close,close_range,dup,dup2,dup3,fcntl"
WRITES = "write,writev,pwrite64,pwritev,fsync,fdatasync,sync_file_range,ftruncate"
_CALL = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+)(?:<(.*?)>)?")
_FIRST_FD = re.compile(r"^(\d+)<(.*?)>(?:, |$)")


class Call(NamedTuple):
    """One finished system call. `path` belongs to the descriptor in the first place, if any."""

    name: str
    words: str
    result: int
    fd: int | None
    path: str
    result_path: str


def can_strace() -> bool:
    """Whether strace is here and allowed to watch a process."""
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(["strace", "-qq", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def watch(
    words: Sequence[str], folder: Path, *, env: Mapping[str, str], cwd: Path | None = None
) -> tuple[subprocess.CompletedProcess[str], dict[int, list[Call]]]:
    """Run the program under strace; its result, and the calls of each process, in order."""
    folder.mkdir(parents=True)
    strace = ["strace", "-ff", "-qq", "-y", "-s", "200", "-e", f"trace={CALLS},{WRITES}"]
    done = subprocess.run(
        [*strace, "-o", str(folder / "calls"), *words],
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    logs = {int(path.suffix[1:]): path.read_text("utf-8", "replace") for path in folder.iterdir()}
    return done, {pid: read_calls(log) for pid, log in sorted(logs.items())}


def read_calls(log: str) -> list[Call]:
    """The calls in the log of one process; those that never returned are left out."""
    calls = []
    for line in log.split("\n"):
        match = _CALL.match(line)
        if match is None:
            continue
        name, words, result, result_path = match.groups()
        first = _FIRST_FD.match(words)
        fd, path = (int(first[1]), first[2]) if first else (None, "")
        calls.append(Call(name, words, int(result), fd, path, result_path or ""))
    return calls


def files_of(db: Path) -> set[str]:
    """The files that only SQLite may open."""
    return {f"{db}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")}


def opens_of(calls: Sequence[Call], db: Path) -> list[Call]:
    """The calls that opened one of SQLite's files."""
    names = files_of(db)
    return [
        call
        for call in calls
        if call.name.startswith(("open", "creat"))
        and call.result >= 0
        and call.result_path in names
    ]


def intrusions(calls: Sequence[Call], db: Path) -> list[str]:
    """What one process did to SQLite's files beside SQLite, in words.

    SQLite's own opens are known by O_NOFOLLOW, which Python's never have. A descriptor of
    somebody else is only wrong while one of SQLite's is open (a file may well be made before
    the first connection), and closing one while another is open is wrong whoever does it.
    """
    names = files_of(db)
    held: dict[int, tuple[str, bool]] = {}
    found = []
    for call in calls:
        if call in opens_of([call], db):
            ours = "O_NOFOLLOW" in call.words
            held[call.result] = (call.result_path, ours)
            if not ours and any(is_sqlite for _, is_sqlite in held.values()):
                found.append(f"opened {call.result_path} beside SQLite: {call.words}")
        elif call.name in ("dup", "dup2", "dup3", "fcntl") and call.path in names:
            if call.name != "fcntl" or "F_DUPFD" in call.words:
                found.append(f"duplicated a descriptor of {call.path}: {call.words}")
        elif call.name == "close" and call.fd in held:
            path, ours = held.pop(call.fd)
            others = [other for other, _ in held.values() if other == path]
            if others:
                found.append(f"closed one descriptor of {path} while another was open")
            elif not ours and any(is_sqlite for _, is_sqlite in held.values()):
                found.append(f"closed a foreign descriptor of {path} beside SQLite")
    return found


def unsynced_before(calls: Sequence[Call], db: Path, saying: str) -> list[str]:
    """Lines containing `saying` that were written while the log had unsynced bytes, in words.

    Every commit goes to the `-wal` file; it is safe when that was synced after its last write.
    """
    wal = f"{db}-wal"
    written = synced = False
    found = []
    for call in calls:
        if call.path == wal and call.name in ("pwrite64", "write", "pwritev", "writev"):
            written, synced = True, False
        elif call.path == wal and call.name in ("fsync", "fdatasync") and call.result == 0:
            synced = True
        elif call.fd in (1, 2) and call.name.startswith("write") and saying in call.words:
            if not written:
                found.append(f"said before anything was written: {call.words}")
            elif not synced:
                found.append(f"said before the log was synced: {call.words}")
    return found

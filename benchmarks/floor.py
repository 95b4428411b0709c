"""The limits of the machine: a plain loop of posix_spawn and wait, nothing recorded.

    python3 -m benchmarks.floor COMMANDS WIDTH FOLDER [--sync [DELAY]]

Runs COMMANDS times `true`, WIDTH side by side, both streams of each to fresh files in
FOLDER. With `--sync` (Floor+) one 8 KiB append is synced for each group of ends that the
loop collects: the least that a program must do that keeps results. DELAY: seconds that each
sync takes longer, as on a slow disk.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

RECORD = b"x" * 8192


def loop(commands: int, width: int, folder: str, *, sync: bool, delay_s: float = 0.0) -> None:
    """Run the commands; returns when all have ended."""
    true = shutil.which("true") or "/bin/true"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    record = os.open(os.path.join(folder, "results"), flags | os.O_APPEND, 0o600)
    started = running = 0
    while started < commands or running:
        while running < width and started < commands:
            out = os.open(f"{folder}/{started}.stdout", flags, 0o600)
            err = os.open(f"{folder}/{started}.stderr", flags, 0o600)
            actions = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
            os.posix_spawn(true, ["true"], os.environ, file_actions=actions)
            os.close(out)
            os.close(err)
            started += 1
            running += 1
        os.waitpid(-1, 0)
        running -= 1
        while running and os.waitpid(-1, os.WNOHANG)[0]:
            running -= 1
        if sync:
            os.write(record, RECORD)
            os.fdatasync(record)
            if delay_s:
                time.sleep(delay_s)
    os.close(record)


if __name__ == "__main__":
    _, number, wide, where, *how = sys.argv
    delay_s = float(how[1]) if len(how) > 1 else 0.0
    loop(int(number), int(wide), where, sync="--sync" in how, delay_s=delay_s)

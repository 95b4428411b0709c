"""`python3 -m tests.chaos.latency`: how long a tree lives after the death of its worker, or
after a cancel. Prints a table for docs/benchmarks.md.

A tree is a shell, a child in its group and one in a session of its own; none of them ignores
SIGTERM, all settings are the defaults. The end of each process is seen by a pidfd, so the
times are exact to well under a millisecond.
"""

from __future__ import annotations

import argparse
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spoolctl import Queue
from tests.helpers import ROOT, clean_env, eventually

TREE = ["sh", "-c", "sleep 300 & setsid sleep 300 & wait"]
SIZE = 3
Act = Callable[[Queue, "subprocess.Popen[bytes]"], float]


def members(db: Path) -> list[int]:
    """The processes of all attempts on the queue."""
    found = []
    for name in os.listdir("/proc"):
        try:
            environment = Path("/proc", name, "environ").read_bytes()
        except OSError:
            continue
        # The shell between its fork and execve(2) still shows as a shell.
        if os.fsencode(f"SPOOLCTL_DB={db}") in environment and b"ATTEMPT_ID=" in environment:
            found.append(int(name))
    return found


def measure(act: Act, attempts: int) -> float:
    """Seconds from the act to the end of the last process of all attempts' trees."""
    with tempfile.TemporaryDirectory(prefix="latency.") as folder:
        db = Path(os.path.realpath(folder), "queue.db")
        with Queue(db) as queue:
            queue.add_many([TREE] * attempts, timeout_s=None)
            words = ["work", "--db", str(db), "--jobs", str(attempts)]
            worker = spoolctl(*words)
            try:
                up = attempts * SIZE
                eventually(lambda: len(members(db)) == up, timeout_s=60, what="trees up")
                time.sleep(0.2)  # all of them in their sleep
                watches = [os.pidfd_open(pid) for pid in members(db)]
                began = act(queue, worker)
                return _wait(watches) - began
            finally:
                worker.kill()
                worker.wait()
                eventually(lambda: not members(db), timeout_s=60, what="trees gone")


def _wait(watches: list[int]) -> float:
    """When the last of the watched processes had ended."""
    poll = select.poll()
    for watch in watches:
        poll.register(watch, select.POLLIN)
    left = set(watches)
    while left:
        ended = {fd for fd, _ in poll.poll(60_000)}
        assert ended, "a tree lives on"
        for watch in ended:
            poll.unregister(watch)
            os.close(watch)
        left -= ended
    return time.monotonic()


def spoolctl(*words: str) -> subprocess.Popen[bytes]:
    """Start a verb."""
    return subprocess.Popen(
        [sys.executable, "-m", "spoolctl", *words],
        cwd=ROOT,
        env=clean_env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill(_queue: Queue, worker: subprocess.Popen[bytes]) -> float:
    """SIGKILL of the worker."""
    began = time.monotonic()
    worker.kill()
    return began


def cancel(queue: Queue, _worker: subprocess.Popen[bytes]) -> float:
    """`Queue.cancel` of the only job."""
    began = time.monotonic()
    queue.cancel(1, running=True)
    return began


def cancel_verb(queue: Queue, _worker: subprocess.Popen[bytes]) -> float:
    """`spoolctl cancel`, the start of its interpreter included."""
    began = time.monotonic()
    spoolctl("cancel", "--db", queue.path, "--running", "--yes", "1").wait()
    return began


CASES: dict[str, tuple[Act, int]] = {
    "SIGKILL of the worker, 1 attempt": (kill, 1),
    "SIGKILL of the worker, 50 attempts": (kill, 50),
    "`Queue.cancel`": (cancel, 1),
    "`spoolctl cancel` from its start": (cancel_verb, 1),
}


LOOP = "while 1: pass"
SLEEPERS = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
os.setpgid(0, 0)
for _ in range({}):
    if not os.fork():
        time.sleep(10**6)
print(flush=True)
time.sleep(10**6)
"""


@contextmanager
def burning(loops: int, asleep: int) -> Iterator[None]:
    """Keep the processors busy with endless loops, and the table of processes full."""
    others = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(loops)]
    full = subprocess.Popen([sys.executable, "-c", SLEEPERS.format(asleep)], stdout=subprocess.PIPE)
    assert full.stdout is not None
    try:
        full.stdout.readline()
        yield
    finally:
        full.stdout.close()
        full.terminate()
        full.wait()
        for loop in others:
            loop.kill()
            loop.wait()


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.chaos.latency", description=__doc__)
    parser.add_argument("--repeat", type=int, default=50, help="measurements of each kind (50)")
    parser.add_argument("--busy", type=int, action="append", help="endless loops beside it")
    parser.add_argument("--asleep", type=int, default=0, help="sleeping processes beside it (0)")
    parser.add_argument("--kills", action="store_true", help="deaths of workers only")
    asked = parser.parse_args()
    cores = os.cpu_count() or 1
    print("| from ... to the end of the tree | machine | median | worst |")
    print("|---|---|---|---|")
    for busy in asked.busy or (0, 2 * cores):
        machine = f"{busy} busy loops on {cores} cores" if busy else "idle"
        if asked.asleep:
            machine += f", {asked.asleep:,} asleep"
        for name, (act, attempts) in CASES.items():
            if asked.kills and act is not kill:
                continue
            with burning(busy, asked.asleep):
                times = [1000 * measure(act, attempts) for _ in range(asked.repeat)]
            median = statistics.median(times)
            print(f"| {name} | {machine} | {median:.0f} ms | {max(times):.0f} ms |", flush=True)


if __name__ == "__main__":
    main()

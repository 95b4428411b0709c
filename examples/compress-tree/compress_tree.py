#!/usr/bin/env python3
"""Compress a tree of real files with a queue, and kill one of the workers in the middle.

    python3 examples/compress-tree/compress_tree.py                   300 files
    python3 examples/compress-tree/compress_tree.py --files 1000 -j 8

The files are the sources of Python's own standard library. Each one is a job: compress it,
unpack the result and compare, then give it its final name. While the workers are at it, one
of them gets SIGKILL; another one takes its jobs back. In the end this script compares every
file itself and prints a summary; exit status 0 means that everything is exactly right.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from spoolctl import Queue  # noqa: E402

# $1 is the file, $2 its compressed form. The final name appears only when all is well, so an
# attempt that is killed half-way leaves nothing that could be taken for a result.
SCRIPT = """
set -e
{pack} < "$1" > "$2.part"
{unpack} < "$2.part" | cmp - "$1"
mv "$2.part" "$2"
"""


class Pair(NamedTuple):
    """A file and where its compressed form belongs."""

    source: Path
    target: Path


def choose(count: int, target: Path) -> list[Pair]:
    """Up to `count` source files of the standard library, spread over the whole of it."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(library.rglob("*.py"))
        if not {"site-packages", "dist-packages", "__pycache__"} & set(path.parts)
    ]
    chosen = files[:: max(1, len(files) // count)][:count]
    return [Pair(path, target / f"{path.relative_to(library)}.gz") for path in chosen]


def command() -> str:
    """The shell script of a job, with the gzip program or with Python's module."""
    if shutil.which("gzip"):
        return SCRIPT.format(pack="gzip -c", unpack="gzip -dc")
    python = f"'{sys.executable}' -m gzip"
    return SCRIPT.format(pack=f"{python} -", unpack=f"{python} -d -")


def submit(queue: Queue, pairs: Sequence[Pair]) -> list[int]:
    """One job per file; with keys, so that doing it again adds nothing."""
    script = command()
    jobs = []
    for pair in pairs:
        pair.target.parent.mkdir(parents=True, exist_ok=True)
        words = ["sh", "-c", script, "compress", str(pair.source), str(pair.target)]
        jobs.append({"argv": words, "key": f"compress {pair.target}"})
    return [job.id for job in queue.add_many(jobs)]


def start_worker(db: Path, jobs: int) -> subprocess.Popen[bytes]:
    """A worker that ends when nothing is left. The short times are for this show only."""
    words = ["work", "--db", str(db), "--drain", "-j", str(jobs)]
    words += ["--heartbeat-interval", "0.5", "--reap-after", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", "spoolctl", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def done_count(queue: Queue) -> int:
    """How many jobs are done."""
    return sum(number for state, number in queue.counts().states.items() if state.value == "done")


def kill_one(
    queue: Queue, worker: subprocess.Popen[bytes], *, after: int, timeout_s: float = 120.0
) -> int:
    """SIGKILL the worker when `after` files are done; returns how many are by then."""
    deadline = time.monotonic() + timeout_s
    while done_count(queue) < after and time.monotonic() < deadline and worker.poll() is None:
        time.sleep(0.005)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    return done_count(queue)


def wrong_files(pairs: Sequence[Pair]) -> list[Path]:
    """Results that are missing or are not exactly the compressed file; and leftovers."""
    wrong = [
        pair.target
        for pair in pairs
        if not pair.target.is_file()
        or gzip.decompress(pair.target.read_bytes()) != pair.source.read_bytes()
    ]
    folders = {pair.target.parent for pair in pairs}
    return wrong + [part for folder in folders for part in folder.glob("*.part")]


def report(queue: Queue, pairs: Sequence[Pair], ids: Sequence[int], took_s: float) -> bool:
    """Print the summary; whether everything is right."""
    states = [queue.get(job_id).state.value for job_id in ids]
    events = queue.events(limit=None).events
    reaped = [event for event in events if event.event.value == "reaped"]
    before = sum(pair.source.stat().st_size for pair in pairs)
    after = sum(pair.target.stat().st_size for pair in pairs if pair.target.is_file())
    wrong = wrong_files(pairs)
    print(f"jobs: {len(ids)}, done: {states.count('done')}, in {took_s:.1f} s")
    print(f"taken back from the killed worker: {len(reaped)}")
    print(f"bytes: {before} -> {after}")
    for path in wrong:
        print(f"wrong: {path}")
    right = not wrong and states.count("done") == len(ids)
    print("every file compressed exactly right" if right else "NOT every file is right")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--files", type=int, default=300, help="how many files (300)")
    parser.add_argument("--workers", type=int, default=2, help="how many workers (2)")
    parser.add_argument("-j", "--jobs", type=int, default=4, help="commands per worker (4)")
    parser.add_argument("--into", type=Path, help="keep the results here (else: removed)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compress-tree.") as scratch:
        target = (args.into or Path(scratch) / "packed").resolve()
        db = Path(scratch) / "queue.db"
        pairs = choose(args.files, target)
        with Queue(str(db)) as queue:
            return run(queue, db, pairs, workers=args.workers, jobs=args.jobs)


def run(queue: Queue, db: Path, pairs: Sequence[Pair], *, workers: int, jobs: int) -> int:
    """Submit, work, kill, wait, compare."""
    started_mono = time.monotonic()
    ids = submit(queue, pairs)
    print(f"queued {len(ids)} jobs")
    running = [start_worker(db, jobs) for _ in range(max(2, workers))]
    victim = running.pop(0)
    done = kill_one(queue, victim, after=len(ids) // 3)
    print(f"killed worker {victim.pid} with SIGKILL when {done} jobs were done")
    failed = [worker for worker in running if worker.wait() != 0]
    right = report(queue, pairs, ids, time.monotonic() - started_mono)
    return 0 if right and not failed else 1


if __name__ == "__main__":
    sys.exit(main())

"""How long it takes until somebody hears: a worker of a new job, a waiter of an ended one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.base import Bench, Result, figure, fill, stop, until

# Prints the time at which it runs; the loading of the program is part of every figure.
CLOCK = ["date", "+%s.%N"]


@contextmanager
def _worker(bench: Bench, folder: Path) -> Iterator[Path]:
    """An idle worker on a fresh queue that has run a job already."""
    from spoolctl import Queue

    path = folder / "queue.db"
    first = fill(path, [["true"]])
    worker = bench.start(bench.spool("work", "--db", path), folder)
    try:
        with Queue(path, create=False) as queue:
            queue.wait(first, timeout_s=30)
        time.sleep(0.2)
        yield path
    finally:
        stop(worker)


def dispatch(bench: Bench) -> list[Result]:
    """From the commit of an add to the first instruction of the job, by an idle worker."""
    from spoolctl import Queue

    count = bench.size(200, least=10)
    taken, told = [], []
    with bench.folder() as folder, _worker(bench, folder) as path, Queue(path) as queue:
        store = queue._store
        committed = [0.0]
        add = store.add

        def noted(jobs, *, now):  # type: ignore[no-untyped-def]
            added = add(jobs, now=now)
            committed[0] = time.time()
            return added

        store.add = noted  # type: ignore[method-assign]
        for _ in range(count):
            job = queue.add(CLOCK, cwd="/")
            told.append(1000 * (time.time() - committed[0]))
            queue.wait([job.id], timeout_s=30)
            ran = float(queue.output(job.id))
            taken.append(1000 * (ran - committed[0]))
            time.sleep(0.005)
    return [
        figure("commit of add to the job's own clock", "ms", taken, at_most=5, worst_at_most=50),
        figure("commit of add to the return of Queue.add", "ms", told),
        figure("start of `date` alone", "ms", _start_of_date(bench, count)),
    ]


def _start_of_date(bench: Bench, count: int) -> list[float]:
    """What the measuring program itself costs, from before its spawn to its own clock."""
    import subprocess

    taken = []
    for _ in range(count):
        began = time.time()
        done = subprocess.run(CLOCK, env=bench.env, capture_output=True, check=True)
        taken.append(1000 * (float(done.stdout) - began))
    return taken


def settled(bench: Bench) -> list[Result]:
    """From the end of the command to the return of `Queue.wait`, and to the exit of `wait`."""
    from spoolctl import Queue

    count = bench.size(50, least=5)
    command = ["sh", "-c", "sleep 0.1; exec date +%s.%N"]
    slow = ["sh", "-c", "sleep 0.7; exec date +%s.%N"]
    by_queue, by_process = [], []
    with bench.folder() as folder, _worker(bench, folder) as path, Queue(path) as queue:
        for _ in range(count):
            job = queue.add(command, cwd="/")
            queue.wait([job.id], timeout_s=30)
            by_queue.append(1000 * (time.time() - float(queue.output(job.id))))
        for _ in range(count):
            # Long enough for the process to have started, and to wait.
            job = queue.add(slow, cwd="/")
            waiter = bench.start(bench.spool("wait", "--db", path, str(job.id)), folder)
            if waiter.wait() != 0:
                raise RuntimeError("wait failed")
            by_process.append(1000 * (time.time() - float(queue.output(job.id))))
        until(lambda: not queue.jobs(states=["running"]))
    return [
        figure("end of the command to the return of Queue.wait", "ms", by_queue, at_most=5),
        figure("end of the command to the exit of `wait`", "ms", by_process, at_most=10),
    ]

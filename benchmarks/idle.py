"""What a worker costs while it waits: for work, or for commands that take long."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import watch
from benchmarks.base import Bench, Result, figure, fill, stop, until


def doing_nothing(bench: Bench) -> list[Result]:
    """An idle worker with its guardian, on an empty queue and with many jobs for later."""
    seconds = bench.seconds(120, least=12)
    results = []
    for later in (0, bench.size(100_000, least=1000)):
        title = f"idle, {later:,} scheduled" if later else "idle"
        with bench.folder() as folder:
            path = folder / "queue.db"
            fill(path, [["true"]])
            if later:
                fill(path, [["true"]] * later, delay_s=86400.0)
            worker = bench.start(bench.spool("work", "--db", path), folder)
            try:
                _wait_for_done(path, 1)
                time.sleep(2)
                guardians = watch.children(worker.pid)
                spent = watch.during([worker.pid, *guardians], seconds)
                rss = watch.resident_mb(worker.pid)
                pss = sum(watch.proportional_mb(pid) for pid in guardians)
            finally:
                stop(worker)
        note = f"{len(guardians)} guardian, {seconds:.0f} s"
        results += [
            figure(f"{title}: wake-ups", "/s", [spent.wakeups / seconds], at_most=1, note=note),
            figure(f"{title}: core", "%", [100 * spent.core_s / seconds], at_most=0.05),
            figure(f"{title}: worker, resident", "MB", [rss], at_most=25),
            figure(f"{title}: guardian, PSS", "MB", [pss], at_most=12),
        ]
    return results


def sleepers(bench: Bench) -> list[Result]:
    """`-j 50` with 50 commands that sleep."""
    seconds = bench.seconds(30, least=5)
    with bench.folder() as folder:
        path = folder / "queue.db"
        fill(path, [["true"]])
        worker = bench.start(bench.spool("work", "--db", path, "-j", "50"), folder)
        try:
            _wait_for_done(path, 1)
            time.sleep(2)
            idle = watch.resident_mb(worker.pid)
            fill(path, [["sleep", "600"]] * 50, timeout_s=None)
            until(lambda: len(watch.children(worker.pid)) == 51)
            time.sleep(2)
            spent = watch.during([worker.pid], seconds)
            busy = watch.resident_mb(worker.pid)
        finally:
            stop_at_once(worker)
    note = f"{seconds:.0f} s"
    return [
        figure("50 sleeping: core", "%", [100 * spent.core_s / seconds], at_most=0.5, note=note),
        figure("50 sleeping: wake-ups", "/s", [spent.wakeups / seconds]),
        figure("50 sleeping: memory / idle", "x", [busy / idle], at_most=1.1),
        figure("50 sleeping: worker, resident", "MB", [busy]),
    ]


def stop_at_once(worker: object) -> None:
    """End a worker and what it runs: a second request does not wait for the commands."""
    import subprocess

    assert isinstance(worker, subprocess.Popen)
    worker.terminate()
    time.sleep(0.3)
    stop(worker)


def _wait_for_done(path: Path, count: int) -> None:
    from spoolctl import Queue

    with Queue(path, create=False) as queue:
        until(lambda: len(queue.jobs(states=["done"], limit=count)) == count)

"""Draining a queue of `true` jobs, next to the floors and to other queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import peers
from benchmarks.base import TRUE, Bench, Result, figure, fill, ratios
from spoolctl.core.states import State

FULL = 2000
GOALS = {1: 0.70, 4: 0.75, 8: 0.75}
SLOW_FULL = 500
SYNC_DELAYS_S = (0.002, 0.012)  # a network disk in a data center; a disk that turns
_DELAY = """
import contextlib, time
from spoolctl.store.sqlite.connection import Connection
write = Connection.write
@contextlib.contextmanager
def delayed(self, *, full=True, eager=False):
    with write(self, full=full, eager=eager):
        yield
        if full:
            time.sleep(delay_s)
Connection.write = delayed
"""
_DELAYED = f"""
import sys
delay_s, code = float(sys.argv.pop(1)), {_DELAY!r}
exec(code)
from spoolctl.engine import clerk
clerk.CODE = f"delay_s = {{delay_s}}; exec({{code!r}})"
from spoolctl.__main__ import main
main()
"""


def floor(
    bench: Bench, jobs: int, width: int, *, sync: bool, delay_s: float = 0.0
) -> Callable[[], float]:
    """Seconds that the floor takes for so many commands, if each sync takes so much longer."""
    words = [bench.python, "-m", "benchmarks.floor", str(jobs), str(width), "streams"]

    def measure() -> float:
        with bench.folder() as folder:
            (folder / "streams").mkdir()
            return bench.seconds_of([*words, *(["--sync", str(delay_s)] if sync else [])], folder)

    return measure


def ours(bench: Bench, jobs: int, width: int, *, delay_s: float = 0.0) -> Callable[[], float]:
    """Seconds that one worker takes, from its start to its end, for jobs already queued; if each
    of its commits takes so much longer."""
    program = bench.spool() if not delay_s else [bench.python, "-c", _DELAYED, str(delay_s)]

    def measure() -> float:
        with bench.folder() as folder:
            fill(folder / "queue.db", [[TRUE]] * jobs)
            words = [*program, "work", "--db", "queue.db", "--drain", "-j", str(width)]
            took = bench.seconds_of(words, folder)
            _check(folder / "queue.db", jobs)
            return took

    return measure


def _check(path: Path, jobs: int) -> None:
    from spoolctl import Queue

    with Queue(path, create=False) as queue:
        states = queue.counts().states
    if sum(states.values()) != jobs or states[State.DONE] != jobs:
        raise RuntimeError(f"not all jobs are done: {states}")


def against_floors(bench: Bench) -> list[Result]:
    """One worker, 1, 4 and 8 wide, against Floor and Floor+."""
    jobs = bench.size(FULL, least=50)
    results = []
    for width, goal in GOALS.items():
        found = bench.rounds(
            {
                "floor": floor(bench, jobs, width, sync=False),
                "floor+": floor(bench, jobs, width, sync=True),
                "spoolctl": ours(bench, jobs, width),
            }
        )
        results += _beside_floor_plus(f"drain -j {width}", found, jobs, goal)
        share = ratios(found["floor"], found["spoolctl"])
        results.append(figure(f"drain -j {width} / Floor", "x", share))
    return results


def _beside_floor_plus(
    title: str, found: dict[str, list[float]], jobs: int, goal: float
) -> list[Result]:
    results = []
    for name, times in found.items():
        rates = [jobs / each for each in times]
        results.append(figure(f"{title}: {name}", "jobs/s", rates))
    share = ratios(found["floor+"], found["spoolctl"])
    return [*results, figure(f"{title} / Floor+", "x", share, at_least=goal)]


def on_a_slow_disk(bench: Bench) -> list[Result]:
    """One worker, 1 and 4 wide, against Floor+, where each sync takes some milliseconds more."""
    jobs = bench.size(SLOW_FULL, least=50)
    results = []
    for delay_s in SYNC_DELAYS_S:
        for width in (1, 4):
            found = bench.rounds(
                {
                    "floor+": floor(bench, jobs, width, sync=True, delay_s=delay_s),
                    "spoolctl": ours(bench, jobs, width, delay_s=delay_s),
                }
            )
            title = f"syncs of {delay_s * 1000:g} ms more, -j {width}"
            results += _beside_floor_plus(title, found, jobs, GOALS[width])
    return results


def against_peers(bench: Bench) -> list[Result]:
    """One worker, 1 and 4 wide, against every other queue that could be installed."""
    results = []
    there, missing = peers.available(bench)
    for width in (1, 4):
        jobs = bench.size(FULL, least=50)
        contenders = {"spoolctl": ours(bench, jobs, width)}
        counts = {"spoolctl": jobs}
        for peer in there:
            counts[peer.name] = min(jobs, peer.most)
            contenders[peer.name] = peer.measure(bench, counts[peer.name], width)
        found = bench.rounds(contenders)
        rates = {name: [counts[name] / each for each in times] for name, times in found.items()}
        for name, values in rates.items():
            synced = name == "spoolctl" or next(p.syncs for p in there if p.name == name)
            note = "synced" if synced else "not synced"
            results.append(figure(f"{width} wide: {name}", "jobs/s", values, note=note))
        for peer in there:
            goal = 1.0 if peer.syncs or width > 1 else 0.9
            share = ratios(rates["spoolctl"], rates[peer.name])
            results.append(figure(f"{width} wide / {peer.name}", "x", share, at_least=goal))
    if missing:
        results.append(
            Result("peers that could not be had", "", [len(missing)], note="; ".join(missing))
        )
    return results


def several_workers(bench: Bench) -> list[Result]:
    """Four workers of width one against one worker of width four."""
    jobs = bench.size(FULL, least=50)

    def four() -> float:
        import time

        with bench.folder() as folder:
            fill(folder / "queue.db", [[TRUE]] * jobs)
            words = bench.spool("work", "--db", "queue.db", "--drain")
            logs = [(folder / f"log{number}").open("w+b") for number in range(4)]
            began = time.perf_counter()
            workers = [bench.start(words, folder, stderr=log) for log in logs]
            codes = [worker.wait() for worker in workers]
            took = time.perf_counter() - began
            for log in logs:
                log.seek(0)
                text = log.read().decode()
                log.close()
                locked = [line for line in text.splitlines() if "locked" in line.lower()]
                if any(codes) or locked:
                    raise RuntimeError(f"workers: exits {codes}, {locked[:3]}")
            _check(folder / "queue.db", jobs)
            return took

    found = bench.rounds({"four": four, "one": ours(bench, jobs, 4)})
    return [
        figure("4 workers -j 1", "jobs/s", [jobs / each for each in found["four"]]),
        figure("1 worker -j 4", "jobs/s", [jobs / each for each in found["one"]]),
        figure("4 x -j 1 / -j 4", "x", ratios(found["one"], found["four"]), at_least=0.6),
    ]

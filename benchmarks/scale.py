"""A million jobs in the file: does anything get slower; promotion; prune."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.base import Bench, Result, figure, ratios
from benchmarks.handmade import Hand, finish_all

SMALL = 1000
LANES = 10


def million(bench: Bench) -> list[Result]:
    """Every operation on a file of a million jobs against the same on one of a thousand."""
    big = bench.size(1_000_000, least=5000)
    results = []
    with bench.folder(large=True) as folder:
        paths = {count: folder / f"{count}.db" for count in (SMALL, big)}
        for count, path in paths.items():
            results += _mixed(path, count)
        with Hand(paths[SMALL]) as few, Hand(paths[big]) as many:
            for name in OPERATIONS:
                results += _compare(bench, name, few, many)
    results.append(_bytes_per_job(bench))
    return results


def _mixed(path: Path, count: int) -> list[Result]:
    """Six tenths done, three queued, one scheduled; twenty priorities, ten lanes."""
    began = time.perf_counter()
    step = 10_000
    with Hand(path) as hand:
        for at in range(0, count, step):
            size = min(step, count - at)
            lanes = [f"lane{number % LANES}" for number in range(at, at + size)]
            done, queued = size * 6 // 10, size * 9 // 10
            hand.add(
                [
                    {
                        "argv": ["make", f"target-{number}"],
                        "queue": "later" if each < done else lanes[each],
                        "priority": number % 20,
                        "delay_s": 86400.0 if each >= queued else None,
                        "tags": {"batch": str(number // 100)} if number % 10 == 0 else {},
                    }
                    for each, number in enumerate(range(at, at + size))
                ]
            )
            finish_all(hand, ("later",))
        for lane in ("lane3", "lane4"):  # enough for every claim that is measured
            hand.add([{"argv": ["true"], "queue": lane}] * 500)
    took = time.perf_counter() - began
    size_mb = path.stat().st_size / 1e6
    note = f"{size_mb:.0f} MB"
    return [figure(f"made a file of {count:,} jobs", "s", [took], note=note)]


def _claim(hand: Hand) -> float:
    began = time.perf_counter()
    claimed = hand.claim(1, ("lane3",))
    took = time.perf_counter() - began
    hand.mine += claimed
    return took


def _claim_anywhere(hand: Hand) -> float:
    began = time.perf_counter()
    claimed = hand.claim(1, None)
    took = time.perf_counter() - began
    hand.mine += claimed
    return took


def _finish(hand: Hand) -> float:
    if not hand.mine:
        hand.mine += hand.claim(1, ("lane4",))
    one = hand.mine.pop()
    began = time.perf_counter()
    hand.finish([one])
    return time.perf_counter() - began


def _add(hand: Hand) -> float:
    began = time.perf_counter()
    hand.add([{"argv": ["make", "more"], "queue": "lane5"}])
    return time.perf_counter() - began


def _timed(call: Callable[[Hand], object]) -> Callable[[Hand], float]:
    def measure(hand: Hand) -> float:
        began = time.perf_counter()
        call(hand)
        return time.perf_counter() - began

    return measure


def _list(**wanted: Any) -> Callable[[Hand], float]:
    return _timed(lambda hand: hand.queue.jobs(limit=20, **wanted))


OPERATIONS: dict[str, Callable[[Hand], float]] = {
    "status": _timed(lambda hand: hand.queue.counts()),
    "show": _timed(lambda hand: hand.queue.detail(hand.some_done)),
    "wait for a settled job": _timed(lambda hand: hand.queue.wait([hand.some_done])),
    "list": _list(),
    "list, state queued": _list(states=["queued"]),
    "list, state done": _list(states=["done"]),
    "list, state dead (none)": _list(states=["dead"]),
    "list, two states": _list(states=["done", "dead"]),
    "list, one lane": _list(queue="lane3"),
    "list, lane and state": _list(queue="lane3", states=["queued"]),
    "list, lane and absent state": _list(queue="lane3", states=["done"]),
    "list, priority": _list(priority_min=19),
    "list, priority and state": _list(priority_min=19, states=["done"]),
    "list, priority and state queued": _list(priority_min=19, states=["queued"]),
    "list, ten priorities and state, oldest first": _list(
        priority_min=10, states=["queued"], reverse=True
    ),
    "list, priority and absent state": _list(priority_min=19, states=["dead"]),
    "list, lane and priority that it does not have": _list(queue="lane3", priority_min=19),
    "list, tag": _list(tags={"batch": "3"}),
    "list, tag of any value": _list(tags={"batch": None}),
    "list, absent tag": _list(tags={"batch": "none"}),
    "list, tag and state": _list(tags={"batch": None}, states=["queued"]),
    "list, tag and absent state": _list(tags={"batch": None}, states=["dead"]),
    "list, tag and absent lane": _list(tags={"batch": None}, queue="nowhere"),
    "list, tag and absent priority": _list(tags={"batch": None}, priority_min=99),
    "list, two tags": _list(tags={"batch": None, "other": None}),
    "list, before an id": _list(before_id=500),
    "list, since a time": _list(since=0.0),
    "list, since a time that none has": _list(since=9e9, states=["done"]),
    "list, command": _list(command="make target"),
    "list, highest priority": _list(sort="priority"),
    "list, latest ends": _list(sort="finished", states=["done"]),
    "list, highest priority in a lane": _list(sort="priority", queue="lane3"),
    "list, lowest priority in a lane": _list(sort="priority", queue="lane3", reverse=True),
    "list, latest ends in a lane": _list(sort="finished", queue="lane3"),
    "list, latest starts": _list(sort="started"),
    "list, first starts": _list(sort="started", reverse=True),
    "list, next runs of what is queued": _list(sort="next-run", states=["queued"]),
    "list, next runs of a lane": _list(sort="next-run", queue="lane3"),
    "list, oldest first": _list(reverse=True),
    "events, the last": _timed(lambda hand: hand.queue.events(since_id=hand.late_event, limit=20)),
    # Last: they take what stands first in line, and the small file would soon have no job of the
    # highest priorities left to list.
    "claim, one lane": _claim,
    "claim, all lanes": _claim_anywhere,
    "add": _add,
    "finish": _finish,
}


def _compare(bench: Bench, name: str, few: Hand, many: Hand) -> list[Result]:
    """Medians of several groups of calls, in turn on either file."""
    operation = OPERATIONS[name]
    calls = 20
    values: dict[str, list[float]] = {"few": [], "many": []}
    for number in range(bench.runs + 1):
        for key, hand in (("few", few), ("many", many)):
            times = sorted(operation(hand) for _ in range(calls))
            if number:
                values[key].append(times[calls // 2])
    return [
        figure(f"{name}: large file", "ms", [1000 * each for each in values["many"]]),
        figure(f"{name}: large / small", "x", ratios(values["many"], values["few"]), at_most=1.5),
    ]


def _bytes_per_job(bench: Bench) -> Result:
    """The file's growth by a quiet job that was added, run and finished."""
    count = bench.size(100_000, least=5000)
    with bench.folder() as folder, Hand(folder / "queue.db") as hand:
        sizes = []
        for _ in range(2):
            for _ in range(0, count, 5000):
                hand.add([{"argv": ["true"]}] * min(5000, count))
                finish_all(hand, ("default",))
            hand.checkpoint()
            sizes.append((folder / "queue.db").stat().st_size)
        each = (sizes[1] - sizes[0]) / (-(-count // 5000) * min(5000, count))
    return figure("a quiet finished job, events included", "bytes", [each], at_most=500)


# -- promotion --------------------------------------------------------------------------------


def promotion(bench: Bench) -> list[Result]:
    """Scheduled rows ahead of a ready one; very many that fall due at once."""
    rows = bench.size(100_000, least=2000)
    claims = 50
    results = []
    with bench.folder() as folder, Hand(folder / "a.db") as plain, Hand(folder / "b.db") as hard:
        hard.add([{"argv": ["true"], "priority": 100, "delay_s": 86400.0}] * rows)
        for hand in (plain, hard):
            hand.add([{"argv": ["true"], "priority": -5}] * (claims * (bench.runs + 1)))
        values: dict[str, list[float]] = {"plain": [], "hard": []}
        for number in range(bench.runs + 1):
            for key, hand in (("plain", plain), ("hard", hard)):
                times = [_claim_default(hand) for _ in range(claims)]
                if number:
                    values[key].append(sorted(times)[claims // 2])
        title = f"claim behind {rows:,} scheduled rows"
        results.append(figure(title, "ms", [1000 * each for each in values["hard"]]))
        both = ratios(values["hard"], values["plain"])
        results.append(figure(f"{title} / without them", "x", both, at_most=1.5))
    with bench.folder() as folder, Hand(folder / "c.db") as flood:
        flood.add([{"argv": ["true"], "priority": 100, "delay_s": 3600.0}] * rows)
        flood.add([{"argv": ["true"], "priority": -5}])
        flood.later_s = 3601.0
        times, began = [], time.perf_counter()
        while flood.waiting():
            times.append(1000 * _claim_default(flood))
        took = time.perf_counter() - began
        title = f"claim while {rows:,} rows fall due"
        results.append(figure(title, "ms", times, worst_at_most=50, note=f"over {took:.1f} s"))
    return results


def _claim_default(hand: Hand) -> float:
    began = time.perf_counter()
    claimed = hand.claim(1, ("default",))
    took = time.perf_counter() - began
    if not claimed:
        raise RuntimeError("nothing was claimed")
    return took


# -- prune ------------------------------------------------------------------------------------


@contextmanager
def _pruning(bench: Bench, path: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = bench.spool("prune", "--db", path, "--older-than", "0", "--yes")
    process = bench.start(words, folder)
    try:
        yield process
    finally:
        process.wait()


def prune(bench: Bench) -> list[Result]:
    """Half a million jobs deleted while workers go on recording and claiming."""
    count = bench.size(500_000, least=5000)
    with bench.folder(large=True) as folder:
        path = folder / "queue.db"
        with Hand(path) as hand:
            for _ in range(0, count, 10_000):
                hand.add([{"argv": ["true"]}] * min(10_000, count))
                finish_all(hand, ("default",))
            hand.add([{"argv": ["true"], "queue": "alive"}] * bench.size(20_000, least=2000))
            hand.checkpoint()
        before = path.stat().st_size
        workers = [
            bench.start([bench.python, "-m", "benchmarks.handmade", path], folder, stdout=-1)
            for _ in range(2)
        ]
        time.sleep(1)
        began = time.perf_counter()
        with _pruning(bench, path, folder) as pruner:
            pass
        took = time.perf_counter() - began
        waits = []
        for worker in workers:
            worker.terminate()
            out, _ = worker.communicate()
            waits += [float(line) for line in out.decode().split()]
        with Hand(path) as hand:
            hand.checkpoint()
        after = path.stat().st_size
    if pruner.returncode != 0:
        raise RuntimeError(f"prune: exit {pruner.returncode}")
    return [
        figure("prune, jobs per second", "jobs/s", [count / took], note=f"{count:,} jobs"),
        figure("a worker's cycle meanwhile", "ms", waits, worst_at_most=100),
        figure("size after / before", "x", [after / before], at_most=0.5),
        figure("size before", "MB", [before / 1e6]),
    ]

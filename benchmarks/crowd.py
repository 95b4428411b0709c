"""Many processes on one queue: workers and adders; followers of the ledger."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.base import TRUE, Bench, Result, figure, fill, ratios, stop

WORKERS, ADDERS = 32, 8

ADDER = """
import sys, time
from spoolctl import Queue
until = time.monotonic() + float(sys.argv[2])
count = 0
with Queue(sys.argv[1]) as queue:
    while time.monotonic() < until:
        queue.add_many([["true"]] * 20)
        count += 20
        time.sleep(0.05)
print(count)
"""

READER = """
import sys, time
with open(sys.argv[1]) as file:
    left = int(sys.argv[2])
    while left:
        line = file.readline()
        if line.endswith("\\n"):
            left -= 1
        elif not line:
            time.sleep(0.02)
"""


def crowd(bench: Bench) -> list[Result]:
    """32 workers and 8 adders: no error surfaces, and each worker gets its share."""
    seconds = bench.seconds(60, least=8)
    with bench.folder() as folder:
        path = folder / "queue.db"
        fill(path, [["true"]] * 1000)
        logs = [(folder / f"log{number}").open("w+b") for number in range(WORKERS)]
        words = bench.spool("work", "--db", path, "--worker-id")
        workers = [
            bench.start([*words, f"w{number}"], folder, stderr=log)
            for number, log in enumerate(logs)
        ]
        _until_all_are_here(path)
        adder = [bench.python, "-c", ADDER, str(path), str(seconds)]
        pipe = subprocess.PIPE
        adders = [bench.start(adder, folder, stdout=pipe, stderr=pipe) for _ in range(ADDERS)]
        added, complaints = 0, []
        for process in adders:
            out, err = process.communicate()
            added += int(out or 0)
            complaints += err.decode().splitlines()
        counts = _attempts_by_worker(path)
        for worker in workers:
            worker.terminate()
        codes = [worker.wait() for worker in workers]
        for log in logs:
            log.seek(0)
            lines = log.read().decode().splitlines()
            log.close()
            complaints += [line for line in lines if " attempt " not in line]
    shares = [counts.get(f"w{number}", 0) for number in range(WORKERS)]
    fair = sum(shares) / WORKERS
    told = [line for line in complaints if _tells(line)]
    note = "; ".join(sorted({line.replace(f"{folder}/", "") for line in told})[:4])
    return [
        figure("added by 8 adders", "jobs/s", [added / seconds]),
        figure("run by 32 workers", "jobs/s", [sum(shares) / seconds]),
        figure("complaints, and exits other than 0", "", [len(told) + sum(map(bool, codes))],
               at_most=0, note=note),
        figure("smallest share of a worker / fair share", "x", [min(shares) / fair],
               at_least=1 / 3),
        figure("largest share of a worker / fair share", "x", [max(shares) / fair]),
    ]  # fmt: skip


def _tells(line: str) -> bool:
    """Whether a line is a complaint; of a traceback only its last line counts."""
    trace = line.startswith((" ", "Traceback"))
    return bool(line.strip()) and not trace and "stopping" not in line


def _until_all_are_here(path: Path) -> None:
    db = sqlite3.connect(path, timeout=30)
    while db.execute("SELECT count(*) FROM workers WHERE ended_at IS NULL").fetchone()[0] < WORKERS:
        time.sleep(0.05)
    db.close()


def _attempts_by_worker(path: Path) -> dict[str, int]:
    db = sqlite3.connect(path, timeout=30)
    rows = db.execute(
        "SELECT workers.name, count(*) FROM attempts JOIN workers ON workers.id = attempts.worker"
        " GROUP BY 1"
    ).fetchall()
    db.close()
    return {str(name): int(count) for name, count in rows}


# -- followers --------------------------------------------------------------------------------


def followers(bench: Bench) -> list[Result]:
    """Ten followers of the events of a drain, against ten readers of the same lines."""
    jobs = bench.size(20_000, least=200)
    lines, alone_s = _ledger(bench, jobs)
    log_bytes: list[int] = []
    runs = max(1, min(3, bench.runs))
    found = bench.rounds(
        {
            "alone": lambda: _drain(bench, jobs, lambda _folder: []),
            "ten readers": lambda: _drain(
                bench, jobs, lambda folder: _readers(bench, folder, lines, alone_s)
            ),
            "ten followers": lambda: _drain(
                bench, jobs, lambda folder: _followers(bench, folder, len(lines)), log_bytes
            ),
        },
        runs=runs,
    )
    results = [
        figure(f"drain -j 4, {name}", "jobs/s", [jobs / each for each in times])
        for name, times in found.items()
    ]
    slower = ratios(found["ten followers"], found["ten readers"])
    results.append(figure("followers / readers, time", "x", slower, at_most=1.1))
    results.append(
        figure("write-ahead log at most", "MB", [each / 1e6 for each in log_bytes], at_most=64)
    )
    return results


def _ledger(bench: Bench, jobs: int) -> tuple[list[str], float]:
    """The lines that a follower would print for a drain, and how long that drain takes."""
    with bench.folder() as folder:
        path = folder / "queue.db"
        fill(path, [[TRUE]] * jobs)
        began = time.perf_counter()
        bench.run(bench.spool("work", "--db", path, "--drain", "-j", "4"), folder)
        took = time.perf_counter() - began
        out = bench.run(
            bench.spool("events", "--db", path, "--json", "--limit", "0"), folder
        ).stdout
        events = json.loads(out)["data"]["events"]
    return [json.dumps(event) + "\n" for event in events if event["event"] != "added"], took


def _drain(
    bench: Bench,
    jobs: int,
    beside: Callable[[Path], list[subprocess.Popen[bytes]]],
    log_bytes: list[int] | None = None,
) -> float:
    with bench.folder() as folder:
        path = folder / "queue.db"
        fill(path, [[TRUE]] * jobs)
        watchers = beside(folder)
        time.sleep(1)
        over = threading.Event()
        sizes = [0]
        looker = threading.Thread(target=_look_at_log, args=(path, over, sizes))
        looker.start()
        took = bench.seconds_of(bench.spool("work", "--db", path, "--drain", "-j", "4"), folder)
        over.set()
        looker.join()
        if log_bytes is not None:
            log_bytes.append(max(sizes))
        for watcher in watchers:
            try:
                watcher.wait(timeout=60)
            except subprocess.TimeoutExpired:
                stop(watcher)
                raise RuntimeError("a reader has not seen all lines") from None
        return took


def _look_at_log(path: Path, over: threading.Event, sizes: list[int]) -> None:
    log = Path(f"{path}-wal")
    while not over.wait(0.05):
        try:
            sizes.append(log.stat().st_size)
        except FileNotFoundError:
            continue


def _followers(bench: Bench, folder: Path, lines: int) -> list[subprocess.Popen[bytes]]:
    from spoolctl import Queue

    with Queue(folder / "queue.db") as queue:
        last = queue.events(since_id=1 << 60).last_id
    words = bench.spool("events", "--db", folder / "queue.db", "--follow", "--json")
    words += ["--since-id", str(last), "--max-events", str(lines)]
    return [bench.start(words, folder) for _ in range(10)]


def _readers(
    bench: Bench, folder: Path, lines: list[str], over_s: float
) -> list[subprocess.Popen[bytes]]:
    """Ten programs that read lines as another one writes them, as fast as a drain would."""
    file = folder / "lines"
    file.touch()
    (folder / "source").write_text("".join(lines))
    writer = [bench.python, "-c", WRITER, "source", "lines", str(len(lines) / over_s)]
    reader = [bench.python, "-c", READER, "lines", str(len(lines))]
    return [bench.start(reader, folder) for _ in range(10)] + [bench.start(writer, folder)]


WRITER = """
import sys, time
time.sleep(1)
rate = float(sys.argv[3])
began, sent = time.monotonic(), 0
with open(sys.argv[1]) as source, open(sys.argv[2], "a") as target:
    lines = source.readlines()
    while sent < len(lines):
        due = min(len(lines), int((time.monotonic() - began) * rate) + 1)
        target.write("".join(lines[sent:due]))
        target.flush()
        sent = due
        time.sleep(0.005)
"""

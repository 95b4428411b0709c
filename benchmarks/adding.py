"""Submitting: one job by a process, many in one transaction."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from pathlib import Path

from benchmarks.base import Bench, Result, figure, fill, ratios

BASE = "import argparse, sqlite3, json"
LAUNCHES = 20
"""Programs started for one value: a single start is too short to be told from noise."""


def one(bench: Bench) -> list[Result]:
    """`add` as a process, against an interpreter that imports what it cannot do without."""
    with bench.folder() as folder:
        fill(folder / "queue.db", [["true"]])

        def launches(words: list[str | os.PathLike[str]]) -> float:
            began = time.perf_counter()
            for _ in range(LAUNCHES):
                if bench.start(words, folder).wait() != 0:
                    raise RuntimeError(f"{words} failed")
            return (time.perf_counter() - began) / LAUNCHES

        contenders = {
            "add": lambda: launches(bench.spool("add", "--db", "queue.db", "--", "true")),
            "python": lambda: launches([bench.python, "-c", BASE]),
        }
        # Where there is a file system in memory, syncing costs nothing there.
        memory = Path("/dev/shm")
        unsynced = memory / f"benchmark-{os.getpid()}"
        if os.access(memory, os.W_OK):
            fill(unsynced / "queue.db", [["true"]])
            words = bench.spool("add", "--db", unsynced / "queue.db", "--", "true")
            contenders["add in memory"] = lambda: launches(words)
        try:
            found = bench.rounds(contenders)
        finally:
            shutil.rmtree(unsynced, ignore_errors=True)
    results = [
        figure(f"{name}, process", "ms", [1000 * each for each in times])
        for name, times in found.items()
    ]
    results.append(figure("add / python", "x", ratios(found["add"], found["python"]), at_most=1.6))
    if "add in memory" in found:
        pairs = zip(found["add"], found["add in memory"], strict=True)
        share = [max(0.0, 1000 * (disk - shm)) for disk, shm in pairs]
        results.append(figure("of it the disk (files in memory cost less)", "ms", share))
        ratio = ratios(found["add in memory"], found["python"])
        results.append(figure("add without the disk / python", "x", ratio))
    return results


def many(bench: Bench) -> list[Result]:
    """Jobs per second in one transaction, against a bare executemany of the same rows."""
    jobs = bench.size(20_000, least=1000)
    commands = [["make", f"target-{number}", "--quiet"] for number in range(jobs)]
    with bench.folder() as model:
        fill(model / "queue.db", commands)
        rows = _rows(model / "queue.db")
    lines = "".join(json.dumps({"argv": command}) + "\n" for command in commands)

    def by_queue() -> float:
        from spoolctl import Queue

        with bench.folder() as folder, Queue(folder / "queue.db") as queue:
            queue.add(["true"])
            began = time.perf_counter()
            queue.add_many(commands, cwd="/")
            return time.perf_counter() - began

    def by_batch() -> float:
        with bench.folder() as folder:
            (folder / "jobs").write_text(lines)
            fill(folder / "queue.db", [["true"]])
            return bench.seconds_of(
                bench.spool("add", "--db", "queue.db", "--batch", "jobs"), folder
            )

    def bare() -> float:
        with bench.folder() as folder:
            fill(folder / "queue.db", [["true"]])
            db = sqlite3.connect(folder / "queue.db", isolation_level=None)
            try:
                return _insert(db, rows)
            finally:
                db.close()

    contenders = {"add_many": by_queue, "executemany": bare}
    with bench.folder() as folder:
        if "--batch" in bench.run(bench.spool("add", "--help"), folder).stdout:
            contenders["add --batch (process)"] = by_batch
    found = bench.rounds(contenders)
    results = []
    for name, times in found.items():
        goal = None if name == "executemany" else 20_000
        rates = [jobs / each for each in times]
        results.append(figure(name, "jobs/s", rates, at_least=goal))
    for name in contenders:
        if name != "executemany":
            share = ratios(found["executemany"], found[name])
            results.append(figure(f"{name} / executemany", "x", share, at_least=0.5))
    return results


Rows = dict[str, tuple[str, list[tuple[object, ...]]]]


def _rows(path: Path) -> Rows:
    """All rows of jobs and events, with the statement that inserts them elsewhere."""
    db = sqlite3.connect(path)
    found: Rows = {}
    for table in ("jobs", "events"):
        rows = db.execute(f"SELECT * FROM {table}").fetchall()
        # Ids that are free where one job is already.
        moved = [(row[0] + 10, *row[1:]) for row in rows]
        marks = ", ".join("?" * len(rows[0]))
        found[table] = (f"INSERT INTO {table} VALUES ({marks})", moved)
    db.close()
    return found


def _insert(db: sqlite3.Connection, rows: Rows) -> float:
    db.execute("PRAGMA synchronous = FULL")
    began = time.perf_counter()
    db.execute("BEGIN IMMEDIATE")
    for statement, values in rows.values():
        db.executemany(statement, values)
    db.execute("COMMIT")
    return time.perf_counter() - began

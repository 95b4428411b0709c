"""Many processes on one queue: each job once, each key once, nobody sees an error."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from spoolctl.core.records import JobFilter
from spoolctl.core.states import State
from spoolctl.store import open_store
from spoolctl.store.protocol import Store
from tests.conformance.kit import Clock, Desk, job
from tests.helpers import ROOT, clean_env

PRELUDE = """
import sys
from spoolctl.store import open_store
from spoolctl.core.records import Want
from spoolctl.core.states import State
from tests.conformance.kit import Clock, Desk, job, success
path, name = sys.argv[1:3]
store = open_store(path, create=False, wait_s=60.0)
clock = Clock()
print("ready", flush=True)
sys.stdin.readline()
"""

ADDER = (
    PRELUDE
    + """
for number in range(60):
    added = store.add([job(f"{name}.{number}.{part}") for part in range(5)], now=clock.now())
    print(*[one.job.id for one in added])
"""
)

WORKER = (
    PRELUDE
    + """
desk = Desk.__new__(Desk)
desk.store, desk.clock = store, clock
desk.me = desk.register(name)
claimed, idle = (), 0
while idle < 3:
    outcomes = [success(one) for one in claimed]
    cycle = store.cycle(desk.me, outcomes, Want(3, None), now=clock.now())
    claimed = cycle.claimed
    for one in claimed:
        print(one.job_id, one.attempt_no, one.token)
    if not claimed:
        done = store.counts(now=clock.now()).states[State.DONE]
        idle = idle + 1 if done == int(sys.argv[3]) else 0
store.unregister(desk.me, now=clock.now())
"""
)

KEYED = (
    PRELUDE
    + """
for number in range(50):
    (added,) = store.add([job("same", key=f"key-{number}", note=name)], now=clock.now())
    print(added.job.id, int(added.deduplicated))
"""
)

CANCELER = (
    PRELUDE
    + """
from spoolctl.errors import IllegalTransition
for number in range(1, 101):
    try:
        store.cancel(number, running=False, now=clock.now())
        print(number)
    except IllegalTransition:
        pass
"""
)


def race(path: str, sources: list[str], *more: str) -> list[list[list[str]]]:
    """Run the programs side by side from one signal on; the words of their lines."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", source, path, f"p{number}", *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean_env(),
        )
        for number, source in enumerate(sources)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    found = []
    for racer in racers:
        out, err = racer.communicate(timeout=120)
        assert (racer.returncode, err) == (0, "")
        found.append([line.split() for line in out.splitlines()])
    return found


def test_each_job_is_claimed_exactly_once(desk: Desk, open_again: Callable[[], Store]) -> None:
    found = race(desk.store.path, [ADDER] * 3 + [WORKER] * 5, "900")
    added = [int(word) for lines in found[:3] for line in lines for word in line]
    assert sorted(added) == list(range(1, 901))
    for lines in found[:3]:
        ids = [int(word) for line in lines for word in line]
        assert ids == sorted(ids), "ids ascend for each adder"
    claims = [line for lines in found[3:] for line in lines]
    assert Counter(int(line[0]) for line in claims) == Counter(range(1, 901))
    assert {line[1] for line in claims} == {"1"}
    assert len({line[2] for line in claims}) == 900
    assert desk.counts() == {"done": 900}
    assert sum(1 for lines in found[3:] if lines) >= 2, "only one of the workers got work"
    events, last, _first = desk.store.events(since_id=0, job_id=None, limit=None)
    assert (len(events), last) == (2700, 2700)
    by_job = Counter((event.job_id, event.event.value) for event in events)
    assert set(by_job.values()) == {1}


def test_each_key_makes_one_job(desk: Desk) -> None:
    found = race(desk.store.path, [KEYED] * 6)
    assert len(desk.find(1000)) == 50
    per_key = list(zip(*found, strict=True))
    for answers in per_key:
        assert len({job_id for job_id, _known in answers}) == 1
        assert sorted(known for _job_id, known in answers) == ["0", "1", "1", "1", "1", "1"]


def test_each_cancel_succeeds_once(desk: Desk) -> None:
    desk.store.add([job() for _ in range(100)], now=desk.clock.now())
    found = race(desk.store.path, [CANCELER] * 4)
    canceled = Counter(int(line[0]) for lines in found for line in lines)
    assert canceled == Counter(range(1, 101))
    assert desk.counts() == {"canceled": 100}


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.db")
    open_store(path, create=True, wait_s=1.0).close()
    source = PRELUDE + (
        "while True:\n    print(store.add([job(name)], now=clock.now())[0].job.id, flush=True)\n"
    )
    for _round in range(3):
        adder = subprocess.Popen(
            [sys.executable, "-c", source, path, "x"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean_env(),
        )
        assert adder.stdin is not None
        assert adder.stdout is not None
        adder.stdout.readline()
        adder.stdin.write("go\n")
        adder.stdin.flush()
        for _ in range(20):
            adder.stdout.readline()
        adder.kill()
        told = [int(line) for line in adder.communicate()[0].splitlines() if line.strip()]
        store = open_store(path, create=False, wait_s=1.0)
        kept = {one.id for one in store.find(JobFilter(states=(State.QUEUED,)), limit=-1)}
        assert set(told[:-1]) <= kept
        assert max(kept) <= max(told, default=max(kept)) + 1
        Desk(store, Clock()).add()
        store.close()

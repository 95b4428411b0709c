"""Jobs claimed before there is a slot: nobody loses one, waits for one, or sees two of one."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from spoolctl import Queue
from spoolctl.core.records import Claimed, Instant
from spoolctl.engine.ahead import (
    GATHER_S,
    HOLD_S,
    MOST_AHEAD,
    MOST_IF_SLOW,
    STREAK,
    Ahead,
)
from spoolctl.engine.attempt import NoResources
from spoolctl.engine.children import Exit
from spoolctl.engine.crew import UNCLEAR_S, Crew, Report
from spoolctl.engine.loop import Deadlines
from spoolctl.store import open_store
from tests.conformance.kit import Clock, Desk, success
from tests.helpers import eventually
from tests.worker.conftest import EAGER, TELLING_JOB, Bench, alive, guardian_of, idle_crew

SHORT = [["true"]] * (2 * STREAK)
PATIENT = ("-c", f"from spoolctl.engine import ahead; ahead.HOLD_S = 60.0; {EAGER[1]}")
"""One that gives nothing back by itself, too."""


Worker = subprocess.Popen[str]


def claimed_ahead(bench: Bench) -> int:
    """How often a job was claimed before the attempt of the one worker with one slot had ended."""
    trail = bench.rows("SELECT event FROM events WHERE event <> 'added' ORDER BY id")
    running = most = 0
    for (event,) in trail:
        running += 1 if event == "claimed" else -1
        most = max(most, running)
    return most - 1


def test_short_commands_are_claimed_ahead_and_run_once(bench: Bench) -> None:
    with Queue(bench.db) as queue:
        queue.add_many(SHORT)
    bench.drain(program=EAGER)
    assert claimed_ahead(bench) == 1
    assert bench.rows("SELECT DISTINCT state, no, stdout_bytes FROM attempts") == [
        ("succeeded", 1, 0)
    ]
    assert len(bench.rows("SELECT 1 FROM attempts")) == len(SHORT)


@pytest.mark.parametrize("flag", ["--once", "--max-jobs=3"])
def test_no_more_than_were_asked_for(bench: Bench, flag: str) -> None:
    with Queue(bench.db) as queue:
        queue.add_many(SHORT)
    worker = bench.work(flag, program=EAGER)
    worker.wait(timeout=60)
    assert claimed_ahead(bench) == 0
    assert len(bench.rows("SELECT 1 FROM attempts")) == (1 if flag == "--once" else 3)


def test_a_ceiling_is_not_filled_with_what_cannot_start_yet(bench: Bench) -> None:
    """Others could start it, and one worker would keep all of it for itself."""
    with Queue(bench.db) as queue:
        queue.add_many(SHORT)
    bench.drain("--slots", "2", program=EAGER)
    assert claimed_ahead(bench) == 0


def test_a_job_is_not_kept_from_a_worker_that_has_a_slot(bench: Bench) -> None:
    """What was claimed behind a command that lasts goes back."""
    with Queue(bench.db) as queue:
        queue.add_many(SHORT)
    os.mkfifo(bench.folder / "fifo")
    lasting = bench.add("-c", "echo begun > begun; exec cat fifo")
    last = bench.add("-c", "echo $SPOOLCTL_ATTEMPT")
    bench.work(program=EAGER)
    bench.wait_file("begun")
    assert claimed_ahead(bench) == 1
    bench.work()
    bench.wait_state(last, "done")
    assert bench.job(lasting)["state"] == "running"
    assert bench.run("output", "--raw", "--stream", "stdout", str(last)).stdout == "1\n"
    assert [one["attempt_no"] for one in bench.attempts(last)] == [1]
    (bench.folder / "fifo").write_text("")
    bench.wait_state(lasting, "done")


def hold_one(bench: Bench, program: tuple[str, ...], *flags: str) -> tuple[Worker, int, int]:
    """A worker in the middle of a job that lasts until `go` is there, with another behind it."""
    with Queue(bench.db) as queue:
        queue.add_many(SHORT)
    lasting = bench.add("-c", "echo begun > begun; until test -e go; do sleep 0.05; done")
    held = bench.add("-c", "echo $SPOOLCTL_ATTEMPT >> held")
    worker = bench.work(*flags, program=program)
    bench.wait_file("begun")
    assert bench.job(held)["state"] == "running" or program is EAGER
    return worker, lasting, held


def test_what_was_given_back_does_not_count_as_one_of_so_many_jobs(bench: Bench) -> None:
    worker, _, held = hold_one(bench, EAGER, f"--max-jobs={len(SHORT) + 2}")
    eventually(lambda: "released" in bench.trail(held))
    (bench.folder / "go").touch()
    worker.wait(timeout=60)
    assert bench.trail(held) == ["added", "claimed", "released", "claimed", "succeeded"]
    assert (bench.folder / "held").read_text() == "1\n"


def test_a_stop_request_gives_it_back_at_once(bench: Bench) -> None:
    worker, lasting, held = hold_one(bench, PATIENT)
    worker.terminate()
    eventually(lambda: bench.trail(held) == ["added", "claimed", "released"])
    (bench.folder / "go").touch()
    worker.wait(timeout=60)
    assert bench.job(lasting)["state"] == "done"
    assert bench.job(held)["state"] == "queued"
    assert bench.attempts(held) == []


def test_one_that_is_canceled_never_runs(bench: Bench) -> None:
    worker, _, held = hold_one(bench, PATIENT, "--drain")
    bench.json("cancel", "--running", "--yes", str(held))
    eventually(lambda: bench.rows("SELECT 1 FROM attempts WHERE gone_at IS NULL") == [(1,)])
    (bench.folder / "go").touch()
    worker.wait(timeout=60)
    assert bench.trail(held) == ["added", "claimed", "canceled"]
    assert not (bench.folder / "held").exists()


def test_one_that_is_forced_runs_once(bench: Bench) -> None:
    worker, _, held = hold_one(bench, PATIENT, "--drain")
    bench.json("retry", "--force", str(held))
    (bench.folder / "go").touch()
    worker.wait(timeout=60)
    assert bench.job(held)["state"] == "done"
    assert (bench.folder / "held").read_text() == "2\n"


def test_the_death_of_its_worker_is_a_crash_and_another_runs_it(bench: Bench) -> None:
    worker, lasting, held = hold_one(bench, PATIENT)
    worker.kill()
    worker.wait()
    (bench.folder / "go").touch()
    bench.drain()
    assert (bench.folder / "held").read_text() == "2\n"
    for job in (lasting, held):
        assert bench.trail(job) == ["added", "claimed", "reaped", "claimed", "succeeded"]
        assert bench.job(job)["crashes"] == 1


def test_what_goes_back_wakes_others(bench: Bench) -> None:
    job = bench.add("-c", "echo $SPOOLCTL_ATTEMPT > begun; exec sleep 300")
    first = bench.work()
    assert bench.wait_file("begun") == "1\n"
    second = bench.work("--poll-interval", "3600")
    eventually(lambda: bench.rows("SELECT count(*) FROM workers") == [(2,)])
    time.sleep(0.3)  # for it to find nothing, and sleep
    first.send_signal(signal.SIGTERM)
    first.send_signal(signal.SIGINT)
    eventually(lambda: (bench.folder / "begun").read_text() == "2\n")
    bench.json("cancel", "--running", "--yes", str(job))
    second.terminate()
    second.wait()


def test_a_stop_in_the_middle_leaves_no_trace_of_what_was_not_started(bench: Bench) -> None:
    with Queue(bench.db) as queue:
        queue.add_many([["true"]] * 2000)
    worker = bench.work(program=EAGER)
    eventually(lambda: len(bench.rows("SELECT 1 FROM attempts LIMIT 100")) == 100)
    worker.terminate()
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert bench.rows("SELECT DISTINCT state, no FROM attempts") == [("succeeded", 1)]
    states = dict(bench.rows("SELECT state, count(*) FROM jobs GROUP BY state"))
    assert sum(states.values()) == 2000
    assert set(states) == {"done", "queued"}
    assert bench.rows("SELECT count(*) FROM attempts") == [(states["done"],)]


def hold_again_and_again(path: Path, over: threading.Event) -> None:
    """Have the lock for most of the time: as dozens of workers have it."""
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    while not over.wait(0.01):
        db.execute("BEGIN IMMEDIATE")
        over.wait(0.03)
        db.execute("COMMIT")
    db.close()


def test_a_worker_that_waits_long_for_the_lock_records_more_at_a_time(bench: Bench) -> None:
    """The wait counts as what a transaction takes: it is worth sharing."""
    with Queue(bench.db) as queue:
        queue.add_many([["true"]] * 200)
    over = threading.Event()
    holder = threading.Thread(target=hold_again_and_again, args=(bench.db, over))
    holder.start()
    try:
        # Longer than a single try takes.
        program = "from spoolctl.engine import ahead; ahead.SHORT_S = 60.0; ahead.SLOW_S = 0.01;"
        program += " from spoolctl.__main__ import main; main()"
        bench.drain(program=("-c", program))
    finally:
        over.set()
        holder.join()
    at_a_time = bench.rows("SELECT count(*) FROM events WHERE event = 'claimed' GROUP BY at")
    assert max(at_a_time) == (1 + MOST_IF_SLOW,)


def test_a_stopped_worker_goes_on_with_what_it_had_claimed(bench: Bench) -> None:
    with Queue(bench.db) as queue:
        queue.add_many([["true"]] * 500)
    worker = bench.work("--drain", program=EAGER)
    for _ in range(20):
        worker.send_signal(signal.SIGSTOP)
        worker.send_signal(signal.SIGCONT)
        time.sleep(0.01)  # a moment of work between two stops
    worker.communicate(timeout=60)
    assert bench.rows("SELECT DISTINCT state, no FROM attempts") == [("succeeded", 1)]
    assert len(bench.rows("SELECT 1 FROM attempts")) == 500


JOBS = 700
KILLS = 5


@pytest.mark.parametrize("slots", [1, 4])
def test_workers_killed_among_short_commands_lose_nothing(bench: Bench, slots: int) -> None:
    """Each job is done, never twice at a time; a kill costs what was claimed and not recorded."""
    (bench.folder / "job.sh").write_text(TELLING_JOB)
    with Queue(bench.db) as queue:
        queue.add_many([["sh", "job.sh"]] * JOBS, cwd=str(bench.folder))
    generator = random.Random()
    kills = 0
    while bench.rows("SELECT 1 FROM jobs WHERE state <> 'done' LIMIT 1"):
        worker = bench.work("-j", str(slots), "--drain", program=EAGER, stderr=subprocess.DEVNULL)
        try:
            worker.wait(timeout=generator.uniform(0.2, 0.5) if kills < KILLS else 60)
            continue
        except subprocess.TimeoutExpired:
            pass
        if generator.random() < 0.5 and (guardian := guardian_of(worker.pid)):
            os.kill(guardian, signal.SIGKILL)
        worker.kill()
        worker.wait()
        kills += 1
        assert kills <= KILLS
    assert kills > 2
    assert not (bench.folder / "doubles").exists()
    runs = (bench.folder / "runs").read_text().split()
    assert len(set(runs)) == JOBS
    abandoned = bench.rows("SELECT count(*) FROM attempts WHERE state = 'abandoned'")
    assert abandoned[0][0] <= (slots + Ahead(slots).most) * kills
    assert len(runs) <= JOBS + abandoned[0][0]
    assert bench.rows("SELECT count(*) FROM attempts WHERE state = 'succeeded'") == [(JOBS,)]
    if slots == 1:
        assert claimed_ahead(bench) >= 1


class Hand:
    """A crew of one slot, moved by hand, with one job that has ended and one that is held."""

    def __init__(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.desk = Desk(open_store(path, create=True, wait_s=1.0), Clock())
        for _ in range(3):
            self.desk.add()
        self.ended, self.held, self.other = self.desk.claim(3)
        self.deadlines = Deadlines()
        self.mono = 100.0
        self.crew, self.station = idle_crew(path, mono=lambda: self.mono, deadlines=self.deadlines)
        self.started: list[int] = []
        monkeypatch.setattr(
            Crew, "_start", lambda _, claimed: self.started.append(claimed.attempt_id)
        )

    def see_short_commands(self) -> None:
        for _ in range(STREAK):
            self.crew.ahead.ended(0.001)

    def close(self) -> None:
        self.crew.children.close()
        self.station.close(self.crew.children)
        self.desk.store.close()


@pytest.fixture
def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hand]:
    hand = Hand(str(tmp_path / "queue.db"), monkeypatch)
    yield hand
    hand.close()


def test_the_place_of_survivors_is_not_taken_before_they_are_recorded(hand: Hand) -> None:
    """Until then they are to end with the worker, and its roster is what names them.

    Also not after a turn in which the queue was locked, and they could not be recorded.
    """
    crew = hand.crew
    held = [hand.held]
    for survivors in (1, None):
        crew.reports[:] = [Report(success(hand.ended, survivors=survivors), hand.ended, None)]
        crew.take(held)
        crew.start()
        crew.take(held := [])
        crew.start()
        assert not hand.started
    crew.reports[:] = [Report(success(hand.ended, survivors=0), hand.ended, None)]
    crew.start()
    assert hand.started == [hand.held.attempt_id]


def test_nothing_that_happens_prolongs_the_wait(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others ring its bell whenever a job settles, and slots come free for those before it."""
    crew, deadlines = hand.crew, hand.deadlines
    slots = crew._free
    monkeypatch.setattr(crew, "_free", [])
    crew.take([hand.held])
    crew.start()
    assert deadlines.next_mono() == hand.mono + HOLD_S
    hand.mono += HOLD_S / 2
    crew.start()
    crew.take([hand.other])
    crew.start()
    assert deadlines.next_mono() == 100.0 + HOLD_S
    monkeypatch.setattr(
        Crew, "_start", lambda _, claimed: hand.started.append(crew._free.pop().index)
    )
    monkeypatch.setattr(crew, "_free", slots)
    crew.start()  # a slot came free for the first: the second has its own time
    assert deadlines.next_mono() == 100.0 + HOLD_S / 2 + HOLD_S
    crew.give_back_held()
    crew.start()
    assert deadlines.next_mono() is None
    assert [report.claimed for report in crew.reports] == [hand.other]


@pytest.mark.parametrize("sleeps", [False, True])
def test_what_ran_while_nobody_looked_is_not_taken_for_long(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, sleeps: bool
) -> None:
    """On a slow disk every command ends while the last is recorded."""
    crew = hand.crew
    hand.see_short_commands()
    command = SimpleNamespace(
        started_mono=100.0, attempt_id=1, gone=False, duration_s=3.0, has_ended=lambda *_: None
    )
    monkeypatch.setattr(crew, "_running", {7: command})
    monkeypatch.setattr(crew._children, "poll", lambda: [Exit(7, 0)])
    hand.mono += 3.0
    if sleeps:  # until it ended
        crew.woke(hand.mono - 3.0)
    crew.collect(Instant(0.0, 0.0, hand.mono, "boot"))
    assert crew.ahead.limit == (0 if sleeps else 1)


def test_a_worker_short_of_resources_keeps_no_more_than_it_has_slots_for(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Crew, _claimed: Claimed) -> None:
        raise NoResources("too many open files")

    monkeypatch.setattr(Crew, "_start", refuse)
    crew = hand.crew
    hand.see_short_commands()
    crew.take([hand.held, hand.other])
    crew.start()
    assert [one.claimed for one in crew.unstarted] == [hand.held]
    assert [report.claimed for report in crew.reports] == [hand.other]
    crew.start()  # the next turn, in which what goes back is recorded
    assert crew.room == 0  # else it would claim as much again
    crew.reports.clear()
    crew.start()
    assert [one.claimed for one in crew.unstarted] == [hand.held]
    assert not crew.reports


def test_what_was_made_for_one_that_goes_back_goes_too(hand: Hand) -> None:
    crew = hand.crew
    folder = Path(crew._db_path + ".d") / "attempts"
    slots, crew._free = crew._free, []
    crew.take([hand.held, hand.other])
    crew.prepare()
    made = {path.name for path in folder.iterdir()}
    assert made == {f"{hand.held.token}.{name}" for name in ("stdout", "stderr")}
    crew.give_back_unstarted()
    crew.prepare()
    crew.spares.drop()
    assert not list(folder.iterdir())
    crew._free = slots


def test_slots_that_are_spoken_for_are_not_offered_again(hand: Hand) -> None:
    """The claim would be one ahead of a slot, and is told so: see `SPARE_CRASHES`."""
    crew = hand.crew
    assert (crew.free, crew.room) == (1, 1)
    crew.reports[:] = [Report(success(hand.ended, survivors=1), hand.ended, None)]
    crew.take([hand.held])
    crew.start()  # which has to wait for the survivors
    hand.see_short_commands()
    assert (crew.free, crew.room) == (0, 1)


def test_what_waits_for_survivors_alone_does_not_keep_the_worker_awake(hand: Hand) -> None:
    """As long as they cannot be recorded (a locked queue), for more than a held job may wait."""
    crew = hand.crew
    crew.reports[:] = [Report(success(hand.ended, survivors=1), hand.ended, None)]
    crew.take([hand.held])
    crew.start()
    hand.mono += HOLD_S * 2
    crew.start()
    assert hand.deadlines.next_mono() is None


def test_who_has_to_hurry_does_not_mind_the_crowd(hand: Hand) -> None:
    """A second after a third stop request results are given up: until then it looks often."""
    for _ in range(20):
        hand.crew.recorded(0, met_others=True, took_s=0.2)
    assert hand.crew.ahead.record_s > 0.1
    hand.crew.shut_down()
    assert hand.crew.ahead.record_s == 0.0


class Gathering:
    """A crew whose slot is taken, with something held, that has seen short commands alone."""

    def __init__(self, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hand, self.crew = hand, hand.crew
        monkeypatch.setattr(self.crew, "_free", [])
        hand.see_short_commands()
        self.crew.take([hand.held])
        self.crew.start()
        self.crew.reports.append(Report(success(hand.ended), hand.ended, None))


@pytest.fixture
def gathering(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> Gathering:
    return Gathering(hand, monkeypatch)


def test_an_end_waits_a_moment_for_others(gathering: Gathering) -> None:
    hand, crew = gathering.hand, gathering.crew
    assert crew.gathers()
    assert hand.deadlines.next_mono() == 100.0 + GATHER_S
    hand.mono += GATHER_S / 2
    crew.reports.append(Report(success(hand.other), hand.other, None))
    assert crew.gathers()  # the second waits no longer than the first
    hand.mono = 100.0 + GATHER_S
    for _ in range(2):  # the queue may be locked: no second wait
        assert not crew.gathers()
        assert hand.deadlines.next_mono() == 100.0 + HOLD_S
    crew.recorded(2, met_others=False, took_s=0.0)
    crew.reports.append(Report(success(hand.other), hand.other, None))
    assert crew.gathers()


@pytest.mark.parametrize("why", ["nothing is held", "a slot is free", "survivors", "one lasted"])
def test_an_end_is_recorded_at_once_if_nothing_is_won(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    hand, crew = gathering.hand, gathering.crew
    if why == "nothing is held":
        crew.give_back_unstarted()
    elif why == "a slot is free":
        monkeypatch.setattr(crew, "_free", list(hand.station.slots))
    elif why == "survivors":  # nothing starts before they are recorded
        crew.reports.append(Report(success(hand.other, survivors=1), hand.other, None))
    else:
        crew.ahead.ended(60.0)
    assert not crew.gathers()
    assert not crew.gathers()


GATHERING = (
    "-c",
    "from spoolctl.engine import ahead; ahead.STEADY = 10**9;"
    f" ahead.HOLD_S = ahead.GATHER_S = 60.0; {EAGER[1]}",
)
"""One without a clerk that waits for more ends as long as there is something to start."""


def test_many_ends_are_recorded_in_one_transaction(bench: Bench) -> None:
    with Queue(bench.db) as queue:
        queue.add_many([["true"]] * 200)
    bench.drain("-j", "4", program=GATHERING)
    assert bench.rows("SELECT DISTINCT state, no FROM attempts") == [("succeeded", 1)]
    together = [count for (count,) in bench.rows(GROUPS)]
    assert sum(together) == 200
    assert MOST_AHEAD <= max(together) <= MOST_AHEAD + 4


GROUPS = "SELECT count(*) FROM events WHERE event = 'succeeded' GROUP BY at"


SLOW_DISK = (
    "-c",
    "import time; from spoolctl.store.sqlite.connection import Connection as C; begin = C.begin\n"
    "C.begin = lambda *args, **kw: (time.sleep(0.01), begin(*args, **kw))[1]\n"
    f"{GATHERING[1]}".replace("ahead.SLOW_S = 60.0", "60.0; ahead.SLOW_S = 0.005"),
)


def test_on_a_slow_disk_one_slot_records_several_ends_at_a_time(bench: Bench) -> None:
    with Queue(bench.db) as queue:
        queue.add_many([["true"]] * 80)
    bench.drain(program=SLOW_DISK)
    assert bench.rows("SELECT DISTINCT state, no FROM attempts") == [("succeeded", 1)]
    together = [count for (count,) in bench.rows(GROUPS)]
    assert sum(together) == 80
    assert MOST_IF_SLOW <= max(together) <= MOST_IF_SLOW + 1


def test_workers_in_each_others_way_record_several_ends_at_a_time(bench: Bench) -> None:
    with Queue(bench.db) as queue:
        queue.add_many([["true"]] * 600)
    workers = [bench.work("--drain", program=EAGER) for _ in range(4)]
    for worker in workers:
        worker.wait(timeout=60)
    assert bench.rows("SELECT DISTINCT state, no FROM attempts") == [("succeeded", 1)]
    assert max(count for (count,) in bench.rows(f"{GROUPS}, worker")) > 1


def test_an_end_does_not_wait_for_one_that_lasts(bench: Bench) -> None:
    """Both slots are taken then, and something is held that will not start for long."""
    with Queue(bench.db) as queue:
        queue.add_many(SHORT)
    short = bench.add("-c", "echo $SPOOLCTL_ATTEMPT")
    lasting = [bench.add("-c", "until test -e go; do sleep 0.05; done") for _ in range(2)]
    bench.add("-c", "true")
    worker = bench.work("-j", "2", "--drain", program=PATIENT)
    bench.wait_state(short, "done")
    assert {bench.job(one)["state"] for one in lasting} <= {"queued", "running"}
    (bench.folder / "go").touch()
    worker.wait(timeout=60)


def test_a_stop_request_does_not_wait_for_others(bench: Bench) -> None:
    with Queue(bench.db) as queue:
        queue.add_many(SHORT)
    short = bench.add("-c", "echo ended > ended")
    for number in range(2):
        bench.add("-c", f"echo begun > begun{number}; until test -e go; do sleep 0.05; done")
    held = bench.add("-c", "true")
    worker = bench.work("-j", "2", program=GATHERING)
    for name in ("ended", "begun0", "begun1"):
        bench.wait_file(name)
    worker.terminate()
    bench.wait_state(short, "done")
    bench.wait_state(held, "queued")
    (bench.folder / "go").touch()
    worker.wait(timeout=60)


def test_a_locked_queue_does_not_cost_the_guardian_its_hold_on_survivors(bench: Bench) -> None:
    """They hide from every search but that for the lock, which the roster alone names."""
    (bench.folder / "leave.py").write_text(LEAVE)
    with Queue(bench.db) as queue:
        queue.add_many(SHORT)
    bench.add("--max-retries", "0", "--", sys.executable, "leave.py")
    bench.add("-c", "echo begun > held; exec sleep 300")
    worker = bench.work(program=PATIENT)
    survivor = int(bench.wait_file("left"))
    with closing(sqlite3.connect(bench.db, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        (bench.folder / "go").touch()
        time.sleep(UNCLEAR_S + 0.5)  # so long it may take to see that there are survivors
        assert not (bench.folder / "held").exists()
        assert alive(survivor)
        worker.kill()
        worker.wait()
        connection.execute("ROLLBACK")
    eventually(lambda: not alive(survivor), what="the survivor's end")


LEAVE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open("leaving", "w") as file:
            file.write(str(os.getpid()))
        os.rename("leaving", "left")
        os.execve("/bin/sleep", ["sleep", "300"], {})
    os._exit(0)
os.wait()
while not os.path.exists("go"):
    time.sleep(0.01)
"""

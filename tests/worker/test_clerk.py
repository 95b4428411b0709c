"""A worker's clerk: whatever becomes of it, no result is lost and no job is run twice."""

from __future__ import annotations

import os
import random
import select
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from spoolctl import Queue
from spoolctl.core.records import Want
from spoolctl.engine import clerk as clerks
from spoolctl.engine.ahead import MOST_IF_HELPED
from spoolctl.engine.clerk import Clerk, ClerkFailed, ClerkGone
from spoolctl.engine.letters import Answer
from tests.conformance.kit import Clock, Desk, success
from tests.helpers import eventually
from tests.worker.conftest import TELLING_JOB, Bench, alive, companions_of


def program(in_clerk: str = "", in_worker: str = "") -> tuple[str, ...]:
    """A worker for which commands are short, and that has a clerk soon; `in_clerk` runs first
    in that, in the worker's folder, with `note` to tell us something."""
    note = (
        "import os\nhere = os.getcwd()\ndef note(name):\n"
        "    with open(f'{here}/{name}', 'a') as file: file.write('.')\n"
        "from spoolctl.engine import clerk\n"
    )
    code = f"exec({note + in_clerk!r})"
    return (
        "-c",
        "from spoolctl.engine import ahead, books, clerk\n"
        "ahead.SHORT_S = ahead.SLOW_S = ahead.HOLD_S = 60.0; ahead.STEADY = 16\n"
        f"books.NEXT_CLERK_S = 0.0; clerk.CODE = {code!r}\n"
        f"{in_worker}\nfrom spoolctl.__main__ import main; main()",
    )


CYCLE = """
from spoolctl.store.sqlite.store import SqliteStore
cycle, turns = SqliteStore.cycle, []
def faulty(self, worker, outcomes, want, *, now):
    turns.append(outcomes)
    note("asked")
{}
SqliteStore.cycle = faulty
"""
"""A clerk whose transactions go wrong; what of it is to be filled in."""


def cycle(*lines: str) -> str:
    return CYCLE.format("\n".join("    " + line for line in lines))


WELL = "return cycle(self, worker, outcomes, want, now=now)"
DIE = "note('struck'); os.kill(os.getpid(), 9)"
WRITE = """
from spoolctl.store.sqlite.working import Working
write, calls = Working._write_notes, []
def faulty(self):
    calls.append(1)
    write(self)
    if {}
Working._write_notes = faulty
"""
"""A clerk that goes wrong in the middle of a transaction."""
SAY = """
say, said = clerk._say, []
def faulty(message):
    said.append(message)
    if len(said) == 4:
        note("struck")
        {}
    say(message)
clerk._say = faulty
"""
"""One whose third answer goes wrong."""

FAULTS = {
    "dies before": cycle(f"if len(turns) == 3: {DIE}", WELL),
    "dies after the commit": cycle(
        "done = cycle(self, worker, outcomes, want, now=now)",
        f"if len(turns) > 2 and done.claimed: {DIE}",
        "return done",
    ),
    "dies in the transaction": WRITE.format(f"len(calls) == 3: {DIE}"),
    "dies in the middle of its answer": SAY.format(
        "os.write(clerk._ANSWERS, b'\\x40\\0\\0\\0half'); os.kill(os.getpid(), 9)"
    ),
    "talks nonsense": SAY.format("return say({'what': 'ever'})"),
    "answers what cannot be read": SAY.format(
        "return os.write(clerk._ANSWERS, b'\\x04\\0\\0\\0what')"
    ),
    "answers too little": SAY.format(
        "return say(message._replace(cycle=message.cycle._replace(recorded=())))"
    ),
    "says that it is ready again": SAY.format("return say(clerk.READY)"),
    "fails": cycle("if len(turns) % 3: note('struck'); raise OSError(28, 'no room')", WELL),
    "always fails": cycle("note('struck'); raise OSError(28, 'no room')"),
    "fails after the commit": cycle(
        "cycle(self, worker, outcomes, want, now=now)", "note('struck'); raise MemoryError"
    ),
    "fails in the transaction": WRITE.format("len(calls) % 3: note('struck'); raise MemoryError"),
    "stops in the transaction": WRITE.format(
        "len(calls) == 3: note('struck'); os.kill(os.getpid(), 19)"
    ),
    "never gets ready": "note('struck'); os.kill(os.getpid(), 19)",
    "dies at once": DIE,
    "is of another version": (
        "import spoolctl.version; note('struck'); spoolctl.version.__version__ = '9.9.9'"
    ),
}
HASTY = "books.CLERK_S = 0.5"
LASTING = "books.CLERK_S = 60.0"
REFUSED = """
from spoolctl.engine.clerk import Clerk
def started(*_):
    open("asked", "w").close()
    raise OSError(11, "no")
Clerk.start = started
"""
HEARD = """
from spoolctl.engine import worker
heed, hear = worker.Worker._heed, worker.Worker._hear
def note(name):
    with open(name, "a") as file: file.write(".")
def heeds(self, ready):
    rung = heed(self, ready)
    if rung: note("rung")
    return rung
def hears(self):
    hear(self)
    if self._stops_seen: note("stopping")
worker.Worker._heed, worker.Worker._hear = heeds, hears
"""
"""A worker that tells when it has heard its bell, or a stop request."""


def clerks_of(worker: int) -> list[int]:
    """The worker's clerks; none if it has ended."""
    with suppress(OSError):
        return companions_of(worker, "clerk")
    return []


def files_of(pid: int) -> list[str]:
    """What the process has open."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def rings(bench: Bench) -> int:
    """How often the worker has heard its bell."""
    path = bench.folder / "rung"
    return len(path.read_text()) if path.exists() else 0


def fill(bench: Bench, jobs: int) -> None:
    (bench.folder / "job.sh").write_text(TELLING_JOB)
    with Queue(bench.db) as queue:
        queue.add_many([["sh", "job.sh"]] * jobs, cwd=str(bench.folder))


def check_each_ran_once(bench: Bench, log: str, jobs: int) -> None:
    assert not (bench.folder / "doubles").exists()
    runs = Counter((bench.folder / "runs").read_text().split())
    assert set(runs.values()) == {1}
    assert len(runs) == jobs
    assert bench.rows("SELECT state, no, count(*) FROM attempts GROUP BY state, no") == [
        ("succeeded", 1, jobs)
    ]
    assert bench.rows("SELECT event, count(*) FROM events WHERE event = 'succeeded'") == [
        ("succeeded", jobs)
    ]
    assert not os.listdir(f"{bench.db}.d/attempts")
    told = Counter(line for line in log.splitlines() if " succeeded " in line)
    assert len(told) == jobs
    assert set(told.values()) == {1}
    assert "Traceback" not in log


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_clerk_that_goes_wrong_changes_nothing(bench: Bench, fault: str, slots: int) -> None:
    fill(bench, 200)
    log = bench.drain("-j", str(slots), program=program(FAULTS[fault], HASTY))
    assert (bench.folder / "struck").exists()
    check_each_ran_once(bench, log, 200)


@pytest.mark.parametrize("slots", [1, 4])
def test_a_clerk_does_what_its_worker_does(bench: Bench, slots: int) -> None:
    """Failures and their retries, output, a command that cannot be started."""
    with Queue(bench.db) as queue:
        for _ in range(100):
            queue.add_many([["sh", "-c", "echo out; echo err >&2"], ["true"], ["sh", "-c", "true"]])
        queue.add(["sh", "-c", "exit 3"], max_retries=0)
        queue.add(["no-such-program"], max_retries=0)
        queue.add_many([["true"]] * 60)
        queue.add(["sh", "-c", "head -c 60000 /dev/zero"])  # too much for a message
        queue.add_many([["true"]] * 60)
    noting = cycle(
        "for each in outcomes: note(each.reason.value if each.reason else 'success')", WELL
    )
    bench.drain("-j", str(slots), program=program(noting))
    for reason in ("success", "process_exit", "spawn_failed"):
        assert (bench.folder / reason).exists(), reason
    states = bench.rows("SELECT state, count(*) FROM jobs GROUP BY state ORDER BY 1")
    assert states == [("dead", 2), ("done", 421)]
    assert bench.run("output", "--raw", "--stream", "stdout", "1").stdout == "out\n"
    assert bench.run("output", "--raw", "--stream", "stderr", "298").stdout == "err\n"
    assert len(bench.run("output", "--raw", "--stream", "stdout", "363").stdout) == 60000
    assert bench.job(301)["last_exit_code"] == 3
    assert bench.job(302)["last_failure_reason"] == "spawn_failed"


def test_it_ends_when_there_is_nothing_for_it(bench: Bench) -> None:
    fill(bench, 100)
    worker = bench.work(
        "--poll-interval", "0.1", program=program(in_worker=HASTY), stderr=subprocess.DEVNULL
    )
    clerk = eventually(lambda: clerks_of(worker.pid), what="a clerk")[0]
    eventually(lambda: not alive(clerk), what="its end")
    eventually(lambda: not clerks_of(worker.pid))
    assert alive(worker.pid)
    fill(bench, 100)  # and there is another one when it is worth it
    eventually(lambda: clerks_of(worker.pid), what="a second clerk")
    bench.wait_state(200, "done")
    worker.terminate()
    worker.wait(timeout=30)
    assert len((bench.folder / "runs").read_text().split()) == 200


@pytest.mark.parametrize(
    ("flags", "circumstances"),
    [
        (["--max-jobs", "100"], ""),
        (["--slots", "2"], ""),
        ([], "ahead.SHORT_S = -1.0"),  # no command is short
        ([], "from spoolctl.process import processors; processors.usable = lambda: 1.0"),
        ([], "ahead.RARELY = -1.0"),  # others are always in the way
    ],
)
def test_there_is_none_where_it_is_not_worth_it(
    bench: Bench, flags: list[str], circumstances: str
) -> None:
    fill(bench, 120)
    worker = bench.work("--drain", *flags, program=program("", REFUSED + circumstances))
    worker.communicate(timeout=60)
    assert not (bench.folder / "asked").exists()


BACKLOG = "\nbooks.BACKLOG = 8\n"
NONE_SHORT = "ahead.SHORT_S = -1.0"


def test_one_comes_up_with_a_worker_for_whom_much_waits(bench: Bench) -> None:
    """Before anything has ended; and it goes when it turns out that nothing is short."""
    with Queue(bench.db) as queue:
        queue.add_many([["sleep", "60"]] * 8)
    worker = bench.work(
        program=program(in_worker=HASTY + BACKLOG + NONE_SHORT), stderr=subprocess.DEVNULL
    )
    clerk = eventually(lambda: clerks_of(worker.pid), what="a clerk")[0]
    bench.wait_state(1, "running")
    eventually(lambda: not alive(clerk), what="its end")
    assert not bench.rows("SELECT 1 FROM events WHERE event = 'succeeded'")
    worker.terminate()
    worker.send_signal(signal.SIGINT)
    worker.wait(timeout=30)


@pytest.mark.parametrize(
    ("jobs", "flags"), [(7, []), (20, ["--max-jobs", "20"]), (20, ["--slots", "2"])]
)
def test_otherwise_none_comes_up_with_it(bench: Bench, jobs: int, flags: list[str]) -> None:
    fill(bench, jobs)
    elsewhere = [["true"]] * 20
    with Queue(bench.db) as queue:
        queue.add_many(elsewhere, queue="elsewhere")
    worker = bench.work("--drain", *flags, program=program("", REFUSED + BACKLOG + NONE_SHORT))
    worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert not (bench.folder / "asked").exists()


def test_nor_with_one_that_is_not_alone(bench: Bench) -> None:
    fill(bench, 20)
    first = bench.work("--queue", "elsewhere", stderr=subprocess.DEVNULL)
    eventually(lambda: bench.rows("SELECT 1 FROM workers"))
    worker = bench.work("--drain", program=program("", REFUSED + BACKLOG + NONE_SHORT))
    worker.communicate(timeout=60)
    assert not (bench.folder / "asked").exists()
    first.terminate()
    first.wait(timeout=30)


def test_a_worker_that_keeps_up_has_none(bench: Bench) -> None:
    """It would cost more than it saves, and come back with every job."""
    worker = bench.work("-j", "4", program=program("note('asked')"), stderr=subprocess.DEVNULL)
    with Queue(bench.db) as queue:
        for _ in range(40):
            queue.wait([queue.add(["true"]).id], timeout=30)
    assert not clerks_of(worker.pid)
    assert not (bench.folder / "asked").exists()
    worker.terminate()
    worker.wait(timeout=30)


def test_signals_for_the_worker_and_its_terminal_do_not_reach_it(bench: Bench) -> None:
    """Nor has it anything open that is the worker's own: its lock, its roster, its streams."""
    bench.add("-c", "true")
    job = "echo > begun; until test -e go; do sleep 0.01; done"
    with Queue(bench.db) as queue:
        queue.add_many([["true"]] * 40)
    bench.add("-c", job)
    worker = bench.work(
        program=program(in_worker=LASTING),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    clerk = eventually(lambda: clerks_of(worker.pid), what="a clerk")[0]
    bench.wait_file("begun")
    assert os.getsid(clerk) == clerk
    eventually(lambda: str(bench.db) in files_of(clerk), what="the queue open")
    open_files = files_of(clerk)
    allowed = {"/dev/null", *(f"{bench.db}{end}" for end in ("", "-wal", "-shm"))}
    assert not [path for path in open_files if path not in allowed and "pipe:" not in path]
    assert len([path for path in open_files if "pipe:" in path]) == 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGTSTP):
        os.kill(clerk, number)
    os.killpg(worker.pid, signal.SIGINT)
    time.sleep(0.2)  # for one that is not meant to end
    assert alive(clerk)
    (bench.folder / "go").touch()
    worker.communicate(timeout=30)
    assert not alive(clerk)
    assert bench.job(42)["state"] == "done"


SLOW_BEFORE = """
import time
heard, calls = clerk._heard, []
def late():
    request = heard()
    calls.append(1)
    if len(calls) == 2:
        note("asked")
        while not os.path.exists(f"{here}/killed"): time.sleep(0.01)
    return request
clerk._heard = late
"""


def test_what_a_killed_worker_had_asked_for_is_not_done(bench: Bench) -> None:
    """Its jobs are others' business as soon as it is dead."""
    fill(bench, 300)
    worker = bench.work("-j", "4", program=program(SLOW_BEFORE), stderr=subprocess.DEVNULL)
    clerk = eventually(lambda: clerks_of(worker.pid), what="a clerk")[0]
    eventually((bench.folder / "asked").exists)
    before = bench.rows("SELECT max(id) FROM events")
    worker.kill()
    worker.wait()
    (bench.folder / "killed").touch()
    eventually(lambda: not alive(clerk))
    assert bench.rows("SELECT max(id) FROM events") == before
    bench.drain("-j", "4")
    assert not (bench.folder / "doubles").exists()
    assert bench.rows("SELECT DISTINCT state FROM jobs") == [("done",)]


SLOW_AFTER = cycle(
    "import time",
    "done = cycle(self, worker, outcomes, want, now=now)",
    "if any(one.job_id == 150 for one in done.claimed):",
    "    note('claimed')",
    "    while not os.path.exists(f'{here}/go'): time.sleep(0.01)",
    "return done",
)


@pytest.mark.parametrize("how", ["cancel", "retry"])
def test_what_is_canceled_while_its_claim_is_on_the_way_never_starts(
    bench: Bench, how: str
) -> None:
    fill(bench, 160)
    worker = bench.work(
        "--drain", program=program(SLOW_AFTER, LASTING + HEARD), stderr=subprocess.DEVNULL
    )
    eventually((bench.folder / "claimed").exists)
    before = rings(bench)
    words = ("cancel", "--running", "--yes") if how == "cancel" else ("retry", "--force")
    bench.json(*words, "150")
    eventually(lambda: rings(bench) > before)  # for an attempt that the worker does not know
    (bench.folder / "go").touch()
    worker.wait(timeout=60)
    runs = Counter((bench.folder / "runs").read_text().split())
    assert runs["150"] == (0 if how == "cancel" else 1)
    assert set(runs.values()) <= {0, 1}
    assert bench.rows("SELECT count(*) FROM attempts WHERE gone_at IS NULL") == [(0,)]
    assert bench.job(150)["state"] == ("canceled" if how == "cancel" else "done")


def test_a_stop_gives_back_what_is_on_its_way(bench: Bench) -> None:
    fill(bench, 160)
    worker = bench.work(
        "--heartbeat-interval",
        "60",  # nothing else is to wake it
        program=program(SLOW_AFTER, LASTING + HEARD),
        stderr=subprocess.DEVNULL,
    )
    eventually((bench.folder / "claimed").exists)
    worker.terminate()
    eventually((bench.folder / "stopping").exists)
    (bench.folder / "go").touch()
    worker.wait(timeout=60)
    assert worker.returncode == 0
    assert bench.rows("SELECT DISTINCT state FROM attempts") == [("succeeded",)]
    assert "150" not in (bench.folder / "runs").read_text().split()
    assert bench.job(150)["state"] == "queued"
    assert bench.trail(150) == ["added", "claimed", "released"]


SLOW_IF_DRY = cycle(
    "import time",
    "done = cycle(self, worker, outcomes, want, now=now)",
    "if want and not done.claimed and not self.living(worker):",
    "    note('dry')",
    "    while not os.path.exists(f'{here}/go'): time.sleep(0.01)",
    "return done",
)


def test_a_job_that_is_added_while_a_claim_is_on_its_way_does_not_wait(bench: Bench) -> None:
    fill(bench, 100)
    worker = bench.work(
        "--poll-interval",
        "3600",
        program=program(SLOW_IF_DRY, LASTING + HEARD),
        stderr=subprocess.DEVNULL,
    )
    eventually((bench.folder / "dry").exists)  # it has found nothing, and does not know it yet
    before = rings(bench)
    added = bench.add("-c", "true")
    eventually(lambda: rings(bench) > before)
    (bench.folder / "go").touch()
    bench.wait_state(added, "done")
    worker.terminate()
    worker.wait(timeout=30)


def test_a_clerk_is_not_blamed_for_a_worker_that_was_stopped(bench: Bench) -> None:
    fill(bench, 300)
    saying = """
say = clerk._say
def says(message):
    say(message)
    if len(turns) == 3: note("said")
clerk._say = says
"""
    code = program(LATE + saying, "books.CLERK_S = 3.0")
    worker = bench.work("--drain", program=code, stderr=subprocess.DEVNULL)
    clerk = eventually(lambda: clerks_of(worker.pid), what="a clerk")[0]
    eventually((bench.folder / "late").exists)
    worker.send_signal(signal.SIGSTOP)
    (bench.folder / "go").touch()
    eventually((bench.folder / "said").exists)
    time.sleep(3.1)  # longer than a clerk may take
    worker.send_signal(signal.SIGCONT)
    eventually(lambda: len((bench.folder / "asked").read_text()) > 3, what="another request")
    assert clerks_of(worker.pid) in ([clerk], [])  # the latter if all is done by now
    worker.wait(timeout=60)


@pytest.mark.parametrize("stops", [1, 2, 3, 4])
def test_a_worker_that_has_to_go_does_not_wait_for_a_stuck_clerk(bench: Bench, stops: int) -> None:
    fill(bench, 300)
    patience = "books.CLERK_S = 1.0" if stops < 3 else LASTING
    code = program(FAULTS["stops in the transaction"], patience + HEARD)
    worker = bench.work("-j", "4", program=code, stderr=subprocess.DEVNULL)
    eventually((bench.folder / "struck").exists)
    for number in range(stops):
        worker.terminate()
        if number == 0:
            eventually((bench.folder / "stopping").exists)
        time.sleep(0.05)  # two at once would be one
    worker.wait(timeout=30)
    bench.drain("-j", "4")
    assert not (bench.folder / "doubles").exists()
    assert bench.rows("SELECT DISTINCT state FROM jobs") == [("done",)]


def test_a_stopped_clerk_of_a_killed_worker_does_not_keep_the_queue(bench: Bench) -> None:
    fill(bench, 300)
    code = program(FAULTS["stops in the transaction"], LASTING)
    worker = bench.work("-j", "4", program=code, stderr=subprocess.DEVNULL)
    eventually((bench.folder / "struck").exists)
    worker.kill()
    worker.wait()
    bench.add("-c", "true")  # which waits five seconds for the lock
    bench.drain("-j", "4")
    assert not (bench.folder / "doubles").exists()
    assert bench.rows("SELECT DISTINCT state FROM jobs") == [("done",)]


LATE = cycle(
    "import time",
    "done = cycle(self, worker, outcomes, want, now=now)",
    "if len(turns) == 3:",
    "    note('late')",
    "    while not os.path.exists(f'{here}/go'): time.sleep(0.01)",
    "return done",
)


def test_what_is_recorded_when_the_worker_leaves_is_not_called_lost(bench: Bench) -> None:
    fill(bench, 300)
    leaving = """
books.LEAVE_S = 30.0
close = books.Books.close
def closing(self):
    open("closing", "w").close()
    close(self)
books.Books.close = closing
"""
    worker = bench.work("-j", "4", program=program(LATE, LASTING + leaving))
    eventually((bench.folder / "late").exists)
    for _ in range(3):
        worker.terminate()
        time.sleep(0.05)  # two at once would be one
    eventually((bench.folder / "closing").exists)
    (bench.folder / "go").touch()
    _, log = worker.communicate(timeout=60)
    assert "counts as a crash" not in log
    assert bench.rows("SELECT count(*) FROM attempts WHERE gone_at IS NULL") == [(0,)]
    ended = bench.rows("SELECT count(*) FROM attempts WHERE state = 'succeeded'")
    assert [(log.count(" succeeded "),)] == ended
    bench.drain("-j", "4")
    assert not (bench.folder / "doubles").exists()
    assert set(Counter((bench.folder / "runs").read_text().split()).values()) == {1}


def test_a_queue_that_is_removed_ends_both(bench: Bench) -> None:
    fill(bench, 300)
    worker = bench.work("-j", "4", program=program(LATE, LASTING), stderr=subprocess.DEVNULL)
    clerk = eventually(lambda: clerks_of(worker.pid), what="a clerk")[0]
    eventually((bench.folder / "late").exists)
    for end in ("", "-wal", "-shm"):
        os.unlink(f"{bench.db}{end}")
    worker.wait(timeout=30)
    assert worker.returncode != 0
    assert not alive(clerk)


def test_claims_with_much_input_do_not_hold_the_worker_up(bench: Bench) -> None:
    """They would be copied twice on their way: their worker claims them by itself."""
    fill(bench, 60)
    megabytes = bytes(3 << 20)
    with Queue(bench.db) as queue:
        for _ in range(40):
            queue.add(
                ["sh", "-c", "head -c 1 | wc -c >> fed"], stdin=megabytes, cwd=str(bench.folder)
            )
    noting = (
        cycle("note('asked')", WELL)
        + """
say = clerk._say
def saying(message):
    if message == clerk.FAILED: note("too-much")
    assert len(clerk.letters.answer(message)) < 2 * clerk.MOST_ANSWER_BYTES
    say(message)
clerk._say = saying
"""
    )
    log = bench.drain("-j", "4", program=program(noting))
    assert (bench.folder / "too-much").exists()
    assert (bench.folder / "fed").read_text().split() == ["1"] * 40
    assert log.count(" succeeded ") == 100
    assert bench.rows("SELECT DISTINCT state, no FROM attempts") == [("succeeded", 1)]


def test_trouble_that_lasts_keeps_neither_busy(bench: Bench) -> None:
    """On a full disk both fail at once: the worker waits as one without a clerk does."""
    fill(bench, 300)
    full = """
from spoolctl.store.sqlite.connection import Connection
from spoolctl.errors import StoreFull
begin, calls = Connection.begin, []
def begins(self, *args, **kwargs):
    begin(self, *args, **kwargs)
    if os.path.exists(f"{here}/asked") and not os.path.exists(f"{here}/room"):
        with open(f"{here}/tries", "a") as file: file.write(".")
        raise StoreFull("no room")
Connection.begin = begins
"""
    worker = bench.work(
        "-j",
        "4",
        "--drain",
        "--heartbeat-interval",
        "60",
        program=program(full + cycle(WELL), f"import os; here = os.getcwd(){full}"),
    )
    eventually((bench.folder / "tries").exists)
    time.sleep(2.0)
    (bench.folder / "room").touch()
    _, log = worker.communicate(timeout=60)
    assert log.count("waiting: no room") == 1
    assert log.count("going on") == 1
    # Every half second, and with each end of what it holds; it was thousands.
    assert len((bench.folder / "tries").read_text()) < 120
    check_each_ran_once(bench, log, 300)


def test_a_clerk_does_not_work_on_another_file_at_the_path(bench: Bench) -> None:
    """A backup that is put in the queue's place has rows of the same numbers."""
    fill(bench, 200)
    slow = """
serve = clerk._serve
def late(*args):
    import time
    note("starting")
    while not os.path.exists(f"{here}/go"): time.sleep(0.01)
    serve(*args)
say = clerk._say
def saying(message):
    say(message)
    note("ready")
clerk._serve, clerk._say = late, saying
"""
    worker = bench.work(
        "--heartbeat-interval",
        "60",
        program=program(slow, LASTING),
        stderr=subprocess.DEVNULL,
    )
    eventually((bench.folder / "starting").exists)
    worker.send_signal(signal.SIGSTOP)
    bench.run("backup", str(bench.folder / "copy"))
    with closing(sqlite3.connect(bench.folder / "copy")) as copy:
        left = copy.execute("SELECT count(*) FROM jobs WHERE state = 'queued'").fetchone()[0]
    for end in ("-wal", "-shm"):
        os.unlink(f"{bench.db}{end}")
    os.replace(bench.folder / "copy", bench.db)
    (bench.folder / "go").touch()
    eventually((bench.folder / "ready").exists)
    worker.send_signal(signal.SIGCONT)
    worker.wait(timeout=30)
    assert worker.returncode != 0
    assert bench.rows("SELECT count(*) FROM jobs WHERE state = 'queued'") == [(left,)]


@pytest.mark.parametrize("slots", [1, 4])
def test_no_more_is_held_than_may_be(bench: Bench, slots: int) -> None:
    fill(bench, 300)
    counts = """
from spoolctl.engine.crew import Crew
start = Crew.start
def counting(self):
    with open("held", "a") as file: file.write(f"{len(self.unstarted)}\\n")
    start(self)
Crew.start = counting
"""
    bench.drain("-j", str(slots), program=program(cycle(WELL), counts))
    assert (bench.folder / "asked").exists()
    held = [int(line) for line in (bench.folder / "held").read_text().split()]
    assert MOST_IF_HELPED / 2 < max(held) <= MOST_IF_HELPED + slots


def test_a_clerk_that_cannot_be_started_is_done_without(bench: Bench) -> None:
    fill(bench, 100)
    refusing = """
from spoolctl.engine.clerk import Clerk
def refuse(*_):
    open("asked", "w").close()
    raise OSError(11, "no more processes")
Clerk.start = refuse
"""
    log = bench.drain("-j", "4", program=program("", refusing))
    assert (bench.folder / "asked").exists()
    check_each_ran_once(bench, log, 100)


def test_a_fork_of_the_worker_does_not_keep_it_alive(bench: Bench) -> None:
    """A program that works and has children without exec, which would hold its pipe."""
    fill(bench, 200)
    fork = """
import os
from spoolctl.engine import books
done = books.Books._done
def forks(self, *args):
    if self._clerk is not None and not os.path.exists("child"):
        pid = os.fork()
        if pid == 0:
            import time
            time.sleep(60)
            os._exit(0)
        open("child.new", "w").write(str(pid)); os.rename("child.new", "child")
    return done(self, *args)
books.Books._done = forks
"""
    worker = bench.work("-j", "4", program=program("", LASTING + fork), stderr=subprocess.DEVNULL)
    child = int(bench.wait_file("child"))
    bench.wait_state(200, "done")  # so nothing is on its way
    clerk = clerks_of(worker.pid)[0]
    worker.kill()
    worker.wait()
    try:
        eventually(lambda: not alive(clerk))
    finally:
        os.kill(child, signal.SIGKILL)
    bench.drain()


JOBS, KILLS = 500, 12


@pytest.mark.parametrize("slots", [1, 4])
def test_random_deaths_lose_nothing(bench: Bench, slots: int) -> None:
    """Clerks and workers are killed and stopped, in any order, among short commands."""
    fill(bench, JOBS)
    seed = random.randrange(10**6)
    print("seed", seed)
    generator = random.Random(seed)
    kills = dead = 0
    met: set[int] = set()
    while bench.rows("SELECT 1 FROM jobs WHERE state <> 'done' LIMIT 1"):
        worker = bench.work(
            "-j", str(slots), "--drain", program=program("", HASTY), stderr=subprocess.DEVNULL
        )
        while kills < KILLS and worker.poll() is None:
            for clerk in clerks_of(worker.pid):
                time.sleep(generator.uniform(0, 0.05))
                with suppress(ProcessLookupError):
                    os.kill(clerk, generator.choice([signal.SIGKILL, signal.SIGSTOP]))
                met.add(clerk)
                kills += 1
            if generator.random() < 0.02:
                worker.kill()
                kills += 1
                dead += 1
            time.sleep(0.005)
        worker.wait(timeout=60)
        for clerk in met:  # one that was stopped as it started goes on, for nobody
            with suppress(ProcessLookupError):
                os.kill(clerk, signal.SIGCONT)
    assert kills
    assert not (bench.folder / "doubles").exists()
    runs = (bench.folder / "runs").read_text().split()
    assert len(set(runs)) == JOBS
    abandoned = bench.rows("SELECT count(*) FROM attempts WHERE state = 'abandoned'")[0][0]
    assert isinstance(abandoned, int)
    assert abandoned <= (slots + 3 * MOST_IF_HELPED) * dead
    assert len(runs) <= JOBS + abandoned
    assert bench.rows("SELECT count(*) FROM attempts WHERE state = 'succeeded'") == [(JOBS,)]


# -- the clerk alone ------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    from spoolctl.store import open_store

    return Desk(open_store(str(tmp_path / "queue.db"), create=True, wait_s=1.0), Clock())


def hear(clerk: Clerk) -> Answer | None:
    """Its next answer; None where it has become ready."""
    eventually(lambda: select.select([clerk.fd], [], [], 0)[0], what="an answer")
    answer = clerk.answer()
    return answer if answer is not None or clerk.ready else hear(clerk)


class QueueName(str):
    """As programs have them that keep their names in an Enum."""


def test_it_records_and_claims_in_one_transaction(desk: Desk) -> None:
    for _ in range(3):
        desk.add()
    first = desk.claim(1)[0]
    clerk = Clerk.start(desk.store.path, desk.me)
    try:
        assert not clerk.ready
        assert hear(clerk) is None
        assert clerk.ready
        assert clerk.ask([success(first)], Want(2, ("default",)))
        assert not clerk.ready
        answer = hear(clerk)
        assert answer is not None
        done = answer.cycle
        assert [one.job_id for one in done.claimed] == [2, 3]
        assert [one.job_id for one in done.recorded] == [1]
        assert clerk.ready
        assert desk.store.living(desk.me) == {one.attempt_id for one in done.claimed}
        assert not clerk.ask([success(first)._replace(error="x" * clerks.LONGEST_BYTES)], None)
        assert clerk.ready
        assert not clerk.ask([], Want(1, (QueueName("default"),))), "left to its worker"
        assert clerk.ready
    finally:
        assert clerk.close(10.0)
    assert not alive(clerk.pid)


def test_it_says_when_it_could_not(desk: Desk) -> None:
    clerk = Clerk.start(desk.store.path, desk.me)
    try:
        hear(clerk)
        with closing(sqlite3.connect(desk.store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            desk_job = Want(1, ("default",))
            assert clerk.ask([], desk_job)
            answer = hear(clerk)
            assert answer is not None
            assert answer.cycle.claimed == ()  # nothing there: no lock is needed
        desk.add()
        with closing(sqlite3.connect(desk.store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert clerk.ask([], desk_job)
            with pytest.raises(ClerkFailed):
                hear(clerk)
        assert clerk.ready
        assert clerk.ask([], desk_job)
        answer = hear(clerk)
        assert answer is not None
        assert len(answer.cycle.claimed) == 1
    finally:
        assert clerk.close(10.0)


def test_one_that_is_dead_is_noticed(desk: Desk) -> None:
    clerk = Clerk.start(desk.store.path, desk.me)
    try:
        hear(clerk)
        clerk.kill()
        os.waitid(os.P_PID, clerk.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ClerkGone):
            clerk.ask([], None)
        with pytest.raises(ClerkGone):
            clerk.answer()
    finally:
        assert clerk.close(10.0)
    clerk.let_go()  # a second time

"""`python3 -m tests.faults.sweep`: let every call on the queue's files fail, one after the other.

A scenario (an add, a worker that drains a queue, a backup, ...) is run once to list the calls
that it makes on the queue's files, then once for each of them, which fails: with ENOSPC, EIO,
EMFILE. What must hold each time: it ends, with an exit status and a message of its own; the
database is whole; what was acknowledged is there; a worker without faults settles everything,
with every output exact; nothing is left running.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from spoolctl import Queue
from tests.faults.preload import build
from tests.helpers import ROOT, clean_env, eventually, processes_of

QUICK = {"SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "0.1", "SPOOLCTL_TEST_REAP_THRESHOLD": "0.3"}
TIMEOUT_S = 60.0
LARGE = 200_000
SETTLED = {"done", "dead", "failed", "canceled"}


def job(rest: str) -> list[str]:
    """A command that notes its run outside the queue, and then does the rest."""
    return ["sh", "-c", f'echo $SPOOLCTL_JOB_ID >> "${{SPOOLCTL_DB%/q/*}}/ledger"; {rest}']


class Expected(NamedTuple):
    """How a job ends, and what it writes to its standard output."""

    state: str
    stdout: bytes


SMALL = Expected("done", b"small\n")


def add_all(queue: Queue) -> dict[int, Expected]:
    """One job of each kind."""
    ids = [
        queue.add(job("echo small")).id,
        queue.add(job(f"head -c {LARGE} /dev/zero | tr '\\0' x")).id,
        queue.add(job("echo bad; exit 3"), max_retries=0).id,
        queue.add(job("cat"), stdin=b"input\n").id,
    ]
    wanted = [SMALL, Expected("done", b"x" * LARGE), Expected("dead", b"bad\n")]
    return dict(zip(ids, [*wanted, Expected("done", b"input\n")], strict=True))


# -- scenarios --------------------------------------------------------------------------------


def nothing(_place: Path) -> dict[int, Expected]:
    """There is no queue yet."""
    return {}


def waiting(place: Path) -> dict[int, Expected]:
    """Jobs that nobody has run."""
    with Queue(place / "q" / "queue.db") as queue:
        return add_all(queue)


def finished(place: Path) -> dict[int, Expected]:
    """Jobs that have run."""
    expected = waiting(place)
    drain(place)
    return expected


def orphaned(place: Path) -> dict[int, Expected]:
    """Jobs whose worker was killed together with its guardian while one of them ran."""
    db = place / "q" / "queue.db"
    with Queue(db) as queue:
        long = queue.add(job(f'echo partly; until test -e "{place}/go"; do sleep 0.02; done'))
        worker = start(place, ["work"])
        try:
            eventually(lambda: (place / "ledger").exists(), timeout_s=60)
        finally:
            guardians = [pid for pid in processes_of(db) if b"guardian" in words_of(pid)]
            for pid in [worker.pid, *guardians]:
                os.kill(pid, signal.SIGKILL)
            worker.communicate()
        (place / "go").touch()
        eventually(lambda: not processes_of(db), timeout_s=60)
        (place / "ledger").unlink()
        rest = add_all(queue)
    # The command of a killed worker is run once more, by then at once.
    return {long.id: Expected("done", b"partly\n"), **rest}


class Scenario(NamedTuple):
    """What is there before, and the call in which something fails."""

    before: Callable[[Path], dict[int, Expected]]
    words: tuple[str, ...]


SCENARIOS = {
    "add to no queue": Scenario(nothing, ("add", "-c", "echo small")),
    "add": Scenario(waiting, ("add", "-c", "echo small")),
    "work": Scenario(waiting, ("work", "--drain", "-j", "2")),
    "work after a kill": Scenario(orphaned, ("work", "--drain", "-j", "2")),
    "cancel": Scenario(waiting, ("cancel", "1")),
    "retry": Scenario(finished, ("retry", "3")),
    "prune": Scenario(finished, ("prune", "--older-than", "0", "--state", "done,dead", "--yes")),
    "backup": Scenario(finished, ("backup", "q/copy.db")),
    "status": Scenario(finished, ("status",)),
    "output": Scenario(finished, ("output", "2", "--stream", "stdout", "--raw")),
}


class Fault(NamedTuple):
    """Calls of some `kinds` (see disk.c) on files with `only` in their path fail: from the
    `first`-th on, `count` of them."""

    error: str
    kinds: str
    first: int
    count: int = 1
    only: str = ""


KINDS = {"ENOSPC": "w", "EDQUOT": "w", "EIO": "wuro", "EMFILE": "d", "EROFS": "wu"}
"""Error -> the calls that may fail with it."""


# -- one run ----------------------------------------------------------------------------------


def words_of(pid: int) -> bytes:
    """A process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def start(
    place: Path, words: list[str], env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a verb on the queue of this place."""
    verb, *rest = words
    return subprocess.Popen(
        [sys.executable, "-m", "spoolctl", verb, "--db", str(place / "q" / "queue.db"), *rest],
        cwd=place,
        env=clean_env({**QUICK, **(env or {})}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(place: Path, words: list[str], env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run a verb to its end: exit status, stdout, stderr. A hang is an AssertionError."""
    process = start(place, words, env)
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it hangs: {err.decode()}") from None
    return process.returncode, out.decode(), err.decode()


def drain(place: Path) -> None:
    """Let a worker without faults settle everything."""
    code, _, err = run(place, ["work", "--drain"])
    assert code == 0, f"a worker without faults: exit {code}: {err}"


def environment(library: Path, root: Path, log: Path, fault: Fault) -> dict[str, str]:
    """What a program needs in its environment to meet this fault below `root`."""
    return {
        "LD_PRELOAD": str(library),
        "FAULTS_ROOT": str(root),
        "FAULTS_LOG": str(log),
        "FAULTS_KINDS": fault.kinds,
        "FAULTS_ERROR": str(getattr(errno, fault.error)),
        "FAULTS_FIRST": str(fault.first),
        "FAULTS_COUNT": str(fault.count),
        "FAULTS_ONLY": fault.only,
    }


class Result(NamedTuple):
    """What became of a run: the calls that it made, and what it said."""

    code: int
    said: str
    calls: list[str]


class Bench:
    """Runs one scenario again and again."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.folder = folder
        self.scenario = scenario
        self._library = build("disk", folder.parent)
        self._numbers = itertools.count()
        self._template = folder / "template"
        (self._template / "q").mkdir(parents=True)
        self._expected = scenario.before(self._template)
        (self._template / "ledger").unlink(missing_ok=True)

    def calls(self, kinds: str) -> list[str]:
        """The calls that a run without faults makes, one `kind name path` each."""
        return self.run(Fault("EIO", kinds, 0)).calls

    def run(self, fault: Fault) -> Result:
        """Run it with this fault, and check everything."""
        place = self.folder / str(next(self._numbers))
        shutil.copytree(self._template, place, ignore=shutil.ignore_patterns("*.bell"))
        log = place / "calls"
        env = environment(self._library, place / "q", log, fault)
        code, out, err = run(place, list(self.scenario.words), env)
        _, *calls = ["", *log.read_text().splitlines()]
        calls = [line.split(" ", 1)[1].replace(str(place), "") for line in calls]
        self._check(place, code, out, err)
        shutil.rmtree(place)
        return Result(code, (err.strip() or out.strip()).replace(str(place), ""), calls)

    def _check(self, place: Path, code: int, out: str, err: str) -> None:
        db = place / "q" / "queue.db"
        for bad in ("Traceback", "unexpected", "Exception", "Error:"):
            assert bad not in out + err, err
        assert code in (0, 1, 3, 4), f"exit {code}: {err}"
        assert code == 0 or "spoolctl: error: " in err, f"exit {code}, and not a word"
        eventually(lambda: not processes_of(db), timeout_s=20, what="what it left running")
        verb = self.scenario.words[0]
        expected = dict(self._expected)
        for added in re.findall(r"^Added job (\d+)$", out, re.M):
            expected[int(added)] = SMALL
        if verb == "cancel" and code == 0:
            expected[1] = Expected("canceled", b"")
        if not db.exists():
            assert not expected
            return
        assert_whole(db)
        told = set(map(int, re.findall(r"^spoolctl: job (\d+) .* -> (?:done|dead)$", err, re.M)))
        if verb == "work":
            assert told <= settled(db), "told, and not recorded"
        ran_before = runs_of(place)
        if verb == "work" and code == 0:
            assert settled(db) == set(expected), "drained, and not settled"
            assert ran_before == dict.fromkeys(expected, 1), "not once each"
        if verb == "backup":
            self._check_copy(place, code)
        drain(place)
        self._check_end(place, expected, code)

    def _check_end(self, place: Path, expected: dict[int, Expected], code: int) -> None:
        """Everything is settled, and every output exact."""
        verb = self.scenario.words[0]
        with Queue(place / "q" / "queue.db") as queue:
            jobs = {one.id: one for one in queue.jobs(limit=None)}
            pruned = verb == "prune"
            assert pruned or set(expected) <= set(jobs), "lost"
            assert not (pruned and code == 0 and jobs), "not pruned"
            for number, one in jobs.items():
                if number not in expected:  # not acknowledged, but there: then it is whole
                    assert (verb, one.state.value) == ("add", "done")
                    continue
                if verb == "cancel" and code != 0 and one.state.value == "canceled":
                    continue
                wanted = expected[number]
                assert one.state.value == wanted.state, f"job {number}: {one}"
                if wanted.state != "canceled":
                    text = queue.output(number)
                    assert text == wanted.stdout, f"job {number}: {text[:50]!r}"
            large = {f"attempts/{name}" for name in queue._store.stream_names()}
        there = files_of(place / "q" / "queue.db")
        assert there == large, f"left behind: {there - large}; gone: {large - there}"

    def _check_copy(self, place: Path, code: int) -> None:
        copy = place / "q" / "copy.db"
        if code != 0:
            assert not list((place / "q").glob("copy.db*")), "half a copy was left"
            return
        assert_whole(copy)


def assert_whole(db: Path) -> None:
    """SQLite's own check of the file."""
    with closing(sqlite3.connect(db, isolation_level=None)) as conn:
        (answer,) = conn.execute("PRAGMA integrity_check").fetchone()
    assert answer == "ok", answer


def settled(db: Path) -> set[int]:
    """The jobs that are at their end."""
    with closing(sqlite3.connect(db, isolation_level=None)) as conn:
        return {number for number, state in conn.execute("SELECT id, state FROM jobs")
                if state in SETTLED}  # fmt: skip


def files_of(db: Path) -> set[str]:
    """What lies in the support folder."""
    support = Path(f"{db}.d")
    return {str(path.relative_to(support)) for path in support.rglob("*") if not path.is_dir()}


def runs_of(place: Path) -> dict[int, int]:
    """How often each job's command ran."""
    ledger = place / "ledger"
    found: dict[int, int] = {}
    for line in ledger.read_text().split() if ledger.exists() else []:
        found[int(line)] = found.get(int(line), 0) + 1
    return found


# -- the sweep --------------------------------------------------------------------------------


def shape(call: str) -> str:
    """A call without the random ids in its path."""
    return re.sub(r"[0-9a-f]{32}", "ID", call)


def interesting(calls: list[str]) -> list[int]:
    """Numbers of calls to let fail: of a row of equal ones only the first and the last."""
    numbers = []
    at = 1
    for _, group in itertools.groupby(calls, key=shape):
        size = len(list(group))
        numbers += sorted({at, at + size - 1})
        at += size
    return numbers


class Failure(NamedTuple):
    """A fault that broke something, and what."""

    fault: Fault
    call: str
    what: str


def sweep(
    bench: Bench, error: str, *, every: bool, sample: int | None, seed: int, count: int = 1
) -> Iterator[tuple[Fault, Result | Failure]]:
    """Let each call fail with this error, or a sample of them."""
    kinds = KINDS[error]
    calls = bench.calls(kinds)
    numbers = list(range(1, len(calls) + 1)) if every else interesting(calls)
    if sample is not None and sample < len(numbers):
        numbers = sorted(random.Random(seed).sample(numbers, sample))
    for number in numbers:
        fault = Fault(error, kinds, number, count)
        try:
            yield fault, bench.run(fault)
        except AssertionError as broken:
            yield fault, Failure(fault, calls[number - 1], str(broken))


def main() -> int:
    """Sweep, and tell what was found."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.faults.sweep", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"some of: {', '.join(SCENARIOS)}")
    parser.add_argument("--error", action="append", choices=sorted(KINDS), help="default: all")
    parser.add_argument("--every", action="store_true", help="every call of a row of equal ones")
    parser.add_argument("--count", type=int, default=1, help="how many calls fail in a row (1)")
    parser.add_argument("--sample", type=int, help="only so many of each, by chance")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="tell every run")
    asked = parser.parse_args()
    os.chdir(ROOT)
    broken = runs = 0
    with tempfile.TemporaryDirectory(prefix="sweep.") as scratch:
        turns = itertools.product(asked.scenarios or SCENARIOS, asked.error or KINDS)
        for number, (name, error) in enumerate(turns):
            bench = Bench(SCENARIOS[name], Path(os.path.realpath(scratch), str(number)))
            faults = sweep(
                bench,
                error,
                every=asked.every,
                sample=asked.sample,
                seed=asked.seed,
                count=asked.count,
            )
            for fault, result in faults:
                runs += 1
                if isinstance(result, Failure):
                    broken += 1
                    print(f"BROKEN {name}, {error} at {fault.first}: {result.call}\n{result.what}")
                elif asked.verbose:
                    call = next((c for c in result.calls if c.endswith("INJECTED")), "-")
                    said = " | ".join(result.said.splitlines()[-3:])
                    print(f"{name}, {error} at {fault.first}: {call}: {result.code}: {said}")
                sys.stdout.flush()
            print(f"# {name}, {error}: done, {runs} runs so far, {broken} broken", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

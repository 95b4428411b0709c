"""Switch off one mechanism in this process, to show that the suite finds what it prevents.

Used by `launch.py` alone, on the worker that it is about to start: the product itself has no
such switches. Mishaps are not mechanisms: they make something happen at one exact point.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, TypeVar

import spoolctl
from spoolctl.core.records import Instant, Outcome, Reaped, Recorded, Suspect
from spoolctl.core.states import AttemptState, Event, State
from spoolctl.engine import attempt, reaper
from spoolctl.engine.attempt import Running, Why
from spoolctl.engine.station import Station
from spoolctl.errors import StoreBusy
from spoolctl.process import ending, identity, search
from spoolctl.process import spawn as spawning
from spoolctl.process.identity import Judgement, Verdict
from spoolctl.process.roster import Roster
from spoolctl.store.sqlite import sql
from spoolctl.store.sqlite.store import SqliteStore
from tests.chaos.clocks import SteppedClock

Switch = TypeVar("Switch", bound=Callable[[], None])

ABLATIONS: dict[str, Callable[[], None]] = {}
"""Name of the mechanism -> what takes it away."""

DIES_AT = "dies at call "

MISHAPS: dict[str, Callable[[], None]] = {}
"""Name of what happens -> what makes it happen."""


def switch_off(names: Iterable[str]) -> None:
    """Take these mechanisms away from this process, or let these mishaps happen to it.

    "dies at call N" is a mishap for every N.
    """
    for name in names:
        if name.startswith(DIES_AT):
            _die_at_call(int(name.removeprefix(DIES_AT)))
        else:
            {**ABLATIONS, **MISHAPS}[name]()


def _mechanism(name: str) -> Callable[[Switch], Switch]:
    def enter(switch: Switch) -> Switch:
        ABLATIONS[name] = switch
        return switch

    return enter


def _mishap(name: str) -> Callable[[Switch], Switch]:
    def enter(switch: Switch) -> Switch:
        MISHAPS[name] = switch
        return switch

    return enter


def _patch(owner: Any, name: str, value: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} any more: this switch does nothing"
    setattr(owner, name, value)


# -- three nets -----------------------------------------------------------------------------


@_mechanism("guardian")
def _no_guardian() -> None:
    """Nobody watches the worker."""
    _patch(Station, "ensure_guardian", lambda *_: None)
    _patch(Station, "guarded", True)


@_mechanism("announcement")
def _no_announcement() -> None:
    """An attempt gets into the roster only when it has been started."""
    announced: dict[int, tuple[str, str]] = {}
    announce, spawned = Roster.announce, Roster.spawned

    def remember(self: Roster, slot: int, token: str, lock_path: str) -> None:
        announced[slot] = token, lock_path

    def late(self: Roster, slot: int, pid: int, start: str) -> None:
        announce(self, slot, *announced[slot])
        spawned(self, slot, pid, start)

    _patch(Roster, "announce", remember)
    _patch(Roster, "spawned", late)


@_mechanism("search")
def _no_search() -> None:
    """Whoever looks for survivors finds none."""
    nothing = search.Found([], [], inside=False, complete=True, settled=True)
    _patch(search.Snapshot, "search", lambda *_args, **_nets: nothing)


def _without_net(net: str) -> Callable[[], None]:
    def switch() -> None:
        begin = ending.Ending.__init__

        def init(self: ending.Ending, *args: Any, **options: Any) -> None:
            begin(self, *args, **{**options, "nets": search.ALL_NETS - {net}})

        _patch(ending.Ending, "__init__", init)

    return switch


for _net in ("session", "descendants", "environment"):
    _mechanism(f"net of {_net}")(_without_net(_net))


@_mechanism("collection of orphans")
def _no_collection() -> None:
    """Nobody looks at the orphans that a subreaper inherits."""
    _patch(search.Snapshot, "adopted", lambda *_: [])


@_mechanism("attempt lock")
def _no_attempt_lock() -> None:
    """Commands do not inherit their attempt's lock."""
    spawn = spawning.spawn

    def without(argv: Sequence[str], **options: Any) -> int:
        return spawn(argv, **{**options, "lock_fd": None})

    _patch(attempt, "spawn", without)


@_mechanism("whole tree")
def _no_whole_tree() -> None:
    """A failed command is over when it has exited, whatever it leaves running."""
    end = Running.end

    def leave(self: Running, why: Why, *times: float) -> None:
        if why is Why.FAILED:
            self.why = self.why or why
        else:
            end(self, why, *times)

    _patch(Running, "end", leave)


# -- proof ----------------------------------------------------------------------------------


@_mechanism("proof of death")
def _no_proof() -> None:
    """A silent owner counts as dead."""
    dead = Judgement(Verdict.DEAD, "it is silent")
    _patch(reaper, "judge", lambda *_args, **_evidence: dead)


@_mechanism("start time")
def _no_start_time() -> None:
    """Whoever has the owner's pid is the owner."""
    by_pid = identity._by_pid

    def number_alone(who: Any, seen: identity.Sighting) -> Judgement:
        return by_pid(who, seen._replace(start=who.start))

    _patch(identity, "_by_pid", number_alone)


@_mechanism("boot clock")
def _no_boot_clock() -> None:
    """Silence is measured on the wall clock."""
    now = SteppedClock.now

    def wall(self: SteppedClock) -> Instant:
        seen = now(self)
        return seen._replace(boot=seen.at)

    _patch(SteppedClock, "now", wall)


# -- gates of the store ---------------------------------------------------------------------


@_mechanism("gate of gone_at")
def _no_gate() -> None:
    """A queued job may start while processes of an earlier attempt may live."""
    held = "(ready = 1 OR (state = 'queued' AND due IS NULL))"
    for name in ("CLAIMABLE_IN_LANE", "CLAIMABLE_ANYWHERE"):
        text = getattr(sql, name)
        assert "ready = 1" in text
        _patch(sql, name, text.replace("ready = 1", held))
    _patch(SqliteStore, "_nothing_to_do", lambda *_: (False, 0.0))


@_mechanism("orphans in slots")
def _no_orphans_in_slots() -> None:
    """Ceilings count jobs that run, not attempts that live."""
    _patch(sql, "LANE", sql.LANE.replace("retrying, living", "retrying, running"))


@_mechanism("owner's guard")
def _no_guard_of_finish() -> None:
    """A worker's report is recorded without a look at whose attempt it is by now."""

    def record(self: SqliteStore, worker: int, outcome: Outcome, now: Instant) -> Recorded:
        row = self._c.execute(sql.ATTEMPT_STATUS, (outcome.attempt_id,)).fetchone()
        job = self._job(row[0])
        self._c.execute("UPDATE jobs SET state = 'running' WHERE id = ?", (job.id,))
        out, err = outcome.stdout, outcome.stderr
        self._set_gone(outcome.attempt_id, job.id, outcome.duration_s, 0, out, err, now)
        self._end_attempt(outcome, now)
        if outcome.state is AttemptState.SUCCEEDED:
            moves = [(job.id, (now.at, outcome.exit_code, None, None))]
            self._move_alike(moves, State.RUNNING, Event.SUCCEEDED, now=now, worker=worker)
            return Recorded(outcome.attempt_id, job.id, State.DONE, None)
        return self._follow_up(job._replace(state=State.RUNNING.value), outcome, worker, now)

    _patch(SqliteStore, "_record", record)


@_mechanism("reaper's guard")
def _no_guard_of_reap() -> None:
    """A reaper takes back what it once saw, whatever others have done since."""

    def reap(self: SqliteStore, suspect: Suspect, **given: Any) -> Reaped | None:
        time.sleep(0.7)  # both have seen it by now
        now, pid = given["now"], suspect.worker.identity.pid if suspect.worker else 0
        out, err = given["stdout"], given["stderr"]
        with self._c.write():
            job = suspect.job_id
            self._c.execute("UPDATE jobs SET state = 'running' WHERE id = ?", (job,))
            words = (AttemptState.ABANDONED.value, now.at, given["error"], "worker_crash")
            self._c.execute(sql.STOP_ATTEMPT, (*words, suspect.attempt_id))
            self._set_gone(suspect.attempt_id, job, None, 0, out, err, now)
            to = self._after_crash(job, given["by"], pid, given["error"], now)
        return Reaped(job, suspect.attempt_no, pid, to)

    _patch(SqliteStore, "reap", reap)


@_mechanism("output outlives the commit")
def _no_output_until_commit() -> None:
    """Streams that go into the database are unlinked before they are there."""
    outcome = attempt.outcome

    def early(running: Running, **limits: Any) -> Outcome:
        found = outcome(running, **limits)
        running.streams.remove(found.stdout, found.stderr)
        return found

    _patch(attempt, "outcome", early)


# -- mishaps --------------------------------------------------------------------------------


@_mishap("dies after the spawn")
def _die_after_spawn() -> None:
    """SIGKILL at the moment when a command has been started and nobody has noted its pid."""
    spawn = spawning.spawn

    def fatal(argv: Sequence[str], **options: Any) -> int:
        spawn(argv, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")

    _patch(attempt, "spawn", fatal)


@_mishap("dies before the commit")
def _die_before_commit() -> None:
    """SIGKILL when an attempt has ended and its result is about to be recorded."""
    cycle = SqliteStore.cycle

    def fatal(self: SqliteStore, worker: int, outcomes: Any, *rest: Any, **now: Any) -> Any:
        if outcomes:
            os.kill(os.getpid(), signal.SIGKILL)
        return cycle(self, worker, outcomes, *rest, **now)

    _patch(SqliteStore, "cycle", fatal)


@_mishap("slow to commit")
def _slow_to_commit() -> None:
    """Each result is recorded a second after it is known, as behind a foreign lock."""
    cycle = SqliteStore.cycle

    def slow(self: SqliteStore, worker: int, outcomes: Any, *rest: Any, **now: Any) -> Any:
        if outcomes:
            os.write(2, b"slow to commit\n")
            time.sleep(1.0)
        return cycle(self, worker, outcomes, *rest, **now)

    _patch(SqliteStore, "cycle", slow)


@_mishap("busy when asked what it has lost")
def _busy_when_asked() -> None:
    """The first look at what was canceled under it finds the queue locked."""
    lost = SqliteStore.lost
    asked: list[int] = []

    def busy(self: SqliteStore, worker: int) -> frozenset[int]:
        found = lost(self, worker)
        if found and not asked:
            asked.append(worker)
            raise StoreBusy(self.path)
        return found

    _patch(SqliteStore, "lost", busy)


def _die_at_call(number: int) -> None:
    """SIGKILL at the n-th call of a function of the product, counted from the registration.

    Says how many there were where it lives to its end.
    """
    product = os.path.dirname(os.path.abspath(spoolctl.__file__))
    register = SqliteStore.register
    calls = [0]

    def count(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(product):
            calls[0] += 1
            if calls[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)

    def begin(self: SqliteStore, *args: Any, **now: Any) -> int:
        sys.setprofile(count)
        return register(self, *args, **now)

    _patch(SqliteStore, "register", begin)
    atexit.register(lambda: os.write(2, f"{calls[0]} calls\n".encode()))

"""Take jobs back from dead workers: silent, proven dead, no process of the attempt left.

A stale heartbeat only nominates. Then the operating system is asked whether the owner
lives; only DEAD goes on, UNCLEAR is left alone and said once. Then whatever still lives of
the attempt is ended; only when it is confirmed gone is the attempt taken back.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from spoolctl.core.paths import worker_lock, workers_dir
from spoolctl.core.records import Identity, Instant, Reaped, Suspect, WorkerRow
from spoolctl.core.states import AttemptState
from spoolctl.engine import capture
from spoolctl.errors import StoreBusy
from spoolctl.folders import words_of
from spoolctl.process import locks
from spoolctl.process.identity import Evidence, Judgement, Verdict, judge
from spoolctl.process.roster import read_roster
from spoolctl.process.tree import Ending, Snapshot, Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.protocol import Store

    Judge = Callable[[Identity, str], Judgement]


RETRY_S = 0.05
UNREADABLE_S = 1.0

_LEFT_ALONE = {
    Verdict.UNCLEAR: "left alone, it is unclear whether its worker lives",
    Verdict.DEAD: "left alone, its worker died but it cannot be taken back yet",
}


class Recovery:
    """One attempt that is being taken back: its processes are being ended."""

    def __init__(self, suspect: Suspect, ending: Ending, *, foreign: bool) -> None:
        self.suspect = suspect
        self.ending = ending
        self.foreign = foreign
        self.due_mono = 0.0


class Reaper:
    """Looks for attempts without a living owner; a worker calls it from its loop.

    `scan` nominates and judges, `step` ends processes and takes back. `judge` is asked
    for each silent worker once per scan.
    """

    def __init__(
        self,
        store: Store,
        worker_id: int,
        *,
        threshold_s: float | None,
        inline_bytes: int,
        grace_s: float,
        log: Callable[[str], None],
        evidence: Evidence,
        judge: Judge | None = None,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._threshold_s = threshold_s
        self._inline_bytes = inline_bytes
        self._grace_s = grace_s
        self._log = log
        self._evidence = evidence
        self.judge: Judge = judge or self._ask
        self._active: dict[int, Recovery] = {}
        self._told: dict[int, str] = {}
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Whether an attempt is being taken back, and not stuck."""
        return any(not one.ending.stuck for one in self._active.values())

    def stop(self) -> None:
        """Leave what was begun to others: this worker ends."""
        self._active.clear()
        self._stopped = True

    def scan(self, now: Instant) -> None:
        """Nominate and judge. Raises StoreBusy and the like; may be repeated."""
        if self._stopped:
            return
        suspects = self._store.suspects(threshold_s=self._threshold_s, now=now)
        self._forget({one.attempt_id for one in suspects})
        judged: dict[int, Judgement] = {}
        for suspect in suspects:
            worker = suspect.worker
            if suspect.attempt_id in self._active:
                continue
            if worker is not None and worker.id == self._worker_id:
                continue
            if worker is None:
                verdict = Judgement(Verdict.DEAD, "its worker is not registered")
            else:
                if worker.id not in judged:
                    judged[worker.id] = self.judge(worker.identity, self._lock_of(worker))
                verdict = judged[worker.id]
            if verdict.verdict is Verdict.DEAD:
                try:
                    self._active[suspect.attempt_id] = self._begin(suspect, now)
                    continue
                except OSError as error:
                    verdict = _unreadable("what its worker ran", error)
            self._explain(suspect, verdict, now)

    def _forget(self, nominated: set[int]) -> None:
        """Others may have taken back what we were at; drop what is nominated no more."""
        for attempt_id in set(self._active) - nominated:
            del self._active[attempt_id]
        for attempt_id in set(self._told) - nominated:
            del self._told[attempt_id]

    def _lock_of(self, worker: WorkerRow) -> str:
        return worker_lock(self._store.path, worker.token)

    def _ask(self, who: Identity, lock_path: str) -> Judgement:
        return judge(who, lock_path, evidence=self._evidence)

    def _begin(self, suspect: Suspect, now: Instant) -> Recovery:
        """Find out from the dead worker's roster what to look for, and begin to end it."""
        target = Target(suspect.token, None, None, None)
        foreign = False
        if suspect.worker is not None:
            who = suspect.worker.identity
            foreign = not self._can_see(who)
            same_boot = who.boot_id == now.boot_id
            for entry in read_roster(self._lock_of(suspect.worker)):
                if entry.token == suspect.token and same_boot:
                    # A pid of another namespace means nothing here; its lock does.
                    pid, start = (None, None) if foreign else (entry.pid, entry.start)
                    target = Target(suspect.token, pid, start, entry.lock_path)
            foreign = foreign and same_boot
        ending = Ending(target, grace_s=self._grace_s, now_mono=now.mono)
        return Recovery(suspect, ending, foreign=foreign)

    def _can_see(self, who: Identity) -> bool:
        """Whether its processes have numbers that mean something to us."""
        same = who.pid_ns == self._evidence.pid_namespace()
        return same and self._evidence.table_is_ours()

    def _explain(self, suspect: Suspect, verdict: Judgement, now: Instant) -> None:
        """Say once, here and in `show`, why the attempt is not taken back."""
        if self._told.get(suspect.attempt_id) == verdict.reason:
            return
        self._store.note_recovery(
            [suspect.attempt_id],
            verdict=verdict.verdict.value,
            reason=verdict.reason,
            now=now,
        )
        self._told[suspect.attempt_id] = verdict.reason
        if verdict.verdict is not Verdict.ALIVE:
            what = _LEFT_ALONE[verdict.verdict]
            self._log(f"spoolctl: job {suspect.job_id} {what}: {verdict.reason}")

    def next_mono(self) -> float | None:
        """When `step` has something to do next, on the monotonic clock."""
        return min((one.due_mono for one in self._active.values()), default=None)

    def step(self, snapshot: Callable[[], Snapshot], now: Instant) -> list[Reaped]:
        """Go on ending processes; take back what is confirmed gone.

        Raises StoreBusy and the like: nothing is lost, call again. After the first that was
        taken back it returns instead, or nobody would be told of that one.
        """
        reaped: list[Reaped] = []
        try:
            self._step_all(snapshot, now, reaped)
        except StoreBusy:
            if not reaped:
                raise
        return reaped

    def _step_all(
        self, snapshot: Callable[[], Snapshot], now: Instant, reaped: list[Reaped]
    ) -> None:
        for attempt_id, recovery in list(self._active.items()):
            if recovery.due_mono > now.mono:
                continue
            if not self._is_gone(recovery, snapshot, now):
                continue
            recovery.due_mono = now.mono + RETRY_S  # should the store be busy
            try:
                result = self._take_back(recovery.suspect, now)
            except OSError as error:
                recovery.due_mono = now.mono + UNREADABLE_S
                self._explain(recovery.suspect, _unreadable("its output", error), now)
                continue
            del self._active[attempt_id]
            self._told.pop(attempt_id, None)
            if result is not None:
                reaped.append(result)

    def _is_gone(self, recovery: Recovery, snapshot: Callable[[], Snapshot], now: Instant) -> bool:
        ending = recovery.ending
        if not ending.gone:
            wait: float | None = ending.strike(now.mono)
            wait = wait or ending.step(snapshot(), now.mono)
            if wait is not None:
                recovery.due_mono = now.mono + wait
                if ending.stuck:
                    self._explain(recovery.suspect, Judgement(Verdict.DEAD, ending.stuck), now)
                return False
        if recovery.foreign and self._guarded(recovery.suspect):
            recovery.due_mono = now.mono + 0.2
            return False
        return True

    def _guarded(self, suspect: Suspect) -> bool:
        """Whether the dead worker's guardian, in a namespace that we cannot see, is at work."""
        if suspect.worker is None:
            return False
        guard = os.path.join(workers_dir(self._store.path), f"{suspect.worker.token}.guard")
        return locks.is_held(guard) is True

    def _take_back(self, suspect: Suspect, now: Instant) -> Reaped | None:
        out, err = capture.salvage(self._store.path, suspect.token, self._inline_bytes)
        result = self._store.reap(
            suspect,
            by=self._worker_id,
            error="worker died" if suspect.attempt_state is AttemptState.RUNNING else "canceled",
            survivors=0,
            stdout=out,
            stderr=err,
            now=now,
        )
        if result is not None:
            capture.remove_stored(self._store.path, suspect.token, out, err)
        return result


def _unreadable(what: str, error: OSError) -> Judgement:
    return Judgement(Verdict.DEAD, f"{what} cannot be read ({words_of(error)})")

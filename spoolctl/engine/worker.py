"""A worker: claim, run, finish, again; one process, one thread, one event loop.

Each turn of the loop looks at ended children and signals, fires what is due, goes on ending
trees, records what has ended and claims what comes next in one transaction, starts it, and
sleeps until the next event.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress

from spoolctl.core.records import Claimed, Instant, NewWorker, Outcome, Recorded, Want
from spoolctl.core.states import AttemptState, Reason
from spoolctl.engine import sweep
from spoolctl.engine.attempt import line_of
from spoolctl.engine.clock import SystemClock, mono
from spoolctl.engine.crew import Crew, Report
from spoolctl.engine.errand import Errand, Turn
from spoolctl.engine.leaving import leave
from spoolctl.engine.log import LineLog, PlainLog
from spoolctl.engine.loop import Deadlines, Signals, Sleeper
from spoolctl.engine.options import WorkOptions, WorkResult
from spoolctl.engine.patience import Patience
from spoolctl.engine.reaper import Reaper
from spoolctl.engine.station import Station
from spoolctl.errors import InvalidInput, SpoolError, StoreBusy, StoreGone, StoreUnusable
from spoolctl.process import tree
from spoolctl.process.identity import Evidence
from spoolctl.process.spawn import (
    become_subreaper,
    is_subreaper,
    prepare_signals,
    resign_as_subreaper,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from spoolctl.engine.clock import Clock
    from spoolctl.engine.log import Log
    from spoolctl.engine.options import Helper, Progress
    from spoolctl.store.protocol import Store

    T = TypeVar("T")

SWEEP_INTERVAL_S = 300.0
PROGRESS_S = 0.25
LOG_PAUSE_S = 0.05
LONGEST_SLEEP_S = 3600.0
GIVE_IN_S = 1.0
"""Whoever insists a third time would rather have jobs run again."""
SERVED_S = 0.5
"""How often a worker for one job looks whether those to whom it leaves the job still live."""


class Worker:
    """One worker on one queue. `run` does everything; an instance serves once."""

    def __init__(
        self,
        store: Store,
        options: WorkOptions,
        *,
        log: Log,
        progress: Progress | None = None,
        clock: Clock | None = None,
        evidence: Evidence | None = None,
        helper: Helper | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._helper = helper
        self._helpless = 0  # 1 once the helper has ended: counts as a stop request
        self._errand: Errand | None = None
        self._log = log
        self._progress = progress
        self._clock = clock or SystemClock()
        self._mono = mono if clock is None else lambda: clock.now().mono
        self._evidence = evidence or Evidence(store.path)
        self._deadlines = Deadlines()
        self._look = True  # there may be something to claim
        self._looked = False  # a claim has come back with nothing
        self._stops_seen = 0
        self._hurried = False  # a stop that does not wait for what runs
        self._gives_in = False  # nor even for what ran to be recorded
        self._id = 0
        self._failure: Exception | None = None
        self._drained = False
        self._claims = 0
        self._executed = 0
        self._failed = 0
        self._last: tuple[Claimed, Outcome, Recorded] | None = None
        self._settled: list[tuple[Claimed, Outcome, Recorded]] = []  # not told yet
        self._idle_since: float | None = None
        self._patience = Patience(log)
        self._snapshot: tree.Snapshot | None = None

    # -- life ---------------------------------------------------------------------------

    def run(self) -> WorkResult:
        """Work until told to stop, or until what the options ask for is done.

        Raises OSError if the support folder cannot be used, and whatever the store raises
        before the first claim; later trouble with the store is in the result.
        """
        with ExitStack() as undo:
            try:
                undo.callback(prepare_signals())
            except ValueError:  # from signal.signal
                raise InvalidInput("only the main thread of a program can be a worker") from None
            self._signals = Signals()
            undo.callback(self._signals.close)
            if not is_subreaper() and become_subreaper():
                undo.callback(resign_as_subreaper)
            self._take_place(undo)
            if self._register():
                self._loop()
        return self._result()

    def _take_place(self, undo: ExitStack) -> None:
        """Make all that the loop needs; `undo` takes it down. Raises OSError."""
        options = self._options
        self._station = Station(
            self._store.path,
            options.jobs,
            grace_s=options.grace_s,
            waits=options.drain or options.job_id is not None,
            frees_slots=options.slots is not None,
        )
        self._crew = Crew(
            self._store.path,
            self._station,
            self._deadlines,
            self._patience,
            options,
            log=self._log,
            mono=self._mono,
            stuck=self._note_stuck,
        )
        undo.callback(self._crew.children.close)
        undo.callback(self._leave)
        self._sleeper = Sleeper([self._signals.fd, *self._station.bell_fds()])
        undo.callback(self._sleeper.close)
        if self._helper is not None:
            self._crew.children.watch(self._helper.pid)
            self._sleeper.add(self._helper.fd)

    def _register(self) -> bool:
        """Make this worker known; False if a stop request came before that was possible."""
        now = self._clock.now()
        options = self._options
        identity = self._station.identity
        self.name = options.worker_id or f"{os.uname().nodename}-{os.getpid()}"
        worker = NewWorker(
            self._station.token,
            self.name,
            identity,
            options.lanes if options.job_id is None else (),
            options.jobs,
            options.heartbeat_interval_s,
        )
        try:
            registered = self._persist(lambda: self._store.register(worker, now=now))
        except StoreBusy:
            self._stops_seen = self._stops()
            return False
        self._id = registered.worker_id
        for sentence in registered.healed:
            self._log(f"spoolctl: {sentence}")
        self._reaper = Reaper(
            self._store,
            self._id,
            threshold_s=options.reap_after_s,
            inline_bytes=options.inline_bytes,
            grace_s=options.grace_s,
            log=self._log,
            evidence=self._evidence,
        )
        if options.job_id is not None:
            self._errand = Errand(
                self._store,
                options.job_id,
                options.lanes or (),
                threshold_s=options.reap_after_s,
                judge=self._reaper.judge,
                log=self._log,
            )
        for name in ("scan", "sweep") if self._progress is None else ("scan", "sweep", "progress"):
            self._deadlines.set(name, now.mono)
        self._deadlines.set("heartbeat", now.mono + self._beat_s)
        return True

    def _persist(self, call: Callable[[], T]) -> T:
        """Repeat a store operation at start-up until the lock is free.

        Raises StoreBusy if a stop is asked for meanwhile.
        """
        while True:
            try:
                return call()
            except StoreBusy as busy:
                if self._stops():
                    raise
                pause = self._patience.pause("store", busy, self._clock.now().mono)
                self._heed(self._sleeper.sleep(pause))

    @property
    def _beat_s(self) -> float:
        return self._options.heartbeat_interval_s

    def _leave(self) -> None:
        worker = self._id if self._id and self._failure is None else None
        clock, patience, log = self._clock, self._patience, self._log
        leave(self._store, worker, self._station, self._crew, clock, patience, log)
        if worker is not None:
            with suppress(SpoolError):
                self._sweep(clock.now())

    def _result(self) -> WorkResult:
        claimed, outcome, recorded = self._last or (None, None, None)
        return WorkResult(
            executed=self._executed,
            drained=self._drained,
            stopped=self._stops_seen > 0,
            job_id=claimed.job_id if claimed else None,
            attempt_no=claimed.attempt_no if claimed else None,
            attempt_state=outcome.state.value if outcome else None,
            job_state=recorded.job_state.value if recorded and recorded.job_state else None,
            failure=self._failure,
            stop_signal=self._signals.first_stop,
        )

    # -- the loop -----------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            self._snapshot = None
            now = self._clock.now()
            self._crew.collect(now)  # lest a stop end it
            self._hear()
            self._fire(now)
            self._crew.end_trees(self._take_snapshot, now)
            self._recover(now)
            self._crew.start()  # what was claimed ahead, before what has ended is recorded
            self._crew.start(self._record_and_claim())
            self._tidy()
            if self._is_over():
                return
            self._sleep()

    def _sleep(self) -> None:
        now = self._mono()
        wakes = [self._deadlines.next_mono(), self._crew.next_mono(), self._reaper.next_mono()]
        longest = LOG_PAUSE_S if self._log.behind else LONGEST_SLEEP_S
        wake = min((at for at in wakes if at is not None), default=now + longest)
        ready = self._sleeper.sleep(min(max(0.0, wake - now), longest))
        self._crew.woke(now)
        self._log.flush()
        if self._heed(ready):
            self._look = True
            self._check_lost()

    def _heed(self, ready: frozenset[int]) -> bool:
        """Take note of what ended a sleep, or it would end the next at once; whether a bell did."""
        if not ready:
            return False
        self._signals.drain()
        if self._helper is not None and self._helper.fd in ready:
            self._sleeper.remove(self._helper.fd)
            self._helpless = 1
        rung = not ready.isdisjoint(self._station.bell_fds())
        if rung:
            self._station.hush()
        return rung

    def _stops(self) -> int:
        """How many stop requests there were: signals, and the end of the helper."""
        return self._signals.stops() + self._helpless

    def _hear(self) -> None:
        """Stop requests: the first lets what runs end, the second ends it."""
        stops = self._stops()
        if stops == self._stops_seen:
            return
        first, self._stops_seen = self._stops_seen == 0, stops
        now = self._clock.now().mono
        if first:
            self._reaper.stop()
            self._crew.give_back_unstarted()
            if self._crew.running and self._options.shutdown_timeout_s != 0:
                self._log("spoolctl: stopping after in-flight job (signal again to kill it)")
            if self._options.shutdown_timeout_s is not None:
                self._deadlines.set("shutdown", now + self._options.shutdown_timeout_s)
        if stops > 1:
            self._on_shutdown(self._clock.now())

    def _take_snapshot(self) -> tree.Snapshot:
        """One look at all processes, shared by everything in this turn."""
        if self._snapshot is None:
            self._snapshot = tree.Snapshot.take()
        return self._snapshot

    # -- what is due --------------------------------------------------------------------

    def _fire(self, now: Instant) -> None:
        for name in self._deadlines.due(now.mono):
            if isinstance(name, tuple):
                self._crew.time_out(name[1], now)
            else:
                getattr(self, f"_on_{name}")(now)

    def _on_heartbeat(self, now: Instant) -> None:
        self._deadlines.set("heartbeat", now.mono + self._beat_s)
        self._crew.children.collect_strangers()
        beat = self._try("heartbeat", lambda: self._store.heartbeat(self._id, now=now))
        if beat is False:
            self._give_up(StoreGone(self._store.path))
            return
        self._try("check", self._store.check_file)
        self._crew.explain_again()
        self._check_lost()
        # Not where the queue itself is gone: its folder must not come back.
        if self._failure is None and self._station.missing_bells():
            for fd in self._station.bell_fds():
                self._sleeper.remove(fd)
            self._station.renew_bells()
            for fd in self._station.bell_fds():
                self._sleeper.add(fd)

    def _on_scan(self, now: Instant) -> None:
        after = self._options.reap_after_s
        pause = self._beat_s if after is None else min(self._beat_s, max(after / 4, 0.05))
        self._deadlines.set("scan", now.mono + pause)
        self._try("scan", lambda: self._reaper.scan(now))

    def _on_lost(self, _now: Instant) -> None:
        self._check_lost()

    def _on_sweep(self, now: Instant) -> None:
        self._deadlines.set("sweep", now.mono + SWEEP_INTERVAL_S)
        self._try("sweep", lambda: self._sweep(now))

    def _sweep(self, now: Instant) -> None:
        sweep.sweep(
            self._store,
            threshold_s=self._options.reap_after_s,
            judge=self._reaper.judge,
            now=now,
        )

    def _on_look(self, _now: Instant) -> None:
        self._look = True

    def _on_again(self, _now: Instant) -> None:
        """Just another turn."""

    _on_record = _on_again

    def _on_output(self, now: Instant) -> None:
        self._crew.look_at_output(now)

    def _on_identify(self, _now: Instant) -> None:
        self._crew.identify()

    def _on_unreported(self, _now: Instant) -> None:
        self._crew.report_late()

    def _on_spares(self, _now: Instant) -> None:
        self._crew.spares.drop()

    def _on_held(self, _now: Instant) -> None:
        self._crew.give_back_held()

    def _on_shutdown(self, _now: Instant) -> None:
        self._hurried = True
        self._crew.shut_down()

    def _on_give_in(self, _now: Instant) -> None:
        self._gives_in = True

    def _on_guardian(self, _now: Instant) -> None:
        if self._crew.running:
            self._crew.ensure_guardian()

    def _on_progress(self, _now: Instant) -> None:
        self._show_progress()

    # -- recovering ---------------------------------------------------------------------

    def _recover(self, now: Instant) -> None:
        due = self._reaper.next_mono()
        if due is None or due > now.mono:
            return
        reaped = self._try("reap", lambda: self._reaper.step(self._take_snapshot, now))
        for one in reaped or ():
            if one.job_state is not None:
                self._log(
                    f"spoolctl: reaped job {one.job_id} (worker pid {one.worker_pid} died);"
                    f" now {one.job_state.value}"
                )
            self._look = True
        if reaped:
            self._station.ring()

    def _check_lost(self) -> None:
        """End attempts that were canceled or forced."""
        if not self._crew.running and not self._crew.unstarted:
            return
        lost = self._try("lost", lambda: self._store.lost(self._id))
        if lost:
            self._crew.lose(lost)

    def _note_stuck(self, attempt_id: int, reason: str) -> None:
        """Keep for `show` why an attempt's processes cannot be ended."""
        now = self._clock.now()
        self._try(
            "note",
            lambda: self._store.note_recovery(
                [attempt_id], verdict="alive", reason=reason, now=now
            ),
        )

    # -- the store ----------------------------------------------------------------------

    def _try(self, what: str, call: Callable[[], T]) -> T | None:
        """A store operation that may be repeated later; None if it did not happen."""
        if self._failure is not None:
            return None
        try:
            result = call()
        except StoreBusy as busy:
            self._put_off(what, busy)
            return None
        except StoreUnusable as error:
            if error.kind == "read_only":  # remounted after trouble: may come back
                self._put_off(what, error)
            else:
                self._give_up(error)
            return None
        except StoreGone as error:
            self._give_up(error)
            return None
        except OSError as error:  # the disk, too few descriptors or too little memory
            self._put_off(what, error)
            return None
        self._patience.over(what)
        return result

    def _put_off(self, what: str, error: Exception) -> None:
        mono = self._clock.now().mono
        again = what if what in ("heartbeat", "scan", "lost") else "again"
        pause_s = self._patience.pause(what, error, mono, self._crew.record_s)
        self._deadlines.sooner(again, mono + pause_s)

    def _give_up(self, error: Exception) -> None:
        """The queue cannot be used any more: end everything, record nothing.

        The caller says why, once the worker has ended (`WorkResult.failure`).
        """
        if self._failure is not None:
            return
        self._failure = error
        self._reaper.stop()
        if self._crew.running:
            self._log("spoolctl: the queue cannot be used any more; ending running jobs")
        self._crew.abandon()

    def _want(self) -> Want | None:
        """What to claim now; None for nothing."""
        options = self._options
        limit, most = self._crew.room, options.most_claims
        if most is not None:
            limit = min(limit, most - self._claims)
        if limit <= 0 or self._stops_seen:
            return None
        if self._errand is not None and not self._may_claim(self._errand):
            return None
        ahead = max(0, limit - self._crew.free)
        return Want(limit, options.lanes, options.slots, options.job_id, ahead)

    def _may_claim(self, errand: Errand) -> bool:
        """Whether the one job is to be claimed now, and not left to others."""
        now = self._clock.now()
        reporting = bool(self._crew.reports)
        turn = self._try("errand", lambda: errand.turn(now, reporting=reporting))
        if turn is Turn.OURS:
            return True
        # Its end rings, and the reaper sees to it should its owner die. But nothing tells
        # when a worker dies or leaves without taking it.
        self._look = turn is not Turn.OTHERS
        if self._look:
            self._deadlines.sooner("again", now.mono + SERVED_S)
        else:
            self._deadlines.sooner("look", now.mono + self._options.poll_interval_s)
        return False

    def _record_and_claim(self) -> tuple[Claimed, ...]:
        """One transaction: what has ended, and what comes next. Returns what was claimed."""
        reports = list(self._crew.reports)
        if reports and self._crew.gathers():
            return ()
        want = self._want() if self._look or reports else None
        if want is None and not reports:
            return ()
        outcomes = [report.outcome for report in reports]
        now = self._clock.now()
        since = self._patience.since("cycle")
        cycle = self._try("cycle", lambda: self._store.cycle(self._id, outcomes, want, now=now))
        if cycle is None:
            return ()
        waited = cycle.waited or since is not None
        self._crew.recorded(waited, self._mono() - (since or now.mono))
        for report, recorded in zip(reports, cycle.recorded, strict=True):
            self._settle(report, recorded)
        if reports:
            self._station.ring()
            if any(outcome.reason is Reason.WORKER_SHUTDOWN for outcome in outcomes):
                self._station.offer()
        self._claims += len(cycle.claimed)
        if want is not None:
            self._look = len(cycle.claimed) == want.limit
            self._looked = not cycle.claimed
            pause = min(self._options.poll_interval_s, _or(cycle.next_due_s, LONGEST_SLEEP_S))
            self._deadlines.set("look", now.mono + pause)
        return cycle.claimed

    def _settle(self, report: Report, recorded: Recorded) -> None:
        """After the commit: what cannot wait until the next commands have been started."""
        outcome = report.outcome
        if not outcome.started:
            self._claims -= 1
            return
        if recorded.job_state is None and outcome.survivors != 0:
            self._crew.end_survivors(report)
            return
        self._last = (report.claimed, outcome, recorded)
        if outcome.reason is not Reason.WORKER_SHUTDOWN:
            self._executed += 1
            self._failed += outcome.state is not AttemptState.SUCCEEDED
        self._settled.append(self._last)
        if report.running is not None:
            self._crew.put_away(report.running, outcome)

    def _tidy(self) -> None:
        """Say what was recorded, and remove what now is in the database.

        After the next commands were started: they run meanwhile.
        """
        self._crew.tidy()
        if self._settled and self._errand is None:  # else whoever asked for the job tells of it
            self._log.all(line_of(*each) for each in self._settled)
        self._settled.clear()

    # -- the end ------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._crew.running:
            # Trees that cannot be ended must not keep a worker that has to go.
            return (self._failure is not None or self._hurried) and self._crew.all_stuck()
        if self._failure is not None:
            return True
        if self._crew.reports:
            if self._stops_seen > 2:
                self._deadlines.sooner("give_in", self._mono() + GIVE_IN_S)
            return self._gives_in
        if self._crew.unstarted:
            return False
        if self._stops_seen:
            return True
        return self._has_done_enough()

    def _has_done_enough(self) -> bool:
        options = self._options
        if self._errand is not None:
            return self._try("errand", self._errand.is_settled) or False
        if self._claims and self._claims == options.most_claims:
            return True
        if not self._looked or self._look or self._reaper.busy:
            self._idle_since = None
            return False
        if options.once:
            return True
        mono = self._clock.now().mono
        if options.drain:
            self._show_progress()
            holds = self._try(
                "drain",
                lambda: self._store.holds_drain(options.lanes, now=self._clock.now()),
            )
            self._drained = holds is False
            return self._drained
        if options.idle_timeout_s is not None:
            if self._idle_since is None:
                self._idle_since = mono
            self._deadlines.sooner("again", self._idle_since + options.idle_timeout_s)
            return mono - self._idle_since >= options.idle_timeout_s
        return False

    def _show_progress(self) -> None:
        if self._progress is None:
            return
        counts = self._try("counts", lambda: self._store.counts(now=self._clock.now()))
        if counts is not None:
            left = counts.queued_in(self._options.lanes)
            done = self._executed - self._failed
            self._progress(done, self._failed, len(self._crew.running), left)
        self._deadlines.set("progress", self._clock.now().mono + PROGRESS_S)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def run_worker(
    store: Store,
    options: WorkOptions,
    *,
    log: Callable[[str], None],
    progress: Progress | None = None,
    helper: Helper | None = None,
) -> WorkResult:
    """Work on the queue as `options` say; see `Worker.run`."""
    lines = log if isinstance(log, LineLog) else PlainLog(log)
    try:
        return Worker(store, options, log=lines, progress=progress, helper=helper).run()
    finally:
        lines.finish()

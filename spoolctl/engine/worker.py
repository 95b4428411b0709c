"""A worker: claim, run, finish, again; one process, one thread, one event loop.

Each turn of the loop looks at ended children and signals, fires what is due, goes on ending
trees, records what has ended and claims what comes next in one transaction, starts it, and
sleeps until the next event.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress

from spoolctl.core.records import Instant, NewWorker
from spoolctl.engine import sweep
from spoolctl.engine.attempt import line_of
from spoolctl.engine.books import LONGEST_SLEEP_S, Books
from spoolctl.engine.clock import SystemClock, mono
from spoolctl.engine.crew import Crew
from spoolctl.engine.errand import Errand
from spoolctl.engine.leaving import leave
from spoolctl.engine.log import LineLog, PlainLog
from spoolctl.engine.loop import Deadlines, Signals, Sleeper
from spoolctl.engine.options import WorkOptions, WorkResult
from spoolctl.engine.patience import Patience
from spoolctl.engine.reaper import Reaper
from spoolctl.engine.station import Station
from spoolctl.engine.trying import Trying
from spoolctl.errors import InvalidInput, SpoolError, StoreBusy, StoreGone
from spoolctl.process import processors, tree
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
GIVE_IN_S = 1.0
"""Whoever insists a third time would rather have jobs run again."""


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
        self._log = log
        self._progress = progress
        self._clock = clock or SystemClock()
        self._mono = mono if clock is None else lambda: clock.now().mono
        # A clerk has the machine's clock.
        self._may_have_clerk = clock is None and processors.usable() > 1
        self._evidence = evidence or Evidence(store.path)
        self._deadlines = Deadlines()
        self._stops_seen = 0
        self._hurried = False  # a stop that does not wait for what runs
        self._gives_in = False  # nor even for what ran to be recorded
        self._id = 0
        self._drained = False
        self._overtaken = False  # a cancel rang while a claim was on its way to us
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
        self._try = Trying(
            self._deadlines,
            self._patience,
            self._mono,
            lambda: self._crew.ahead.record_s,
            self._give_up,
        )
        self._sleeper = Sleeper([self._signals.fd, *self._station.bell_fds()])
        undo.callback(self._sleeper.close)
        self._books = Books(
            self._store,
            options,
            self._crew,
            self._station,
            self._deadlines,
            self._sleeper,
            self._patience,
            self._try,
            clock=self._clock,
            mono=self._mono,
            may_have_clerk=self._may_have_clerk,
        )
        undo.callback(self._books.close)
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
        self._books.registered(registered)
        self._reaper = Reaper(
            self._store,
            self._id,
            threshold_s=options.reap_after_s,
            inline_bytes=options.inline_bytes,
            grace_s=options.grace_s,
            log=self._log,
            evidence=self._evidence,
        )
        for sentence in registered.healed:
            self._log(f"spoolctl: {sentence}")
        if options.job_id is not None:
            self._books.errand = Errand(
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
        if self._id:
            self._tidy()
        worker = self._id if self._id and self._try.failure is None else None
        clock, patience, log = self._clock, self._patience, self._log
        leave(self._store, worker, self._station, self._crew, clock, patience, log)
        if worker is not None:
            with suppress(SpoolError):
                self._sweep(clock.now())

    def _result(self) -> WorkResult:
        claimed, outcome, recorded = self._books.last or (None, None, None)
        return WorkResult(
            executed=self._books.executed,
            drained=self._drained,
            stopped=self._stops_seen > 0,
            job_id=claimed.job_id if claimed else None,
            attempt_no=claimed.attempt_no if claimed else None,
            attempt_state=outcome.state.value if outcome else None,
            job_state=recorded.job_state.value if recorded and recorded.job_state else None,
            failure=self._try.failure,
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
            self._record_and_claim()
            self._crew.start()
            self._tidy()
            if self._is_over():
                return
            self._crew.prepare()
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
            self._books.look = True
            self._overtaken = self._books.on_its_way
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
            self._try.give_up(StoreGone(self._store.path))
            return
        self._try("check", self._store.check_file)
        self._crew.explain_again()
        self._check_lost()
        # Not where the queue itself is gone: its folder must not come back.
        if self._try.failure is None and self._station.missing_bells():
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
        self._books.look = True

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

    def _on_clerk(self, _now: Instant) -> None:
        self._books.dismiss_clerk()

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
            self._books.look = True
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

    def _give_up(self) -> None:
        """The queue cannot be used any more: end everything, record nothing.

        The caller says why, once the worker has ended (`WorkResult.failure`).
        """
        self._reaper.stop()
        self._books.dismiss_clerk()
        if self._crew.running:
            self._log("spoolctl: the queue cannot be used any more; ending running jobs")
        self._crew.abandon()

    def _record_and_claim(self) -> None:
        """What has ended, and what comes next: in one transaction, by us or by the clerk."""
        if self._books.turn(stopping=self._stops_seen > 0) and self._overtaken:
            self._overtaken = False
            self._check_lost()  # again: what was canceled may have been on its way to us then

    def _tidy(self) -> None:
        """Say what was recorded, and remove what now is in the database.

        After the next commands were started: they run meanwhile.
        """
        self._crew.tidy()
        settled = self._books.to_tell()
        if settled and self._books.errand is None:  # else whoever asked for the job tells of it
            self._log.all(line_of(*each) for each in settled)

    # -- the end ------------------------------------------------------------------------

    def _is_over(self) -> bool:
        failed = self._try.failure is not None
        if self._crew.running and not ((failed or self._hurried) and self._crew.all_stuck()):
            return False
        if failed:
            return True
        if self._crew.reports or self._books.on_its_way:
            if self._stops_seen > 2:
                self._deadlines.sooner("give_in", self._mono() + GIVE_IN_S)
            return self._gives_in
        if self._crew.running:  # trees that cannot be ended: they must not keep who has to go
            return True
        if self._crew.unstarted:
            return False
        if self._stops_seen:
            return True
        return self._has_done_enough()

    def _has_done_enough(self) -> bool:
        options = self._options
        if self._books.errand is not None:
            return self._try("errand", self._books.errand.is_settled) or False
        if self._books.claims and self._books.claims == options.most_claims:
            return True
        if not self._books.looked or self._books.look or self._reaper.busy:
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
            done = self._books.executed - self._books.failed
            self._progress(done, self._books.failed, len(self._crew.running), left)
        self._deadlines.set("progress", self._clock.now().mono + PROGRESS_S)


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

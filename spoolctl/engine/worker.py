"""A worker: claim, run, finish, again; one process, one thread, one event loop.

Each turn of the loop looks at signals and ended children, fires what is due, goes on ending
trees, records what has finished and claims what comes next in one transaction, starts it,
and sleeps in the kernel until the next event.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TypeVar

from spoolctl.core.paths import waiters_dir, workers_dir
from spoolctl.core.records import Claimed, Instant, NewWorker, Outcome, Recorded, Want
from spoolctl.core.states import AttemptState, Reason
from spoolctl.engine import attempt, sweep
from spoolctl.engine.attempt import NoResources, Running, Why
from spoolctl.engine.capture import NOTHING
from spoolctl.engine.children import Children
from spoolctl.engine.clock import SystemClock
from spoolctl.engine.log import LineLog, Log, PlainLog
from spoolctl.engine.loop import Deadlines, Signals, Sleeper
from spoolctl.engine.options import WorkOptions, WorkResult
from spoolctl.engine.patience import Patience
from spoolctl.engine.reaper import Reaper
from spoolctl.engine.station import Station
from spoolctl.errors import SpoolError, StoreBusy, StoreGone, StoreUnusable
from spoolctl.process import bell, tree
from spoolctl.process.identity import Evidence
from spoolctl.process.spawn import SpawnFailed, become_subreaper, prepare_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.engine.clock import Clock
    from spoolctl.engine.options import Progress
    from spoolctl.store.protocol import Store

T = TypeVar("T")

OUTPUT_LOOK_S = 1.0
RESOURCES_PAUSE_S = 1.0
SWEEP_INTERVAL_S = 300.0
PROGRESS_S = 0.25
STRAGGLERS_S = 0.05
LOG_PAUSE_S = 0.05
LONGEST_SLEEP_S = 3600.0


class Report:
    """An attempt that has ended and is not recorded yet."""

    def __init__(self, outcome: Outcome, claimed: Claimed, running: Running | None) -> None:
        self.outcome = outcome
        self.claimed = claimed
        self.running = running


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
    ) -> None:
        self._store = store
        self._options = options
        self._log = log
        self._progress = progress
        self._clock = clock or SystemClock()
        self._evidence = evidence or Evidence(store.path)
        self._deadlines = Deadlines()
        self._children = Children()
        self._running: dict[int, Running] = {}  # by the leader's pid
        self._unstarted: list[Claimed] = []  # claimed, waiting for resources
        self._reports: list[Report] = []
        self._base_env = dict(os.environ)
        self._look = True  # there may be something to claim
        self._looked = False  # a claim has come back with nothing
        self._stops_seen = 0
        self._id = 0
        self._failure: Exception | None = None
        self._drained = False
        self._claims = 0
        self._executed = 0
        self._failed = 0
        self._last: tuple[Claimed, Outcome, Recorded] | None = None
        self._idle_since: float | None = None
        self._patience = Patience(log)
        self._snapshot: tree.Snapshot | None = None

    # -- life ---------------------------------------------------------------------------

    def run(self) -> WorkResult:
        """Work until told to stop, or until what the options ask for is done.

        Raises OSError if the support folder cannot be used, and whatever the store raises
        before the first claim; later trouble with the store is in the result.
        """
        prepare_signals()
        self._signals = Signals()
        become_subreaper()
        options = self._options
        try:
            self._station = Station(
                self._store.path, options.jobs, grace_s=options.grace_s, waits=options.drain
            )
            self._free = list(reversed(self._station.slots))
            self._sleeper = Sleeper([self._signals.fd, *self._station.bell_fds()])
            try:
                if self._register():
                    self._loop()
            finally:
                self._leave()
                self._sleeper.close()
        finally:
            self._signals.close()
        return self._result()

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
            options.lanes,
            options.jobs,
            options.heartbeat_interval_s,
        )
        try:
            for sentence in self._persist(lambda: self._store.heal(now=now)):
                self._log(f"spoolctl: {sentence}")
            self._id = self._persist(lambda: self._store.register(worker, now=now))
        except StoreBusy:
            self._hear()
            return False
        self._reaper = Reaper(
            self._store,
            self._id,
            threshold_s=options.reap_after_s,
            inline_bytes=options.inline_bytes,
            grace_s=options.grace_s,
            log=self._log,
            evidence=self._evidence,
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
                if self._signals.stops():
                    raise
                pause = self._patience.pause("store", busy, self._clock.now().mono)
                self._sleeper.sleep(pause)

    @property
    def _beat_s(self) -> float:
        return self._options.heartbeat_interval_s

    def _leave(self) -> None:
        """Take the worker's place down; trees that could not be ended stay the guardian's."""
        if self._running:
            return
        registered = self._id and self._failure is None
        if registered:
            with suppress(SpoolError):  # a dead worker's row is swept by others
                self._store.unregister(self._id, now=self._clock.now())
        self._station.close(self._children)
        if registered:
            with suppress(SpoolError):
                self._sweep(self._clock.now())

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
        )

    # -- the loop -----------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            self._snapshot = None
            self._hear()
            now = self._clock.now()
            self._collect(now)
            self._fire(now)
            self._end_trees(now)
            self._recover(now)
            self._record_and_claim()
            self._start_claimed()
            if self._is_over():
                return
            self._sleep()

    def _sleep(self) -> None:
        now = self._clock.now().mono
        wakes = [self._deadlines.next_in(now), LONGEST_SLEEP_S]
        if self._log.behind:
            wakes.append(LOG_PAUSE_S)
        wakes += [max(0.0, one.due_mono - now) for one in self._running.values() if one.ending]
        reaper = self._reaper.next_mono()
        if reaper is not None:
            wakes.append(max(0.0, reaper - now))
        ready = self._sleeper.sleep(min(wake for wake in wakes if wake is not None))
        self._log.flush()
        if not ready:
            return
        self._signals.drain()
        if not ready.isdisjoint(self._station.bell_fds()):
            self._station.hush()
            self._look = True
            self._check_lost()

    def _hear(self) -> None:
        """Stop requests: the first lets what runs end, the second ends it."""
        stops = self._signals.stops()
        if stops == self._stops_seen:
            return
        first, self._stops_seen = self._stops_seen == 0, stops
        now = self._clock.now().mono
        if first:
            if self._running:
                self._log("spoolctl: stopping after in-flight job (signal again to kill it)")
            if self._options.shutdown_timeout_s is not None:
                self._deadlines.set("shutdown", now + self._options.shutdown_timeout_s)
        if stops > 1:
            self._shut_down(now)

    def _shut_down(self, mono: float) -> None:
        """End what runs and give it back without spending its budget."""
        for running in self._running.values():
            if running.why is None and running.ended is None:
                running.end(Why.SHUTDOWN, self._options.grace_s, mono)
        for claimed in self._unstarted:
            self._report_unstarted(claimed, AttemptState.ABANDONED, Reason.WORKER_SHUTDOWN)
        self._unstarted.clear()

    def _collect(self, now: Instant) -> None:
        for ended in self._children.poll():
            running = self._running.get(ended.pid)
            if running is None:
                if self._station.guardian_ended(ended.pid):
                    self._children.release(ended.pid)
                    self._ensure_guardian(now.mono)
                continue
            running.has_ended(ended, now.mono)
            self._deadlines.drop(("timeout", running.attempt_id))
            if ended.code != 0:
                running.end(Why.FAILED, self._options.grace_s, now.mono)
            if running.gone:
                self._has_gone(running)

    def _ensure_guardian(self, mono: float) -> None:
        """Replace a guardian that was killed; without resources, again a little later."""
        try:
            self._station.ensure_guardian(self._children, mono, self._log)
        except OSError as error:
            self._log(f"spoolctl: cannot start the guardian: {error.strerror}")
        if not self._station.guarded:
            self._deadlines.set("guardian", mono + RESOURCES_PAUSE_S)

    # -- what is due --------------------------------------------------------------------

    def _fire(self, now: Instant) -> None:
        for name in self._deadlines.due(now.mono):
            if isinstance(name, tuple):
                self._time_out(name[1], now)
            else:
                getattr(self, f"_on_{name}")(now)

    def _time_out(self, attempt_id: Hashable, now: Instant) -> None:
        for running in self._running.values():
            if running.attempt_id == attempt_id and running.ended is None:
                running.end(Why.TIMEOUT, self._options.grace_s, now.mono)

    def _on_heartbeat(self, now: Instant) -> None:
        self._deadlines.set("heartbeat", now.mono + self._beat_s)
        beat = self._try("heartbeat", lambda: self._store.heartbeat(self._id, now=now))
        if beat is False:
            self._give_up(StoreGone(self._store.path))
            return
        self._try("check", self._store.check_file)
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
        if not self._stops_seen and self._failure is None:
            self._try("scan", lambda: self._reaper.scan(now))

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

    def _on_output(self, now: Instant) -> None:
        for running in self._running.values():
            if running.ending is not None:
                continue
            with suppress(OSError):
                if not running.streams.look(self._options.max_output_bytes):
                    self._log(f"spoolctl: job {running.claimed.job_id} exceeds the output limit")
                    running.end(Why.OUTPUT_LIMIT, self._options.grace_s, now.mono)
        if self._running:
            self._deadlines.set("output", now.mono + OUTPUT_LOOK_S)

    def _on_look(self, _now: Instant) -> None:
        self._look = True

    def _on_again(self, _now: Instant) -> None:
        """Just another turn of the loop: something is to be tried again."""

    def _on_shutdown(self, now: Instant) -> None:
        self._shut_down(now.mono)

    def _on_guardian(self, now: Instant) -> None:
        if self._running:
            self._ensure_guardian(now.mono)

    def _on_progress(self, _now: Instant) -> None:
        self._show_progress()

    # -- trees --------------------------------------------------------------------------

    def _take_snapshot(self) -> tree.Snapshot:
        """One look at all processes, shared by everything in this turn."""
        if self._snapshot is None:
            self._snapshot = tree.Snapshot.take()
        return self._snapshot

    def _end_trees(self, now: Instant) -> None:
        for running in list(self._running.values()):
            ending = running.ending
            if ending is None or ending.gone or running.due_mono > now.mono:
                continue
            wait = ending.step(self._take_snapshot(), now.mono)
            if wait is not None:
                running.due_mono = now.mono + wait
                self._explain_stuck(running, now)
            elif running.gone:
                self._has_gone(running)
            else:
                # All found ended, but the leader's end was not reported yet: SIGCHLD is due.
                running.due_mono = now.mono + LONGEST_SLEEP_S

    def _explain_stuck(self, running: Running, now: Instant) -> None:
        reason = running.ending.stuck if running.ending else None
        if reason is None or reason == running.told:
            return
        running.told = reason
        self._log(f"spoolctl: job {running.claimed.job_id} cannot be ended: {reason}")
        ids = [running.attempt_id]
        self._try(
            "note",
            lambda: self._store.note_recovery(ids, verdict="alive", reason=reason, now=now),
        )

    def _has_gone(self, running: Running) -> None:
        """The attempt is over and its processes are gone: it can be reported."""
        if running.why is Why.STORE_GONE:
            self._let_go(running)
            running.streams.close()
            return
        survivors = 0 if running.ending else self._survivors(running)
        mono = self._clock.now().mono
        if survivors != 0 and mono < running.started_mono + running.duration_s + STRAGGLERS_S:
            # The rest of a pipeline ends a moment after its shell: no survivors yet.
            self._deadlines.sooner("unreported", mono + STRAGGLERS_S / 10)
            return
        try:
            outcome = attempt.outcome(
                running,
                inline_bytes=self._options.inline_bytes,
                limit_bytes=self._options.max_output_bytes,
                survivors=survivors,
            )
        except OSError as error:
            # A full or failing disk: nothing may be called durable yet. Again in a moment.
            self._deadlines.sooner("unreported", mono + self._patience.pause("output", error, mono))
            return
        self._patience.over("output")
        self._let_go(running)
        self._free.append(running.slot)
        self._reports.append(Report(outcome, running.claimed, running))

    def _let_go(self, running: Running) -> None:
        # Not before: until its leader is collected its pid, by which we know it, is taken.
        self._children.release(running.pid)
        del self._running[running.pid]

    def _on_unreported(self, _now: Instant) -> None:
        for running in list(self._running.values()):
            if running.gone:
                self._has_gone(running)

    def _survivors(self, running: Running) -> int | None:
        """How many processes a succeeded attempt left running; None if that cannot be seen.

        Cheap where there are none.
        """
        if running.slot.is_free() and tree.other_children(self._children.known) is False:
            return 0
        try:
            found = tree.Snapshot.take().search(running.target)
        except OSError:
            return None
        return len(found.members) if found.complete and found.settled else None

    # -- recovering ---------------------------------------------------------------------

    def _recover(self, now: Instant) -> None:
        due = self._reaper.next_mono()
        if due is None or due > now.mono or self._stops_seen or self._failure:
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
            bell.ring(waiters_dir(self._store.path), None)

    def _check_lost(self) -> None:
        """End attempts that were canceled or forced."""
        if not self._running and not self._unstarted:
            return
        lost = self._try("lost", lambda: self._store.lost(self._id))
        if not lost:
            return
        mono = self._clock.now().mono
        for running in self._running.values():
            if running.attempt_id in lost and running.why is not Why.LOST:
                self._log(
                    f"spoolctl: job {running.claimed.job_id} ownership lost;"
                    " killing its process group"
                )
                running.end(Why.LOST, self._options.grace_s, mono)
        for claimed in [one for one in self._unstarted if one.attempt_id in lost]:
            self._unstarted.remove(claimed)
            self._report_unstarted(claimed, AttemptState.CANCELED, Reason.CANCELED)

    # -- the store ----------------------------------------------------------------------

    def _try(self, what: str, call: Callable[[], T]) -> T | None:
        """A store operation that may be repeated later; None if it did not happen."""
        if self._failure is not None:
            return None
        try:
            result = call()
        except StoreBusy as busy:
            mono = self._clock.now().mono
            again = {"heartbeat": "heartbeat", "scan": "scan"}.get(what, "again")
            self._deadlines.sooner(again, mono + self._patience.pause(what, busy, mono))
            return None
        except StoreUnusable as error:
            if error.kind == "read_only":  # remounted after trouble: may come back
                mono = self._clock.now().mono
                self._deadlines.sooner("again", mono + self._patience.pause(what, error, mono))
            else:
                self._give_up(error)
            return None
        except StoreGone as error:
            self._give_up(error)
            return None
        self._patience.over(what)
        return result

    def _give_up(self, error: Exception) -> None:
        """The queue cannot be used any more: end everything, record nothing.

        The caller says why, once the worker has ended (`WorkResult.failure`).
        """
        if self._failure is not None:
            return
        self._failure = error
        if self._running:
            self._log("spoolctl: the queue cannot be used any more; ending running jobs")
        mono = self._clock.now().mono
        for running in self._running.values():
            running.end(Why.STORE_GONE, self._options.grace_s, mono)
            running.why = Why.STORE_GONE
            if running.gone:
                running.due_mono = mono
        self._unstarted.clear()
        self._reports.clear()
        for running in [one for one in self._running.values() if one.gone]:
            self._has_gone(running)

    def _want(self) -> Want | None:
        """What to claim now; None for nothing."""
        options = self._options
        limit = len(self._free)
        if options.max_jobs is not None:
            limit = min(limit, options.max_jobs - self._claims)
        if options.once:
            limit = min(limit, 1 - self._claims)
        if limit <= 0 or self._stops_seen or self._unstarted:
            return None
        return Want(limit, options.lanes, options.slots)

    def _record_and_claim(self) -> None:
        want = self._want() if self._look or self._reports else None
        if want is None and not self._reports:
            return
        reports = list(self._reports)
        outcomes = [report.outcome for report in reports]
        now = self._clock.now()
        cycle = self._try("cycle", lambda: self._store.cycle(self._id, outcomes, want, now=now))
        if cycle is None:
            return
        self._reports.clear()
        for report, recorded in zip(reports, cycle.recorded, strict=True):
            self._settle(report, recorded)
        if cycle.recorded:
            self._ring(cycle.recorded)
        self._unstarted.extend(cycle.claimed)
        self._claims += len(cycle.claimed)
        if want is not None:
            self._look = len(cycle.claimed) == want.limit
            self._looked = not cycle.claimed
            pause = min(self._options.poll_interval_s, _or(cycle.next_due_s, LONGEST_SLEEP_S))
            self._deadlines.set("look", now.mono + pause)

    def _settle(self, report: Report, recorded: Recorded) -> None:
        """After the commit: say it, and remove what now is in the database."""
        outcome, claimed, running = report.outcome, report.claimed, report.running
        if running is not None:
            running.streams.remove(outcome.stdout, outcome.stderr)
            running.streams.close()
            self._station.roster.clear(running.slot.index)
        self._last = (claimed, outcome, recorded)
        released = outcome.reason is Reason.WORKER_SHUTDOWN
        if not released:
            self._executed += 1
            self._failed += outcome.state is not AttemptState.SUCCEEDED
        after = recorded.job_state.value if recorded.job_state else "discarded"
        self._log(
            f"spoolctl: job {claimed.job_id} attempt {claimed.attempt_no} {outcome.state.value}"
            f" ({outcome.duration_s:.1f}s) -> {after}"
        )

    def _ring(self, recorded: tuple[Recorded, ...]) -> None:
        """Wake those who wait for the end of jobs, and workers that wait for a slot."""
        path = self._store.path
        bell.ring(waiters_dir(path), None)
        if self._options.slots is not None:
            bell.ring(workers_dir(path), None)

    def _report_unstarted(self, claimed: Claimed, state: AttemptState, reason: Reason) -> None:
        text = "worker shut down" if reason is Reason.WORKER_SHUTDOWN else reason.value
        self._report_no_process(claimed, state, reason, text)

    def _report_no_process(
        self, claimed: Claimed, state: AttemptState, reason: Reason, text: str
    ) -> None:
        outcome = Outcome(claimed.attempt_id, state, reason, None, text, 0.0, 0, NOTHING, NOTHING)
        self._reports.append(Report(outcome, claimed, None))

    # -- starting -----------------------------------------------------------------------

    def _start_claimed(self) -> None:
        pending, self._unstarted = self._unstarted, []
        while pending:
            claimed = pending.pop(0)
            try:
                self._start(claimed)
            except SpawnFailed as error:
                text = f"spawn failed: {error}"
                self._report_no_process(claimed, AttemptState.FAILED, Reason.SPAWN_FAILED, text)
                self._deadlines.sooner("again", 0.0)
            except NoResources as error:
                mono = self._clock.now().mono
                self._patience.pause("start", error, mono)
                self._deadlines.sooner("again", mono + RESOURCES_PAUSE_S)
                self._unstarted = [claimed, *pending]
                return
            else:
                self._patience.over("start")

    def _start(self, claimed: Claimed) -> None:
        mono = self._clock.now().mono
        if not self._station.guarded:
            self._ensure_guardian(mono)
            if not self._station.guarded:
                raise NoResources("the guardian cannot be started")
        slot = self._free.pop()
        try:
            running = attempt.start(
                claimed,
                slot,
                self._station.roster,
                db_path=self._store.path,
                base_env=self._base_env,
                mono=mono,
            )
        except BaseException:
            self._station.roster.clear(slot.index)
            self._free.append(slot)
            raise
        self._children.watch(running.pid)
        self._running[running.pid] = running
        if claimed.timeout_s is not None:
            self._deadlines.set(("timeout", claimed.attempt_id), mono + claimed.timeout_s)
        self._deadlines.sooner("output", mono + OUTPUT_LOOK_S)

    # -- the end ------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._running:
            # Trees that cannot be ended must not keep a worker that has to go.
            ending = self._failure is not None or self._stops_seen > 1
            return ending and all(one.ending and one.ending.stuck for one in self._running.values())
        if self._failure is not None:
            return True
        if self._reports:
            # Whoever insists a third time would rather have the jobs run again.
            return self._stops_seen > 2
        if self._unstarted:
            return False
        if self._stops_seen:
            return True
        return self._has_done_enough()

    def _has_done_enough(self) -> bool:
        options = self._options
        if self._claims and (options.once or self._claims == options.max_jobs):
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
            lanes = self._options.lanes
            left = sum(
                sum(n for state, n in by_state.items() if state.value == "queued")
                for lane, (by_state, _) in counts.queues.items()
                if lanes is None or lane in lanes
            )
            done = self._executed - self._failed
            self._progress(done, self._failed, len(self._running), left)
        self._deadlines.set("progress", self._clock.now().mono + PROGRESS_S)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def run_worker(
    store: Store,
    options: WorkOptions,
    *,
    log: Callable[[str], None],
    progress: Progress | None = None,
) -> WorkResult:
    """Work on the queue as `options` say; see `Worker.run`."""
    lines = log if isinstance(log, LineLog) else PlainLog(log)
    try:
        return Worker(store, options, log=lines, progress=progress).run()
    finally:
        lines.finish()

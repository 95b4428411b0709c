"""The attempts that one worker runs, from the claim until they can be reported.

Knows processes and streams, not the store: what has ended waits in `reports` for the
worker's next transaction.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from spoolctl.core.records import Claimed, Instant, Outcome
from spoolctl.core.states import AttemptState, Reason
from spoolctl.core.tuples import NamedTuple
from spoolctl.engine import attempt
from spoolctl.engine.ahead import Ahead
from spoolctl.engine.attempt import NoResources, Running, Why
from spoolctl.engine.capture import NextStreams
from spoolctl.engine.children import Children
from spoolctl.engine.leftovers import Leftovers
from spoolctl.engine.loop import Deadlines
from spoolctl.engine.options import WorkOptions
from spoolctl.engine.patience import Patience
from spoolctl.engine.spares import Spares
from spoolctl.engine.station import Station
from spoolctl.folders import words_of
from spoolctl.process import tree
from spoolctl.process.spawn import SpawnFailed, several

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.engine.log import Log

OUTPUT_LOOK_S = 1.0
RESOURCES_PAUSE_S = 1.0
STRAGGLERS_S = 0.05
UNCLEAR_S = 0.5
IDENTIFY_S = 0.005 if hasattr(os, "waitid") else 0.0  # at once where no zombie keeps its pid
SPARES_S = 1.0
NAP_S = 0.0001


class Report(NamedTuple):
    """An attempt that has ended and is not recorded yet; `running` is None if it never ran."""

    outcome: Outcome
    claimed: Claimed
    running: Running | None


class Unstarted(NamedTuple):
    """A job that was claimed, at `since_mono` on the monotonic clock, and is not started yet."""

    claimed: Claimed
    since_mono: float


class Crew:
    """Starts attempts, watches them, ends their trees.

    `stuck` is called with an attempt's id and a reason when its processes cannot be ended.
    Deadlines that it sets: `("timeout", attempt id)`, `output`, `identify`, `unreported`,
    `guardian`, `spares`, `held`, `record`, `again`; the worker calls the methods for them.
    """

    def __init__(
        self,
        db_path: str,
        station: Station,
        deadlines: Deadlines,
        patience: Patience,
        options: WorkOptions,
        *,
        log: Log,
        mono: Callable[[], float],
        stuck: Callable[[int, str], None],
    ) -> None:
        self._db_path = db_path
        self._station = station
        self._deadlines = deadlines
        self._patience = patience
        self._options = options
        self._log = log
        self._mono = mono
        self._stuck = stuck
        self._children = Children()
        self._base_env = dict(os.environ)
        # By the leader's pid while that is ours, then by minus the attempt's id.
        self._running: dict[int, Running] = {}
        self._places = len(station.slots)
        self._leftovers = Leftovers(self._children)
        self._free = list(reversed(station.slots))
        self.unstarted: list[Unstarted] = []  # for want of a slot, or of resources
        self.short = False  # of what the last start needed, the machine's or our own
        # With a ceiling, what waits here would take the place of what could run elsewhere.
        self.ahead = Ahead(options.jobs if options.slots is None else 0)
        self._gather_until: float | None = None
        self._seen_mono = mono()  # until when no command has ended unseen
        # As many as can be in use: by what runs, by what is not recorded yet, and by what was
        # started while that was on its way.
        self.spares = Spares(most=2 * (len(station.slots) + 2 * self.ahead.most))
        self.reports: list[Report] = []
        self._next = NextStreams(db_path, self.spares)
        self._recorded: list[tuple[Running, Outcome]] = []
        self._over: list[int] = []  # leaders that may be collected
        self._companions: dict[int, Callable[[], None]] = {}

    @property
    def children(self) -> Children:
        """The worker's child processes."""
        return self._children

    @property
    def free(self) -> int:
        """How many more commands may be started, those that wait for it not counted."""
        return max(0, len(self._free) - len(self.unstarted))

    @property
    def room(self) -> int:
        """How many more jobs may be claimed, those for slots that are not free yet included."""
        if self.short:
            return 0
        return len(self._free) + self.ahead.limit - len(self.unstarted)

    @property
    def attempts(self) -> frozenset[int]:
        """The attempts that it knows of, and that are not recorded."""
        ids = [one.attempt_id for one in self.running]
        ids += [one.claimed.attempt_id for one in self.unstarted]
        return frozenset(ids + [one.outcome.attempt_id for one in self.reports])

    @property
    def running(self) -> Collection[Running]:
        """Attempts whose command was started and whose end is not confirmed."""
        return self._running.values()

    def next_mono(self) -> float | None:
        """When `end_trees` has something to do next, on the monotonic clock."""
        return min(
            (one.due_mono for one in self.running if one.ending and not one.ending.gone),
            default=None,
        )

    def all_stuck(self) -> bool:
        """Whether nothing is left but processes that cannot be ended."""
        return all(one.ending and one.ending.stuck for one in self.running)

    def explain_again(self) -> None:
        """Repeat what was told of attempts that cannot be ended: a note in the store is out of
        date with the next heartbeat."""
        for one in self.running:
            if one.ending and one.ending.stuck and one.told:
                self._stuck(one.attempt_id, one.told)

    # -- starting -----------------------------------------------------------------------

    def start(self) -> None:
        """Start what was claimed, as far as there are slots; what cannot be is reported.

        Nothing while an end waits to be recorded that leaves survivors: its place in the roster
        names them, and until then they are no success's to leave.
        """
        self.short = False
        if self.unstarted and self._free:
            with several():
                self._start_some()
        if len(self.unstarted) > len(self._free):
            # Whatever happens meanwhile does not make them wait longer.
            self._deadlines.set("held", self.unstarted[0].since_mono + self.ahead.hold_s)
        else:
            self._deadlines.drop("held")

    def _start_some(self) -> None:
        blocked = any(report.outcome.survivors != 0 for report in self.reports)
        while self.unstarted and self._free and not blocked:
            one = self.unstarted[0].claimed
            try:
                self._start(one)
            except SpawnFailed as error:
                text = f"spawn failed: {error}"
                self._report_idle(one, AttemptState.FAILED, Reason.SPAWN_FAILED, text)
                self._deadlines.sooner("again", 0.0)
            except NoResources as error:
                if (self._over or self._recorded) and not error.is_failing:
                    # Zombies count as processes; what left survivors has its streams open.
                    self.tidy()
                    continue
                if self.reports:
                    break  # to be tried again when they are recorded; that is soon enough
                mono = self._mono()
                self._patience.pause("start", error, mono)
                self._deadlines.sooner("again", mono + RESOURCES_PAUSE_S)
                self.short = True
                self._hold_nothing()
                self.give_back_held()
                break
            else:
                self._patience.over("start")
            del self.unstarted[0]

    def _hold_nothing(self) -> None:
        """Close what can be opened again: it may be what a guardian, or a command, needs."""
        for slot in self._free:
            slot.handed_over()
        self._children.rest()

    def prepare(self) -> None:
        """With one slot, make the next command's streams while this one runs: nothing else is
        to do then. If none runs there may be too few descriptors for it: hold none."""
        if len(self._station.slots) == 1:
            waits = self.unstarted and not self._free
            self._next.make(self.unstarted[0].claimed.token if waits else "")

    def gathers(self) -> bool:
        """Whether what has ended waits a moment longer, for more to be recorded with it.

        Only while the next one to end makes room for something to start.
        """
        mono = self._mono()
        if self._gather_until is None:
            self._gather_until = mono + self.ahead.gather_s
        if (
            mono < self._gather_until
            and len(self.unstarted) > self.ahead.reserve
            and not self._free
            and self.ahead.limit
            and all(report.outcome.survivors == 0 for report in self.reports)
        ):
            self._deadlines.set("record", self._gather_until)
            return True
        self._deadlines.drop("record")
        return False

    def recorded(self, count: int, met_others: bool, took_s: float) -> None:
        """So many reports, the first ones, are in the store; whether others were in the way of
        their transaction, and how long it took."""
        del self.reports[:count]
        self._gather_until = None
        self.ahead.recorded(met_others, took_s)

    def take(self, claimed: Iterable[Claimed]) -> None:
        """These are ours now, to be started when there is a slot."""
        mono = self._mono()
        self.unstarted += [Unstarted(one, mono) for one in claimed]

    def give_back_held(self) -> None:
        """Not enough slots came free in time: others may have some for what was claimed ahead."""
        held = self.unstarted[len(self._free) :]  # some may have come free in this very turn
        if held:
            self.ahead.waited()
            self._give_back(held)

    def _start(self, claimed: Claimed) -> None:
        mono = self._mono()
        if not self._station.guarded:
            self.ensure_guardian()
            if not self._station.guarded:
                raise NoResources("there is no guardian at present; a new one will be started")
        slot = self._free.pop()
        try:
            running = attempt.start(
                claimed,
                slot,
                self._station.roster,
                db_path=self._db_path,
                base_env=self._base_env,
                spares=self.spares,
                streams=self._next.take(claimed.token),
                mono=mono,
            )
        except BaseException:
            with suppress(OSError):
                self._station.roster.clear(slot.index)
            self._free.append(slot)
            raise
        self._children.watch(running.pid)
        self._running[running.pid] = running
        if claimed.timeout_s is not None:
            self._deadlines.set(("timeout", claimed.attempt_id), mono + claimed.timeout_s)
        self._deadlines.sooner("output", mono + OUTPUT_LOOK_S)
        # Not at once: most commands are short, and a look at /proc costs as much as starting
        # one. Until then the mark in the environment and the lock tell what is whose.
        self._deadlines.sooner("identify", mono + IDENTIFY_S)

    def identify(self) -> None:
        """Note in the roster who the commands are that have lasted."""
        mono = self._mono()
        for running in self.running:
            due = running.started_mono + IDENTIFY_S
            if due > mono:
                self._deadlines.sooner("identify", due)
                continue
            with suppress(OSError):
                running.identify(self._station.roster)

    def ensure_guardian(self) -> None:
        """Start the guardian, or replace one that was killed; if need be a little later."""
        mono = self._mono()
        try:
            pid = self._station.ensure_guardian(mono)
            if pid is not None:
                self.accompany(pid, self._guardian_ended)
        except OSError as error:
            text = f"cannot start the guardian: {words_of(error)}"
            self._patience.pause("guardian", NoResources(text), mono)
        if self._station.guarded:
            self._patience.over("guardian")
        else:
            self._deadlines.set("guardian", mono + RESOURCES_PAUSE_S)

    def _guardian_ended(self) -> None:
        self._station.guardian_ended()
        self.ensure_guardian()

    def _report_idle(
        self,
        claimed: Claimed,
        state: AttemptState,
        reason: Reason,
        text: str,
    ) -> None:
        outcome = attempt.never_ran(claimed.attempt_id, state, reason, text, started=True)
        self.reports.append(Report(outcome, claimed, None))

    # -- watching -----------------------------------------------------------------------

    def accompany(self, pid: int, ended: Callable[[], None]) -> None:
        """This child of ours is none of the commands'; `ended` is called once it is collected."""
        self._children.watch(pid)
        self._companions[pid] = ended

    def left_by(self, pid: int) -> None:
        """Such a child was collected, by whomever: `ended` is called now, if it was not."""
        self._children.release(pid)
        if pid in self._companions:
            self._companions.pop(pid)()

    def collect(self, now: Instant) -> None:
        """Take note of children that have ended."""
        self._leftovers.look_again()
        for ended in self._children.poll():
            running = self._running.get(ended.pid)
            if running is None:
                self.left_by(ended.pid)  # the guardian, the clerk, or the caller's helper
                continue
            running.has_ended(ended, now.mono)
            self.ahead.ended(max(0.0, self._seen_mono - running.started_mono))
            self._deadlines.drop(("timeout", running.attempt_id))
            if ended.code != 0:
                running.end(Why.FAILED, self._options.grace_s, now.mono)
            if running.gone:
                self._has_gone(running)
        self._seen_mono = now.mono

    def woke(self, slept_at_mono: float) -> None:
        """A sleep has ended that a command's end would have ended."""
        mono = self._mono()
        if mono - slept_at_mono > NAP_S:  # else one may have ended before it began
            self._seen_mono = mono

    def look_at_output(self, now: Instant) -> None:
        """Hold streams to their limit."""
        for running in self.running:
            if running.ending is not None:
                continue
            with suppress(OSError):
                if not running.streams.look(self._options.max_output_bytes):
                    self._log(f"spoolctl: job {running.claimed.job_id} exceeds the output limit")
                    running.end(Why.OUTPUT_LIMIT, self._options.grace_s, now.mono)
        if self._running:
            self._deadlines.set("output", now.mono + OUTPUT_LOOK_S)

    def report_late(self) -> None:
        """Report what had to wait, for stragglers or for room on the disk."""
        self._leftovers.look_again()
        for running in [one for one in self.running if one.gone]:
            self._has_gone(running)

    # -- ending -------------------------------------------------------------------------

    def time_out(self, attempt_id: object, now: Instant) -> None:
        """The attempt has used up its time."""
        for running in self.running:
            if running.attempt_id == attempt_id and running.ended is None:
                running.end(Why.TIMEOUT, self._options.grace_s, now.mono)

    def shut_down(self) -> None:
        """End what runs; it will be given back without spending its budget."""
        self.ahead = Ahead(0)  # what it knows of a crowd, too: whoever hurries looks often
        mono = self._mono()
        for running in self.running:
            if running.ended is None:
                running.end(Why.SHUTDOWN, self._options.grace_s, mono)
        self.give_back_unstarted()

    def give_back_unstarted(self) -> None:
        """What was not started yet will not be: the claims are taken back."""
        self._give_back(self.unstarted)
        self._deadlines.drop("held")

    def _give_back(self, some: Iterable[Unstarted]) -> None:
        for one in list(some):
            self.unstarted.remove(one)
            self.reports.append(
                Report(attempt.never_ran(one.claimed.attempt_id), one.claimed, None)
            )

    def lose(self, lost: Collection[int]) -> None:
        """These attempts were canceled or forced: end them, their results do not count."""
        mono = self._mono()
        for running in self.running:
            if running.attempt_id in lost and not running.lost:
                running.lost = True
                self._log(
                    f"spoolctl: job {running.claimed.job_id} ownership lost;"
                    " killing its process group"
                )
                running.end(Why.LOST, self._options.grace_s, mono)
        for one in [one for one in self.unstarted if one.claimed.attempt_id in lost]:
            self.unstarted.remove(one)
            self._report_idle(one.claimed, AttemptState.CANCELED, Reason.CANCELED, "canceled")

    def abandon(self) -> None:
        """The queue is gone: end everything, report nothing."""
        mono = self._mono()
        self.unstarted.clear()
        self.reports.clear()
        for running in self.running:
            running.end(Why.STORE_GONE, self._options.grace_s, mono)
            running.why = Why.STORE_GONE
        self.report_late()

    def end_trees(self, snapshot: Callable[[], tree.Snapshot], now: Instant) -> None:
        """Go on ending the processes of attempts that have to go."""
        for running in list(self.running):
            ending = running.ending
            if ending is None or ending.gone or running.due_mono > now.mono:
                continue
            wait: float | None = ending.strike(now.mono)
            if wait:
                running.due_mono = now.mono + wait
                continue
            look = snapshot()
            ending.include(self._leftovers.orphans_of(running, self.running, look))
            wait = ending.step(look, now.mono)
            if wait is not None:
                running.due_mono = now.mono + wait
                self._explain_stuck(running)
            elif running.gone:
                self._has_gone(running)

    def _explain_stuck(self, running: Running) -> None:
        reason = running.ending.stuck if running.ending else None
        if reason is not None and reason != running.told:
            running.told = reason
            self._log(f"spoolctl: job {running.claimed.job_id} cannot be ended: {reason}")
            self._stuck(running.attempt_id, reason)

    def _has_gone(self, running: Running) -> None:
        """The attempt is over and its processes are gone: it can be reported."""
        if running.why is Why.STORE_GONE:
            self._let_go(running)
            running.streams.close()
            return
        survivors = 0 if running.ending else self._leftovers.survivors(running)
        if survivors != 0:
            with suppress(OSError):
                running.identify(self._station.roster)
        mono = self._mono()
        # The rest of a pipeline ends a moment after its shell: no survivors yet. And while
        # anybody on the machine is between fork and exec, nobody can tell who that is.
        patience_s = UNCLEAR_S if survivors is None else STRAGGLERS_S
        if survivors != 0 and mono < running.started_mono + running.duration_s + patience_s:
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
            pause = self._patience.pause("output", error, mono)
            self._deadlines.sooner("unreported", mono + pause)
            return
        self._patience.over("output")
        if survivors == 0:
            # Now, and not when that is recorded: what is started until then would have copies,
            # up to its exec, and a spare that anybody has open is none (`engine.spares`).
            running.streams.close()
        else:
            running.slot.leave()
        self._let_go(running)
        self.reports.append(Report(outcome, running.claimed, running))

    def _let_go(self, running: Running) -> None:
        # Not before: until its leader is collected (`tidy`) its pid, by which we know it, is
        # taken.
        del self._running[running.key]
        if running.key == running.pid:
            self._over.append(running.pid)
            self._free.append(running.slot)
        if not self._running:
            self._deadlines.drop("identify")
            self._deadlines.drop("output")

    def let_all_go(self) -> None:
        """The worker leaves: keep nothing open of attempts that still run, and no zombies."""
        self.tidy()
        self._next.make("")
        self.spares.drop()
        for running in self.running:
            running.streams.close()
            self._children.release(running.pid)

    def put_away(self, running: Running, outcome: Outcome) -> None:
        """Its end is recorded: `tidy` may remove what the database holds now, and its place."""
        self._recorded.append((running, outcome))
        if outcome.survivors != 0:
            # At once: they may stay, so from now on the guardian must not end them.
            self._clear(running)

    def tidy(self) -> None:
        """Collect leaders that are let go, remove what is left of attempts that were put away."""
        for pid in self._over:
            self._children.release(pid)
        self._over.clear()
        for running, outcome in self._recorded:
            running.streams.remove(outcome.stdout, outcome.stderr, self.spares)
            running.streams.close()
            self._clear(running)
        if self._recorded and len(self.spares):
            self._deadlines.sooner("spares", self._mono() + SPARES_S)
        self._recorded.clear()

    def _clear(self, running: Running) -> None:
        with suppress(OSError):
            self._station.roster.clear(running.place, running.claimed.token)

    def end_survivors(self, report: Report) -> None:
        """A success that came too late: its job was canceled or forced, so what it left
        running has to go before that attempt is reported as gone.

        Its slot may serve another command already, so it gets a place of its own in the
        roster, for the guardian.
        """
        running = report.running
        if running is None:
            return
        target = running.target
        running.key, running.place = -running.attempt_id, self._places
        self._places += 1
        roster = self._station.roster
        with suppress(OSError):  # a full disk: then the reaper's search has to do
            roster.announce(running.place, target.token, target.lock_path or "")
            roster.spawned(running.place, running.pid, target.start)
        running.lost = True
        self._running[running.key] = running
        running.end(Why.LOST, self._options.grace_s, self._mono())

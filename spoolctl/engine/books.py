"""A worker's transactions: what has ended is recorded, what comes next is claimed.

By the worker itself, or, while commands are short, by its clerk: then a request is on its way for
some turns of the loop, and what was reported in it stays among the reports until the answer is
there.
"""

from __future__ import annotations

from collections.abc import Callable

from spoolctl.core.pauses import pause
from spoolctl.core.records import Claimed, Cycle, Outcome, Recorded, Registered, Want
from spoolctl.core.states import AttemptState, Reason
from spoolctl.core.tuples import NamedTuple
from spoolctl.engine.ahead import BACKLOG
from spoolctl.engine.attempt import never_ran
from spoolctl.engine.crew import Crew, Report
from spoolctl.engine.errand import Errand, Turn
from spoolctl.engine.leaving import LEAVE_S
from spoolctl.engine.loop import Deadlines, Sleeper
from spoolctl.engine.options import WorkOptions
from spoolctl.engine.patience import Patience
from spoolctl.engine.station import Station
from spoolctl.engine.trying import Trying

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.engine.clerk import Clerk
    from spoolctl.engine.clock import Clock
    from spoolctl.store.protocol import Store

LONGEST_SLEEP_S = 3600.0
SERVED_S = 0.5
"""How often a worker for one job looks whether those to whom it leaves the job still live."""

CLERK_S = 5.0
"""How long a clerk is kept that is asked for nothing, or does not answer: one that was stopped
with the lock in its hands would keep everybody from the queue."""

MOST_FAILURES = 3
"""After how many errors in a row a clerk is ended: its worker tries the same after each."""

NEXT_CLERK_S = 30.0
"""How soon after one was started there may be another: it may have died, or not have started."""


class Request(NamedTuple):
    """What is asked of the store at a time; `since_mono`: when, on the monotonic clock."""

    reports: tuple[Report, ...]
    want: Want | None
    since_mono: float


class Books:
    """What one worker has claimed and recorded, and its next transaction.

    `worker`: its number, once it is registered. `errand`: the one job that it is for, if it is.
    `look`: there may be something to claim. `looked`: a claim has come back with nothing.
    `claims`, `executed` and `failed` count attempts; `last` is the one that was recorded last.
    """

    def __init__(
        self,
        store: Store,
        options: WorkOptions,
        crew: Crew,
        station: Station,
        deadlines: Deadlines,
        sleeper: Sleeper,
        patience: Patience,
        trying: Trying,
        *,
        clock: Clock,
        mono: Callable[[], float],
        may_have_clerk: bool,
    ) -> None:
        self._store = store
        self._options = options
        self._crew = crew
        self._station = station
        self._deadlines = deadlines
        self._sleeper = sleeper
        self._patience = patience
        self._try = trying
        self._clock = clock
        self._mono = mono
        self.worker = 0
        self.errand: Errand | None = None
        self.look = True
        self.looked = False
        self.claims = 0
        self.executed = 0
        self.failed = 0
        self.last: tuple[Claimed, Outcome, Recorded] | None = None
        self._settled: list[tuple[Claimed, Outcome, Recorded]] = []  # not told yet
        # Who may claim so many jobs and no more has to know what it has claimed.
        self._may_have_clerk = (
            may_have_clerk and options.most_claims is None and options.job_id is None
        )
        if self._may_have_clerk:
            # Now: by the time it is needed there may be another version of it on the disk.
            from spoolctl.engine import clerk as clerk
        self._clerk: Clerk | None = None
        self._clerk_at = 0.0
        self._foreseen = False  # a clerk will be of use, as soon as something runs
        self._sent: Request | None = None
        self._claimed = False  # in this turn
        self._failures = 0  # of the clerk, in a row
        self._strays = False  # a clerk that has died, or failed, may have claimed something

    def registered(self, registered: Registered) -> None:
        """This is our number, and how much there was to do at that moment."""
        self.worker = registered.worker_id
        much = registered.alone and registered.ready >= BACKLOG
        self._foreseen = self._may_have_clerk and much and self._crew.ahead.most > 0

    @property
    def on_its_way(self) -> bool:
        """Whether the answer to a request is outstanding."""
        return self._sent is not None or self._strays

    def turn(self, *, stopping: bool) -> bool:
        """Record what has ended and claim what comes next, if it is time; whether anything was
        claimed. The crew has it then.

        `stopping`: nothing more is to be claimed, and what was on its way goes back.
        """
        if self._try.failure is not None:
            return False
        self._claimed = False
        if self._foreseen and self._crew.running and not stopping:
            # Now: guardian and commands come first, should there be too little for all.
            self._engage()
        if self._crew.short and self._clerk is not None and self._sent is None:
            self._dispense_with(self._clerk)  # its descriptors, and its process, may be what lacks
        clerk = self._clerk
        # An answer first: what has been claimed counts in the next request.
        answered = clerk is None or clerk.ready or self._hear(clerk)
        if stopping:
            self._crew.give_back_unstarted()
        if self._sent is None and (not self._strays or self._take_back_strays()):
            request = self._request(stopping)
            if request is not None and not (answered and self._ask_clerk(request)):
                self._by_ourselves(request)
        if self._foreseen and self._claimed:
            self._deadlines.sooner("again", 0.0)
        return self._claimed

    def _request(self, stopping: bool) -> Request | None:
        """What to ask for now; None for nothing."""
        reports = tuple(self._crew.reports)
        if reports and self._crew.gathers():
            return None
        want = self._want() if not stopping and (self.look or reports) else None
        if want is None and not reports:
            return None
        return Request(reports, want, self._mono())

    def _want(self) -> Want | None:
        """What to claim now; None for nothing."""
        options = self._options
        limit, most = self._crew.room, options.most_claims
        if most is not None:
            limit = min(limit, most - self.claims)
        if limit <= 0:
            return None
        if self.errand is not None and not self._may_claim(self.errand):
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
        self.look = turn is not Turn.OTHERS
        if self.look:
            self._deadlines.sooner("again", now.mono + SERVED_S)
        else:
            self._deadlines.sooner("look", now.mono + self._options.poll_interval_s)
        return False

    def _by_ourselves(self, request: Request) -> None:
        outcomes = [report.outcome for report in request.reports]
        now = self._clock.now()
        since = self._patience.since("cycle") or request.since_mono
        cycle = self._try(
            "cycle", lambda: self._store.cycle(self.worker, outcomes, request.want, now=now)
        )
        if cycle is None:
            return
        if request.want is not None:
            self.look = False
        waited = cycle.waited or since != request.since_mono
        self._done(request, cycle, waited, self._mono() - since)

    def _done(self, request: Request, cycle: Cycle, waited: bool, took_s: float) -> None:
        """The transaction has happened, in so many seconds. What it claimed is the crew's."""
        reports, want = request.reports, request.want
        self._crew.recorded(len(reports), waited, took_s)
        for report, recorded in zip(reports, cycle.recorded, strict=True):
            self._settle(report, recorded)
        if reports:
            self._station.ring()
            if any(report.outcome.reason is Reason.WORKER_SHUTDOWN for report in reports):
                self._station.offer()
        self.claims += len(cycle.claimed)
        self._claimed = self._claimed or bool(cycle.claimed)
        self._crew.take(cycle.claimed)
        if want is not None:
            self.look = self.look or len(cycle.claimed) == want.limit
            self.looked = not cycle.claimed
            if len(cycle.claimed) < want.limit:
                self._crew.ahead.ran_dry()
            pause_s = min(self._options.poll_interval_s, _or(cycle.next_due_s, LONGEST_SLEEP_S))
            self._deadlines.set("look", request.since_mono + pause_s)

    def _settle(self, report: Report, recorded: Recorded) -> None:
        """After the commit: what cannot wait until the next commands have been started."""
        outcome = report.outcome
        if not outcome.started:
            self.claims -= 1
            return
        if recorded.job_state is None and outcome.survivors != 0:
            self._crew.end_survivors(report)
            return
        self.last = (report.claimed, outcome, recorded)
        if outcome.reason is not Reason.WORKER_SHUTDOWN:
            self.executed += 1
            self.failed += outcome.state is not AttemptState.SUCCEEDED
        self._settled.append(self.last)
        if report.running is not None:
            self._crew.put_away(report.running, outcome)

    def to_tell(self) -> list[tuple[Claimed, Outcome, Recorded]]:
        """What was recorded since the last call."""
        settled, self._settled = self._settled, []
        return settled

    # -- the clerk ----------------------------------------------------------------------

    def _ask_clerk(self, request: Request) -> bool:
        """Whether the clerk sees to it.

        Not to a mere look at the queue, or it would stay for as long as its worker looks around;
        and not while survivors are to be recorded, at whose place in the roster a guardian would
        take them for what has to go: that is to be short.
        """
        if not request.reports or any(one.outcome.survivors != 0 for one in request.reports):
            return False
        clerk = self._clerk
        if clerk is None:
            if self._may_have_clerk and self._crew.ahead.steady:
                self._engage()
            return False
        waits = self._patience.since("cycle") is not None  # it will be said when that is over
        if not clerk.ready or waits or not self._crew.ahead.helps:
            return False
        from spoolctl.engine.clerk import ClerkGone

        try:
            if not clerk.ask([report.outcome for report in request.reports], request.want):
                return False
        except ClerkGone:
            self._end(clerk)
            return False
        self._sent = request
        if request.want is not None:
            self.look = False
        self._deadlines.set("clerk", request.since_mono + CLERK_S)
        return True

    def _engage(self) -> None:
        self._foreseen = False
        mono = self._mono()
        if mono < self._clerk_at:
            return
        self._clerk_at = mono + NEXT_CLERK_S
        try:
            from spoolctl.engine.clerk import Clerk

            clerk = Clerk.start(self._store.path, self.worker)
        except Exception:  # short of something, or replaced on the disk in the middle: without
            return
        self._clerk, self._failures = clerk, 0
        self._crew.accompany(clerk.pid, self._clerk_ended)
        self._deadlines.set("clerk", mono + CLERK_S)
        try:
            self._sleeper.add(clerk.fd)
        except OSError:
            self._end(clerk)

    def _hear(self, clerk: Clerk) -> bool:
        """Take note of what the clerk has to say, if anything; whether there is a request that
        it may be asked for now: after an error its worker tries by itself."""
        from spoolctl.engine.clerk import ClerkFailed, ClerkGone

        try:
            answer = clerk.answer()
        except ClerkFailed:
            self._sent, self._strays = None, True
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._end(clerk)
            return False
        except ClerkGone:
            self._end(clerk)
            return False
        request = self._sent
        if clerk.ready:
            self._deadlines.set("clerk", self._mono() + CLERK_S)
        if answer is not None and request is not None:
            if len(answer.cycle.recorded) != len(request.reports):
                self._end(clerk)
                return False
            self._sent, self._failures = None, 0
            self._done(request, answer.cycle, answer.cycle.waited, answer.took_s)
        if clerk.ready and not self._crew.ahead.helped:
            # It has opened what it found at the path: see that this is still the file.
            self._try("check", self._store.check_file)
            self._crew.ahead.helped = self._try.failure is None
        return True

    def _end(self, clerk: Clerk) -> None:
        """It is of no use any more. What it was at counts when it is collected."""
        clerk.ready = False
        self._crew.ahead.helped = False
        self._sleeper.remove(clerk.fd)
        clerk.kill()

    def dismiss_clerk(self) -> None:
        """It has not been asked, or has not answered, for long; or the queue is gone."""
        clerk = self._clerk
        if clerk is None:
            return
        if clerk.ready:
            self._clerk_at = 0.0  # nothing was wrong with it
        elif self._try.failure is None and self._hear(clerk) and clerk.ready:
            return  # it was us who had stopped
        self._dispense_with(clerk)

    def _dispense_with(self, clerk: Clerk) -> None:
        """End it, which is seen now or when it is collected."""
        self._end(clerk)
        if clerk.collected():  # a thread of the program may have been first
            self._crew.left_by(clerk.pid)
        else:
            self._deadlines.set("clerk", self._mono() + CLERK_S)

    def _clerk_ended(self) -> None:
        """It was collected: nothing that it was at can happen any more."""
        clerk, self._clerk = self._clerk, None
        if clerk is None:
            return
        self._sleeper.remove(clerk.fd)
        clerk.let_go()
        self._deadlines.drop("clerk")
        self._crew.ahead.helped = False
        if self._sent is not None:
            self._sent = None
            self._strays = self.look = True

    def _take_back_strays(self) -> bool:
        """Give back what was claimed by the clerk without a word; False if that has to wait.

        What it had recorded is recorded once more, which changes nothing.
        """
        living = self._try("strays", lambda: self._store.living(self.worker))
        if living is None:
            return False
        strays = [never_ran(attempt_id) for attempt_id in living - self._crew.attempts]
        if strays:
            now = self._clock.now()
            done = self._try("strays", lambda: self._store.finish(self.worker, strays, now=now))
            if done is None:
                return False
            self._station.offer()
            self.look = True
        self._strays = False
        return True

    def close(self) -> None:
        """The worker leaves. What the clerk is at is awaited for a moment; then it does nothing
        any more, and what nobody has heard of goes back."""
        clerk, self._clerk = self._clerk, None
        if clerk is not None and not self._part_with(clerk):
            return  # in the hands of the kernel: what it may still do is a reaper's to see to
        if self._sent is None and not self._strays and not self._crew.unstarted:
            return
        if self._take_back_strays():
            self._crew.give_back_unstarted()
            self._by_ourselves(Request(tuple(self._crew.reports), None, self._mono()))

    def _part_with(self, clerk: Clerk) -> bool:
        """Whether it has ended."""
        until = self._mono() + LEAVE_S
        while self._sent is not None and not clerk.ready and self._mono() < until:
            if not self._hear(clerk):
                break
            pause(0.001)
        self._sleeper.remove(clerk.fd)
        self._crew.children.release(clerk.pid)
        if not clerk.collected():
            clerk.kill()
        return clerk.close(LEAVE_S)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value

"""How long to pause before something is tried again, and when to say that it takes long."""

from __future__ import annotations

from collections.abc import Callable

from spoolctl.core.retry import spread
from spoolctl.core.tuples import NamedTuple
from spoolctl.errors import StoreBusy, StoreFull
from spoolctl.folders import words_of

# SQLite's own wait sleeps up to 100 ms and is unfair to those who wait long.
SHORTEST_S = 0.001
LONGEST_S = 0.005
# After a while whoever holds the lock holds it for long: be easier on the processor. Not much:
# among dozens of workers who looks less often than the others hardly ever finds it free.
LONG_PAUSE_S = 0.015
SLOW_AFTER_S = 0.5
FULL_PAUSE_S = 0.5
TELL_AFTER_S = 5.0
# What has not been tried again for so long is not waited for any more.
FORGET_AFTER_S = 60.0


class _Wait(NamedTuple):
    """What is in the way, when that was tried last, and whether it was said for this."""

    text: str
    tried_mono: float
    told: bool


class Patience:
    """Tracks, per thing that is tried, since when it has not worked.

    What is in the way of several things is said once, and that it is not any more as well. What
    comes and goes is said again only if it lasts: a worker with as many descriptors as it has
    jobs is short of them a hundred times a second.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._since: dict[str, float] = {}
        self._waits: dict[str, _Wait] = {}
        self._said: dict[str, float] = {}  # the words, when they were said last
        self._open: set[str] = set()  # words after which "going on" was not said yet

    def pause(self, what: str, error: Exception, mono: float, usual_s: float = 0.0) -> float:
        """Seconds until the next try; says once what is in the way.

        `usual_s`: how long it takes as a rule to get the lock. In a crowd, looks for it by those
        who have hardly a chance take the processor from the one who holds it.
        """
        since = self._since.setdefault(what, mono)
        busy = isinstance(error, StoreBusy) and not isinstance(error, StoreFull)
        text = words_of(error) if isinstance(error, OSError) else str(error)
        before = self._waits.get(what)
        said = self._was_said(text, mono)
        changes = before is not None and before.text != text
        lasts = mono - since >= TELL_AFTER_S and not (changes and said)
        told = before is not None and before.told and not changes
        if lasts or not (busy or said):
            self._tell(text, mono)
            told = True
        self._waits[what] = _Wait(text, mono, told)
        if not busy:
            return FULL_PAUSE_S
        waited_s = mono - since
        longest = LONGEST_S if waited_s < SLOW_AFTER_S else LONG_PAUSE_S
        pause_s = SHORTEST_S + (longest - SHORTEST_S) * spread()
        if usual_s > 0:  # the longer ago its turn was to be expected, the more often
            pause_s = max(pause_s, usual_s * (0.5 + spread()) / (1 + waited_s / usual_s))
        return pause_s

    def _tell(self, text: str, mono: float) -> None:
        if text in self._open and any(one.told for one in self._waiting_for(text, mono)):
            return
        self._said = {old: at for old, at in self._said.items() if self._was_said(old, mono)}
        self._said[text] = mono
        self._open.add(text)
        self._log(f"spoolctl: waiting: {text}")

    def _was_said(self, text: str, mono: float) -> bool:
        return mono - self._said.get(text, -FORGET_AFTER_S) < FORGET_AFTER_S

    def since(self, what: str) -> float | None:
        """Since when, on the monotonic clock, it has not worked; None: it has, or was not tried."""
        return self._since.get(what)

    def over(self, what: str) -> None:
        """It worked."""
        if not self._since:
            return
        self._since.pop(what, None)
        wait = self._waits.pop(what, None)
        if wait is not None and wait.text in self._open:
            if self._waiting_for(wait.text, wait.tried_mono):
                return
            self._open.discard(wait.text)
            self._log("spoolctl: going on")

    def _waiting_for(self, text: str, mono: float) -> list[_Wait]:
        """What waits for this, and was tried lately."""
        return [
            one
            for one in self._waits.values()
            if one.text == text and mono - one.tried_mono < FORGET_AFTER_S
        ]

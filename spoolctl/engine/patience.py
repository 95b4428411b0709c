"""How long to pause before something is tried again, and when to say that it takes long."""

from __future__ import annotations

from collections.abc import Callable

from spoolctl.core.retry import spread
from spoolctl.errors import StoreBusy, StoreFull
from spoolctl.folders import words_of

# SQLite's own wait sleeps up to 100 ms and is unfair to those who wait long.
SHORTEST_S = 0.001
LONGEST_S = 0.005
# After a while whoever holds the lock holds it for long: be easier on the processor.
LONG_PAUSE_S = 0.05
SLOW_AFTER_S = 0.5
FULL_PAUSE_S = 0.5
TELL_AFTER_S = 5.0


class Patience:
    """Tracks, per thing that is tried, since when it has not worked."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def pause(self, what: str, error: Exception, mono: float) -> float:
        """Seconds until the next try; says once what is in the way."""
        since = self._since.setdefault(what, mono)
        busy = isinstance(error, StoreBusy) and not isinstance(error, StoreFull)
        if what not in self._told and (not busy or mono - since >= TELL_AFTER_S):
            self._told.add(what)
            text = words_of(error) if isinstance(error, OSError) else str(error)
            self._log(f"spoolctl: waiting: {text}")
        if not busy:
            return FULL_PAUSE_S
        longest = LONGEST_S if mono - since < SLOW_AFTER_S else LONG_PAUSE_S
        return SHORTEST_S + (longest - SHORTEST_S) * spread()

    def over(self, what: str) -> None:
        """It worked."""
        if not self._since:
            return
        self._since.pop(what, None)
        if what in self._told:
            self._told.discard(what)
            self._log("spoolctl: going on")

"""Calls of the store that may fail for a while, and what ends a worker for good."""

from __future__ import annotations

from collections.abc import Callable

from spoolctl.engine.loop import Deadlines
from spoolctl.engine.patience import Patience
from spoolctl.errors import StoreBusy, StoreGone, StoreUnusable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

_DUE_BY_NAME = ("heartbeat", "scan", "lost")


class Trying:
    """Does what may be repeated later, and sees to it that it will be.

    `failure`: why the queue cannot be used any more; None as long as it can. `given_up` is
    called once, then. `usual_s` tells how long the lock is waited for as a rule, in seconds.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        patience: Patience,
        mono: Callable[[], float],
        usual_s: Callable[[], float],
        given_up: Callable[[], None],
    ) -> None:
        self.failure: Exception | None = None
        self._deadlines = deadlines
        self._patience = patience
        self._mono = mono
        self._usual_s = usual_s
        self._given_up = given_up

    def __call__(self, what: str, call: Callable[[], T]) -> T | None:
        """A store operation; None if it did not happen. Then a deadline is set for the next try."""
        if self.failure is not None:
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
                self.give_up(error)
            return None
        except StoreGone as error:
            self.give_up(error)
            return None
        except OSError as error:  # the disk, too few descriptors or too little memory
            self._put_off(what, error)
            return None
        self._patience.over(what)
        return result

    def _put_off(self, what: str, error: Exception) -> None:
        mono = self._mono()
        again = what if what in _DUE_BY_NAME else "again"
        pause_s = self._patience.pause(what, error, mono, self._usual_s())
        self._deadlines.sooner(again, mono + pause_s)

    def give_up(self, error: Exception) -> None:
        """The queue cannot be used any more."""
        if self.failure is None:
            self.failure = error
            self._given_up()

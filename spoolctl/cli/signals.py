"""Ctrl-C and the like for verbs that wait: they have something to take down first."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """A signal asked a following verb to end in good order.

    No `Exception`: nothing on the way may take it for a failure.
    """


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, so that `finally` runs before the process ends by it."""
    with _handling((signal.SIGINT,), signal.default_int_handler):
        yield


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGINT and SIGTERM end the body; that counts as success."""
    with _handling((signal.SIGINT, signal.SIGTERM), _stop):
        try:
            yield
        except Stopped:
            # A second one must not hit the clean-up.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)


class Interrupted(BaseException):
    """A signal asked a verb to end that says before what becomes of its job.

    No `Exception`, like `Stopped`. `number` is the signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


@contextmanager
def interrupted() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Interrupted; `die_by` then ends the process."""
    with _handling(STOP_SIGNALS, _interrupt):
        yield


def die_by(number: int) -> int:
    """End as programs do that never heard of the signal, so that shells understand why."""
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    return 128 + number


@contextmanager
def _handling(
    numbers: tuple[signal.Signals, ...],
    handler: signal._HANDLER,
) -> Iterator[None]:
    # One that was ignored at the start (nohup, a background job of a script) stays so.
    before = {each: signal.getsignal(each) for each in numbers}
    changed = [each for each in numbers if before[each] is not signal.SIG_IGN]
    for each in changed:
        signal.signal(each, handler)
    try:
        yield
    finally:
        for each in changed:
            if signal.getsignal(each) is handler:
                signal.signal(each, before[each] or signal.SIG_DFL)

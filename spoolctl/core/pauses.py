"""A sleep for the length of a moment."""

from __future__ import annotations

import select


def pause(seconds: float) -> None:
    """Sleep for so many seconds; a signal handler that raises ends it.

    Not `time.sleep`: under a library that fakes the wall clock alone (libfaketime does, if asked
    to), its clock_nanosleep(2) until a time on the monotonic clock fails with EINVAL.
    """
    select.select((), (), (), seconds)

"""What is said of queues that no live worker serves."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from spoolctl.errors import SpoolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.app import App


def sentence(lane: str) -> str:
    """That nobody serves it, and what would."""
    which = "" if lane == "default" else f" --queue {lane}"
    return f"no live worker serves the queue {lane}: start `spoolctl work{which}`"


def warn(lanes: Iterable[str], app: App) -> None:
    """Warn of those of these queues, to which jobs were added, that nobody serves.

    A name that was mistyped makes a queue of its own, in which a job waits for ever.
    """
    with suppress(SpoolError, OSError):  # the jobs are stored, whatever becomes of the question
        for lane in sorted(app.queue.unserved(lanes)):
            app.warn("NO_WORKER", sentence(lane) + _meant(lane, app))


def _meant(lane: str, app: App) -> str:
    """A queue with a similar name that has jobs already, if there is one."""
    from difflib import get_close_matches

    lanes = app.queue.counts().queues
    others = [name for name, (states, _) in lanes.items() if any(states.values()) and name != lane]
    near = get_close_matches(lane, others, 1)
    return f" (there is a queue {near[0]})" if near else ""

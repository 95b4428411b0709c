"""What the calls of a `Queue` are asked for, checked: the errors name the parameter."""

from __future__ import annotations

from spoolctl.core import checks
from spoolctl.core.paths import STREAMS
from spoolctl.core.records import SORTS, JobFilter
from spoolctl.core.states import State
from spoolctl.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def job_filter(
    *,
    states: object,
    queue: object,
    tags: object,
    priority_min: object,
    since: object,
    command: object,
    before_id: object,
    after_id: object,
) -> JobFilter:
    """Which jobs to list. Raises InvalidInput."""
    return JobFilter(
        states=state_list(states),
        queue=_maybe_text("queue", queue),
        tags=tuple(_tag(key, value) for key, value in checks.pairs("tags", tags)),
        priority_min=checks.maybe_whole("priority_min", priority_min, "any"),
        before_id=checks.maybe_whole("before_id", before_id, "any"),
        after_id=checks.maybe_whole("after_id", after_id, "any"),
        since=checks.maybe_span("since", since, "any"),
        command=_maybe_text("command", command),
    )


def state_list(states: object) -> tuple[State, ...]:
    """States, given as such or by their names. Raises InvalidInput."""
    return tuple(_state(each) for each in checks.items("states", states))


def _state(value: Any) -> State:
    try:
        return State(value)
    except ValueError:
        raise InvalidInput(f"{value!r} is no state") from None


def sort(order: object) -> str:
    """The order of a list. Raises InvalidInput."""
    if order not in SORTS:
        raise InvalidInput(f"{order!r} is none of {', '.join(SORTS)}")
    return str(order)


def stream_list(streams: object) -> tuple[str, ...]:
    """Names of streams. Raises InvalidInput."""
    return tuple(stream(each) for each in checks.items("streams", streams))


def stream(name: object) -> str:
    """The name of a stream. Raises InvalidInput."""
    if name not in STREAMS:
        raise InvalidInput("a stream is stdout or stderr")
    return str(name)


def _tag(key: object, value: object) -> tuple[str, str | None]:
    return checks.named("tags", checks.text, key), _maybe_text("tags", value, nul=True)


def _maybe_text(name: str, value: object, *, nul: bool = False) -> str | None:
    if value is None:
        return None
    return checks.named(name, lambda: checks.text(value, nul=nul))

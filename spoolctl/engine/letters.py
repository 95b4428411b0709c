"""What a worker and its clerk write to each other, as bytes.

By `marshal`, which is part of the interpreter: both are the same one, and nobody else writes.
`pickle` would take an eighth of the time in which a clerk is there, for its import alone, and
three times as long for each job. Only plain values can be written so: records go as tuples, words
as their values.
"""

from __future__ import annotations

from marshal import dumps, loads

from spoolctl.core.records import Capture, Claimed, Cycle, Outcome, Recorded, Want
from spoolctl.core.states import AttemptState, Reason, State
from spoolctl.core.tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

READY = "ready"
FAILED = "failed"


class Answer(NamedTuple):
    """What came of a request, and for how many seconds the clerk was at it."""

    cycle: Cycle
    took_s: float


def request(outcomes: Sequence[Outcome], want: Want | None) -> bytes:
    """Record these ends, and claim what is wanted."""
    return dumps((list(map(_plain_outcome, outcomes)), want and tuple(want)))


def read_request(text: bytes) -> tuple[tuple[Outcome, ...], Want | None]:
    """The arguments of `request`. Raises anything for what is none."""
    outcomes, want = loads(text)
    return tuple(map(_outcome, outcomes)), want and Want(*want)


def answer(message: Answer | str) -> bytes:
    """An `Answer`, or one of the words above."""
    if not isinstance(message, Answer):
        return dumps(message)
    cycle = message.cycle
    recorded = list(map(_plain_recorded, cycle.recorded))
    claimed = list(map(tuple, cycle.claimed))
    return dumps((recorded, claimed, cycle.next_due_s, cycle.waited, message.took_s))


def read_answer(text: bytes) -> object:
    """The argument of `answer`. Raises anything for what is none."""
    plain = loads(text)
    if type(plain) is not tuple:
        return plain
    recorded, claimed, next_due_s, waited, took_s = plain
    cycle = Cycle(
        tuple(map(_recorded, recorded)),
        tuple([Claimed(*each) for each in claimed]),
        next_due_s,
        waited,
    )
    return Answer(cycle, took_s)


def _plain_outcome(outcome: Outcome) -> tuple[Any, ...]:
    attempt_id, state, reason, *middle, stdout, stderr, started = outcome
    words = state.value, reason and reason.value
    return (attempt_id, *words, *middle, tuple(stdout), tuple(stderr), started)


def _outcome(plain: Any) -> Outcome:
    attempt_id, state, reason, *middle, stdout, stderr, started = plain
    words = AttemptState(state), reason and Reason(reason)
    values: Any = (attempt_id, *words, *middle, Capture(*stdout), Capture(*stderr), started)
    return Outcome(*values)


def _plain_recorded(recorded: Recorded) -> tuple[Any, ...]:
    attempt_id, job_id, state, next_run_at = recorded
    return attempt_id, job_id, state and state.value, next_run_at


def _recorded(plain: Any) -> Recorded:
    attempt_id, job_id, state, next_run_at = plain
    return Recorded(attempt_id, job_id, state and State(state), next_run_at)

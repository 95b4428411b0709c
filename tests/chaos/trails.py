"""One job's trail of events, replayed against the transition table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spoolctl.core.states import TRANSITIONS, Event, State
from tests.chaos.history import Entry, Job, Try

E = Event

ENDS: dict[Event, tuple[str, frozenset[str | None]]] = {
    E.SUCCEEDED: ("succeeded", frozenset({None})),
    **dict.fromkeys(
        (E.FAILED, E.EXHAUSTED, E.FINAL),
        ("failed", frozenset({"process_exit", "spawn_failed", "output_limit"})),
    ),
    **dict.fromkeys((E.TIMED_OUT, E.TIMED_OUT_EXHAUSTED), ("timed_out", frozenset({"timeout"}))),
    **dict.fromkeys((E.REAPED, E.REAPED_EXHAUSTED), ("abandoned", frozenset({"worker_crash"}))),
    E.RELEASED: ("abandoned", frozenset({"worker_shutdown"})),
    E.FORCED: ("abandoned", frozenset({"canceled"})),
    E.CANCELED: ("canceled", frozenset({"canceled"})),
}
"""How an attempt must look that was ended by this event: state, possible reasons."""

REAPS = frozenset({E.REAPED, E.REAPED_EXHAUSTED})
FAILS = frozenset({E.FAILED, E.TIMED_OUT})
EXHAUSTS = frozenset({E.EXHAUSTED, E.TIMED_OUT_EXHAUSTED})


class Step(NamedTuple):
    """One move. `at`: the place in the trail of the first entry that it wrote."""

    at: int
    event: Event
    before: State
    after: State


class Illegal(Exception):
    """The table has no way to write this trail."""


def replay(events: Sequence[str]) -> list[Step]:
    """The moves that wrote these events. Raises Illegal."""
    if not events or events[0] != "added":
        raise Illegal("the trail does not begin with 'added'")
    steps = _parse(events)
    if steps is None:
        raise Illegal(f"no legal moves write {' '.join(events)}")
    return steps


def _parse(events: Sequence[str]) -> list[Step] | None:
    """Depth first: a failure with tries left and one without begin with the same entry."""
    moves = [(state, event, move) for (state, event), move in TRANSITIONS.items()]
    stack: list[tuple[State, int, list[Step]]] = [(State.QUEUED, 1, [])]
    while stack:
        state, at, steps = stack.pop()
        if at == len(events):
            return steps
        for before, event, move in moves:
            written = [entry.value for entry in move.writes]
            if before is state and list(events[at : at + len(written)]) == written:
                step = Step(at, event, before, move.to)
                stack.append((move.to, at + len(written), [*steps, step]))
    return None


def state_after(events: Sequence[str]) -> str | None:
    """The state to which the trail leads; None if it is illegal (or cut off in a move)."""
    try:
        steps = replay(events)
    except Illegal:
        return None
    return steps[-1].after.value if steps else State.QUEUED.value


def reaped(trail: Sequence[Entry], tries: Sequence[Try]) -> list[tuple[int, Entry]]:
    """The entries by which the job was taken back, with the number of the attempt each."""
    try:
        steps = replay([entry.event for entry in trail])
    except Illegal:
        return []
    number, found = 0, []
    for step in attempted(steps, tries):
        number += step.event is E.CLAIMED
        if step.event in REAPS:
            found.append((number, trail[step.at]))
    return found


def attempted(steps: Sequence[Step], tries: Sequence[Try]) -> list[Step]:
    """The moves without the claims that were taken back before their command was started.

    Those leave no attempt, and the next one has the number that they had.
    """
    left = list(tries)
    kept: list[Step] = []
    for step in steps:
        if step.before is State.RUNNING:
            if step.event is E.RELEASED and not (left and _was_released(left[0])):
                while kept.pop().event is not E.CLAIMED:
                    pass
                continue
            del left[:1]
        kept.append(step)
    return kept


def _was_released(one: Try) -> bool:
    state, reasons = ENDS[E.RELEASED]
    return one.state == state and one.reason in reasons


def faults(job: Job, events: Sequence[str]) -> Iterator[str]:
    """Where the job's row, its attempts and its events do not tell the same story."""
    try:
        steps = replay(events)
    except Illegal as error:
        yield str(error)
        return
    state = steps[-1].after.value if steps else State.QUEUED.value
    if state != job.state:
        yield f"its events lead to {state}, but it is {job.state}"
    yield from _attempt_faults(job, steps)
    yield from _budget_faults(job, steps)


def _attempt_faults(job: Job, steps: Sequence[Step]) -> Iterator[str]:
    numbers = [one.number for one in job.tries]
    steps = attempted(steps, job.tries)
    claims = sum(step.event is E.CLAIMED for step in steps)
    if numbers != list(range(1, claims + 1)):
        yield f"{claims} claims, but attempts {numbers}"
        return
    ended: list[Event | None] = []
    for step in steps:
        if step.event is E.CLAIMED:
            ended.append(None)
        elif step.before is State.RUNNING:
            ended[-1] = step.event
    for one, event in zip(job.tries, ended, strict=True):
        fault = _end_fault(one, event)
        if fault:
            yield f"attempt {one.number} {fault}"


def _end_fault(one: Try, event: Event | None) -> str | None:
    if event is None:
        return None if one.state == "running" else f"is {one.state}, but no event ended it"
    state, reasons = ENDS[event]
    if one.state != state or one.reason not in reasons:
        return f"is {one.state} ({one.reason}), but was ended by {event.value}"
    return None


def _budget_faults(job: Job, steps: Sequence[Step]) -> Iterator[str]:
    """Counters, and whether the job was given up exactly when its budget was spent."""
    attempts = crashes = 0
    for step in steps:
        if step.event in (E.RETRIED, E.FORCED):
            attempts = crashes = 0
        if step.event in REAPS:
            attempts, crashes = attempts + 1, crashes + 1
            spent = job.max_crashes is not None and crashes > job.max_crashes
            if spent != (step.event is E.REAPED_EXHAUSTED):
                yield f"{step.event.value} after {crashes} crashes of {job.max_crashes}"
        elif step.event in FAILS | EXHAUSTS | {E.FINAL}:
            attempts += 1
            spent = attempts - crashes > job.max_retries
            if step.event is not E.FINAL and spent != (step.event in EXHAUSTS):
                yield f"{step.event.value} after {attempts - crashes} of {job.max_retries} retries"
    if (attempts, crashes) != (job.attempts, job.crashes):
        yield (
            f"counts {job.attempts} attempts and {job.crashes} crashes,"
            f" its events {attempts} and {crashes}"
        )

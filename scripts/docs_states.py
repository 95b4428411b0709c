"""The page of states and moves, made from the one table that the store obeys."""

from __future__ import annotations

from spoolctl.core.states import SETTLED, TRANSITIONS, AttemptState, Event, Reason, State

STATES = {
    State.QUEUED: "waiting: due, delayed, between two attempts, or until an old copy is gone",
    State.RUNNING: "claimed by a worker",
    State.DONE: "the last attempt exited 0",
    State.FAILED: "ended for good without spending the budget: an exit code that the submitter "
    "declared final",
    State.DEAD: "the retry budget is spent: the dead letter",
    State.CANCELED: "withdrawn",
}

HAPPENED = {
    Event.CLAIMED: "a worker took it on",
    Event.SUCCEEDED: "the command exited 0",
    Event.FAILED: "the command failed or could not be started; tries are left",
    Event.EXHAUSTED: "the command failed or could not be started; no try is left",
    Event.FINAL: "the command ended with an exit code declared final",
    Event.TIMED_OUT: "the time limit passed; tries are left",
    Event.TIMED_OUT_EXHAUSTED: "the time limit passed; no try is left",
    Event.REAPED: "the worker was proven dead; crashes are left",
    Event.REAPED_EXHAUSTED: "the worker was proven dead; no crash is left",
    Event.RELEASED: "the worker was told to stop, or had no slot for it in time; no budget is "
    "spent",
    Event.RETRIED: "`retry`",
    Event.FORCED: "`retry --force`",
    Event.CANCELED: "`cancel` (of a running job: `--running --yes`)",
}

ATTEMPTS = {
    AttemptState.RUNNING: "its end is not recorded yet",
    AttemptState.SUCCEEDED: "exit 0",
    AttemptState.FAILED: "another exit code, a signal, or the command could not be started",
    AttemptState.TIMED_OUT: "the time limit passed, whatever the exit code",
    AttemptState.ABANDONED: "the worker died or was stopped, or `retry --force` displaced it",
    AttemptState.CANCELED: "`cancel` while it ran",
}

REASONS = {
    Reason.PROCESS_EXIT: "the command ended with an exit code other than 0, or by a signal",
    Reason.TIMEOUT: "the time limit passed",
    Reason.SPAWN_FAILED: "no such program, not executable, no such folder, no output file",
    Reason.WORKER_CRASH: "the worker died",
    Reason.CANCELED: "`cancel`, or displaced by `retry --force`",
    Reason.WORKER_SHUTDOWN: "the worker was told to stop at once",
    Reason.OUTPUT_LIMIT: "a stream outgrew `--max-output` where its middle cannot be dropped",
    Reason.DEPENDENCY_FAILED: "a job that it waits for can no longer succeed (not used yet)",
    Reason.UNKNOWN: "the record does not tell",
}

TEMPLATE = """\
# States

A job has one of six states; the moves between them stand in one table,
`TRANSITIONS` in [spoolctl/core/states.py](../spoolctl/core/states.py). The store asks that
table before every change and refuses all others. This page is generated from it.

```mermaid
stateDiagram-v2
    [*] --> queued: add
{arrows}
```

## Job states

| state | meaning | settled |
|---|---|---|
{states}

A settled job never runs again by itself; `dead`, `failed` and `canceled` ones can be put back
with `retry`. *Scheduled* is no state: it is a `queued` job whose time has not come.

## Moves

Each move writes its ledger entries in the same transaction (`spoolctl events` reads them).

| from | what happened | to | ledger entries |
|---|---|---|---|
{moves}

`add` writes the first entry, `added`.

## Attempt states

An attempt is one execution of a job. Its number counts up from 1 and never restarts.

| state | meaning |
|---|---|
{attempts}

## Failure reasons

| reason | meaning |
|---|---|
{reasons}
"""


def _arrows() -> list[str]:
    """One arrow per pair of states, labelled with all that leads along it."""
    labels: dict[tuple[State, State], list[str]] = {}
    for (before, event), move in TRANSITIONS.items():
        labels.setdefault((before, move.to), []).append(event.value)
    lines = [
        f"    {before.value} --> {after.value}: {', '.join(words)}"
        for (before, after), words in labels.items()
    ]
    leaves = {before for before, _ in TRANSITIONS}
    lines += [f"    {state.value} --> [*]" for state in State if state not in leaves]
    return lines


def page() -> str:
    """The text of docs/states.md."""
    return TEMPLATE.format(
        arrows="\n".join(_arrows()),
        states="\n".join(
            f"| `{state.value}` | {STATES[state]} | {'yes' if state in SETTLED else 'no'} |"
            for state in State
        ),
        moves="\n".join(
            f"| `{before.value}` | {HAPPENED[event]} | `{move.to.value}` | "
            f"{', '.join(f'`{entry.value}`' for entry in move.writes)} |"
            for (before, event), move in TRANSITIONS.items()
        ),
        attempts="\n".join(f"| `{state.value}` | {ATTEMPTS[state]} |" for state in AttemptState),
        reasons="\n".join(f"| `{reason.value}` | {REASONS[reason]} |" for reason in Reason),
    )

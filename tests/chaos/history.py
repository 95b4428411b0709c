"""What is known of a run when it is over: the checker's only input.

Collected by `gather.py` from a real run, made up by the checker's own tests.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.chaos.ledger import Record


class Output(NamedTuple):
    """A stored stream: its length, and how much of its beginning is what the job wrote.

    `missing`: the queue says that it has lost the file.
    """

    size: int = 0
    sound: int = 0
    missing: bool = False


class Try(NamedTuple):
    """One attempt as the queue tells it in the end. `worker`: its owner's name."""

    token: str
    number: int
    state: str
    reason: str | None
    exit_code: int | None
    worker: str
    gone: bool
    stdout: Output = Output()
    stderr: Output = Output()


class Job(NamedTuple):
    """One job as the queue tells it in the end.

    `attempts`, `crashes`: its counters of unsuccessful executions. `tries`: by number.
    """

    id: int
    state: str
    attempts: int
    crashes: int
    max_retries: int
    max_crashes: int | None
    queue: str = "default"
    key: str | None = None
    tries: tuple[Try, ...] = ()


class Entry(NamedTuple):
    """One entry of the queue's event ledger.

    `seen`: when the operator first saw it, on the boot clock (None: only in the end).
    """

    id: int
    job: int
    event: str
    worker: str | None = None
    seen: float | None = None


class Worker(NamedTuple):
    """What the operator knows of a worker that it started, by its name.

    `doomed`: from when on it may be dead (taken before the signal was sent), None if it was
    never told to end. `dead`: when a SIGKILL had certainly done its work, None without one.
    `guarded`: its guardian was unharmed when that happened.
    """

    name: str
    pid: int
    doomed: float | None = None
    dead: float | None = None
    guarded: bool = True


class Act(NamedTuple):
    """What the operator did: `add`, `cancel`, `retry` or `prune`.

    `sure`: it was acknowledged; else its client was killed, and it may or may not have
    happened. `job`: None for an `add` without an answer. `deleted`: jobs, by a prune. `at`: when
    the answer had come. `gone`: a cancel said that no process of the job is left.
    """

    kind: str
    job: int | None = None
    sure: bool = True
    deleted: int = 0
    at: float = 0.0
    gone: bool = False


class History(NamedTuple):
    """Everything about one run.

    `entries`: the event ledger, what was seen of pruned jobs included. `seen`: entries as
    they were read while the run went on. `pruned`: those of `jobs` that are as they were before
    a prune deleted them. `left`: descriptions of processes that live on after the end;
    `litter`: files that no running attempt and no stored stream explains; `faults`: what the
    operator noted at once (a worker that crashed or did not end, a damaged file).
    `ceilings`: queue -> the most attempts at a time. `grace_s`: how long after the death of its
    worker a tree may live.
    """

    records: list[Record]
    acts: list[Act]
    jobs: list[Job]
    entries: list[Entry]
    seen: list[Entry]
    workers: list[Worker]
    left: tuple[str, ...] = ()
    litter: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    pruned: frozenset[int] = frozenset()
    ceilings: dict[str, int] = {}  # noqa: RUF012 - never changed
    grace_s: float = 5.0

"""What can be said about a queue from outside: its file, its workers, what nobody serves.

Changes nothing: opens the file for reading only, and judges workers as the reaper does.
"""

from __future__ import annotations

from spoolctl.core.paths import worker_lock
from spoolctl.core.records import Instant, WorkerRow
from spoolctl.core.tuples import NamedTuple
from spoolctl.process.filesystem import file_system
from spoolctl.process.identity import Evidence, Verdict, judge
from spoolctl.store.examination import Contents, DueLane, Examination, examine


class Workers(NamedTuple):
    """Registered workers by verdict."""

    alive: int
    dead: int
    unclear: int


class Diagnosis(NamedTuple):
    """A queue as found. `file_system`: `local`, `shared`, `network` or `unknown`.

    The rest is None where the file could not be read. `unserved`: queues with due jobs that
    no living worker serves. `orphans`: attempts of dead workers that nobody took back yet.
    """

    examination: Examination
    file_system: str
    workers: Workers | None
    unserved: tuple[DueLane, ...] | None
    orphans: int | None


def diagnose(db_path: str, *, now: Instant) -> Diagnosis:
    """Look at the queue at `db_path`; never raises for what it is like."""
    found = examine(db_path, now=now)
    kind = file_system(db_path)
    if found.contents is None:
        return Diagnosis(found, kind, None, None, None)
    verdicts = _judge_all(db_path, found.contents)
    counted = list(verdicts.values())
    return Diagnosis(
        found,
        kind,
        Workers(*(counted.count(each) for each in (Verdict.ALIVE, Verdict.DEAD, Verdict.UNCLEAR))),
        _unserved(found.contents, verdicts),
        _orphans(found.contents, verdicts),
    )


def _judge_all(db_path: str, contents: Contents) -> dict[int, Verdict]:
    evidence = Evidence(db_path)
    return {
        worker.id: judge(
            worker.identity, worker_lock(db_path, worker.token), evidence=evidence
        ).verdict
        for worker in contents.workers
    }


def _unserved(contents: Contents, verdicts: dict[int, Verdict]) -> tuple[DueLane, ...]:
    # A worker that is not proven dead may be about to take the job.
    serving = [each for each in contents.workers if verdicts[each.id] is not Verdict.DEAD]
    return tuple(
        lane for lane in contents.lanes if not any(_serves(each, lane.queue) for each in serving)
    )


def _serves(worker: WorkerRow, queue: str) -> bool:
    return worker.lanes is None or queue in worker.lanes


def _orphans(contents: Contents, verdicts: dict[int, Verdict]) -> int:
    return sum(
        number
        for worker, number in contents.living.items()
        if worker is None or verdicts.get(worker, Verdict.DEAD) is Verdict.DEAD
    )

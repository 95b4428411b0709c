"""The chaos suite's checker finds what it is for: each rule has forged histories of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import ledger, trails
from tests.chaos.checker import RULES, check
from tests.chaos.history import Act, Entry, History, Job, Output, Try, Worker
from tests.chaos.ledger import Record

TRAIL = "added claimed reaped claimed failed claimed succeeded"


def life(
    token: str,
    number: int,
    first: float,
    last: float,
    *,
    job: int = 1,
    pid: int = 0,
    role: str = "main",
    code: int | None = None,
) -> list[Record]:
    """Records of one process, beating twice."""
    pid = pid or 100 + number
    kinds = [(first, "start", "7"), ((first + last) / 2, "beat", "-")]
    kinds.append((last, "beat", "-") if code is None else (last, "end", str(code)))
    return [Record(at, kind, job, token, number, pid, "1", role, word) for at, kind, word in kinds]


def entries(trail: str, *, job: int = 1, first_id: int = 1) -> list[Entry]:
    """A trail, each event seen when it is as many seconds old as its id."""
    return [
        Entry(first_id + index, job, event, None, float(first_id + index))
        for index, event in enumerate(trail.split())
    ]


def good() -> History:
    """One job: its first worker is killed, then it fails, then it succeeds, leaving a daemon."""
    tries = (
        Try("aa", 1, "abandoned", "worker_crash", None, "w1", True, Output(10, 10), Output()),
        Try("bb", 2, "failed", "process_exit", 3, "w2", True, Output(20, 20), Output()),
        Try("cc", 3, "succeeded", None, 0, "w2", True, Output(), Output(5, 5)),
    )
    records = [
        *life("aa", 1, 1.0, 2.4),
        *life("aa", 1, 1.1, 2.9, pid=150, role="setsid"),
        Record(1.2, "will", 1, "aa", 1, 101, "1", "main", "stdout:8"),
        Record(1.3, "did", 1, "aa", 1, 101, "1", "main", "stdout:8"),
        Record(1.4, "will", 1, "aa", 1, 101, "1", "main", "stdout:16"),
        *life("bb", 2, 3.2, 4.5, code=3),
        Record(3.3, "will", 1, "bb", 2, 102, "1", "main", "stdout:20"),
        Record(3.4, "did", 1, "bb", 2, 102, "1", "main", "stdout:20"),
        *life("cc", 3, 5.2, 5.9, code=0),
        *life("cc", 3, 5.3, 99.0, pid=160, role="double"),
        Record(5.4, "will", 1, "cc", 3, 160, "1", "double", "stderr:5"),
        Record(5.5, "did", 1, "cc", 3, 160, "1", "double", "stderr:5"),
    ]
    return History(
        records=sorted(records),
        acts=[Act("add", 1)],
        jobs=[Job(1, "done", 2, 1, 3, 20, "narrow", "k", tries)],
        entries=entries(TRAIL),
        seen=entries(TRAIL),
        workers=[Worker("w1", 7, doomed=2.0, dead=2.1), Worker("w2", 8)],
        ceilings={"narrow": 1},
        grace_s=1.0,
    )


def with_job(history: History, **changes: Any) -> History:
    """The history, its only job changed."""
    return history._replace(jobs=[history.jobs[0]._replace(**changes)])


def with_try(history: History, number: int, **changes: Any) -> History:
    """The history, one attempt changed."""
    tries = list(history.jobs[0].tries)
    tries[number - 1] = tries[number - 1]._replace(**changes)
    return with_job(history, tries=tuple(tries))


def with_trail(history: History, trail: str, **changes: Any) -> History:
    """The history, with other events."""
    return with_job(history._replace(entries=entries(trail), seen=[]), **changes)


def with_records(history: History, *more: Record) -> History:
    """The history, with more in the ledger of its jobs."""
    return history._replace(records=sorted([*history.records, *more]))


def with_acts(history: History, *more: Act) -> History:
    """The history, with more that the operator did."""
    return history._replace(acts=[*history.acts, *more])


def test_a_good_history_passes() -> None:
    assert check(good()) == []


GOOD: dict[str, Callable[[History], History]] = {
    "nothing happened": lambda h: History([], [], [], [], [], []),
    "a cancel, acknowledged, and a retry": lambda h: with_acts(
        with_trail(
            h,
            "added canceled retried claimed canceled",
            state="canceled",
            attempts=0,
            crashes=0,
            tries=(Try("aa", 1, "canceled", "canceled", None, "w1", True, Output(9, 9)),),
        )._replace(records=h.records[:6]),
        Act("cancel", 1),
        Act("cancel", 1),
        Act("retry", 1),
    ),
    "forced, and given back": lambda h: with_acts(
        with_trail(
            h,
            "added claimed retried claimed released claimed timed_out dead",
            state="dead",
            attempts=1,
            crashes=0,
            max_retries=0,
            tries=(
                Try("x1", 1, "abandoned", "canceled", None, "w1", True, Output(missing=True)),
                Try("x2", 2, "abandoned", "worker_shutdown", None, "w1", True),
                Try("x3", 3, "timed_out", "timeout", None, "w1", True),
            ),
        )._replace(records=[]),
        Act("retry", 1),
    ),
    "the client of a cancel was killed": lambda h: with_acts(h, Act("cancel", 1, sure=False)),
    "a pruned job": lambda h: with_acts(
        h._replace(jobs=[], entries=[], seen=[]), Act("prune", deleted=1, at=6.0)
    ),
    "a pruned job that was looked at before": lambda h: with_acts(
        h._replace(pruned=frozenset({1})), Act("prune", deleted=1, at=6.0)
    ),
    "a prune whose client was killed": lambda h: with_acts(
        h._replace(jobs=[], entries=[], seen=[]), Act("prune", sure=False, at=6.0)
    ),
    "the same key again, after the end": lambda h: h._replace(
        jobs=[*h.jobs, Job(2, "canceled", 0, 0, 3, 20, "default", "k")],
        entries=[*h.entries, *entries("added canceled", job=2, first_id=50)],
        acts=[*h.acts, Act("add", 2), Act("cancel", 2)],
    ),
    "a guardian killed with its worker": lambda h: with_records(
        h._replace(workers=[Worker("w1", 7, 0.5, 0.6, guarded=False), *h.workers[1:]]),
    ),
    "a shell reports the signal": lambda h: with_try(
        h._replace(records=[r for r in h.records if (r.token, r.kind) != ("bb", "end")]),
        2,
        exit_code=143,
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_allowed_passes(name: str) -> None:
    assert check(GOOD[name](good())) == []


FORGED: dict[str, dict[str, Callable[[History], History]]] = {
    "overlap": {
        "old copy": lambda h: with_records(h, *life("aa", 1, 1.0, 3.5, pid=101)),
        "setsid child of an older attempt": lambda h: with_records(
            h, *life("bb", 2, 3.3, 5.25, pid=170, role="setsid")
        ),
        "not only with the next": lambda h: with_records(
            h, *life("aa", 1, 1.1, 5.25, pid=150, role="setsid")
        ),
    },
    "second copy": {
        "lock taken": lambda h: with_records(
            h, Record(3.25, "second", 1, "bb", 2, 102, "1", "main", "-")
        )
    },
    "one start": {
        "two mains": lambda h: with_records(h, *life("bb", 2, 3.3, 4.0, pid=999)),
        "the same pid again": lambda h: with_records(
            h, Record(3.3, "start", 1, "bb", 2, 102, "2", "main", "7")
        ),
    },
    "slots": {
        "two at a time": lambda h: h._replace(
            jobs=[
                *h.jobs,
                Job(
                    2,
                    "done",
                    0,
                    0,
                    3,
                    20,
                    "narrow",
                    None,
                    (h.jobs[0].tries[2]._replace(token="dd", number=1),),
                ),
            ],
            entries=[*h.entries, *entries("added claimed succeeded", job=2, first_id=50)],
            records=[*h.records, *life("dd", 1, 4.0, 4.4, job=2, code=0)],
        ),
        "an orphan counts": lambda h: h._replace(
            jobs=[
                *h.jobs,
                Job(
                    2,
                    "done",
                    0,
                    0,
                    3,
                    20,
                    "narrow",
                    None,
                    (h.jobs[0].tries[2]._replace(token="dd", number=1),),
                ),
            ],
            entries=[*h.entries, *entries("added claimed succeeded", job=2, first_id=50)],
            records=[*h.records, *life("dd", 1, 2.6, 2.8, job=2, code=0)],
        ),
    },
    "orphans": {
        "late": lambda h: h._replace(workers=[Worker("w1", 7, 1.2, 1.3), *h.workers[1:]]),
    },
    "left over": {"a process": lambda h: h._replace(left=("pid 12",))},
    "litter": {"a file": lambda h: h._replace(litter=("workers/x.lock",))},
    "misbehaved": {"a traceback": lambda h: h._replace(faults=("worker w1 crashed",))},
    "canceled": {
        "goes on": lambda h: with_acts(h, Act("cancel", 1, at=3.7, gone=True)),
        "a child goes on": lambda h: with_acts(h, Act("cancel", 1, at=2.5, gone=True)),
    },
    "lost": {
        "missing": lambda h: h._replace(jobs=[], entries=[], seen=[]),
        "more than were pruned": lambda h: with_acts(
            h._replace(jobs=[]), Act("add", 2), Act("prune", deleted=1, at=7.0)
        ),
        "archived, but nobody pruned": lambda h: h._replace(pruned=frozenset({1})),
        "ran after it was pruned": lambda h: with_acts(
            h._replace(jobs=[], entries=[], seen=[]), Act("prune", deleted=1, at=5.0)
        ),
    },
    "unsettled": {
        "queued": lambda h: with_trail(h, "added", state="queued", tries=()),
        "running": lambda h: with_try(with_job(h, state="running"), 3, state="running"),
        "not gone": lambda h: with_try(h, 1, gone=False),
    },
    "unrecorded": {
        "unknown attempt": lambda h: with_records(h, *life("zz", 4, 200.0, 201.0)),
        "under another number": lambda h: with_try(h, 2, token="zz"),
    },
    "acknowledged": {
        "cancel lost": lambda h: with_acts(h, Act("cancel", 1)),
        "retry lost": lambda h: with_acts(h, Act("retry", 1)),
        "nobody asked": lambda h: with_trail(h, "added canceled", state="canceled", tries=()),
    },
    "keys": {
        "two active": lambda h: h._replace(
            jobs=[*h.jobs, Job(2, "canceled", 0, 0, 3, 20, "default", "k")],
            entries=[
                *(entry._replace(id=entry.id * 10) for entry in h.entries),
                *entries("added canceled", job=2, first_id=41),
            ],
        ),
    },
    "rewritten": {
        "gone": lambda h: h._replace(entries=[e for e in h.entries if e.id != 3]),
        "changed": lambda h: h._replace(
            entries=[e._replace(worker="w9") if e.id == 3 else e for e in h.entries]
        ),
        "id twice": lambda h: h._replace(entries=[*h.entries, h.entries[0]]),
        "late": lambda h: h._replace(seen=[h.seen[1], h.seen[0]]),
    },
    "robbed": {
        "alive": lambda h: h._replace(workers=[Worker("w1", 7), *h.workers[1:]]),
        "killed later": lambda h: h._replace(workers=[Worker("w1", 7, 3.5, 3.6), *h.workers[1:]]),
    },
    "trail": {
        "no beginning": lambda h: with_trail(h, TRAIL.removeprefix("added ")),
        "illegal move": lambda h: with_trail(h, "added claimed retried succeeded"),
        "claimed twice": lambda h: with_trail(h, TRAIL.replace("reaped claimed", "claimed")),
        "reaped twice": lambda h: with_trail(h, TRAIL.replace("reaped", "reaped reaped")),
        "other state": lambda h: with_job(h, state="canceled"),
        "attempt missing": lambda h: with_job(h, tries=h.jobs[0].tries[1:]),
        "attempt too many": lambda h: with_job(
            h, tries=(*h.jobs[0].tries, h.jobs[0].tries[0]._replace(number=4, token="dd"))
        ),
        "other end": lambda h: with_try(h, 1, state="failed", reason="process_exit"),
        "other reason": lambda h: with_try(h, 1, reason="worker_shutdown"),
        "not ended": lambda h: with_try(h, 1, state="running"),
        "attempts": lambda h: with_job(h, attempts=1),
        "crashes": lambda h: with_job(h, crashes=0),
        "given up early": lambda h: with_trail(
            h, "added claimed failed dead", state="dead", attempts=1, crashes=0
        ),
        "not given up": lambda h: with_job(h, max_retries=0),
        "crashes not given up": lambda h: with_job(h, max_crashes=0),
    },
    "result": {
        "other code": lambda h: with_try(h, 2, exit_code=4),
        "no end": lambda h: h._replace(
            records=[r for r in h.records if (r.token, r.kind) != ("cc", "end")]
        ),
        "success with a code": lambda h: with_try(h, 3, exit_code=1),
    },
    "output": {
        "other bytes": lambda h: with_try(h, 2, stdout=Output(20, 7)),
        "short": lambda h: with_try(h, 2, stdout=Output(19, 19)),
        "long": lambda h: with_try(h, 2, stdout=Output(21, 21)),
        "killed, less than it wrote": lambda h: with_try(h, 1, stdout=Output(7, 7)),
        "killed, more than it would": lambda h: with_try(h, 1, stdout=Output(17, 17)),
        "missing": lambda h: with_try(h, 2, stdout=Output(missing=True)),
        "from nowhere": lambda h: with_try(h, 3, stdout=Output(1, 1)),
    },
}


@pytest.mark.parametrize(
    ("rule", "name"), [(rule, name) for rule in FORGED for name in FORGED[rule]]
)
def test_each_rule_finds_its_own_fault(rule: str, name: str) -> None:
    found = check(FORGED[rule][name](good()))
    assert rule in {violation.rule for violation in found}


def test_every_rule_has_a_forged_history() -> None:
    assert FORGED.keys() == RULES.keys()


def test_content_is_compared_byte_by_byte() -> None:
    data = ledger.content("aa", "stdout", 1000)
    assert ledger.sound_prefix("aa", "stdout", data) == 1000
    assert ledger.sound_prefix("aa", "stdout", data[:10]) == 10
    assert ledger.sound_prefix("aa", "stdout", data[:500] + b"?" + data[501:]) == 500
    assert ledger.sound_prefix("aa", "stderr", data) < 5
    assert ledger.content("ab", "stdout", 1000) != data


def test_a_torn_record_does_not_count(tmp_path: Path) -> None:
    whole = life("aa", 1, 1.0, 2.0)
    fd = os.open(tmp_path / ledger.LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for record in whole:
        ledger.write(fd, record)
        os.write(fd, b"\n2.0 start 1 aa 1 4")  # its writer was killed in between
    os.close(fd)
    assert ledger.read(str(tmp_path)) == whole


def test_a_claim_that_was_taken_back_is_no_attempt() -> None:
    """Its command was not started; the number goes to the next."""
    events = [
        "added",
        "claimed",
        "released",
        "claimed",
        "released",
        "claimed",
        "reaped",
        "claimed",
        "succeeded",
    ]
    steps = trails.replay(events)
    ends = [("abandoned", "worker_shutdown"), ("abandoned", "worker_crash"), ("succeeded", None)]
    for tries in (ends, ends[1:]):
        found: list[Any] = [SimpleNamespace(state=one, reason=why) for one, why in tries]
        kept = [step.event.value for step in trails.attempted(steps, found)]
        assert kept.count("claimed") == len(tries)
        assert kept[-4:] == ["claimed", "reaped", "claimed", "succeeded"]

"""Does a run's history keep the promises? Pure: a history in, a list of violations out.

Each rule is a function that looks at the whole history for one kind of fault, and stands in
`RULES` under the name by which its findings are reported. The rules for one job's trail of
events are in `trails.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.chaos import trails
from tests.chaos.history import Entry, History, Job, Output, Try
from tests.chaos.ledger import Record

SETTLED = frozenset({"done", "failed", "dead", "canceled"})


class Violation(NamedTuple):
    """A promise that was not kept, by the rule's name, with what shows it."""

    rule: str
    text: str


class Life(NamedTuple):
    """The time in which processes of one attempt certainly lived."""

    token: str
    job: int
    number: int
    first: float
    last: float


def check(history: History) -> list[Violation]:
    """All violations, by rule."""
    return [Violation(name, text) for name, rule in RULES.items() for text in rule(history)]


# -- copies ---------------------------------------------------------------------------------


def lives(records: list[Record]) -> list[Life]:
    """First to last sign of life of each attempt, over all its processes, by start."""
    spans: dict[str, Life] = {}
    for record in records:
        old = spans.get(record.token)
        if old is None:
            old = Life(record.token, record.job, record.number, record.at, record.at)
        first, last = min(old.first, record.at), max(old.last, record.at)
        spans[record.token] = old._replace(first=first, last=last)
    return sorted(spans.values(), key=lambda life: life.first)


def overlap(history: History) -> Iterator[str]:
    """Two attempts of one job had living processes at the same time."""
    latest: dict[int, Life] = {}
    for life in lives(history.records):
        other = latest.get(life.job)
        if other is not None and life.first <= other.last:
            yield (
                f"job {life.job}: attempt {life.number} ran from {life.first:.3f}, while attempt"
                f" {other.number} lived until {other.last:.3f}"
            )
        if other is None or life.last > other.last:
            latest[life.job] = life


def second_copy(history: History) -> Iterator[str]:
    """A main process found its job's lock taken by processes of another attempt."""
    for record in history.records:
        if record.kind == "second":
            yield f"job {record.job}: attempt {record.number} met another copy at {record.at:.3f}"


def one_start(history: History) -> Iterator[str]:
    """One attempt is one execution: its command was not started twice."""
    mains: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for record in history.records:
        if record.role == "main" and record.kind == "start":
            mains[record.token].add((record.pid, record.start))
    for token, found in mains.items():
        if len(found) > 1:
            yield f"attempt {token} was started {len(found)} times"


def slots(history: History) -> Iterator[str]:
    """Never more attempts of a lane at a time than its ceiling; orphans count."""
    attempts = {one.token: (job, one) for job in history.jobs for one in job.tries}
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for life in lives(_accountable(history, attempts)):
        job, _ = attempts[life.token]
        if job.queue in history.ceilings:
            changes[job.queue] += [(life.first, 1), (life.last, -1)]
    for queue, steps in changes.items():
        most = now = 0
        for _, step in sorted(steps, key=lambda change: (change[0], change[1])):
            now += step
            most = max(most, now)
        if most > history.ceilings[queue]:
            yield f"{most} attempts at a time in {queue!r}, allowed are {history.ceilings[queue]}"


def _accountable(history: History, attempts: dict[str, tuple[Job, Try]]) -> list[Record]:
    """Records of processes that may not live on; what a success leaves running may."""
    return [
        record
        for record in history.records
        if record.token in attempts
        and (record.role == "main" or attempts[record.token][1].state != "succeeded")
    ]


# -- trees ----------------------------------------------------------------------------------


def orphans(history: History) -> Iterator[str]:
    """A killed worker's trees end within the grace (its guardian's work)."""
    dead = {one.name: one.dead for one in history.workers if one.dead and one.guarded}
    attempts = {one.token: (job, one) for job in history.jobs for one in job.tries}
    for life in lives(_accountable(history, attempts)):
        job, one = attempts[life.token]
        killed = dead.get(one.worker)
        if killed is not None and one.state != "succeeded" and life.last > killed + history.grace_s:
            yield (
                f"job {job.id}: attempt {life.number} lived on for {life.last - killed:.1f} s after"
                f" its worker {one.worker} had been killed"
            )


def left_over(history: History) -> Iterator[str]:
    """Nothing runs when all is over."""
    yield from history.left


def litter(history: History) -> Iterator[str]:
    """A queue at rest has no files that belong to nobody."""
    yield from history.litter


# -- promises -------------------------------------------------------------------------------


def misbehaved(history: History) -> Iterator[str]:
    """No worker crashed, hung, or ended with an error."""
    yield from history.faults


def lost(history: History) -> Iterator[str]:
    """Every acknowledged job is there, or was deleted by a prune that said so."""
    known = {job.id for job in history.jobs} - history.pruned
    added = {act.job for act in history.acts if act.kind == "add" and act.sure and act.job}
    prunes = [act for act in history.acts if act.kind == "prune"]
    missing = sorted(added - known)
    allowed = sum(act.deleted for act in prunes)
    if len(missing) > allowed and all(act.sure for act in prunes):
        yield f"{len(missing)} acknowledged jobs are missing, {allowed} were pruned: {missing[:20]}"
    last_prune = max((act.at for act in prunes), default=0.0)
    for record in history.records:
        started = record.kind == "start" and record.role == "main"
        if started and record.job in added - known and record.at > last_prune:
            yield f"job {record.job} is missing, but ran at {record.at:.3f}"


def unsettled(history: History) -> Iterator[str]:
    """After the final drain every job has settled."""
    for job in history.jobs:
        if job.state not in SETTLED:
            yield f"job {job.id} is still {job.state}"
        for one in job.tries:
            if not one.gone:
                yield f"job {job.id}: attempt {one.number} ({one.state}) was never confirmed gone"


def unrecorded(history: History) -> Iterator[str]:
    """Whatever ran is an attempt that the queue knows, under the same job and number."""
    known = {(job.id, one.number, one.token) for job in history.jobs for one in job.tries}
    ids = {job.id for job in history.jobs}
    for record in history.records:
        name = (record.job, record.number, record.token)
        if record.kind == "start" and record.job in ids and name not in known:
            yield f"job {record.job}: attempt {record.number} ({record.token}) ran unrecorded"


def acknowledged(history: History) -> Iterator[str]:
    """An acknowledged cancel or retry has happened, and nothing nobody asked for."""
    kept = {job.id for job in history.jobs}
    asked: Counter[tuple[str, int]] = Counter()
    maybe, found = asked.copy(), asked.copy()
    for act in history.acts:
        if act.kind in ("cancel", "retry") and act.job is not None:
            name = {"cancel": "canceled", "retry": "retried"}[act.kind]
            (asked if act.sure else maybe)[name, act.job] += 1
    for entry in history.entries:
        if entry.event in ("canceled", "retried"):
            found[entry.event, entry.job] += 1
    for what in asked.keys() | found.keys():
        event, job = what
        least, most = asked[what], asked[what] + maybe[what]
        if job in kept and not least <= found[what] <= most:
            yield f"job {job}: {found[what]} times {event}, asked for {least} to {most} times"


def canceled(history: History) -> Iterator[str]:
    """When a cancel says that the job's processes are gone, they are."""
    spans = defaultdict(list)
    for life in lives(history.records):
        spans[life.job].append(life)
    for act in history.acts:
        for life in spans[act.job or 0] if act.kind == "cancel" and act.gone else ():
            if life.first < act.at < life.last:
                yield (
                    f"job {life.job}: attempt {life.number} lived until {life.last:.3f}, its cancel"
                    f" was confirmed at {act.at:.3f}"
                )


def keys(history: History) -> Iterator[str]:
    """A key is not given to a new job while an older one with it is active."""
    by_id = {job.id: job for job in history.jobs if job.key is not None}
    trail: dict[int, list[Entry]] = defaultdict(list)
    active: dict[str, set[int]] = defaultdict(set)
    for entry in sorted(history.entries):
        job = by_id.get(entry.job)
        if job is None or job.key is None:
            continue
        trail[job.id].append(entry)
        if entry.event == "added" and active[job.key]:
            yield f"job {job.id} was added with the key of active job {min(active[job.key])}"
        state = trails.state_after([one.event for one in trail[job.id]])
        (active[job.key].discard if state in SETTLED else active[job.key].add)(job.id)


def rewritten(history: History) -> Iterator[str]:
    """The event ledger only grows: what was seen once stays, under ids that ascend."""
    final = {entry.id: entry for entry in history.entries}
    if len(final) < len(history.entries):
        yield "an id occurs twice in the event ledger"
    kept = {job.id for job in history.jobs}
    highest = 0
    for entry in history.seen:
        now = final.get(entry.id)
        if entry.job in kept and (now is None or now[:4] != entry[:4]):
            yield f"event {entry[:4]} was seen and is {now and now[:4]} now"
        if entry.id <= highest:
            yield f"event {entry.id} appeared after event {highest} had been seen"
        highest = max(highest, entry.id)


# -- owners ---------------------------------------------------------------------------------


def robbed(history: History) -> Iterator[str]:
    """A job is taken back from the dead only."""
    workers = {worker.name: worker for worker in history.workers}
    jobs = {job.id: job for job in history.jobs}
    for job_id, trail in _by_job(history.entries).items():
        job = jobs.get(job_id)
        if job is None:
            continue
        for number, entry in trails.reaped(trail, job.tries):
            owner = next((one.worker for one in job.tries if one.number == number), None)
            worker = workers.get(owner or "")
            if worker is None or entry.seen is None:
                continue
            if worker.doomed is None or worker.doomed > entry.seen:
                yield (
                    f"job {job_id}: attempt {number} was taken from {worker.name} at"
                    f" {entry.seen:.3f}, who was alive"
                )


def _by_job(entries: list[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = defaultdict(list)
    for entry in sorted(entries):
        found[entry.job].append(entry)
    return found


# -- the record -----------------------------------------------------------------------------


def trail(history: History) -> Iterator[str]:
    """Events, attempts, counters and states of each job agree with the transition table."""
    by_job = _by_job(history.entries)
    for job in history.jobs:
        for fault in trails.faults(job, [entry.event for entry in by_job.get(job.id, [])]):
            yield f"job {job.id}: {fault}"


def result(history: History) -> Iterator[str]:
    """What is recorded of an attempt's end is what its main process did."""
    ends: dict[str, int] = {}
    for record in history.records:
        if record.kind == "end" and record.role == "main":
            ends[record.token] = int(record.word)
    for job in history.jobs:
        for one in job.tries:
            code, said = ends.get(one.token), one.exit_code
            # A shell around the program reports the signal that ended it as 128 and more.
            tells = one.state == "succeeded" or (said is not None and 0 <= said <= 128)
            if tells and code != said:
                yield f"job {job.id}: attempt {one.number} exited with {code}, recorded is {said}"
            if one.state == "succeeded" and said != 0:
                yield f"job {job.id}: attempt {one.number} succeeded with exit code {said}"


def output(history: History) -> Iterator[str]:
    """Every attempt's output is exactly what it wrote; a prefix of it if it was killed."""
    bounds: dict[tuple[str, str], tuple[int, int]] = {}
    ran: set[str] = set()
    for record in history.records:
        ran.add(record.token)
        if record.kind in ("will", "did"):
            stream, size = record.word.split(":")
            low, _ = bounds.get((record.token, stream), (0, 0))
            done = int(size) if record.kind == "did" else low
            bounds[record.token, stream] = (done, int(size))
    for job in history.jobs:
        for one in job.tries:
            for stream in ("stdout", "stderr"):
                low, high = bounds.get((one.token, stream), (0, 0))
                fault = _stream_fault(getattr(one, stream), low, high, one.token in ran)
                if fault:
                    yield f"job {job.id}: attempt {one.number}: {stream} {fault}"


def _stream_fault(found: Output, low: int, high: int, ran: bool) -> str | None:
    if found.missing:
        # A worker that dies between the claim and the start leaves no files.
        return "is missing" if ran else None
    if found.sound < found.size:
        return f"differs from what was written from byte {found.sound} on"
    if not low <= found.size <= high:
        return f"has {found.size} bytes, written were {low} to {high}"
    return None


RULES: dict[str, Callable[[History], Iterator[str]]] = {
    "overlap": overlap,
    "second copy": second_copy,
    "one start": one_start,
    "slots": slots,
    "orphans": orphans,
    "left over": left_over,
    "litter": litter,
    "misbehaved": misbehaved,
    "canceled": canceled,
    "lost": lost,
    "unsettled": unsettled,
    "unrecorded": unrecorded,
    "acknowledged": acknowledged,
    "keys": keys,
    "rewritten": rewritten,
    "robbed": robbed,
    "trail": trail,
    "result": result,
    "output": output,
}

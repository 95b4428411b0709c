"""Questions: lists with filters, counts, events, waiting for changes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from spoolctl.core import display
from spoolctl.core.records import SORTS, Job, JobFilter
from spoolctl.core.states import State
from spoolctl.errors import NotFound
from spoolctl.store.protocol import Store
from tests.conformance.kit import Desk, failure, job, success

COMMANDS = ("make", "it's", "a b", "é", "line\nbreak", "back\\slash", "\x1b[2J", "e")
TEXTS = (
    "make",
    "it's",
    "it'",
    "'",
    "é",
    "e",
    "n",
    "\\n",
    "\\e[2J",
    "x1b",
    "slash 1",
    " 1",
    "' 1",
    "\n",
    "",
)


def populate(desk: Desk, number: int = 300) -> None:
    """Jobs in all states with a mix of everything that filters look at."""
    dice = random.Random(7)
    jobs = []
    for n in range(number):
        tags = [("n", str(n % 5))]
        if n % 3 == 0:
            tags.append(("third", "yes"))
        jobs.append(
            job(
                *(COMMANDS[n % len(COMMANDS)], str(n)),
                queue=dice.choice("abc"),
                priority=dice.choice([-5, 0, 0, 0, 3, 1000 + n]),
                tags=tuple(tags),
                max_retries=0,
            )
        )
    for some in range(0, number, 50):
        desk.store.add(jobs[some : some + 50], now=desk.clock.now())
        desk.clock.advance(10.0)
        # Set back once: the next fifty look older than those before them.
        desk.clock.step(-35.0 if some == 100 else 0.0)
    for turn in range(15):
        claimed = desk.claim(number // 30)
        desk.clock.advance(1.0 + turn % 3)
        third = len(claimed) // 3
        desk.report(*[success(one) for one in claimed[:third]])
        desk.report(*[failure(one) for one in claimed[third : 2 * third]])
    for job_id in range(1, number, 11):
        if desk.get(job_id).state is State.QUEUED:
            desk.cancel(job_id)


def test_any_combination_of_filters_equals_a_filter_over_everything(desk: Desk) -> None:
    compare_with_a_filter_over_everything(desk)


def compare_with_a_filter_over_everything(desk: Desk) -> None:
    """Ask for very many combinations of all filters, orders and limits."""
    populate(desk)
    wait_in_all_ways(desk)
    everything = desk.store.find(JobFilter(), limit=-1)
    assert [one.id for one in everything] == list(range(340, 0, -1))
    assert len({one.created_at for one in everything}) > 5
    dice = random.Random(11)
    seen_some = 0
    for _ in range(2000):
        wanted = JobFilter(
            states=tuple(dice.sample(list(State), dice.choice([0, 0, 1, 2]))),
            queue=dice.choice([None, None, "a", "b", "nowhere"]),
            tags=tuple(
                dice.sample(
                    [("n", "2"), ("n", None), ("third", None), ("third", "yes"), ("x", None)],
                    dice.choice([0, 0, 1, 2]),
                )
            ),
            priority_min=dice.choice([None, None, -5, 0, 1, 1100]),
            ids=tuple(dice.sample(range(1, 360), 40)) if dice.random() < 0.2 else (),
            before_id=dice.choice([None, None, 150, 1]),
            after_id=dice.choice([None, None, 0, 120, 299]),
            since=dice.choice([None, None, dice.choice(everything).created_at, 0.0, 9e9]),
            command=dice.choice([None, None, dice.choice(TEXTS)]),
        )
        limit = dice.choice([1, 5, 20, 1000, -1])
        sort, reverse = dice.choice(["id", *SORTS]), dice.random() < 0.3
        found = desk.store.find(wanted, limit=limit, sort=sort, reverse=reverse)
        expected = in_order([one for one in everything if matches(one, wanted)], sort, reverse)
        assert found == (expected if limit < 0 else expected[:limit]), (wanted, limit, sort)
        seen_some += bool(expected)
    assert seen_some > 500


def wait_in_all_ways(desk: Desk) -> None:
    """Some of them: for another try, for a time by either clock, for an earlier attempt."""
    for one in desk.store.find(JobFilter(states=(State.FAILED, State.DEAD)), limit=30):
        desk.retry(one.id)
    for number, one in enumerate(desk.claim(20)):
        if number % 3 == 0:
            desk.retry(one.job_id, force=True)
        elif number % 3 == 1:
            desk.report(failure(one))
    for number in range(20):
        moment = desk.clock.at + 100.0 - number
        desk.add(str(number), delay_s=90.0, priority=number % 3, queue="ab"[number % 2])
        desk.add(str(number), run_at=moment, priority=number % 4, queue="ab"[number % 2])
        desk.clock.advance(1.0)


def test_jobs_whose_time_is_out_of_order_are_found(desk: Desk) -> None:
    """A clock that was wrong for a while, and a batch that had to wait for the lock."""

    def add(number: int) -> None:
        desk.store.add([job() for _ in range(number)], now=desk.clock.now())
        desk.clock.advance(100.0)

    add(500)
    border = desk.clock.at
    add(50)
    desk.clock.step(-5000.0)
    add(150)
    desk.clock.step(5000.0)
    add(1)
    desk.clock.step(-130.0)
    add(600)
    desk.clock.step(130.0)
    everything = desk.store.find(JobFilter(), limit=-1)
    for since, number in ((border, 651), (border + 200.0, 1)):
        assert desk.find(-1, since=since) == [x.id for x in everything if x.created_at >= since]
        assert len(desk.find(-1, since=since)) == number


def in_order(jobs: list[Job], sort: str, reverse: bool) -> list[Job]:
    """By the highest value first, the soonest for `next-run`; those without one last."""
    values = {
        "finished": lambda one: one.finished_at,
        "id": lambda one: one.id,
        "next-run": lambda one: one.next_run_at,
        "priority": lambda one: one.priority,
        "started": lambda one: one.started_at,
    }
    value, falling = values[sort], (sort != "next-run") is not reverse
    has = [one for one in jobs if value(one) is not None]
    none = [one for one in jobs if value(one) is None]
    has.sort(key=lambda one: (value(one), one.id), reverse=falling)
    none.sort(key=lambda one: one.id, reverse=falling)
    return has + none


def matches(one: Job, wanted: JobFilter) -> bool:
    tags = dict(one.tags)
    return (
        (not wanted.states or one.state in wanted.states)
        and wanted.queue in (None, one.queue)
        and all(key in tags and value in (None, tags[key]) for key, value in wanted.tags)
        and (wanted.priority_min is None or one.priority >= wanted.priority_min)
        and (not wanted.ids or one.id in wanted.ids)
        and (wanted.before_id is None or one.id < wanted.before_id)
        and (wanted.after_id is None or one.id > wanted.after_id)
        and (wanted.since is None or one.created_at >= wanted.since)
        and (wanted.command is None or wanted.command in display.command(one.argv))
    )


def test_many_priorities(desk: Desk) -> None:
    jobs = [job(priority=n % 3000) for n in range(6000)]
    desk.store.add(jobs, now=desk.clock.now())
    assert desk.find(5, priority_min=10) == [6000, 5999, 5998, 5997, 5996]
    assert desk.find(3, priority_min=2999) == [6000, 3000]
    assert desk.find(3, priority_min=500, states=(State.QUEUED,)) == [6000, 5999, 5998]
    assert desk.find(3, priority_min=5000) == []


def test_important_jobs_that_wait_among_many_that_are_done(desk: Desk) -> None:
    """However they wait: ready, for a time by either clock, or for an earlier attempt."""
    desk.store.add([job(priority=9, queue="a") for _ in range(700)], now=desk.clock.now())
    claimed = desk.claim(700)
    desk.report(*[success(one) for one in claimed[:-1]])
    desk.retry(claimed[-1].job_id, force=True)
    ready = desk.add(priority=9, queue="b")
    delayed = desk.add(priority=8, delay_s=60.0)
    appointed = desk.add(priority=7, run_at=desk.clock.at + 60.0, queue="c")
    desk.add(priority=6)
    wanted = {"priority_min": 7, "states": (State.QUEUED,)}
    assert desk.find(9, **wanted) == [appointed, delayed, ready, 700]
    assert desk.find(2, **wanted) == [appointed, delayed]
    assert desk.find(9, **wanted, queue="b") == [ready]
    assert desk.find(9, **wanted, before_id=ready) == [700]
    desk.store.add([job(priority=7, queue="d") for _ in range(600)], now=desk.clock.now())
    newest = [desk.add(priority=7, queue="e"), 1304, 1303]
    assert desk.find(3, **wanted) == newest
    assert desk.find(-1, **wanted)[-4:] == [appointed, delayed, ready, 700]


def test_more_ids_than_fit_into_a_statement(desk: Desk) -> None:
    desk.store.add([job() for _ in range(2500)], now=desk.clock.now())
    wanted = tuple(range(3000, 0, -2))
    assert desk.find(-1, ids=wanted) == list(range(2500, 0, -2))
    found = desk.store.states(wanted)
    assert sorted(found) == list(range(2, 2501, 2))
    assert found[2].id == 2


def test_counts_per_state_and_queue(desk: Desk) -> None:
    desk.add(queue="a")
    desk.add(queue="a", delay_s=60.0)
    desk.add(queue="b", max_retries=0)
    (claimed,) = desk.claim(1, ("b",))
    counts = desk.store.counts(now=desk.clock.now())
    assert counts.states == {**dict.fromkeys(State, 0), State.QUEUED: 2, State.RUNNING: 1}
    assert counts.scheduled == 1
    assert sorted(counts.queues) == ["a", "b"]
    assert counts.queues["a"] == ({**dict.fromkeys(State, 0), State.QUEUED: 2}, 1)
    desk.report(failure(claimed))
    assert desk.counts() == {"queued": 2, "dead": 1}
    desk.clock.advance(60.0)
    assert desk.scheduled() == 0, "due, though no worker has looked yet"


def test_queues_without_jobs_are_not_counted(desk: Desk) -> None:
    desk.add(queue="gone")
    desk.run()
    desk.store.prune(
        before=desk.clock.at + 1, states=[State.DONE], dry_run=False, limit=9, now=desk.clock.now()
    )
    assert desk.store.counts(now=desk.clock.now()).queues == {}


def test_recent_dead_latest_finish_first(desk: Desk) -> None:
    for _ in range(4):
        desk.add(max_retries=0)
    one, two, three, four = desk.claim(4)
    for claimed in (two, four, one):
        desk.clock.advance(1.0)
        desk.report(failure(claimed))
    desk.report(success(three))
    final = desk.reach(State.FAILED)
    found = desk.store.recent_dead(10)
    assert [one.id for one, _attempt in found] == [final, 1, 4, 2]
    assert [attempt.id for _job, attempt in found[1:] if attempt] == [
        one.attempt_id,
        four.attempt_id,
        two.attempt_id,
    ]
    assert [one.id for one, _attempt in desk.store.recent_dead(2)] == [final, 1]
    assert desk.store.recent_dead(0) == found


def test_one_attempt(desk: Desk) -> None:
    desk.add()
    for _ in range(3):
        desk.run(failure)
        desk.clock.advance(100)
    latest, second = desk.store.attempt(1, None), desk.store.attempt(1, 2)
    assert latest is not None
    assert second is not None
    assert (latest.attempt_no, second.attempt_no) == (3, 2)
    for number in (0, 4, -1, 2**70):
        with pytest.raises(NotFound) as caught:
            desk.store.attempt(1, number)
        assert (caught.value.attempt_no, caught.value.known_attempts) == (number, (1, 2, 3))
    with pytest.raises(NotFound):
        desk.store.attempt(2, None)


def test_events_by_cursor(desk: Desk) -> None:
    assert desk.store.events(since_id=0, job_id=None, limit=None) == ([], 0, None)
    desk.add()
    desk.add()
    desk.run()
    events, last, first = desk.store.events(since_id=0, job_id=None, limit=None)
    assert [event.id for event in events] == [1, 2, 3, 4]
    assert (last, first) == (4, 1)
    page, last, _first = desk.store.events(since_id=1, job_id=None, limit=2)
    assert [event.id for event in page] == [2, 3]
    assert last == 4
    mine, _last, first = desk.store.events(since_id=0, job_id=2, limit=None)
    assert [event.job_id for event in mine] == [2]
    assert first == 2
    assert desk.store.events(since_id=4, job_id=None, limit=None)[0] == []
    assert desk.store.events(since_id=0, job_id=99, limit=None) == ([], 4, None)
    assert desk.store.events(since_id=0, job_id=None, limit=0)[0] == []


def test_cursors_survive_a_prune(desk: Desk) -> None:
    desk.add()
    desk.run()
    desk.store.prune(
        before=desk.clock.at + 1, states=[State.DONE], dry_run=False, limit=9, now=desk.clock.now()
    )
    assert desk.store.events(since_id=0, job_id=None, limit=None) == ([], 3, None)
    desk.add()
    events, last, first = desk.store.events(since_id=3, job_id=None, limit=None)
    assert [event.id for event in events] == [4]
    assert (last, first) == (4, 4)


def test_changed_differs_after_a_commit_by_another(
    desk: Desk, open_again: Callable[[], Store]
) -> None:
    watcher = open_again()
    numbers = {watcher.changed()}
    assert watcher.changed() in numbers
    for _ in range(3):
        desk.add()
        assert watcher.changed() not in numbers
        numbers.add(watcher.changed())
    watcher.find(JobFilter(), limit=1)
    assert watcher.changed() in numbers


def test_detail_is_one_snapshot_of_attempts_and_events(desk: Desk) -> None:
    desk.add(max_retries=3)
    for _ in range(2):
        desk.run(failure)
        desk.clock.advance(100)
    desk.claim_one()
    detail = desk.store.detail(1)
    assert [one.attempt_no for one in detail.attempts] == [1, 2, 3]
    assert [event.event.value for event in detail.events] == [
        "added",
        *itertools.chain(*[["claimed", "failed"]] * 2),
        "claimed",
    ]
    assert detail.owner is not None

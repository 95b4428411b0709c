"""Lists, whichever way of finding the jobs is chosen."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from spoolctl.core.display import command
from spoolctl.core.records import SORTS, JobFilter, Want
from spoolctl.core.states import State
from spoolctl.store import open_store
from spoolctl.store.sqlite import finding, marks, sorting
from tests.conformance.kit import Clock, Desk, failure, job, success
from tests.conformance.test_asking import (
    compare_with_a_filter_over_everything,
    in_order,
    matches,
)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(open_store(str(tmp_path / "queue.db"), create=True, wait_s=2.0), Clock())
    yield desk
    desk.store.close()


@pytest.mark.parametrize("few", [20, 2])
@pytest.mark.parametrize("streams", [0, 2, 400])
def test_what_is_chosen_in_long_queues_finds_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, few: int, streams: int
) -> None:
    """With borders so low that a short queue is a long one."""
    for module in (finding, sorting):
        monkeypatch.setattr(module, "FEW", few)
    monkeypatch.setattr(finding, "_STREAMS", streams)
    monkeypatch.setattr(finding, "_PRIORITIES", streams)
    monkeypatch.setattr(marks, "_SOME", few // 2)
    monkeypatch.setattr(marks, "_ANYWHERE", few // 2)
    monkeypatch.setattr(sorting, "_LEVELS", few)
    monkeypatch.setattr(sorting, "_MILE", few // 2)
    compare_with_a_filter_over_everything(desk)


def test_of_thousands_that_were_started_at_once_the_ids_decide(desk: Desk) -> None:
    desk.store.add([job(priority=n % 3) for n in range(3000)], now=desk.clock.now())
    # Claimed by priority, so that attempts and jobs are not in the same order.
    claimed = desk.store.claim(desk.me, Want(2500, None), now=desk.clock.now())
    desk.report(*[success(one) for one in claimed])
    desk.clock.advance(1.0)
    late = desk.claim(3)
    ran = sorted((one.job_id for one in claimed), reverse=True)
    newest = sorted((one.job_id for one in late), reverse=True)
    assert desk.find(30, sort="started") == [*newest, *ran[:27]]
    assert desk.find(30, sort="started", reverse=True) == ran[::-1][:30]


def test_a_clock_that_was_wrong_for_a_while_does_not_hide_who_was_started(desk: Desk) -> None:
    desk.store.add([job() for _ in range(2000)], now=desk.clock.now())
    for step in (0.0, 0.0, 5000.0, -5000.0, 0.0):
        desk.clock.step(step)
        for _ in range(12):
            desk.report(*[success(one) for one in desk.claim(25)])
            desk.clock.advance(1.0)
    jobs = desk.store.find(JobFilter(), limit=-1)
    ran = [(one.started_at, one.id) for one in jobs if one.started_at is not None]
    assert len(ran) == 1500
    for limit in (5, 50, 400):
        first = sorted(ran)[:limit]
        assert desk.find(limit, sort="started", reverse=True) == [job_id for _, job_id in first]
        last = sorted(ran, reverse=True)[:limit]
        assert desk.find(limit, sort="started") == [job_id for _, job_id in last]


def test_what_is_queued_is_sorted_by_its_next_run_whatever_it_waits_for(desk: Desk) -> None:
    dice = random.Random(3)
    for _ in range(60):
        fields = dice.choice(
            [{}, {"delay_s": dice.uniform(1, 900)}, {"run_at": desk.clock.at + 300}]
        )
        priority = dice.randrange(12)
        new = [job(queue=dice.choice("ab"), priority=priority, **fields) for _ in range(15)]
        desk.store.add(new, now=desk.clock.now())
        desk.clock.advance(dice.uniform(0, 20))
        if dice.random() < 0.1:
            desk.clock.step(dice.choice([400.0, -400.0]))
        for number, one in enumerate(desk.claim(3)):
            if number == 0:
                desk.retry(one.job_id, force=True)  # held: its processes may still live
            else:
                desk.report(failure(one))
    desk.claim(4)
    everything = desk.store.find(JobFilter(), limit=-1)
    for _ in range(300):
        states = dice.choice([(State.QUEUED,), (State.QUEUED, State.RUNNING)])
        queue, lowest = dice.choice([None, "a", "b"]), dice.choice([None, 0, 5, 99])
        limit, reverse = dice.choice([1, 20, 100]), dice.random() < 0.5
        matching = sorted(
            (
                (one.next_run_at, one.id)
                for one in everything
                if one.state in states
                and queue in (None, one.queue)
                and one.priority >= (lowest or 0)
            ),
            reverse=reverse,
        )
        found = desk.find(
            limit, sort="next-run", reverse=reverse, states=states, queue=queue, priority_min=lowest
        )
        assert found == [job_id for _, job_id in matching[:limit]]


def test_every_part_of_every_command_line_is_found(desk: Desk) -> None:
    """Also where it begins or ends inside of an escape."""
    dice = random.Random(5)
    odd = [*"\n\t\r\x1b\x01\x7f\x85\u2028\u200b\u200d\ue000", "\udc80", "\U0001f600", "\U000e0001"]
    characters = [*"abcefnrtuxU0189 '\"\\$&|/-", "é", "日", *odd]
    jobs = [
        job(*("".join(dice.choices(characters, k=dice.randrange(1, 12))) for _ in range(2)))
        for _ in range(100)
    ]
    desk.store.add(jobs, now=desk.clock.now())
    shown = {one.id: command(one.argv) for one in desk.store.find(JobFilter(), limit=-1)}
    for line in shown.values():
        for _ in range(15):
            start = dice.randrange(len(line))
            text = line[start : start + dice.randrange(1, 14)]
            expected = [job_id for job_id, each in shown.items() if text in each]
            assert desk.find(-1, command=text) == expected, text


def test_a_line_is_made_only_of_jobs_that_have_every_word_of_a_text(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make one takes microseconds, for each job of a long queue."""
    desk.store.add([job("make", f"target-{number}") for number in range(100)], now=desk.clock.now())
    made: list[Sequence[str]] = []
    monkeypatch.setattr(
        "spoolctl.core.display.command", lambda argv: made.append(argv) or command(argv)
    )
    assert desk.find(-1, command="make target-70") == [71]
    assert made == [["make", "target-70"]]


def a_long_queue_in_phases(desk: Desk, dice: random.Random) -> None:
    """Each lane has times in which it is busy, with priorities of its own; jobs in all ways."""
    for phase in range(12):
        lane, level = dice.choice("ab"), dice.randrange(3)
        new = [
            job(
                "make",
                f"target-{dice.randrange(50)}",
                queue=lane if dice.random() < 0.8 else "c",
                priority=level if dice.random() < 0.9 else dice.randrange(6),
                max_retries=dice.choice([0, 3]),
                tags=(("n", str(number % 3)),) if number % 4 == 0 else (),
                delay_s=dice.uniform(1, 900) if dice.random() < 0.2 else None,
                run_at=desk.clock.at + dice.uniform(1, 900) if dice.random() < 0.1 else None,
            )
            for number in range(100)
        ]
        desk.store.add(new, now=desk.clock.now())
        desk.clock.advance(dice.uniform(0, 20))
        for turn in range(8):
            claimed = desk.claim(5)
            if turn == 5 and phase % 4 == 3:
                desk.clock.step(dice.choice([400.0, -400.0]))
            for number, one in enumerate(claimed):
                desk.clock.advance(dice.choice([0.0, 0.01, 0.02, 0.02, 3.0]))
                what = dice.randrange(16)
                if what == 0:
                    desk.retry(one.job_id, force=True)  # held: its processes may still live
                elif what == 1:
                    desk.cancel(one.job_id, running=True)
                elif what < 5:
                    desk.report(failure(one))
                elif number or turn:
                    desk.report(success(one))
        for one in desk.store.find(JobFilter(states=(State.CANCELED,)), limit=9):
            if one.id % 3 == 0:
                desk.retry(one.id)
    desk.claim(4)


@pytest.mark.parametrize(("mile", "patience"), [(32, 4), (1, 1)])
@pytest.mark.parametrize("sort", SORTS)
def test_in_a_long_queue_every_order_is_exact(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, sort: str, mile: int, patience: int
) -> None:
    """By whichever of the indices, and whether one is left again on the way."""
    for module, name, few in (
        (finding, "FEW", 5),
        (sorting, "FEW", 5),
        (marks, "_SOME", 2),
        (sorting, "_MILE", mile),
        (sorting, "_PATIENCE", patience),
    ):
        monkeypatch.setattr(module, name, few)
    dice = random.Random(17)
    a_long_queue_in_phases(desk, dice)
    everything = desk.store.find(JobFilter(), limit=-1)
    assert len({one.state for one in everything}) == 5
    for _ in range(400):
        wanted = JobFilter(
            states=tuple(dice.sample(list(State), dice.choice([0, 0, 1, 1, 2]))),
            queue=dice.choice([None, None, "a", "b", "c"]),
            tags=(("n", dice.choice(["2", None])),) if dice.random() < 0.1 else (),
            priority_min=dice.choice([None, None, 1, 2, 5]),
            after_id=dice.choice([None, None, None, 700]),
            command=dice.choice([None, None, None, "target-4"]),
        )
        limit, reverse = dice.choice([1, 3, 20, 100]), dice.random() < 0.5
        expected = in_order([one for one in everything if matches(one, wanted)], sort, reverse)
        found = desk.store.find(wanted, limit=limit, sort=sort, reverse=reverse)
        assert found == expected[:limit], (wanted, limit, reverse)


def test_who_started_together_and_ended_one_after_the_other_is_sorted_by_start(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the first to end nor the last to end tells who started first, or last."""
    for module in (finding, sorting):
        monkeypatch.setattr(module, "FEW", 2)
    ran = []
    for _ in range(40):
        desk.store.add([job(), job()], now=desk.clock.now())
        (long,) = desk.claim(1)
        desk.clock.advance(0.01)
        (short,) = desk.claim(1)
        for one in (short, long):
            desk.clock.advance(0.02)
            desk.report(success(one))
        ran += [long.job_id, short.job_id]
    for limit in (1, 2, 5):
        assert desk.find(limit, sort="started", reverse=True) == ran[:limit]
        assert desk.find(limit, sort="started") == ran[::-1][:limit]


def test_quotes_and_spaces_are_found_where_they_are_shown(desk: Desk) -> None:
    """Though no word of the text can be looked for in what is stored."""
    dice = random.Random(9)
    jobs = [
        job(*("".join(dice.choices("a  '\"\\\t", k=dice.randrange(1, 4))) for _ in range(count)))
        for count in (1, 2, 3) * 20
    ]
    jobs += [job("a"), job("a", "a"), job("a", ""), job("a a"), job("a,", "a", "a:"), job("é")]
    desk.store.add(jobs, now=desk.clock.now())
    shown = {one.id: command(one.argv) for one in desk.store.find(JobFilter(), limit=-1)}
    texts = {"".join(each) for size in (1, 2, 3) for each in product(" '\"\\$", repeat=size)}
    texts |= {"    ", "''''", "' ' '", "'\"'\"'", " '' ", "'   '"}
    for text in texts:
        expected = [job_id for job_id, each in shown.items() if text in each]
        assert desk.find(-1, command=text) == expected, text

"""Retention: what may go, what it takes with it, and in which steps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spoolctl.core.records import Capture, Context, Pruned
from spoolctl.core.states import State
from spoolctl.errors import NotFound
from tests.conformance.kit import Desk, failure, job, stopped, success

ALL = [State.DONE, State.DEAD, State.FAILED, State.CANCELED]


def prune(desk: Desk, *, older_than_s: float = -1.0, **rest: object) -> Pruned:
    options = {"states": ALL, "dry_run": False, "limit": 1000, **rest}
    return desk.store.prune(
        before=desk.clock.at - older_than_s,
        now=desk.clock.now(),
        **options,  # type: ignore[arg-type]
    )


def test_only_old_settled_jobs_of_the_states_go(desk: Desk) -> None:
    old = {state: desk.reach(state) for state in ALL}
    waiting = desk.add()
    desk.clock.advance(100.0)
    desk.run()  # the waiting one is done now, but young
    running = desk.reach(State.RUNNING)
    assert prune(desk, older_than_s=50.0, states=[State.DONE]).jobs == 1
    with pytest.raises(NotFound):
        desk.get(old[State.DONE])
    assert prune(desk, older_than_s=50.0).jobs == 4  # reaching FAILED canceled one more
    assert desk.find() == [running, waiting]
    assert prune(desk).jobs == 1
    assert desk.find() == [running]


def test_everything_that_belongs_to_the_job_goes(desk: Desk) -> None:
    desk.add(max_retries=1, tags=(("t", "1"),), stdin=b"in", key="k", key_for_s=float("inf"))
    desk.report(failure(desk.claim_one(), stdout=Capture(1000, bytes(1000))))
    desk.clock.advance(100)
    claimed = desk.claim_one()
    desk.report(failure(claimed, stderr=Capture(10**6, None)))
    pruned = prune(desk)
    assert pruned == Pruned(1, 2, 6, 1000, (claimed.token,), False)
    assert desk.find(tags=(("t", None),)) == []
    assert desk.counts() == {}
    assert desk.store.stream_names() == frozenset()
    assert desk.store.stream(1, "stdout") == b""
    assert desk.store.events(since_id=0, job_id=1, limit=None) == ([], 6, None)
    assert not desk.submit(job("other", key="k")).deduplicated


@pytest.mark.parametrize("count", [5, 75])
def test_a_dry_run_counts_and_deletes_nothing(desk: Desk, count: int) -> None:
    for _ in range(count):
        desk.add(tags=(("t", "1"),), stdin=b"in")
    desk.report(*[success(one, stdout=Capture(3, b"abc")) for one in desk.claim(count)])
    expected = prune(desk, dry_run=True, limit=2)
    assert expected == Pruned(count, count, 3 * count, 3 * count, (), False)
    assert len(desk.find()) == count
    assert prune(desk) == expected
    assert desk.find() == desk.find(tags=(("t", None),)) == []
    assert desk.store.stream(count, "stdout") == b""
    assert desk.store.events(since_id=0, job_id=None, limit=None)[0] == []


def test_a_job_with_processes_left_stays(desk: Desk) -> None:
    desk.add()
    claimed = desk.claim_one()
    desk.cancel(1)
    assert prune(desk, dry_run=True).jobs == 0
    assert prune(desk).jobs == 0
    desk.report(stopped(claimed))
    assert prune(desk).jobs == 1


def test_it_goes_in_steps(desk: Desk) -> None:
    desk.store.add([job() for _ in range(250)], now=desk.clock.now())
    desk.report(*[success(one) for one in desk.claim(250)])
    steps, total = 0, 0
    while True:
        pruned = prune(desk, limit=100)
        steps, total = steps + 1, total + pruned.jobs
        assert pruned.jobs <= 100
        if not pruned.more:
            break
    assert (steps >= 3, total) == (True, 250)


def test_contexts_and_workers_that_nothing_needs_go_too(desk: Desk) -> None:
    from spoolctl.store.sqlite.store import SqliteStore

    if not isinstance(desk.store, SqliteStore):
        pytest.skip("looks into SQLite's tables")

    def rows(table: str) -> int:
        return desk.store._c.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # type: ignore[attr-defined]

    kept = desk.register("kept")
    desk.add(context=Context("/one", None, ()))
    desk.add(context=Context("/two", None, ()))
    helper = desk.register("helper")
    desk.report(success(desk.claim_one(by=helper)), by=helper)
    desk.store.unregister(helper, now=desk.clock.now())
    assert (rows("contexts"), rows("workers")) == (2, 3)
    prune(desk)
    assert rows("contexts") == 1
    assert rows("workers") == 3, "an older event is still in the ledger"
    desk.run()
    prune(desk)
    assert rows("contexts") == 0
    assert [one.id for one in desk.store.workers()] == [desk.me, kept]
    assert rows("workers") == 2


def test_the_file_shrinks(desk: Desk) -> None:
    if not Path(desk.store.path).is_file():
        pytest.skip("this store has no file")
    data = os.urandom(50_000)
    desk.store.add([job() for _ in range(60)], now=desk.clock.now())
    desk.report(*[success(one, stdout=Capture(len(data), data)) for one in desk.claim(60)])
    while desk.store.compact(pages=10_000):
        pass
    full = os.stat(desk.store.path).st_size
    assert full > 60 * len(data)
    while prune(desk).more:
        pass
    steps = 1
    while desk.store.compact(pages=100):
        steps += 1
    assert steps > 3
    assert os.stat(desk.store.path).st_size < full / 10

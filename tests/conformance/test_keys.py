"""Idempotency keys: one job per key while it is active, or for as long as was asked."""

from __future__ import annotations

from typing import Any

import pytest

from spoolctl.core.records import Context
from spoolctl.core.retry import RetryPolicy
from spoolctl.core.states import State
from spoolctl.errors import KeyConflict
from tests.conformance.kit import Desk, failure, job, success

FULL: dict[str, Any] = {
    "key": "k",
    "env": (("A", "1"), ("B", "2")),
    "cwd": "/srv",
    "stdin": b"in",
    "policy": RetryPolicy(base_s=1.0),
}


def test_an_equal_request_returns_the_active_job(desk: Desk) -> None:
    first = desk.submit(job("make", **FULL))
    again = desk.submit(job("make", **FULL))
    assert again.deduplicated
    assert again.job == first.job
    assert again.differences == ()
    assert desk.find() == [1]
    assert desk.trail(1) == ["added"]


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_the_key_is_taken_while_the_job_is_active(desk: Desk, state: State) -> None:
    desk.add("make", key="k")
    if state is State.RUNNING:
        desk.claim_one()
    again = desk.submit(job("make", key="k"))
    assert (again.job.id, again.job.state, again.deduplicated) == (1, state, True)


def test_the_key_is_taken_during_backoff(desk: Desk) -> None:
    desk.add("make", key="k")
    desk.run(failure)
    again = desk.submit(job("make", key="k"))
    assert (again.job.id, again.job.attempts) == (1, 1)
    assert again.differences == (), "backoff moved next_run_at; the request did not change"


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.CANCELED, State.FAILED])
def test_the_key_is_free_once_the_job_has_settled(desk: Desk, state: State) -> None:
    policy = RetryPolicy(final_exits=((3, 3),)) if state is State.FAILED else RetryPolicy()
    desk.add("make", key="k", max_retries=0, policy=policy)
    if state is State.CANCELED:
        desk.cancel(1)
    else:
        assert desk.run(success if state is State.DONE else failure) is state
    added = desk.submit(job("other", key="k"))
    assert (added.job.id, added.deduplicated) == (2, False)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("argv", {}),
        ("timeout", {"timeout_s": 5}),
        ("max_retries", {"max_retries": 9}),
        ("max_crashes", {"max_crashes": None}),
        ("priority", {"priority": 1}),
        ("queue", {"queue": "other"}),
        ("cwd", {"cwd": None}),
        ("env", {"env": (("A", "1"), ("B", "secret"))}),
        ("retry_policy", {"policy": RetryPolicy()}),
        ("stdin", {"stdin": None}),
    ],
)
def test_a_different_execution_is_a_conflict(
    desk: Desk, field: str, change: dict[str, Any]
) -> None:
    desk.submit(job("make", **FULL))
    words = ("make",) if change else ("make", "more")
    with pytest.raises(KeyConflict) as caught:
        desk.submit(job(*words, **{**FULL, **change}))
    assert caught.value.fields == (field,)
    assert (caught.value.key, caught.value.job_id, caught.value.index) == ("k", 1, 0)
    assert "secret" not in str(caught.value)
    assert desk.find() == [1]


def test_the_order_of_variables_does_not_matter(desk: Desk) -> None:
    desk.submit(job("make", **FULL))
    turned = {**FULL, "env": tuple(reversed(FULL["env"]))}
    assert desk.submit(job("make", **turned)).deduplicated


def test_what_was_captured_is_not_compared(desk: Desk) -> None:
    desk.add("make", key="k")
    elsewhere = Context("/somewhere/else", 0o077, (("PATH", "/opt/bin"),))
    again = desk.submit(job("make", key="k", context=elsewhere))
    assert again.deduplicated
    assert again.differences == ()


@pytest.mark.parametrize(("first", "again"), [(None, "/work"), ("/work", None)])
def test_the_same_folder_captured_or_asked_for_is_no_difference(
    desk: Desk, first: str | None, again: str | None
) -> None:
    here = Context("/work", 0o077, ())
    desk.submit(job("make", key="k", cwd=first, context=here))
    assert desk.submit(job("make", key="k", cwd=again, context=here)).deduplicated
    with pytest.raises(KeyConflict) as caught:
        desk.submit(job("make", key="k", cwd="/else" if first is None else None))
    assert caught.value.fields == ("cwd",)


def test_differences_of_tags_note_and_schedule_are_told_and_not_stored(desk: Desk) -> None:
    at = desk.clock.at
    desk.add("make", key="k", tags=(("a", "1"),), note="first", run_at=at + 100)
    again = desk.submit(job("make", key="k", tags=(("a", "2"),), note=None, run_at=at + 200))
    found = {name: (old, new) for name, old, new in again.differences}
    assert found["tags"] == ({"a": "1"}, {"a": "2"})
    assert found["note"] == ("first", None)
    assert found["next_run_at"] == (at + 100, at + 200)
    assert desk.get(1) == again.job
    assert again.job.note == "first"


def test_a_delay_that_is_repeated_is_no_difference(desk: Desk) -> None:
    first = desk.submit(job("make", key="k", delay_s=60.0))
    desk.clock.advance(7.0)
    again = desk.submit(job("make", key="k", delay_s=60.0))
    assert again.differences == ()
    assert again.job.next_run_at == first.job.next_run_at
    (difference,) = desk.submit(job("make", key="k", delay_s=61.0)).differences
    assert difference == ("next_run_at", first.job.next_run_at, desk.clock.at + 61.0)


def test_no_delay_and_a_delay_of_nothing_are_the_same(desk: Desk) -> None:
    desk.add("make", key="k", delay_s=0.0)
    assert desk.submit(job("make", key="k")).differences == ()


def test_keys_count_across_queues(desk: Desk) -> None:
    desk.add("make", key="k", queue="a")
    with pytest.raises(KeyConflict):
        desk.add("make", key="k", queue="b")


def test_a_key_repeated_within_a_batch_is_one_job(desk: Desk) -> None:
    batch = [job("make", key="k", note="n"), job("other"), job("make", key="k")]
    first, other, again = desk.store.add(batch, now=desk.clock.now())
    assert (first.job.id, other.job.id, again.job.id) == (1, 2, 1)
    assert again.deduplicated
    assert again.differences == (("note", "n", None),)
    with pytest.raises(KeyConflict) as caught:
        desk.store.add([job("x", key="new"), job("y", key="new")], now=desk.clock.now())
    assert caught.value.index == 1
    assert desk.find() == [2, 1]


@pytest.mark.parametrize("end", [success, failure])
def test_a_key_can_protect_beyond_the_end(desk: Desk, end: Any) -> None:
    request = job("make", key="k", max_retries=0, key_for_s=3600.0)
    desk.submit(request)
    state = desk.run(end)
    desk.clock.advance(3599.0)
    again = desk.submit(request)
    assert (again.job.id, again.job.state, again.deduplicated) == (1, state, True)
    with pytest.raises(KeyConflict):
        desk.add("different", key="k")
    desk.clock.advance(1.0)
    assert desk.submit(request).job.id == 2


def test_a_key_can_protect_for_ever(desk: Desk) -> None:
    request = job("make", key="k", key_for_s=float("inf"))
    desk.submit(request)
    desk.run()
    desk.clock.advance(1e9)
    assert desk.submit(request).job.id == 1


def test_a_retry_does_not_ask_for_the_key(desk: Desk) -> None:
    desk.add("make", key="k", max_retries=0)
    desk.run(failure)
    desk.add("make", key="k", max_retries=0)
    desk.retry(1)
    assert {desk.get(1).state, desk.get(2).state} == {State.QUEUED}
    assert desk.submit(job("make", key="k", max_retries=0)).deduplicated

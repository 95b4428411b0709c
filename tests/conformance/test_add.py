"""Submitting: all or none, ids, what a new job looks like."""

from __future__ import annotations

import pytest

from spoolctl.core.records import Context, JobDetail
from spoolctl.core.retry import RetryPolicy
from spoolctl.core.states import State
from spoolctl.errors import KeyConflict, NotFound
from tests.conformance.kit import CONTEXT, Desk, job, success


def test_a_new_job_is_queued_and_due(desk: Desk) -> None:
    added = desk.submit(job("echo", "hi"))
    assert added.deduplicated is False
    assert added.job == desk.get(1)
    assert added.job.state is State.QUEUED
    assert added.job.ready
    assert added.job.created_at == added.job.next_run_at == desk.clock.at
    assert (added.job.attempts, added.job.crashes) == (0, 0)
    assert added.job.started_at is added.job.finished_at is added.job.last_error is None
    assert desk.trail(1) == ["added"]


def test_everything_asked_for_comes_back(desk: Desk) -> None:
    new = job(
        "sh",
        "-c",
        'echo "$1"\n\t*',
        "é ☃",
        "",
        queue="gpu-1",
        priority=-7,
        timeout_s=None,
        max_retries=2**63 - 1,
        max_crashes=None,
        cwd="/srv/päth",
        env=(("B", "2"), ("A", "x=y"), ("EMPTY", "")),
        key="build 7",
        key_for_s=float("inf"),
        tags=(("z", "1"), ("a", "")),
        note="two\nlines",
        policy=RetryPolicy(delays_s=(1.0, 2.5), jitter=0.5, final_exits=((2, 2), (64, 78))),
        stdin=b"\x00\xffinput",
    )
    added = desk.submit(new)
    detail = desk.store.detail(added.job.id)
    assert detail.job == added.job
    assert detail.job.argv == new.argv
    assert (detail.job.queue, detail.job.priority) == ("gpu-1", -7)
    assert detail.job.timeout_s is None
    assert (detail.job.max_retries, detail.job.max_crashes) == (2**63 - 1, None)
    assert detail.job.cwd == "/srv/päth"
    assert detail.env == new.env
    assert detail.context == CONTEXT
    assert (detail.job.key, detail.job.note) == ("build 7", "two\nlines")
    assert detail.job.tags == new.tags
    claimed = desk.claim_one()
    assert claimed.argv == new.argv
    assert claimed.stdin == b"\x00\xffinput"
    assert claimed.cwd == "/srv/päth"
    assert claimed.umask == 0o022
    assert dict(claimed.env) == {**dict(CONTEXT.env), **dict(new.env)}


def test_what_is_not_unicode_is_kept_byte_for_byte(desk: Desk) -> None:
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    context = Context("/home/" + odd, None, ((odd, odd),))
    desk.submit(job("cat", odd, cwd="/srv/" + odd, env=(("X", odd),), context=context))
    claimed = desk.claim_one()
    assert claimed.argv == ("cat", odd)
    assert claimed.cwd == "/srv/" + odd
    assert dict(claimed.env) == {odd: odd, "X": odd}
    assert claimed.umask is None


def test_notes_and_tags_that_are_not_unicode_do_not_break_later_reads(desk: Desk) -> None:
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    job_id = desk.add(note=odd, tags=(("k", odd),))
    assert desk.get(job_id).note == "caf\\udce9"
    assert desk.find(tags=(("k", odd),)) == [job_id]


def test_without_an_explicit_folder_the_captured_one_counts(desk: Desk) -> None:
    assert desk.submit(job()).job.cwd == CONTEXT.cwd
    assert desk.claim_one().cwd == CONTEXT.cwd


def test_ids_ascend_in_the_order_given(desk: Desk) -> None:
    added = desk.store.add([job(str(n)) for n in range(50)], now=desk.clock.now())
    assert [one.job.id for one in added] == list(range(1, 51))
    assert [desk.get(n + 1).argv for n in range(50)] == [(str(n),) for n in range(50)]
    assert desk.add() == 51


def test_a_batch_is_added_as_a_whole_or_not_at_all(desk: Desk) -> None:
    desk.add("one", key="taken")
    batch = [job("fine"), job("other", key="free"), job("two", key="taken"), job("fine")]
    with pytest.raises(KeyConflict) as caught:
        desk.store.add(batch, now=desk.clock.now())
    assert caught.value.index == 2
    assert desk.find() == [1]
    assert desk.counts() == {"queued": 1}
    assert desk.add() == 2, "an id was used up, or one was left behind"


def test_adding_nothing_is_nothing(desk: Desk) -> None:
    assert desk.store.add([], now=desk.clock.now()) == []
    assert desk.find() == []


def test_ids_are_not_used_again_after_a_prune(desk: Desk) -> None:
    desk.add()
    desk.run(success)
    pruned = desk.store.prune(
        before=desk.clock.at + 1,
        states=[State.DONE],
        dry_run=False,
        limit=10,
        now=desk.clock.now(),
    )
    assert pruned.jobs == 1
    assert desk.add() == 2
    assert desk.store.first_job_id() == 2


@pytest.mark.parametrize("job_id", [0, -1, 2, 2**63, 10**30])
def test_an_unknown_job_is_not_found(desk: Desk, job_id: int) -> None:
    desk.add()
    for ask in (desk.get, desk.store.detail, desk.cancel, desk.retry):
        with pytest.raises(NotFound) as caught:
            ask(job_id)
        assert caught.value.job_ids == (job_id,)
        assert caught.value.where == desk.store.path
    assert desk.store.states([job_id, 1]).keys() == {1}


def test_a_job_that_was_never_started_has_no_history(desk: Desk) -> None:
    desk.add()
    detail = desk.store.detail(1)
    assert isinstance(detail, JobDetail)
    assert (detail.owner, detail.recovery, detail.attempts) == (None, None, ())
    assert [event.event.value for event in detail.events] == ["added"]
    assert desk.store.attempt(1, None) is None
    assert desk.store.attempt(1, 1) is None


def test_equal_contexts_are_told_from_different_ones(desk: Desk) -> None:
    contexts = [
        CONTEXT,
        Context("/a", None, ()),
        Context("/a", 0, ()),
        CONTEXT,
        Context(None, None, ()),
    ]
    for number, context in enumerate(contexts):
        desk.add(str(number), context=context)
    for context in contexts:
        claimed = desk.claim_one()
        assert (claimed.cwd, claimed.umask, claimed.env) == context

"""Backoff, and what follows an attempt that did not succeed."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spoolctl.core import retry
from spoolctl.core.retry import (
    DEFAULT_POLICY,
    Budget,
    RetryPolicy,
    Verdict,
    after_crash,
    after_failure,
    backoff_s,
    delay_s,
    is_final,
)
from spoolctl.core.states import TRANSITIONS, AttemptState, Event, Reason, State

FRESH = Budget(attempts=0, crashes=0, max_retries=3, max_crashes=20)


def failed(
    budget: Budget = FRESH,
    policy: RetryPolicy = DEFAULT_POLICY,
    exit_code: int = 1,
    age_s: float = 0,
) -> Verdict:
    """A non-zero exit."""
    return after_failure(
        budget,
        policy,
        state=AttemptState.FAILED,
        reason=Reason.PROCESS_EXIT,
        exit_code=exit_code,
        age_s=age_s,
    )


def timed_out(budget: Budget = FRESH, policy: RetryPolicy = DEFAULT_POLICY) -> Verdict:
    """The time limit passed; the exit code of what was killed does not count."""
    return after_failure(
        budget,
        policy,
        state=AttemptState.TIMED_OUT,
        reason=Reason.TIMEOUT,
        exit_code=None,
        age_s=0,
    )


def test_the_examples_in_the_docstrings() -> None:
    assert doctest.testmod(retry).attempted > 0
    assert doctest.testmod(retry).failed == 0


@pytest.mark.parametrize(
    ("failures", "wait"),
    [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 60), (7, 60), (10**9, 60)],
)
def test_backoff(failures: int, wait: float) -> None:
    assert backoff_s(failures) == wait
    assert delay_s(DEFAULT_POLICY, failures) == wait


@given(st.integers(1, 10**6))
def test_backoff_never_shrinks_and_never_passes_its_cap(failures: int) -> None:
    assert 2 <= backoff_s(failures) <= backoff_s(failures + 1) <= 60


def test_explicit_delays_and_the_last_repeats() -> None:
    policy = RetryPolicy(delays_s=(10.0, 30.0, 60.0))
    assert [delay_s(policy, n) for n in (1, 2, 3, 4, 99)] == [10, 30, 60, 60, 60]


def test_fixed_backoff() -> None:
    policy = RetryPolicy(backoff="fixed", base_s=7.0)
    assert [delay_s(policy, n) for n in (1, 2, 50)] == [7, 7, 7]


def test_a_lower_or_higher_cap() -> None:
    assert delay_s(RetryPolicy(max_delay_s=5.0), 9) == 5
    assert delay_s(RetryPolicy(max_delay_s=3600.0), 9) == 512


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.integers(1, 20))
def test_jitter_stays_within_its_fraction(spread: float, jitter: float, attempts: int) -> None:
    nominal = delay_s(DEFAULT_POLICY, attempts)
    wait = delay_s(RetryPolicy(jitter=jitter), attempts, spread=spread)
    assert nominal * (1 - jitter) - 1e-9 <= wait <= nominal * (1 + jitter) + 1e-9


def test_without_jitter_the_dice_do_not_matter() -> None:
    assert {delay_s(DEFAULT_POLICY, 3, spread=spread) for spread in (0.0, 0.3, 0.99)} == {8}


def test_failures_use_up_retries() -> None:
    budget, events = FRESH, []
    for _ in range(4):
        verdict = failed(budget)
        events.append(verdict.event)
        budget = budget._replace(attempts=verdict.attempts, crashes=verdict.crashes)
    assert events == [Event.FAILED, Event.FAILED, Event.FAILED, Event.EXHAUSTED]
    assert budget == (4, 0, 3, 20)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_crashes_do_not_use_up_retries(failures: int, crashes: int, max_retries: int) -> None:
    budget = Budget(failures + crashes, crashes, max_retries, 0)
    expected = Event.FAILED if failures + 1 <= max_retries else Event.EXHAUSTED
    assert failed(budget).event is expected


@given(st.integers(0, 30), st.integers(0, 30), st.one_of(st.none(), st.integers(0, 30)))
def test_failures_do_not_use_up_crashes(
    failures: int, crashes: int, max_crashes: int | None
) -> None:
    verdict = after_crash(Budget(failures + crashes, crashes, 0, max_crashes), DEFAULT_POLICY)
    lives = max_crashes is None or crashes + 1 <= max_crashes
    assert verdict.event is (Event.REAPED if lives else Event.REAPED_EXHAUSTED)
    assert (verdict.attempts, verdict.crashes) == (failures + crashes + 1, crashes + 1)
    assert verdict.delay_s == backoff_s(failures + crashes + 1)


def test_no_retries_at_all() -> None:
    assert failed(FRESH._replace(max_retries=0)).event is Event.EXHAUSTED
    assert timed_out(FRESH._replace(max_retries=0)).event is Event.TIMED_OUT_EXHAUSTED
    assert (
        after_crash(FRESH._replace(max_crashes=0), DEFAULT_POLICY).event is Event.REAPED_EXHAUSTED
    )


def test_timeouts_count_as_failures() -> None:
    assert timed_out() == Verdict(Event.TIMED_OUT, 1, 0, 2.0)


@pytest.mark.parametrize(("code", "final"), [(2, True), (64, True), (78, True), (3, False)])
def test_final_exits(code: int, final: bool) -> None:
    policy = RetryPolicy(final_exits=((2, 2), (64, 78)))
    assert is_final(policy, code) is final
    assert not is_final(policy, None)
    assert failed(policy=policy, exit_code=code).event is (Event.FINAL if final else Event.FAILED)


def test_a_final_exit_is_final_whatever_is_left() -> None:
    policy = RetryPolicy(final_exits=((2, 2),))
    for max_retries in (0, 99):
        verdict = failed(FRESH._replace(max_retries=max_retries), policy, 2)
        assert (verdict.event, verdict.attempts) == (Event.FINAL, 1)


def test_a_code_counts_only_if_the_command_gave_it() -> None:
    policy = RetryPolicy(final_exits=((-100, 255),))
    assert timed_out(policy=policy).event is Event.TIMED_OUT
    verdict = after_failure(
        FRESH,
        policy,
        state=AttemptState.FAILED,
        reason=Reason.OUTPUT_LIMIT,
        exit_code=-15,
        age_s=0,
    )
    assert verdict.event is Event.FAILED


@pytest.mark.parametrize(
    ("age_s", "event"), [(0.0, Event.FAILED), (7.9, Event.FAILED), (8.0, Event.EXHAUSTED)]
)
def test_a_window_instead_of_a_count(age_s: float, event: Event) -> None:
    """The next start, two seconds later, must still be inside."""
    policy = RetryPolicy(retry_for_s=10.0)
    assert failed(FRESH._replace(max_retries=0), policy, age_s=age_s).event is event


@given(
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 50),
    st.one_of(st.none(), st.integers(0, 50)),
    st.sampled_from([AttemptState.FAILED, AttemptState.TIMED_OUT]),
)
def test_every_verdict_is_a_move_of_a_running_job(
    failures: int, crashes: int, max_retries: int, max_crashes: int | None, state: AttemptState
) -> None:
    budget = Budget(failures + crashes, crashes, max_retries, max_crashes)
    reason = Reason.TIMEOUT if state is AttemptState.TIMED_OUT else Reason.PROCESS_EXIT
    for verdict in (
        after_failure(budget, DEFAULT_POLICY, state=state, reason=reason, exit_code=1, age_s=0),
        after_crash(budget, DEFAULT_POLICY),
    ):
        assert (State.RUNNING, verdict.event) in TRANSITIONS
        assert verdict.attempts == budget.attempts + 1
        assert verdict.delay_s > 0

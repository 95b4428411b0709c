"""How often, and after how long, a job is tried again."""

from __future__ import annotations

import os

from spoolctl.core.states import AttemptState, Event, Reason
from spoolctl.core.tuples import NamedTuple

BASE_S = 2.0
CAP_S = 60.0


def spread() -> float:
    """A random number in [0, 1), for jitter. (`random` is slow to import.)"""
    return int.from_bytes(os.urandom(4), "big") / (1 << 32)


class RetryPolicy(NamedTuple):
    """How one job is retried after its own failures. The defaults are the documented ones.

    `delays_s`: explicit waits, the last repeats; empty means by `backoff`.
    `final_exits`: inclusive ranges of exit codes after which there is no further try.
    `retry_for_s`: instead of a count, keep trying while an attempt could still start this
    many seconds after the submission (or the last manual retry).
    """

    delays_s: tuple[float, ...] = ()
    backoff: str = "exponential"
    base_s: float = BASE_S
    max_delay_s: float = CAP_S
    jitter: float = 0.0
    final_exits: tuple[tuple[int, int], ...] = ()
    retry_for_s: float | None = None


DEFAULT_POLICY = RetryPolicy()


class Budget(NamedTuple):
    """What a job has used and may use. `attempts` and `crashes` count since the last retry."""

    attempts: int
    crashes: int
    max_retries: int
    max_crashes: int | None


class Verdict(NamedTuple):
    """What follows an unsuccessful attempt: the move, the new counters, the wait."""

    event: Event
    attempts: int
    crashes: int
    delay_s: float


def backoff_s(failures: int, *, base_s: float = BASE_S, cap_s: float = CAP_S) -> float:
    """Seconds to wait after `failures` (>= 1) in a row.

    >>> [backoff_s(n) for n in (1, 2, 5, 6, 5000)]
    [2.0, 4.0, 32.0, 60.0, 60.0]
    """
    # Clamped: 2.0 ** 5000 overflows before min() can help.
    return min(cap_s, base_s * 2.0 ** min(failures - 1, 30))


def delay_s(policy: RetryPolicy, attempts: int, *, spread: float = 0.5) -> float:
    """Seconds from the end of the `attempts`-th unsuccessful attempt to the next start.

    `spread` is the caller's random number in [0, 1), used only where the policy asks for
    jitter: the wait is drawn from +-`jitter` (a fraction) around its nominal length.
    """
    if policy.delays_s:
        wait = policy.delays_s[min(attempts, len(policy.delays_s)) - 1]
    elif policy.backoff == "fixed":
        wait = policy.base_s
    else:
        wait = backoff_s(attempts, base_s=policy.base_s, cap_s=policy.max_delay_s)
    return wait * (1.0 + policy.jitter * (2.0 * spread - 1.0))


def is_final(policy: RetryPolicy, exit_code: int | None) -> bool:
    """Whether the submitter declared this exit code final."""
    return exit_code is not None and any(lo <= exit_code <= hi for lo, hi in policy.final_exits)


def after_failure(
    budget: Budget,
    policy: RetryPolicy,
    *,
    state: AttemptState,
    reason: Reason,
    exit_code: int | None,
    age_s: float,
    spread: float = 0.5,
) -> Verdict:
    """What follows an attempt that ended by itself without success (crashes: `after_crash`).

    `age_s` is the time since the submission or the last manual retry, for `retry_for_s`.
    """
    attempts = budget.attempts + 1
    wait = delay_s(policy, attempts, spread=spread)
    timed_out = state is AttemptState.TIMED_OUT
    if not timed_out and reason is Reason.PROCESS_EXIT and is_final(policy, exit_code):
        return Verdict(Event.FINAL, attempts, budget.crashes, wait)
    if policy.retry_for_s is not None:
        left = age_s + wait < policy.retry_for_s
    else:
        left = attempts - budget.crashes <= budget.max_retries
    if left:
        event = Event.TIMED_OUT if timed_out else Event.FAILED
    else:
        event = Event.TIMED_OUT_EXHAUSTED if timed_out else Event.EXHAUSTED
    return Verdict(event, attempts, budget.crashes, wait)


def after_crash(budget: Budget, policy: RetryPolicy, *, spread: float = 0.5) -> Verdict:
    """What follows the death of the worker: the command did not fail, its owner did."""
    attempts, crashes = budget.attempts + 1, budget.crashes + 1
    left = budget.max_crashes is None or crashes <= budget.max_crashes
    event = Event.REAPED if left else Event.REAPED_EXHAUSTED
    return Verdict(event, attempts, crashes, delay_s(policy, attempts, spread=spread))

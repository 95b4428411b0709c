"""A request to run a command, checked and completed: what the API and the verbs submit.

All checks happen here or in `core.checks`, before any queue is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from spoolctl.core import checks
from spoolctl.core.limits import LIMITS
from spoolctl.core.records import Context, NewJob
from spoolctl.core.retry import DEFAULT_POLICY, RetryPolicy
from spoolctl.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


CAPTURED = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG", "LC_*", "TZ")
"""Variables that say where programs are and how text is read."""

CAPTURED_VALUE_BYTES = 128 * 1024
"""A longer value is not captured: Linux refuses to pass it on (MAX_ARG_STRLEN)."""

FOREVER_S = float(LIMITS["duration_seconds"].maximum)
"""A thousand years: how long a key protects that was given `ever`."""


def new_job(
    argv: Iterable[str],
    *,
    queue: str = "default",
    priority: int = 0,
    delay_s: float | None = None,
    run_at: float | None = None,
    timeout_s: int | None = 300,
    max_retries: int = 3,
    max_crashes: int | None = 20,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    key: str | None = None,
    key_for_s: float | None = None,
    tags: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    note: str | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
    stdin: bytes | None = None,
    capture_env: Iterable[str] | None = CAPTURED,
    context: Context | None = None,
) -> NewJob:
    """A job to submit, after all checks; with the current folder, umask and the variables
    named by `capture_env` (None: all) unless a `context` is given.

    Raises:
        InvalidInput: a value is not acceptable; the message names it.
    """
    if delay_s is not None and run_at is not None:
        raise InvalidInput("a job is given a delay or a time, not both")
    folder = None if cwd is None else checks.named("cwd", _folder, cwd)
    if context is None:
        context = capture(capture_env, with_cwd=folder is None)
    words = checks.argv(argv)
    usual = (queue, priority, timeout_s, max_retries, max_crashes)
    try:
        _check_usual(*usual)
    except TypeError:  # not hashable: surely wrong
        _check_usual.__wrapped__(*usual)
    return NewJob(
        argv=words,
        context=context,
        queue=queue,
        priority=priority,
        delay_s=checks.maybe_span("delay_s", delay_s, "duration_seconds"),
        run_at=checks.maybe_span("run_at", run_at, "timestamp_epoch_seconds"),
        timeout_s=timeout_s,
        max_retries=max_retries,
        max_crashes=max_crashes,
        cwd=folder,
        env=_variables(env),
        key=None if key is None else checks.named("key", checks.key, key),
        key_for_s=checks.maybe_span("key_for_s", key_for_s, "duration_seconds"),
        tags=_tags(tags),
        note=None if note is None else checks.named("note", checks.note, note),
        policy=_policy(policy),
        stdin=_stdin(stdin),
    )


@lru_cache(maxsize=64, typed=True)
def _check_usual(
    queue: str, priority: int, timeout_s: int | None, max_retries: int, max_crashes: int | None
) -> None:
    """Check what most jobs of a batch have in common; once, if they do."""
    checks.named("queue", checks.queue_name, queue)
    checks.whole("priority", priority, "priority")
    checks.maybe_whole("timeout_s", timeout_s, "timeout_seconds")
    checks.whole("max_retries", max_retries, "budget")
    checks.maybe_whole("max_crashes", max_crashes, "budget")


def absolute(path: str) -> str:
    """A folder as a job keeps it: absolute, without `.` and `..`, symbolic links kept.

    The limit on its length is one on what was given: what a relative one grows to is no fault.
    """
    if os.path.isabs(checks.path(path)):
        return os.path.normpath(path)
    return os.path.normpath(os.path.join(current_folder(), path))


def _folder(path: str | os.PathLike[str]) -> str:
    return absolute(checks.file_path(path))


def current_folder() -> str:
    """The folder in which the submitter is.

    Raises:
        InvalidInput: it has been deleted, or its name is no text that could be kept.
    """
    try:
        return checks.path(os.getcwd())
    except OSError:
        raise InvalidInput("the current folder no longer exists: give an absolute --cwd") from None
    except InvalidInput as error:
        raise InvalidInput(f"the current folder's name {error}: give another --cwd") from None


def capture(names: Iterable[str] | None = CAPTURED, *, with_cwd: bool = True) -> Context:
    """What a job keeps of its submitter: folder, umask, and the named variables.

    A name may end in `*`; None stands for all variables. Those of spoolctl itself are never
    captured, and neither is a value that is not valid UTF-8 or too long.
    """
    wanted = None if names is None else _names(names)
    variables = sorted(
        (name, value)
        for name, value in os.environ.items()
        if _is_wanted(name, wanted) and _can_be_kept(name) and _can_be_kept(value)
    )
    return Context(current_folder() if with_cwd else None, _umask(), tuple(variables))


class Captures:
    """What is captured for many jobs, once for all that ask for the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...] | None, bool], Context] = {}

    def of(self, names: Iterable[str] | None, *, with_cwd: bool) -> Context:
        """See `capture`; the first answer holds for all."""
        wanted = (None if names is None else _names(names), with_cwd)
        if wanted not in self._known:
            self._known[wanted] = capture(wanted[0], with_cwd=with_cwd)
        return self._known[wanted]


def _names(names: Iterable[str]) -> tuple[str, ...]:
    if names is CAPTURED:
        return CAPTURED
    listed = checks.items("capture_env", names)
    return tuple(checks.named("capture_env", checks.text, each) for each in listed)


def _is_wanted(name: str, wanted: tuple[str, ...] | None) -> bool:
    if name.startswith("SPOOLCTL_"):
        return False
    if wanted is None:
        return True
    return any(
        name.startswith(each[:-1]) if each.endswith("*") else name == each for each in wanted
    )


def _can_be_kept(text: str) -> bool:
    try:
        return len(text.encode()) <= CAPTURED_VALUE_BYTES
    except UnicodeEncodeError:
        return False


def _umask() -> int:
    # It can only be read by setting it; the strictest for that moment, in case another
    # thread makes a file just then.
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


# -- checks of what has parts -------------------------------------------------------------------


def _variables(env: Mapping[str, str] | Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    if env == ():
        return ()
    pairs = [checks.named("env", checks.env, *pair) for pair in checks.pairs("env", env)]
    return tuple(sorted(dict(pairs).items()))  # the last of repeated names wins


def _tags(tags: Mapping[str, str] | Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    if tags == ():
        return ()
    pairs = [checks.named("tags", checks.tag, *pair) for pair in checks.pairs("tags", tags)]
    if len({key for key, _ in pairs}) < len(pairs):
        raise InvalidInput("tags: a key occurs twice")
    if len(pairs) > LIMITS["tag_count"].maximum:
        raise InvalidInput(f"tags: at most {LIMITS['tag_count'].maximum} tags")
    return tuple(sorted(pairs))


def _policy(policy: RetryPolicy) -> RetryPolicy:
    if policy is DEFAULT_POLICY:
        return policy
    if not isinstance(policy, RetryPolicy):
        raise InvalidInput("policy: must be a RetryPolicy")
    waits = (*checks.items("delays_s", policy.delays_s), policy.base_s, policy.max_delay_s)
    for delay_s in waits:
        checks.span("retry delay", delay_s, "duration_seconds")
    checks.maybe_span("retry_for_s", policy.retry_for_s, "duration_seconds")
    if policy.backoff not in ("exponential", "fixed"):
        raise InvalidInput("backoff: must be exponential or fixed")
    checks.span("jitter", policy.jitter, "fraction")
    for codes in checks.pairs("final_exits", policy.final_exits):
        low, high = (checks.named("final_exits", checks.integer, "id", code) for code in codes)
        if not low <= high <= 255:
            raise InvalidInput("final_exits: ranges of exit codes in 1-255")
    return policy


def _stdin(data: bytes | None) -> bytes | None:
    if data is None:
        return None
    if not isinstance(data, bytes):
        raise InvalidInput("stdin: must be bytes")
    if len(data) > LIMITS["stdin_bytes"].maximum:
        raise InvalidInput(f"stdin: at most {LIMITS['stdin_bytes'].maximum} bytes")
    return data


_ARGUMENTS = frozenset(new_job.__code__.co_varnames[: new_job.__code__.co_argcount]) | frozenset(
    new_job.__kwdefaults__ or ()
)


def as_job(
    job: Sequence[str] | Mapping[str, Any] | NewJob,
    options: Mapping[str, Any],
    captures: Captures,
) -> NewJob:
    """The job that one entry of a list asks for: a command, a mapping of `new_job`'s arguments
    with `argv`, or a job as it is. `options` hold where the entry does not say otherwise."""
    if isinstance(job, NewJob):
        return job
    own = job if isinstance(job, Mapping) else {"argv": job}
    asked = {**options, **own}
    if not _ARGUMENTS.issuperset(asked):
        unknown = next(name for name in asked if name not in _ARGUMENTS)
        raise InvalidInput(f"{unknown!r} is no argument of a job")
    if "argv" not in asked:
        raise InvalidInput("a job is given without its argv")
    if asked.get("context") is None:
        names = asked.get("capture_env", CAPTURED)
        asked["context"] = captures.of(names, with_cwd=asked.get("cwd") is None)
    return new_job(**asked)

"""`spoolctl show`: one job in full."""

from __future__ import annotations

import time

from spoolctl.cli import members, render
from spoolctl.cli.spec import COMMON, DB, JOB_ID, Flag, JsonSchema, Verb
from spoolctl.core.records import Recovery
from spoolctl.core.retry import DEFAULT_POLICY
from spoolctl.core.states import AttemptState, State
from spoolctl.submission import FOREVER_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.core.records import Attempt, EventRow, JobDetail
    from spoolctl.core.retry import RetryPolicy

SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "COOKIE")
"""A variable whose name has one of them is masked; better too many than one too few."""

SECRET_PARTS = frozenset({"DSN", "JWT", "PAT", "PWD"})
"""The same of names that have one of them between underscores (not `PWD` alone)."""

MASK = "********"


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes
    from spoolctl.core.states import Reason

    maybe = shapes.nullable
    variables = shapes.mapping(shapes.STRING)
    job = members.job_schema(
        env=variables,
        max_crashes=maybe(shapes.COUNT),
        locked_by=maybe(shapes.STRING),
        locked_pid=maybe(shapes.ID),
        locked_at=maybe(shapes.NUMBER),
        heartbeat_at=maybe(shapes.NUMBER),
        last_failure_reason=maybe(shapes.words(Reason)),
        recovery=maybe(
            shapes.closed(
                verdict=shapes.words(("alive", "dead", "unclear")),
                reason=shapes.TEXT,
            )
        ),
        captured=shapes.closed(umask=maybe(shapes.STRING), env=variables),
        key_for_seconds=maybe(shapes.NUMBER),
        retry=shapes.closed(
            delays_seconds=shapes.array(shapes.NUMBER),
            backoff=shapes.words(("exponential", "fixed")),
            first_delay_seconds=shapes.NUMBER,
            max_delay_seconds=shapes.NUMBER,
            jitter=shapes.NUMBER,
            final_exits=shapes.array(shapes.TEXT),
            retry_for_seconds=maybe(shapes.NUMBER),
        ),
    )
    return shapes.closed(
        job=job,
        attempts=shapes.array(members.attempt_schema()),
        events=shapes.array(members.event_schema(with_ids=False)),
    )


VERB = Verb(
    name="show",
    description=(
        "One job in full, with its attempts, its events, and its environment. Of the variables "
        "that were captured at `add`, values that look secret (mostly by their names) are "
        "masked; those given with --env are shown."
    ),
    data_schema="The job, its attempts by number, its events in order.",
    schema=schema,
    positionals=(JOB_ID,),
    flags=(
        Flag(
            "--reveal",
            "boolean",
            "show captured variables that look secret, too",
            default=False,
        ),
        DB,
        *COMMON,
    ),
    examples=(("spoolctl", "show", "1"), ("spoolctl", "show", "--json", "1")),
)


def run(args: Args, app: App) -> int:
    """Read it all in one snapshot."""
    found = app.queue.detail(args.id)
    noted = found.recovery is not None and found.recovery.verdict == "dead"
    if found.job.state is State.RUNNING and not noted:
        # Nobody has tried to take it back yet, or at a time when its worker still lived.
        gone = app.queue.orphans().get(args.id)
        found = found if gone is None else found._replace(recovery=Recovery("dead", gone))
    captured = _captured(found, reveal=args.reveal)
    return app.show(_data(found, captured), lambda: _text(app, found, captured))


def _captured(found: JobDetail, *, reveal: bool) -> dict[str, str]:
    return {
        name: MASK if not reveal and _looks_secret(name, value) else value
        for name, value in sorted(found.context.env)
    }


def _looks_secret(name: str, value: str) -> bool:
    parts = name.upper().split("_")
    return (
        any(word in name.upper() for word in SECRET_WORDS)
        or (len(parts) > 1 and not SECRET_PARTS.isdisjoint(parts))
        or _has_password(value)
    )


def _has_password(value: str) -> bool:
    """Whether the value is an address with a password in it (`https://user:word@host/`)."""
    _, is_address, rest = value.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    return bool(is_address and at and ":" in user)


def _data(found: JobDetail, captured: dict[str, str]) -> dict[str, Any]:
    job, owner, umask = found.job, found.owner, found.context.umask
    return {
        "job": {
            **members.job(job),
            "env": dict(found.env),
            "max_crashes": job.max_crashes,
            "locked_by": owner and owner.locked_by,
            "locked_pid": owner and owner.locked_pid,
            "locked_at": owner and owner.locked_at,
            "heartbeat_at": owner and owner.heartbeat_at,
            "last_failure_reason": job.last_failure_reason and job.last_failure_reason.value,
            "recovery": found.recovery and found.recovery._asdict(),
            "captured": {"umask": None if umask is None else f"{umask:04o}", "env": captured},
            "key_for_seconds": found.key_for_s,
            "retry": _retry(found.policy),
        },
        "attempts": [members.attempt(attempt) for attempt in found.attempts],
        "events": [_event(row) for row in found.events],
    }


def _retry(policy: RetryPolicy) -> dict[str, Any]:
    """How the job is tried again; of a list of waits the last repeats, and no other rule holds."""
    return {
        "delays_seconds": list(policy.delays_s),
        "backoff": policy.backoff,
        "first_delay_seconds": policy.base_s,
        "max_delay_seconds": policy.max_delay_s,
        "jitter": policy.jitter,
        "final_exits": _exits(policy),
        "retry_for_seconds": policy.retry_for_s,
    }


def _exits(policy: RetryPolicy) -> list[str]:
    return [str(low) if low == high else f"{low}-{high}" for low, high in policy.final_exits]


def _event(row: EventRow) -> dict[str, Any]:
    return {
        name: value for name, value in members.event(row).items() if name not in ("id", "job_id")
    }


# -- text -----------------------------------------------------------------------------------


def _text(app: App, found: JobDetail, captured: dict[str, str]) -> str:
    lines = [_header(app, found), *_facts(found, captured)]
    if found.recovery is not None:
        reason = render.visible(found.recovery.reason)
        lines.append(f"recovery: {found.recovery.verdict}: {reason}")
    lines += [_attempt_line(app, attempt) for attempt in found.attempts]
    lines.append("events:")
    lines += [f"  {_event_line(row)}" for row in found.events]
    return "\n".join(lines)


def _header(app: App, found: JobDetail) -> str:
    job = found.job
    tolerated = "unlimited" if job.max_crashes is None else job.max_crashes
    window_s = found.policy.retry_for_s
    allowed = f"/{job.max_retries}" if window_s is None else f" (for {render.duration(window_s)})"
    return (
        f"#{job.id}  {app.style.state(job.state.value)}  "
        f"failure retries used: {job.attempts - job.crashes}{allowed}  "
        f"worker crashes: {job.crashes} (tolerated before dead: {tolerated})  "
        f"{render.command(job.argv)}"
    )


def _facts(found: JobDetail, captured: dict[str, str]) -> Iterable[str]:
    job, visible = found.job, render.visible
    yield f"queue: {job.queue}"
    yield f"priority: {job.priority}"
    yield f"created_at: {render.local_time(job.created_at)}"
    yield f"next_run_at: {render.local_time(job.next_run_at)}"
    yield f"timeout: {'none' if job.timeout_s is None else f'{job.timeout_s}s'}"
    if found.policy != DEFAULT_POLICY:
        yield f"retry: {', '.join(_rules(found.policy))}"
    yield f"cwd: {visible(job.cwd) if job.cwd is not None else 'inherit'}"
    yield f"env: {_pairs(found.env) or '-'}"
    yield f"captured: {_pairs(captured.items()) or '-'}"
    protects = "" if found.key_for_s is None else f" (for {_after_end(found.key_for_s)})"
    yield f"key: {visible(job.key) + protects if job.key is not None else '-'}"
    yield f"tags: {_pairs(job.tags) or '-'}"
    yield f"note: {visible(job.note) if job.note is not None else '-'}"
    if job.last_error is not None:
        yield f"last_error: {visible(job.last_error)}"
    if found.owner is not None:
        owner = found.owner
        yield (
            f"owner: {visible(owner.locked_by)} (pid {owner.locked_pid}), last sign of life "
            f"{render.local_time(owner.heartbeat_at)}"
        )


def _rules(policy: RetryPolicy) -> Iterable[str]:
    """What is not as usual in the retries of a job."""
    waits = policy.delays_s or (policy.base_s,)
    grows = not policy.delays_s and policy.backoff == "exponential"
    shown = " ".join(render.duration(each) for each in waits)
    limit = f", doubling up to {render.duration(policy.max_delay_s)}" if grows else ""
    yield f"after {shown}{limit}"
    if policy.jitter:
        yield f"jitter {policy.jitter:g}"
    if policy.retry_for_s is not None:
        yield f"for {render.duration(policy.retry_for_s)} after the submission"
    if policy.final_exits:
        yield f"not after exit {' '.join(_exits(policy))}"


def _after_end(seconds: float) -> str:
    return "ever" if seconds >= FOREVER_S else f"{render.duration(seconds)} after the job's end"


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return "  ".join(render.visible(f"{name}={value}") for name, value in pairs)


def _attempt_line(app: App, attempt: Attempt) -> str:
    parts = [f"  attempt {attempt.attempt_no}", app.style.state(attempt.state.value)]
    if attempt.exit_code is not None:
        parts.append(f"exit={attempt.exit_code}")
    parts.append(f"worker={render.visible(attempt.worker_name)}")
    if attempt.duration_s is not None:
        parts.append(f"took {render.duration(attempt.duration_s)}")
    elif attempt.state is AttemptState.RUNNING:
        parts.append(f"for {render.duration(time.time() - attempt.started_at)}")
    if attempt.error:
        parts.append(f"error: {render.visible(attempt.error)}")
    if attempt.survivors:
        parts.append(f"left {attempt.survivors} process(es) running")
    return "  ".join(parts)


def _event_line(row: EventRow) -> str:
    worker = render.visible(row.worker_name or "-")
    return (
        f"{render.local_time(row.at)}  {row.event.value}  {worker}  "
        f"{render.visible(row.detail or '-')}"
    )

"""Between records and rows: what a column holds, and how it is read back.

Lists and rarely given options are kept as JSON text: legible with the sqlite3 program, and
able to carry what is not valid UTF-8 (as lone surrogates, escaped).
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from math import isfinite

from spoolctl.core.paths import stream_path
from spoolctl.core.records import (
    Attempt,
    Capture,
    Context,
    EventRow,
    Identity,
    Job,
    NewJob,
    StreamInfo,
    WorkerRow,
)
from spoolctl.core.retry import DEFAULT_POLICY, RetryPolicy
from spoolctl.core.states import AttemptState, Ledger, Reason, State
from spoolctl.core.tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

Row: TypeAlias = "tuple[Any, ...]"

# Imported when first needed: `json` takes 4 ms, a fifth of what `add` takes in all.
_decode: Callable[[str], Any] | None = None
_plain: Callable[[object], str] | None = None
_escaped: Callable[[object], str] | None = None
_quoted: Callable[[str], str] | None = None

EVER = float("inf")
"""`key_for_s` of a key that protects for ever."""


def parse(text: str) -> Any:
    """The value of stored JSON text. Raises what SQLite itself raises for a damaged file."""
    if _decode is None:
        import_json()
        return parse(text)
    try:
        return _decode(text)
    except (ValueError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"malformed value ({error})") from None


# What code that reads a row raises where somebody has edited it by hand: JSON that is well
# formed, but means something else.
_WRONG = (TypeError, ValueError, KeyError, AttributeError, IndexError)


def _malformed(what: str, error: Exception) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"malformed {what} ({error})")


def words_of(text: str) -> tuple[str, ...]:
    """A stored list of strings. Raises what SQLite itself raises for a damaged file."""
    words = parse(text)
    if type(words) is not list or not all(type(word) is str for word in words):
        raise sqlite3.DatabaseError("malformed value (no list of words)")
    return tuple(words)


def command_of(job: StoredJob | Ready) -> tuple[str, ...]:
    """A job's stored command. Raises like `words_of`, and says which job it is."""
    try:
        return words_of(job.argv)
    except sqlite3.DatabaseError as error:
        raise sqlite3.DatabaseError(f"the command of job {job.id} is a {error}") from None


def to_json(value: object) -> str:
    """JSON text that SQLite can store, whatever characters the strings inside hold."""
    if _plain is None or _escaped is None:
        with suppress(NotSimple):
            return simple_json(value)
        import_json()
        return to_json(value)
    text = _plain(value)
    # Escapes only where they are needed: a person may read the file with sqlite3.
    return text if text.isascii() or is_unicode(text) else _escaped(value)


def words_to_json(words: tuple[str, ...]) -> str:
    """What `to_json` makes of words, for those who have many to store."""
    if _quoted is None:
        return to_json(words)
    text = f"[{','.join(map(_quoted, words))}]"
    return text if text.isascii() or is_unicode(text) else to_json(words)


class NotSimple(Exception):
    """Left to the module `json`."""


def simple_json(value: Any) -> str:
    """What `to_json` makes of words, numbers, nothing, and lists and dictionaries of these.

    Raises NotSimple for everything else, and where something has to be escaped.
    """
    kind = type(value)
    if kind is str and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(simple_json, value))}]"
    if kind is dict and all(type(name) is str for name in value):
        pairs = [f"{simple_json(name)}:{simple_json(each)}" for name, each in value.items()]
        return f"{{{','.join(pairs)}}}"
    if kind is int or (kind is float and isfinite(value)):
        return repr(value)
    if value is None:
        return "null"
    raise NotSimple


def import_json() -> None:
    """Import `json` now. For those who live long: later there may be no descriptor left for it."""
    global _decode, _plain, _escaped, _quoted
    from json import JSONDecoder, JSONEncoder
    from json.encoder import encode_basestring

    _decode = JSONDecoder().decode
    _plain = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    _escaped = JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
    _quoted = encode_basestring


def is_unicode(text: str) -> bool:
    """Whether the text has no lone surrogates (bytes that were not UTF-8)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    """The text itself, with what is not valid UTF-8 in it shown as backslash escapes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def signed(number: int) -> int:
    """An unsigned 64-bit number (some inodes) as SQLite can hold it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unsigned(number: int) -> int:
    """The inverse of `signed`."""
    return number + (1 << 64) if number < 0 else number


# -- jobs -------------------------------------------------------------------------------

JOB_COLUMNS = (
    "jobs.id, jobs.argv, jobs.state, jobs.attempts, jobs.crashes, jobs.max_retries,"
    " jobs.max_crashes, jobs.timeout_s, jobs.created_at, jobs.started_at, jobs.finished_at,"
    " jobs.run_at, jobs.priority, jobs.queue, jobs.last_exit_code, jobs.last_error,"
    " jobs.last_reason, jobs.key, jobs.tags, jobs.note, jobs.ready, jobs.context, jobs.asked"
)
"""What `job_of` and `StoredJob` read, in this order."""


class StoredJob(NamedTuple):
    """A row of `jobs` as it stands, by `JOB_COLUMNS`."""

    id: int
    argv: str
    state: str
    attempts: int
    crashes: int
    max_retries: int
    max_crashes: int | None
    timeout_s: int | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    run_at: float
    priority: int
    queue: str
    last_exit_code: int | None
    last_error: str | None
    last_reason: str | None
    key: str | None
    tags: str | None
    note: str | None
    ready: int
    context: int
    asked: str | None


READY_COLUMNS = (
    "jobs.id, jobs.argv, jobs.state, jobs.crashes, jobs.max_crashes, jobs.timeout_s, jobs.run_at,"
    " jobs.priority, jobs.queue, jobs.key, jobs.context, jobs.asked"
)
"""What `Ready` has of a job, in this order."""


class Ready(NamedTuple):
    """A job that may be claimed, its next attempt's number, and its input."""

    id: int
    argv: str
    state: str
    crashes: int
    max_crashes: int | None
    timeout_s: int | None
    run_at: float
    priority: int
    queue: str
    key: str | None
    context: int
    asked: str | None
    no: int
    stdin: bytes | None


def job_of(row: Row, context: Context) -> Job:
    """The job of a row by `JOB_COLUMNS`; `context` is the one that it names."""
    stored = StoredJob(*row)
    asked = asked_of(stored.asked)
    return Job(
        id=stored.id,
        argv=command_of(stored),
        state=State(stored.state),
        attempts=stored.attempts,
        crashes=stored.crashes,
        max_retries=stored.max_retries,
        max_crashes=stored.max_crashes,
        timeout_s=stored.timeout_s,
        created_at=stored.created_at,
        started_at=stored.started_at,
        finished_at=stored.finished_at,
        next_run_at=stored.run_at,
        priority=stored.priority,
        queue=stored.queue,
        cwd=context.cwd if asked.cwd is None else asked.cwd,
        last_exit_code=stored.last_exit_code,
        last_error=stored.last_error,
        last_failure_reason=reason_of(stored),
        key=stored.key,
        tags=tags_of(stored.tags),
        note=stored.note,
        ready=bool(stored.ready),
    )


def reason_of(stored: StoredJob) -> Reason | None:
    """The reason of the newest unsuccessful attempt, where the job's state has one."""
    return None if stored.last_reason is None else Reason(stored.last_reason)


def tags_of(text: str | None) -> tuple[tuple[str, str], ...]:
    """Tags in the order in which they were given."""
    if text is None:
        return ()
    try:
        return _texts(parse(text))
    except _WRONG as error:
        raise _malformed("tags", error) from None


class Asked(NamedTuple):
    """What a submitter asked for beside the common columns; mostly nothing.

    `since`: start of the time window of `retry_for_s`: (wall, boot clock, boot id).
    """

    cwd: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    delay_s: float | None = None
    run_at: float | None = None
    key_for_s: float | None = None
    policy: RetryPolicy = DEFAULT_POLICY
    since: tuple[float, float, str] | None = None


NOTHING_ASKED = Asked()

_asked_before: dict[str, Asked] = {}


def asked_in(job: NewJob) -> Asked:
    """What `job` asks for beside the common columns."""
    # A delay of nothing is no delay: repeating the request without it changes nothing.
    return Asked(job.cwd, job.env, job.delay_s or None, job.run_at, job.key_for_s, job.policy)


def asked_text(asked: Asked) -> str | None:
    """JSON of what differs from the defaults; None if nothing does."""
    if asked == NOTHING_ASKED:
        return None
    given: dict[str, object] = {
        name: value
        for name, value, default in zip(Asked._fields, asked, NOTHING_ASKED, strict=True)
        if value != default
    }
    if asked.key_for_s == EVER:
        given["key_for_s"] = "ever"
    if asked.policy != DEFAULT_POLICY:
        given["policy"] = {
            name: value
            for name, value in asked.policy._asdict().items()
            if value != getattr(DEFAULT_POLICY, name)
        }
    return to_json(given)


def asked_of(text: str | None) -> Asked:
    """The inverse of `asked_text`."""
    if text is None:
        return NOTHING_ASKED
    known = _asked_before.get(text)
    if known is None:
        try:
            known = _asked(parse(text))
        except _WRONG as error:
            raise _malformed("options of a job", error) from None
        # Most jobs of a queue ask for the same. A long text is one job's own environment.
        if len(text) <= 500:
            if len(_asked_before) >= 100:
                _asked_before.clear()
            _asked_before[text] = known
    return known


def _asked(given: dict[str, Any]) -> Asked:
    if "env" in given:
        given["env"] = _texts(given["env"])
    if given.get("key_for_s") == "ever":
        given["key_for_s"] = EVER
    if "policy" in given:
        given["policy"] = _policy(given["policy"])
    if "since" in given:
        at, boot, boot_id = given["since"]
        given["since"] = (_number(at), _number(boot), str(boot_id))
    for name in ("delay_s", "run_at", "key_for_s"):
        _number(given.get(name, 0))
    return Asked(**given)


def _policy(given: dict[str, Any]) -> RetryPolicy:
    if "delays_s" in given:
        given["delays_s"] = tuple(map(_number, given["delays_s"]))
    if "final_exits" in given:
        given["final_exits"] = _pairs(given["final_exits"])
    for name, value in given.items():
        if name == "backoff":
            continue
        for each in value if isinstance(value, tuple) else (value,):
            for number in each if isinstance(each, tuple) else (each,):
                _number(number)
    return RetryPolicy(**given)


def _number(value: Any) -> Any:
    if value is not None and not isinstance(value, (int, float)):
        raise TypeError("no number")
    return value


def _texts(lists: list[list[Any]]) -> tuple[tuple[str, str], ...]:
    pairs = _pairs(lists)
    if not all(type(text) is str for pair in pairs for text in pair):
        raise TypeError("no list of pairs of words")
    return pairs


def _pairs(lists: list[list[Any]]) -> tuple[tuple[Any, Any], ...]:
    if type(lists) is not list or not all(type(each) is list for each in lists):
        raise TypeError("no list of pairs")
    return tuple((first, second) for first, second in lists)


def context_text(context: Context) -> str:
    """A captured context as JSON; equal contexts give equal texts."""
    return to_json(context)


def context_of(text: str) -> Context:
    """The inverse of `context_text`."""
    try:
        cwd, umask, env = parse(text)
        if not isinstance(cwd, (str, type(None))):
            raise TypeError("no folder")
        return Context(cwd, _number(umask), _texts(env))
    except _WRONG as error:
        raise _malformed("context of a job", error) from None


# -- attempts ---------------------------------------------------------------------------

ATTEMPT_COLUMNS = (
    "attempts.id, attempts.token, attempts.job, attempts.no, attempts.state,"
    " coalesce(workers.name, 'unknown'), coalesce(workers.pid, 0), attempts.started_at,"
    " attempts.finished_at, attempts.duration_s, attempts.exit_code, attempts.error,"
    " attempts.reason, attempts.gone_at, attempts.survivors, attempts.stdout_bytes,"
    " attempts.stderr_bytes, attempts.in_files, attempts.capture"
)
"""What `attempt_of` reads; from `attempts LEFT JOIN workers`."""

IN_FILE = {"stdout": 1, "stderr": 2}
"""Bits of `attempts.in_files`: what stays a file after the end. Until then all streams are."""


def attempt_of(row: Row, db_path: str) -> Attempt:
    """The attempt of a row by `ATTEMPT_COLUMNS`."""
    try:
        return _attempt(row, db_path)
    except _WRONG as error:
        raise _malformed("attempt", error) from None


def _attempt(row: Row, db_path: str) -> Attempt:
    token = row[1].hex()
    captures: dict[str, dict[str, Any]] = parse(row[18]) if row[18] else {}
    files = row[17] if row[13] is not None else sum(IN_FILE.values())

    def stream(name: str, size_bytes: int) -> StreamInfo:
        extra = captures.get(name, {})
        missing = extra.get("missing", False)
        in_file = bool(files & IN_FILE[name])
        return StreamInfo(
            stored="missing" if missing else "file" if in_file else "database",
            path=stream_path(db_path, token, name) if missing or in_file else None,
            size_bytes=size_bytes,
            dropped_bytes=_number(extra.get("dropped_bytes", 0)),
            gap_start=_number(extra.get("gap_start", 0)),
            shortened=extra.get("shortened", False),
        )

    return Attempt(
        id=row[0],
        token=token,
        job_id=row[2],
        attempt_no=row[3],
        state=AttemptState(row[4]),
        worker_name=row[5],
        worker_pid=row[6],
        started_at=row[7],
        finished_at=row[8],
        duration_s=row[9],
        exit_code=row[10],
        error=row[11],
        failure_reason=None if row[12] is None else Reason(row[12]),
        gone_at=row[13],
        survivors=row[14],
        stdout=stream("stdout", row[15]),
        stderr=stream("stderr", row[16]),
    )


def in_files(stdout: Capture, stderr: Capture) -> int:
    """The bits of `attempts.in_files` for these streams."""
    bits = 0
    if stdout.data is None and not stdout.missing:
        bits |= IN_FILE["stdout"]
    if stderr.data is None and not stderr.missing:
        bits |= IN_FILE["stderr"]
    return bits


def capture_text(stdout: Capture, stderr: Capture) -> str | None:
    """JSON of what is unusual about the streams; None for ordinary ones."""
    unusual = {}
    for name, capture in (("stdout", stdout), ("stderr", stderr)):
        if capture[2:] != (0, 0, False, False):
            given = capture._asdict()
            del given["size_bytes"], given["data"]
            unusual[name] = {key: value for key, value in given.items() if value}
    return to_json(unusual) if unusual else None


# -- events, workers --------------------------------------------------------------------

EVENT_COLUMNS = "events.id, events.job, events.at, events.event, workers.name, events.detail"
"""What `event_of` reads; from `events LEFT JOIN workers`."""


def event_of(row: Row) -> EventRow:
    """The ledger entry of a row by `EVENT_COLUMNS`."""
    try:
        return EventRow(row[0], row[1], row[2], Ledger(row[3]), row[4], row[5])
    except ValueError as error:
        raise _malformed("event", error) from None


WORKER_COLUMNS = (
    "workers.id, workers.token, workers.name, workers.boot_id, workers.pid_ns, workers.pid,"
    " workers.start, workers.lock_dev, workers.lock_ino, workers.lanes, workers.slots,"
    " workers.interval_s, workers.started_at, workers.heartbeat_at, workers.heartbeat_boot"
)
"""What `worker_of` reads."""


def worker_of(row: Row) -> WorkerRow:
    """The worker of a row by `WORKER_COLUMNS`."""
    return WorkerRow(
        id=row[0],
        token=row[1],
        name=row[2],
        identity=Identity(row[3], row[4], row[5], row[6], unsigned(row[7]), unsigned(row[8])),
        lanes=None if row[9] is None else words_of(row[9]),
        slots=row[10],
        interval_s=row[11],
        started_at=row[12],
        heartbeat_at=row[13],
        heartbeat_boot=row[14],
    )

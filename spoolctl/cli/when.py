"""Points in time, as people and programs write them."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, timezone

from spoolctl.cli.values import BadValue
from spoolctl.core import checks
from spoolctl.errors import InvalidInput

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d+))?)?"
ISO = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})"
    rf"(?:[Tt ]{CLOCK}\s?(?P<zone>[Zz]|[+-]\d{{2}}(?::?\d{{2}})?)?)?",
    re.ASCII,
)
NEXT = re.compile(rf"(?:(?P<word>yesterday|today|tomorrow)(?: +|$))?(?:{CLOCK})?", re.ASCII)

HINT = (
    "write epoch seconds, 2026-12-24T18:00:00Z, 2026-12-24 18:00 (local time), 23:59, or "
    "'tomorrow 9:00'"
)


DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}


def timestamp(text: str, *, now: datetime | None = None, past: bool = False) -> float:
    """Epoch seconds from a number, an ISO date and time, a clock time or `tomorrow 9:00`.

    Without a zone the local one of this process holds. A clock time alone is the next one,
    with `past` the last one. `now` is for tests.

    Raises:
        InvalidInput: the text is no time, or one that the clocks of the zone skip.
    """
    try:
        seconds = _seconds(text, now or datetime.now(), past)
        checks.number("timestamp_epoch_seconds", seconds)
    except (ValueError, OverflowError, OSError) as error:
        if isinstance(error, BadValue):
            raise
        why = str(error) if isinstance(error, InvalidInput) else f"is no time: {error}"
        raise BadValue(f"{text[:60]!r} {why}", remediation=HINT) from None
    return seconds


def _seconds(text: str, now: datetime, past: bool) -> float:
    if NUMBER.fullmatch(text):
        if len(text) in (4, 8) and text.isdigit():
            raise BadValue(
                f"{text!r} looks like a date; as epoch seconds it is not accepted",
                remediation=f"{HINT}; epoch seconds may be written as {text}.0",
            )
        return float(text)
    iso = ISO.fullmatch(text)
    if iso:
        return _from_iso(iso)
    near = NEXT.fullmatch(text) if text else None
    if near:
        return _from_clock(near, now, past)
    raise BadValue(f"{text[:60]!r} is no time", remediation=HINT)


def _clock(match: re.Match[str]) -> time:
    microseconds = int((match["fraction"] or "0")[:6].ljust(6, "0"))
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    return time(hour, minute, second, microseconds)


def _from_iso(match: re.Match[str]) -> float:
    day = date(int(match["year"]), int(match["month"]), int(match["day"]))
    if match["hour"] is None:
        return _start_of(day)
    moment = datetime.combine(day, _clock(match))
    zone = match["zone"]
    if not zone:
        return _local(moment)
    if zone in "Zz":
        return moment.replace(tzinfo=timezone.utc).timestamp()
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError("a zone's offset has at most 23 hours and 59 minutes")
    offset = timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
    return moment.replace(tzinfo=timezone(offset)).timestamp()


def _from_clock(match: re.Match[str], now: datetime, past: bool) -> float:
    """`23:59` is the next one, or the last one; `tomorrow` alone is midnight."""
    word, clock = match["word"], _clock(match)
    if word is not None:
        day = now.date() + timedelta(days=DAYS[word])
        return _start_of(day) if match["hour"] is None else _local(datetime.combine(day, clock))
    now_s = now.timestamp()
    for days in range(3):  # one day may have no such time: the clocks skip it
        day = now.date() + timedelta(days=-days if past else days)
        for seconds in _occurrences(datetime.combine(day, clock)):
            if past is (seconds <= now_s):
                return seconds
    raise ValueError("the clocks of the local zone skip it")


def _start_of(day: date) -> float:
    """Midnight, or the end of what the clocks skip there."""
    return datetime.combine(day, time()).timestamp()


def _local(moment: datetime) -> float:
    """Of a time that occurs twice (the clocks were set back) the first."""
    for seconds in _occurrences(moment):
        return seconds
    raise ValueError("the clocks of the local zone skip it")


def _occurrences(moment: datetime) -> list[float]:
    """When the local clocks show this time: once, twice, or never."""
    found = sorted({moment.replace(fold=fold).timestamp() for fold in (0, 1)})
    # An hour that the clocks skip comes back as another one.
    shown = moment.replace(microsecond=0)
    return [seconds for seconds in found if datetime.fromtimestamp(seconds // 1) == shown]

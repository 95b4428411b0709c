"""Texts from the command line into values, by the type that the spec gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spoolctl.core import checks
from spoolctl.core.limits import LIMITS
from spoolctl.core.tuples import NamedTuple
from spoolctl.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Described(Protocol):
        """What `convert` reads of a `Flag` or `Positional`."""

        @property
        def type(self) -> str: ...
        @property
        def limit(self) -> str | None: ...
        @property
        def choices(self) -> tuple[str, ...] | None: ...


DIGITS = frozenset("0123456789")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
EPOCH_DIGITS = 9
"""Epoch seconds of the last fifty years have at least so many."""

MOMENT_HINT = (
    "write how long ago with its unit (90s, 1h30m, 2d), or a time: 9:00 (the last one), "
    "'yesterday 18:00', 2026-12-24 18:00, or epoch seconds"
)
SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class BadValue(InvalidInput):
    """A text that is no value of the type; with the spelling that was probably meant."""

    def __init__(
        self, message: str, *, did_you_mean: str | None = None, remediation: str | None = None
    ) -> None:
        super().__init__(message)
        self.did_you_mean = did_you_mean
        self.remediation = remediation


def convert(spec: Described, text: str) -> Any:
    """The value that `text` stands for.

    Raises:
        InvalidInput: it stands for none.
    """
    checks.text(text)
    if text in getattr(spec, "words", ()):
        return text
    return CONVERTERS[spec.type](spec, text)


def from_json(spec: Described, value: object) -> Any:
    """The value that a JSON value stands for: a text as on the command line, a number, or,
    where the flag takes several with commas, a list of these.

    Raises:
        InvalidInput: it stands for none.
    """
    if isinstance(value, list) and _takes_list(spec):
        if not value:
            if getattr(spec, "check", None) == "capture_env":
                return ()  # as it is printed for `none`
            raise InvalidInput("must not be empty")
        return convert(spec, ",".join(_word(each) for each in value))
    return convert(spec, _word(value))


def _takes_list(spec: Described) -> bool:
    return spec.type.endswith(("_csv", "_codes")) or getattr(spec, "check", None) == "capture_env"


def _word(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidInput("must be text or a number")
    return value if isinstance(value, str) else repr(value)


def closest(word: str, candidates: Sequence[str]) -> str | None:
    """The candidate at edit distance 1 from `word`, if there is one."""
    return next((each for each in sorted(candidates) if _one_edit(word, each)), None)


def _one_edit(a: str, b: str) -> bool:
    if len(a) > len(b):
        a, b = b, a
    if len(b) - len(a) > 1 or a == b:
        return False
    at = next((i for i in range(len(a)) if a[i] != b[i]), len(a))
    return a[at:] == b[at + 1 :] if len(a) < len(b) else a[at + 1 :] == b[at + 1 :]


def integer(text: str) -> int:
    """An optional sign and decimal digits, nothing else."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if not body or not DIGITS.issuperset(body):
        raise BadValue(f"{_short(text)} is no integer")
    # int() of a very long text is slow, and an error of its own since Python 3.11.
    if len(body.lstrip("0")) > 19:
        raise BadValue(f"{_short(text)} is out of range")
    return int(text)


def _integer(spec: Described, text: str) -> int:
    try:
        value = integer(text)
        if spec.limit is not None:
            _in_range(spec.limit, value, text)
    except BadValue as error:
        if spec.limit == "timeout_seconds":
            error.remediation = _seconds_hint(text)
        raise
    return value


def _seconds_hint(text: str) -> str:
    """What may have been meant by a time limit that is none: `5m`, or 0 for no limit."""
    parts = _duration_parts(text) or []
    meant = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if meant >= 1 and meant == int(meant):
        return f"write whole seconds, without a unit: {int(meant)}"
    return "write whole seconds, at least 1; --no-timeout is for no limit"


def _float(spec: Described, text: str) -> float:
    if not text or not frozenset("0123456789.eE+-").issuperset(text):
        raise BadValue(f"{_short(text)} is no number")
    try:
        value = float(text)
    except ValueError:
        raise BadValue(f"{_short(text)} is no number") from None
    if spec.limit is not None:
        _in_range(spec.limit, value, text)
    return value


def _in_range(limit: str, value: float, text: str) -> None:
    try:
        checks.number(limit, value)
    except InvalidInput as error:
        raise BadValue(f"{_short(text)} is out of range: it {error}") from None


def duration(text: str) -> float:
    """Seconds from `90`, `1.5h`, `.5`, `2.`, or several units as in `1h30m`."""
    parts = _duration_parts(text)
    if parts is None:
        raise BadValue(
            f"{_short(text)} is no duration",
            remediation="write seconds, or a number with s, m, h or d: 90, 1.5h, 1h30m",
        )
    total = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    _in_range("duration_seconds", total, text)
    return total


def _duration_parts(text: str) -> list[tuple[str, str]] | None:
    """Pairs of number and unit, or None if the text is no duration."""
    parts: list[tuple[str, str]] = []
    number = ""
    for char in text:
        if char in DIGITS or char == ".":
            number += char
        elif char in UNITS_S and _is_decimal(number):
            # Several units: each once, the larger first.
            if parts and UNITS_S[char] >= UNITS_S[parts[-1][1]]:
                return None
            parts.append((number, char))
            number = ""
        else:
            return None
    if number:
        if parts or not _is_decimal(number):
            return None
        parts.append((number, "s"))
    return parts or None


def _is_decimal(text: str) -> bool:
    """Digits with at most one point, which may stand first or last."""
    return DIGITS.issuperset(text.replace(".", "", 1)) and text not in ("", ".")


def _timestamp(spec: Described, text: str) -> Any:
    # Dates need `datetime` and regular expressions: a module of its own, for the few who use it.
    from spoolctl.cli.when import timestamp

    return timestamp(text)


def _moment(spec: Described, text: str) -> float:
    """Epoch seconds of a time that has passed, or is so long ago.

    A bare number is neither, unless it is so large that it can only be epoch seconds.
    """
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    digits = unsigned.partition(".")[0]
    if DIGITS.issuperset(unsigned.replace(".", "", 1)) and len(digits) < EPOCH_DIGITS:
        raise BadValue(f"{_short(text)} is neither so long ago nor a time", remediation=MOMENT_HINT)
    if len(digits) < EPOCH_DIGITS and _duration_parts(text) is not None:
        import time

        return time.time() - duration(text)
    from spoolctl.cli.when import timestamp

    try:
        return timestamp(text, past=True)
    except BadValue as error:
        raise BadValue(str(error), remediation=MOMENT_HINT) from None


def size(text: str) -> int:
    """Bytes from `4096`, `64K`, `10M`, `1G` (powers of 1024)."""
    unit = text[-1:].upper()
    unit, body = (unit, text[:-1]) if unit in SIZES and unit else ("", text)
    if not body or not DIGITS.issuperset(body):
        raise BadValue(f"{_short(text)} is no size", remediation="write bytes, or 64K, 10M, 1G")
    return integer(body) * SIZES[unit]


def _size(spec: Described, text: str) -> int:
    value = size(text)
    if spec.limit is not None:
        _in_range(spec.limit, value, text)
    return value


def _enum(spec: Described, text: str) -> str:
    choices = spec.choices or ()
    if text not in choices:
        raise BadValue(
            f"{_short(text)} is not one of {', '.join(choices)}",
            did_you_mean=closest(text, choices),
        )
    return text


def _enum_csv(spec: Described, text: str) -> tuple[str, ...]:
    words = [word.strip(" ") for word in text.split(",")]
    return tuple(dict.fromkeys(_enum(spec, word) for word in words))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadValue(f"{_short(text)} is not KEY=VALUE")
    return key, value


def _tag(text: str) -> tuple[str, str]:
    return checks.tag(*_pair(text))


def _env(text: str) -> tuple[str, str]:
    return checks.env(*_pair(text))


def _tag_filter(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    return checks.tag(key, value) if equals else (checks.tag_name(key), None)


def _exit_codes(spec: Described, text: str) -> tuple[tuple[int, int], ...]:
    """Inclusive ranges from `2,64-78`."""
    ranges: list[tuple[int, int]] = []
    for word in text.split(","):
        low, dash, high = word.strip(" ").partition("-")
        first = integer(low)
        last = integer(high) if dash else first
        if not 1 <= first <= last <= 255:
            raise BadValue(f"{_short(word)} is no exit code or range of them in 1-255")
        ranges.append((first, last))
    return tuple(ranges)


def _durations(spec: Described, text: str) -> tuple[float, ...]:
    return tuple(duration(word.strip(" ")) for word in text.split(","))


def _capture_env(text: str) -> tuple[str, ...] | str:
    """`all`, `none` (an empty tuple), or names, each of which may end in `*`."""
    if text == "all":
        return text
    names = () if text == "none" else tuple(name.strip(" ") for name in text.split(","))
    return tuple(checks.env(name, "")[0] for name in names)


CHECKED: dict[str, Callable[[str], Any]] = {
    "tag": _tag,
    "env": _env,
    "tag_filter": _tag_filter,
    "key": checks.key,
    "note": checks.note,
    "worker_id": checks.worker_id,
    "path": checks.path,
    "capture_env": _capture_env,
    "program": lambda text: checks.argv((text,))[0],
}
"""Further checks of a string or pair, by the `check` of its flag."""


def _string(spec: Described, text: str) -> Any:
    check = getattr(spec, "check", None)
    return CHECKED[check](text) if check else text


CONVERTERS: dict[str, Callable[[Described, str], Any]] = {
    "string": _string,
    "integer": _integer,
    "float": _float,
    "fraction": _float,
    "path": lambda _, text: checks.path(text),
    "duration": lambda _, text: duration(text),
    "timestamp": _timestamp,
    "moment": _moment,
    "queue": lambda _, text: checks.queue_name(text),
    "key_value": _string,
    "enum": _enum,
    "enum_csv": _enum_csv,
    "size": _size,
    "duration_csv": _durations,
    "exit_codes": _exit_codes,
}


class Probe(NamedTuple):
    """Sample texts of one type, for those who test the interface."""

    valid: str
    invalid: tuple[str, ...]


PROBES: dict[str, Probe] = {
    "integer": Probe("1", ("", "abc", "1.0", "1_000", "0x10", " 1")),
    "float": Probe("0.5", ("", "abc", "nan", "inf", "0", "-1", "1e999")),
    "fraction": Probe("0.5", ("", "abc", "nan", "inf")),
    "duration": Probe("90s", ("", "abc", "-1", "1e3", "5w", "1 h")),
    "timestamp": Probe(
        "2031-01-02T03:04:05Z", ("", "abc", "nan", "2031", "20310102", "2031-13-01")
    ),
    "moment": Probe("1h30m", ("", "abc", "-1", "90", "2031", "1e9", "nan")),
    "queue": Probe("default", ("", "-x", "a b", "a" * (LIMITS["queue_name"].maximum + 1))),
    "key_value": Probe("key=value", ("", "=value")),
    "path": Probe("queue.db", ("",)),
    "size": Probe("64K", ("", "abc", "-1", "1.5M")),
    "exit_codes": Probe("2,64-78", ("", "abc", "0", "78-64", "256")),
    "duration_csv": Probe("10,30,1m", ("", "abc", "1,,2")),
}
"""Type -> samples; strings and choices have none of their own."""


def _short(text: str) -> str:
    """The text quoted for a message, cut where it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")

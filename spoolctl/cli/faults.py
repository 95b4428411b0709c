"""What happens to malformed values: found out by asking the converters, never by heart."""

from __future__ import annotations

from spoolctl.cli.codes import ERRORS
from spoolctl.cli.spec import Flag, Positional, Verb
from spoolctl.cli.values import PROBES, convert
from spoolctl.core.limits import LIMITS
from spoolctl.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

Json: TypeAlias = "dict[str, Any]"


def expect(code: str) -> Json:
    """What a fault leads to."""
    return {"code": code, "exit_code": ERRORS[code].exit_code}


INVALID = expect("INVALID_INPUT")


def expectations(each: Flag | Positional, verb: Verb | None) -> Json:
    """Fault -> error code and exit status; empty for a flag without value.

    `missing_value`: the flag stands last, or before another flag. `missing`: a required
    flag or positional is not there. The others are values, see `samples`.
    """
    found: Json = {}
    if isinstance(each, Flag):
        if each.type == "boolean":
            return {}
        found["missing_value"] = INVALID
        if each.required:
            found["missing"] = expect("MISSING_REQUIRED")
        if verb is not None and each.name in verb.replaces_positional and each.type == "string":
            found["blank"] = expect("MISSING_REQUIRED")
    elif each.required:
        found["missing"] = expect("MISSING_REQUIRED")
    return {**found, **dict.fromkeys(samples(each), INVALID)}


def samples(each: Flag | Positional) -> dict[str, str]:
    """Fault -> a text that shows it, for those faults that the converter refuses."""
    return {name: text for name, text in _candidates(each).items() if _refused(each, text)}


def _candidates(each: Flag | Positional) -> dict[str, str]:
    found = {"empty": ""}
    if each.choices:
        found["not_a_choice"] = "nonesuch"
        if each.type == "enum_csv":
            found["empty_word"] = f"{each.choices[0]},,{each.choices[-1]}"
    elif each.type in PROBES:
        malformed = next((text for text in PROBES[each.type].invalid if text), None)
        if malformed is not None:
            found["malformed"] = malformed
    name = limit_of(each)
    if name is None:
        return found
    limit = LIMITS[name]
    if limit.type == "length":
        found["too_long"] = "x" * (limit.maximum + 1)
    elif each.type in ("integer", "float", "fraction", "size"):
        found["below_minimum"] = str(limit.minimum if limit.exclusive else limit.minimum - 1)
        found["above_maximum"] = str(limit.maximum + 1)
    return found


IMPLIED_LIMITS = {
    "path": "cwd_length",
    "queue": "queue_name",
    "duration": "duration_seconds",
    "timestamp": "timestamp_epoch_seconds",
    "moment": "timestamp_epoch_seconds",
    "note": "note_length",
    "key": "idempotency_key_length",
    "worker_id": "worker_id_length",
}
"""Type, or further check of a string -> the limit that its values have everywhere."""


def limit_of(each: Flag | Positional) -> str | None:
    """The name of the limit of a value's range or length; None if it has none, or several."""
    return each.limit or IMPLIED_LIMITS.get(getattr(each, "check", None) or each.type)


def _refused(each: Flag | Positional, text: str) -> bool:
    try:
        convert(each, text)
    except InvalidInput:
        return True
    return False

"""What names, keys and texts may look like; shared by the command line and the Python API.

Every function returns the value to use and raises InvalidInput with a sentence that names
the rule. Lengths are in characters and stand in `core.limits`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from spoolctl.core.limits import LIMITS, MAX_INT, Limit
from spoolctl.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeGuard, TypeVar

    T = TypeVar("T")

# What a column holds: for bounds of a search, and times that mean no more than `at once`.
_RANGES = {**LIMITS, "any": Limit("float", -MAX_INT - 1, MAX_INT)}

_MOST_BYTES = 4  # that a character takes in UTF-8
_ALNUM = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def number(name: str, value: int | float) -> None:
    """Check that a number is in the range of the limit `name`, or in that of a column: `any`."""
    limit = _RANGES[name]
    low_ok = value > limit.minimum if limit.exclusive else value >= limit.minimum
    # Written so that NaN, which compares false with everything, is refused.
    if not (low_ok and value <= limit.maximum):
        above = "above" if limit.exclusive else "from"
        raise InvalidInput(f"must be {above} {limit.minimum} up to {limit.maximum}")


def integer(name: str, value: object) -> int:
    """Check that a value is an integer (no bool) in the range of the limit `name`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput("must be an integer")
    number(name, value)
    return value


def seconds(name: str, value: object) -> float:
    """Check that a value is a finite number (no bool) in the range of the limit `name`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidInput("must be a number")
    number(name, value)
    return float(value)


def text(value: object, *, nul: bool = False) -> str:
    """Check that a value is a string that can be stored: valid Unicode, and without NUL
    characters unless `nul` allows them."""
    if not isinstance(value, str):
        raise InvalidInput("must be text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInput("is not valid UTF-8") from None
    if not nul and "\0" in value:
        raise InvalidInput("contains a NUL character")
    return value


def _length(name: str, value: str) -> str:
    limit = LIMITS[name]
    if not limit.minimum <= len(value) <= limit.maximum:
        raise InvalidInput(
            f"must have {limit.minimum} to {limit.maximum} characters, has {len(value)}"
        )
    return value


def _consists_of(value: str, characters: str) -> bool:
    return not value.strip(characters)


def _is_list(value: object) -> TypeGuard[Iterable[Any]]:
    return hasattr(value, "__iter__") and not isinstance(value, (str, bytes))


def queue_name(value: object) -> str:
    """A queue's name: 1-64 of letters, digits, `.`, `_`, `-`, beginning with one of the first."""
    name = _length("queue_name", text(value))
    if name[0] not in _ALNUM or not _consists_of(name, _ALNUM + "._-"):
        raise InvalidInput(
            f"{name!r} is no queue name: letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit"
        )
    return name


def key(value: object) -> str:
    """An idempotency key; white space around it is removed."""
    stripped = _length("idempotency_key_length", text(value).strip())
    if not stripped.isprintable():
        raise InvalidInput("a key has printable characters only")
    return stripped


def worker_id(value: object) -> str:
    """A worker's name: printable characters."""
    name = _length("worker_id_length", text(value))
    if not name.isprintable():
        raise InvalidInput("a worker id has printable characters only")
    return name


def note(value: object) -> str:
    """A note: any text."""
    return _length("note_length", text(value, nul=True))


def path(value: object) -> str:
    """A path: 1-4096 characters, valid Unicode, no NUL."""
    return _length("cwd_length", text(value))


def file_path(value: object) -> str:
    """A path as `os` takes them, as text."""
    if isinstance(value, bool) or not isinstance(value, (str, bytes, os.PathLike)):
        raise InvalidInput("must be a path")
    name = os.fsdecode(value)
    if "\0" in name:
        raise InvalidInput("contains a NUL character")
    return name


def tag(tag_key: object, value: object) -> tuple[str, str]:
    """A tag's key and value."""
    return tag_name(tag_key), _length("tag_value_length", text(value, nul=True))


def tag_name(tag_key: object) -> str:
    """A tag's key."""
    name = _length("tag_key_length", text(tag_key))
    if not _consists_of(name, _ALNUM + "_.:-"):
        raise InvalidInput(f"{name!r} is no tag key: letters, digits, '_', '.', ':' and '-'")
    return name


def env(name: object, value: object) -> tuple[str, str]:
    """An environment variable's name and value."""
    variable = _length("env_key_length", text(name))
    if "=" in variable:
        raise InvalidInput("the name of a variable contains no '='")
    return variable, _length("env_value_length", text(value))


def argv(words: object) -> tuple[str, ...]:
    """A command: a non-empty sequence of words, the first of them not empty.

    Bounded because Linux refuses to start what is longer (E2BIG), in all or in one word;
    found out at submission instead of at the first attempt.
    """
    # Of a mapping or a set the words would come in whatever order.
    if not _is_list(words) or isinstance(words, (dict, set, frozenset)):
        raise InvalidInput("a command is a list of words")
    checked = tuple(map(text, words))
    if not checked:
        raise InvalidInput("a command has at least one word")
    if not checked[0]:
        raise InvalidInput("the first word of a command names a program and cannot be empty")
    longest = LIMITS["argv_word_bytes"].maximum
    if _MOST_BYTES * (sum(map(len, checked)) + len(checked)) <= longest:
        return checked  # no need to look closer
    sizes = [len(word.encode()) for word in checked]
    if sum(sizes) + len(sizes) > LIMITS["argv_bytes"].maximum:
        raise InvalidInput(f"a command has at most {LIMITS['argv_bytes'].maximum} bytes")
    if max(sizes) > longest and sys.platform == "linux":
        raise InvalidInput(
            f"a word of a command has at most {longest} bytes, one has {max(sizes)}: "
            "Linux starts none that is longer (a file or stored input has room)"
        )
    return checked


# -- with the name of the parameter, for callers in Python ------------------------------------


def named(name: str, check: Callable[..., T], *values: Any) -> T:
    """What `check` makes of the values; what it has to say begins with the parameter's name."""
    try:
        return check(*values)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None


def whole(name: str, value: object, limit: str) -> int:
    """Check that the parameter `name` is an integer in the range of `limit`."""
    return named(name, integer, limit, value)


def maybe_whole(name: str, value: object, limit: str) -> int | None:
    """The same, or None."""
    return None if value is None else named(name, integer, limit, value)


def span(name: str, value: object, limit: str) -> float:
    """Check that the parameter `name` is a number in the range of `limit`."""
    return named(name, seconds, limit, value)


def maybe_span(name: str, value: object, limit: str) -> float | None:
    """The same, or None."""
    return None if value is None else named(name, seconds, limit, value)


def one_of(name: str, value: T | None, short: str, other: T | None) -> T | None:
    """The value of a parameter that has a short name, too, by whichever it was given."""
    if value is not None and other is not None:
        raise InvalidInput(f"{name} and {short} are the same: give one of them")
    return other if value is None else value


def job_id(value: object) -> int:
    """Check that a job's id is one."""
    return named("job_id", integer, "id", value)


def items(name: str, values: object) -> tuple[Any, ...]:
    """Check that the parameter `name` is a sequence of values, and no text."""
    if not _is_list(values):
        raise InvalidInput(f"{name}: must be a list")
    return tuple(values)


def pairs(name: str, values: object) -> tuple[tuple[Any, Any], ...]:
    """Check that the parameter `name` is a mapping, or a list of pairs."""
    found = values.items() if isinstance(values, Mapping) else items(name, values)
    if any(
        isinstance(each, str) or not hasattr(each, "__len__") or len(each) != 2 for each in found
    ):
        raise InvalidInput(f"{name}: must be a mapping or a list of pairs")
    return tuple((key, value) for key, value in found)

"""Defaults for flags, as the config file may set them: all there is to know of them.

The flags themselves say which key is theirs (`Flag.config`); this collects them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from spoolctl.cli import shapes
from spoolctl.cli.app import configured
from spoolctl.cli.spec import Flag, JsonSchema, load
from spoolctl.cli.values import closest
from spoolctl.cli.verbs import VERBS
from spoolctl.core.retry import DEFAULT_POLICY
from spoolctl.core.tuples import NamedTuple
from spoolctl.engine.options import WorkOptions
from spoolctl.submission import CAPTURED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.config import Location


class Setting(NamedTuple):
    """A key of the config file: the flag whose rules it follows, and all flags that use it."""

    key: str
    flag: Flag
    users: tuple[str, ...]


UNSAID: dict[str, Any] = {
    "capture_env": CAPTURED,
    "jitter": DEFAULT_POLICY.jitter,
    "max_output": WorkOptions().max_output_bytes,
    "poll_interval": WorkOptions().poll_interval_s,
    "retry_max_delay": DEFAULT_POLICY.max_delay_s,
}
"""What holds where neither a flag nor the file says anything, and the flag has no default of
its own (it is not a value of the flag, but what is done without)."""


@cache
def settings() -> dict[str, Setting]:
    """All keys, sorted, but `version` and `db_path`."""
    found: dict[str, Setting] = {}
    for name in VERBS:
        for flag in load(name).flags:
            if flag.config is not None:
                known = found.get(flag.config, Setting(flag.config, flag, ()))
                users = (*known.users, f"{name} {flag.name}")
                found[flag.config] = known._replace(users=users)
    return dict(sorted(found.items()))


def recognized_keys() -> tuple[str, ...]:
    """Every key that means something, besides `version`."""
    return ("db_path", *settings())


def unknown(said: Iterable[str]) -> tuple[str, ...]:
    """Keys among those of a file that mean nothing, sorted."""
    return tuple(sorted(set(said).difference(recognized_keys())))


def meant(key: str) -> str | None:
    """The key that was probably meant."""
    similar = key.replace("-", "_").lower()
    return similar if similar in recognized_keys() else closest(similar, recognized_keys())


def values(location: Location) -> tuple[dict[str, Any], dict[str, str]]:
    """What holds for each key, and where it comes from.

    Raises:
        ConfigBroken: a value is bad.
    """
    said = check(location.config_path, location.settings)
    holding = {key: said.get(key, default(each)) for key, each in settings().items()}
    return holding, {key: "project_config" if key in said else "default" for key in holding}


def check(path: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all keys that the config file at `path` has, and that mean something.

    Raises:
        ConfigBroken: one is bad.
    """
    known = [each for key, each in settings().items() if key in said]
    return {each.key: configured(path, said, each.flag) for each in known}


def default(setting: Setting) -> Any:
    """What holds without a config file; None where that is nothing."""
    return UNSAID.get(setting.key, setting.flag.default)


def schema(setting: Setting) -> JsonSchema:
    """What a value looks like in JSON."""
    flag = setting.flag
    shape = {
        "duration": shapes.NUMBER,
        "duration_csv": shapes.array(shapes.NUMBER, minItems=1),
        "enum": shapes.words(flag.choices or ("",)),
        "float": shapes.NUMBER,
        "fraction": shapes.NUMBER,
        "integer": shapes.INTEGER,
        "size": shapes.INTEGER,
    }.get(flag.type, shapes.TEXT)
    if flag.check == "capture_env":
        shape = {"anyOf": [{"const": "all"}, shapes.STRINGS]}
    if flag.words:
        shape = {"anyOf": [shape, {"enum": list(flag.words)}]}
    return shapes.nullable(shape) if flag.config_null or default(setting) is None else shape


def plain(value: Any) -> Any:
    """A value as it is printed in JSON."""
    return list(value) if isinstance(value, tuple) else value


def text(value: Any) -> str:
    """A value for people; durations in seconds, sizes in bytes."""
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return ", ".join(each if isinstance(each, str) else f"{each:.15g}" for each in value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)

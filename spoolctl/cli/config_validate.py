"""`spoolctl config-validate`: is the project's config file one that spoolctl understands?"""

from __future__ import annotations

from spoolctl.cli import shapes
from spoolctl.cli.config_show import yes
from spoolctl.cli.render import visible
from spoolctl.cli.spec import COMMON, JsonSchema, Positional, Verb
from spoolctl.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args

FORMAT = "json"
SCHEMA_VERSION = 1


class UnknownKeys(InvalidInput):
    """The config file has keys that mean nothing to spoolctl."""

    def __init__(self, path: str, keys: tuple[str, ...]) -> None:
        from spoolctl.cli.settings import meant, recognized_keys

        names = ", ".join(repr(key) for key in keys)
        super().__init__(f"the config file {path} has unknown keys: {names}")
        hints = [f"{key!r} may be meant to be {meant(key)!r}; " for key in keys if meant(key)]
        known = ", ".join(("version", *recognized_keys()))
        self.remediation = f"{''.join(hints)}remove them; known are: {known}"


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli.settings import recognized_keys

    return shapes.closed(
        config_path=shapes.TEXT,
        exists=shapes.BOOLEAN,
        valid={"const": True},
        format={"const": FORMAT},
        schema_version={"const": SCHEMA_VERSION},
        recognized_keys={"const": list(recognized_keys())},
        unknown_keys={"type": "array", "items": shapes.STRING, "maxItems": 0},
    )


VERB = Verb(
    name="config-validate",
    description="Check the config file (default: .spoolctl/config.json, looked for upwards as "
    "always), strictly: unknown keys, which are ignored otherwise, are errors here, and every "
    "value is checked by the rules of its flag. A file that does not exist is valid.",
    data_schema="The file, whether it exists, and the keys that may stand in it.",
    schema=schema,
    flags=COMMON,
    positionals=(Positional("path", "?", "path", "the config file to check", metavar="PATH"),),
    examples=(
        ("spoolctl", "config-validate"),
        ("spoolctl", "config-validate", "other/config.json", "--json"),
    ),
)


def run(args: Args, app: App) -> int:
    """Check one config file."""
    from spoolctl.cli.settings import check, recognized_keys, unknown
    from spoolctl.config import ConfigBroken, find_config, read_config, read_found, resolve

    found = args.path or find_config()
    path = resolve(found, "an absolute PATH")
    try:
        config = read_config(path) if args.path else read_found(found)
        if config is not None:
            check(path, config.settings)
    except ConfigBroken as broken:
        broken.remediation = "repair or remove the config file"
        raise
    if config is not None and unknown(config.settings):
        raise UnknownKeys(path, unknown(config.settings))
    data: dict[str, Any] = {
        "config_path": path,
        "exists": config is not None,
        "valid": True,
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "recognized_keys": list(recognized_keys()),
        "unknown_keys": [],
    }
    lines = [
        f"config_path: {visible(path)}",
        f"exists: {yes(config is not None)}",
        "valid: yes",
        f"format: {FORMAT}",
        f"schema_version: {SCHEMA_VERSION}",
    ]
    return app.show(data, "\n".join(lines))

"""`spoolctl config-show`: which queue is used, and why that one."""

from __future__ import annotations

from spoolctl.cli import shapes
from spoolctl.cli.render import visible
from spoolctl.cli.spec import COMMON, DB, JsonSchema, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.config import SOURCES

    return shapes.closed(
        config_path=shapes.TEXT,
        config_exists=shapes.BOOLEAN,
        config_valid=shapes.BOOLEAN,
        values=shapes.closed(db_path=shapes.TEXT),
        sources=shapes.closed(db_path=shapes.words(SOURCES)),
        precedence={"const": list(SOURCES)},
        ignored_keys=shapes.STRINGS,
    )


VERB = Verb(
    name="config-show",
    description="Show which file is the queue here, and which of --db, SPOOLCTL_DB, the config "
    "file and the default has named it. Opens and creates nothing; whether the file can be used "
    "is for `doctor` to say.",
    data_schema="The config file that was looked for, and each value with its source.",
    schema=schema,
    flags=(DB, *COMMON),
    examples=(("spoolctl", "config-show"), ("spoolctl", "config-show", "--json")),
)


def run(args: Args, app: App) -> int:
    """Show where the queue is, and why there."""
    from spoolctl.config import SOURCES

    found = app.location
    data: dict[str, Any] = {
        "config_path": found.config_path,
        "config_exists": found.config_exists,
        "config_valid": found.config_valid,
        "values": {"db_path": found.path},
        "sources": {"db_path": found.source},
        "precedence": list(SOURCES),
        "ignored_keys": list(found.ignored_keys),
    }
    lines = [
        f"config_path: {visible(found.config_path)}",
        f"config_exists: {yes(found.config_exists)}",
        f"config_valid: {yes(found.config_valid)}",
        f"db_path: {visible(found.path)}",
        f"db_source: {found.source}",
    ]
    if found.ignored_keys:
        lines.append(f"ignored_keys: {visible(', '.join(found.ignored_keys))}")
    return app.show(data, "\n".join(lines))


def yes(value: bool) -> str:
    """A yes or no for people."""
    return "yes" if value else "no"

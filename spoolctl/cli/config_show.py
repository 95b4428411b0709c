"""`spoolctl config-show`: which queue is used, which defaults hold, and why these."""

from __future__ import annotations

from spoolctl.cli import shapes
from spoolctl.cli.render import visible
from spoolctl.cli.spec import COMMON, DB, JsonSchema, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.config import Location


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import settings
    from spoolctl.config import SOURCES

    known = settings.settings()
    of_settings = {key: settings.schema(each) for key, each in known.items()}
    origin = shapes.words(("project_config", "default"))
    return shapes.closed(
        config_path=shapes.TEXT,
        config_exists=shapes.BOOLEAN,
        config_valid=shapes.BOOLEAN,
        values=shapes.closed(db_path=shapes.TEXT, **of_settings),
        sources=shapes.closed(db_path=shapes.words(SOURCES), **dict.fromkeys(known, origin)),
        precedence={"const": list(SOURCES)},
        ignored_keys=shapes.STRINGS,
    )


VERB = Verb(
    name="config-show",
    description="Show which file is the queue here, and which of --db, SPOOLCTL_DB, the config "
    "file and the default has named it; and the defaults for flags that hold here, with the "
    "source of each. Opens and creates nothing; whether the file can be used is for `doctor` to "
    "say.",
    data_schema="The config file that was looked for, and each value with its source.",
    schema=schema,
    flags=(DB, *COMMON),
    examples=(("spoolctl", "config-show"), ("spoolctl", "config-show", "--json")),
)


def run(args: Args, app: App) -> int:
    """Show where the queue is, what holds there, and why."""
    from spoolctl.cli import settings
    from spoolctl.config import SOURCES

    found, values, sources = _holding(app)
    ignored = settings.unknown(found.settings)
    data: dict[str, Any] = {
        "config_path": found.config_path,
        "config_exists": found.config_exists,
        "config_valid": found.config_valid,
        "values": {
            "db_path": found.path,
            **{key: settings.plain(value) for key, value in values.items()},
        },
        "sources": {"db_path": found.source, **sources},
        "precedence": list(SOURCES),
        "ignored_keys": list(ignored),
    }
    lines = [
        f"config_path: {visible(found.config_path)}",
        f"config_exists: {yes(found.config_exists)}",
        f"config_valid: {yes(found.config_valid)}",
        f"db_path: {visible(found.path)}",
        f"db_source: {found.source}",
    ]
    if ignored:
        lines.append(f"ignored_keys: {visible(', '.join(ignored))}")
    lines += [
        f"{key}: {visible(settings.text(value))} ({sources[key]})" for key, value in values.items()
    ]
    return app.show(data, "\n".join(lines))


def _holding(app: App) -> tuple[Location, dict[str, Any], dict[str, str]]:
    """The queue's place, and each default with its source.

    Raises:
        ConfigBroken: the file is needed to find the queue, and has a bad value.
    """
    from spoolctl.cli import settings
    from spoolctl.config import ConfigBroken, without_config

    found = app.location
    try:
        return (found, *settings.values(found))
    except ConfigBroken as broken:
        found = without_config(found, broken)
        for sentence in found.remarks:
            app.warn("CONFIG_IGNORED", sentence)
        return (found, *settings.values(found))


def yes(value: bool) -> str:
    """A yes or no for people."""
    return "yes" if value else "no"

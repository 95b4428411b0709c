"""`spoolctl schema`: JSON Schemas of everything that is printed for programs."""

from __future__ import annotations

from spoolctl.cli import shapes
from spoolctl.cli.spec import COMMON, Flag, JsonSchema, Verb, load
from spoolctl.cli.verbs import VERBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args

DIALECT = "https://json-schema.org/draft/2020-12/schema"

VERB_FLAG = Flag(
    "--verb",
    "enum",
    "this verb only",
    metavar="NAME",
    choices=tuple(sorted(VERBS)),
)


def schemas(only: str | None = None) -> dict[str, Any]:
    """The schemas of all verbs' data, or of one; of the envelope, and of the streams."""
    from spoolctl.cli.envelope_shapes import envelope, events_follow

    names = sorted(VERBS) if only is None else [only]
    return {
        "dialect": DIALECT,
        "envelope_schema": envelope(),
        "verbs": {name: load(name).schema() for name in names},
        "streams": {"events_follow": events_follow()},
    }


def schema() -> JsonSchema:
    """What `data` looks like."""
    return shapes.closed(
        dialect={"const": DIALECT},
        envelope_schema=shapes.SCHEMA,
        verbs=shapes.keyed(sorted(VERBS), shapes.SCHEMA, complete=False),
        streams=shapes.closed(events_follow=shapes.SCHEMA),
    )


VERB = Verb(
    name="schema",
    description="Print JSON Schemas (Draft 2020-12) of the envelope, of every verb's data and of "
    "the frames of `events --follow --json`. All objects are closed: what is not declared is "
    "never printed. Text mode lists the verbs. Opens nothing.",
    data_schema="The dialect, the envelope, each verb's data, and the frames of streams.",
    schema=schema,
    flags=(VERB_FLAG, *COMMON),
    examples=(
        ("spoolctl", "schema", "--json"),
        ("spoolctl", "schema", "--json", "--verb", "feedback"),
    ),
)


def run(args: Args, app: App) -> int:
    """Print the schemas."""
    if not app.json:
        return app.show({}, "\n".join(VERB_FLAG.choices or ()) if args.verb is None else args.verb)
    return app.show(schemas(args.verb), "")

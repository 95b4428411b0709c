"""`spoolctl capabilities`: the whole interface, described for programs."""

from __future__ import annotations

from spoolctl.cli.schema import VERB_FLAG
from spoolctl.cli.spec import COMMON, JsonSchema, Verb
from spoolctl.cli.verbs import VERBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli.contract_shapes import capabilities as shape

    return shape()


VERB = Verb(
    name="capabilities",
    description="Describe this interface for programs: verbs with flags, ranges, defaults, "
    "examples and output schemas; states, events, error and exit codes; limits; environment "
    "variables; what malformed input leads to. Text mode lists the verbs. Deterministic; opens "
    "nothing.",
    data_schema="The description; `verbs` has an entry for each verb, or only for --verb NAME.",
    schema=schema,
    flags=(VERB_FLAG, *COMMON),
    examples=(
        ("spoolctl", "capabilities", "--json"),
        ("spoolctl", "capabilities", "--json", "--verb", "add"),
    ),
)


def run(args: Args, app: App) -> int:
    """Print the description."""
    from spoolctl.cli.contract import capabilities

    if app.json:
        return app.show(capabilities(args.verb), "")
    names = VERBS if args.verb is None else (args.verb,)
    return app.show({}, "\n".join(f"{name:<16} {VERBS[name].summary}" for name in names))

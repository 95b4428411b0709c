"""`spoolctl completion`: a script that completes spoolctl's words in bash, zsh or fish."""

from __future__ import annotations

from spoolctl.cli import shapes
from spoolctl.cli.spec import COMMON, DB, Flag, JsonSchema, Positional, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args

SHELLS = ("bash", "fish", "zsh")
KINDS = ("job", "queue")
NEWEST = 100
"""So many jobs are offered: more would not be read by anybody."""


def schema() -> JsonSchema:
    """What `data` looks like: a script, or values that may stand on the line."""
    return {
        "oneOf": [
            shapes.closed(shell={"enum": list(SHELLS)}, script=shapes.TEXT),
            shapes.closed(
                kind={"enum": list(KINDS)}, values={"type": "array", "items": shapes.STRING}
            ),
        ]
    }


VERB = Verb(
    name="completion",
    description="Print a script that makes the shell complete verbs, flags, choices, queue "
    "names and job ids. It is made from the same descriptions as the parser. To load it: "
    'eval "$(spoolctl completion bash)" or the same with zsh in the shell\'s start file; for '
    "fish, spoolctl completion fish | source.",
    data_schema="The script and its shell; or, with --values, the words of one kind.",
    schema=schema,
    flags=(
        Flag(
            "--values",
            "enum",
            "instead of a script, print what could stand on the line, one per line: job ids "
            "(newest first) or queue names; the scripts call this",
            metavar="KIND",
            choices=KINDS,
        ),
        DB,
        *COMMON,
    ),
    positionals=(
        Positional("shell", "1", "enum", "the shell to make a script for", choices=SHELLS),
    ),
    replaces_positional=("--values",),
    examples=(
        ("spoolctl", "completion", "bash"),
        ("spoolctl", "completion", "--values", "queue"),
    ),
)


def run(args: Args, app: App) -> int:
    """Print the script or the values."""
    if args.values is None:
        from spoolctl.cli.completion_scripts import script

        made = script(args.shell)
        return app.show({"shell": args.shell, "script": made}, made.rstrip("\n"))
    if args.shell is not None:
        from spoolctl.errors import InvalidInput

        raise InvalidInput("--values prints no script: give it or the shell, not both")
    values = _values(args.values, app)
    return app.show({"kind": args.values, "values": values}, "\n".join(values))


def _values(kind: str, app: App) -> list[str]:
    """Ids or names, from the queue if there is one; none, silently, if it is not usable."""
    from spoolctl.errors import SpoolError

    try:
        if kind == "job":
            return [str(job.id) for job in app.queue.jobs(limit=NEWEST)]
        return sorted(app.queue.counts().queues)
    except SpoolError:
        # Somebody is pressing the tab key: nothing to offer is the answer.
        return []

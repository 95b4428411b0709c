"""`spoolctl backup`: copy the queue while it is in use."""

from __future__ import annotations

from spoolctl.cli.render import visible
from spoolctl.cli.spec import COMMON, DB, JsonSchema, Positional, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes

    return shapes.closed(
        path=shapes.TEXT,
        size_bytes=shapes.COUNT,
        streams=shapes.COUNT,
    )


VERB = Verb(
    name="backup",
    description=(
        "Copy the queue, as of one moment, to a new file, and large streams to FILE.d beside "
        "it; workers go on meanwhile. The copy is a queue: open it with --db. Nothing is left "
        "behind after a failure, and nothing that exists is replaced."
    ),
    data_schema="Where the copy is, how large, and how many streams stand beside it.",
    schema=schema,
    positionals=(Positional("file", "1", "path", "the new file", metavar="FILE"),),
    flags=(DB, *COMMON),
    examples=(("spoolctl", "backup", "queue-copy.db"),),
    idempotent="no: FILE must not exist yet",
)


def run(args: Args, app: App) -> int:
    """Make the copy."""
    from spoolctl.cli.signals import interruptible

    with interruptible():
        made = app.queue.backup(args.file)
    data = {"path": made.path, "size_bytes": made.bytes, "streams": made.streams}
    beside = f", {made.streams} stream(s) in {made.path}.d" if made.streams else ""
    return app.show(data, visible(f"Copied the queue to {made.path} ({made.bytes} bytes){beside}"))

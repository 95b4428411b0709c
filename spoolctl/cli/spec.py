"""The shape in which verbs describe themselves: the one source of the command line.

Parser, `--help`, `capabilities`, `schema`, the docs pages and completion are all made from
the `Verb` of each verb module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spoolctl.cli.verbs import VERBS
from spoolctl.core.limits import LIMITS
from spoolctl.core.tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

JsonSchema: TypeAlias = "dict[str, Any]"

TYPES = (
    "boolean",
    "string",
    "integer",
    "float",
    "fraction",
    "path",
    "duration",
    "timestamp",
    "moment",
    "queue",
    "key_value",
    "enum",
    "enum_csv",
    "size",
    "duration_csv",
    "exit_codes",
)
"""What a value can be. `cli/values.py` has one converter for each but `boolean`."""


class Flag(NamedTuple):
    """One flag of a verb.

    `name`: the long form, or the short one where there is no long one. `limit`: a name of
    `core.limits.LIMITS`, which gives range or length. `words`: accepted besides what the
    type says (`unlimited`). `repeatable`: the value is a tuple of all that were given.
    `check`: name of a further check in `cli/values.py`. `config`: the key in the config file
    that sets the default, by the rules of the flag; `config_null`: null is allowed there, and
    stands for no limit.
    """

    name: str
    type: str
    help: str
    metavar: str = ""
    aliases: tuple[str, ...] = ()
    default: object = None
    limit: str | None = None
    choices: tuple[str, ...] | None = None
    words: tuple[str, ...] = ()
    repeatable: bool = False
    required: bool = False
    check: str | None = None
    config: str | None = None
    config_null: bool = False

    @property
    def dest(self) -> str:
        """The attribute of the parsed arguments that holds the value."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings, the name first."""
        return (self.name, *self.aliases)

    @property
    def minimum(self) -> int | None:
        """The smallest value (of floats: excluded), or None."""
        return LIMITS[self.limit].minimum if self.limit else None

    @property
    def maximum(self) -> int | None:
        """The largest value, or None."""
        return LIMITS[self.limit].maximum if self.limit else None


class Positional(NamedTuple):
    """One positional of a verb. `nargs`: "1", "+", "?", or "remainder" (a command)."""

    name: str
    nargs: str
    type: str
    help: str
    metavar: str = ""
    limit: str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def required(self) -> bool:
        """Whether at least one word must be given."""
        return self.nargs != "?"

    @property
    def repeatable(self) -> bool:
        """Whether several words may be given."""
        return self.nargs in ("+", "remainder")

    @property
    def minimum(self) -> int | None:
        """The smallest value, or None."""
        return LIMITS[self.limit].minimum if self.limit else None

    @property
    def maximum(self) -> int | None:
        """The largest value, or None."""
        return LIMITS[self.limit].maximum if self.limit else None


class Verb(NamedTuple):
    """All there is to say of a verb.

    `schema`: makes the JSON Schema of the verb's `data` (called only where it is needed).
    `exclusive`: pairs of flags that exclude each other. `examples`: argument vectors, each
    beginning with "spoolctl". `destructive`, `idempotent`: true, false, or a sentence.
    `epilog`: further paragraphs of `--help`. `extra`: members of its `capabilities` entry
    beyond the common ones. `replaces_positional`: flags that stand in for the positional
    (`-c` for the command).
    """

    name: str
    description: str
    data_schema: str
    schema: Callable[[], JsonSchema]
    flags: tuple[Flag, ...]
    positionals: tuple[Positional, ...] = ()
    exclusive: tuple[tuple[str, str], ...] = ()
    examples: tuple[tuple[str, ...], ...] = ()
    mutates: bool = False
    destructive: bool | str = False
    idempotent: bool | str = True
    output_modes: tuple[str, ...] = ("envelope", "text")
    epilog: tuple[str, ...] = ()
    extra: Mapping[str, Any] = {}
    replaces_positional: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line on what the verb does."""
        return VERBS[self.name].summary

    @property
    def group(self) -> str:
        """The heading under which `--help` lists the verb."""
        return VERBS[self.name].group


DB = Flag(
    "--db",
    "path",
    "the queue's file (default: SPOOLCTL_DB, then .spoolctl/config.json, then .spoolctl/queue.db)",
    metavar="PATH",
)
TRUST = Flag(
    "--trust",
    "boolean",
    "run commands from a queue that another user owns or may write to",
    default=False,
)
MAX_OUTPUT = Flag(
    "--max-output",
    "size",
    "keep at most so many bytes of each stream (4096, 64K, 10M, 1G; default 1G)",
    metavar="BYTES",
    limit="output_bytes",
    config="max_output",
)
JSON = Flag("--json", "boolean", "print one JSON envelope instead of text", default=False)
COLOR = Flag(
    "--color",
    "enum",
    "colours: auto (only on a terminal), never, always",
    metavar="WHEN",
    default="auto",
    choices=("always", "auto", "never"),
)
COMMON = (COLOR, JSON)
"""Flags that every verb takes."""

JOB_ID = Positional("id", "1", "integer", "the job's number", metavar="ID", limit="id")


def load(name: str) -> Verb:
    """Import the module of a verb and return its description."""
    from importlib import import_module

    verb: Verb = import_module(VERBS[name].module).VERB
    return verb

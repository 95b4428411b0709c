"""One page per verb, made from what the verb says of itself (`spoolctl/cli/spec.py`)."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from spoolctl.cli.codes import ERRORS, EXITS, WARNINGS
from spoolctl.cli.help import verb_help
from spoolctl.cli.spec import COMMON, Flag, Positional, Verb, load
from spoolctl.cli.variables import GIVEN_TO_JOBS, VARIABLES, Variable
from spoolctl.cli.verbs import GROUPS, VERBS
from spoolctl.core.limits import LIMITS

EXIT_CODES = "[exit codes](README.md#exit-codes)"


def pages() -> dict[str, Callable[[], str]]:
    """Name and maker of every page of docs/verbs."""
    makers: dict[str, Callable[[], str]] = {"verbs/README.md": index}
    for name in VERBS:
        makers[f"verbs/{name}.md"] = lambda name=name: page(load(name))
    return makers


def index() -> str:
    """All verbs under their headings, and what holds for each of them."""
    parts = [
        "# Verbs",
        "`spoolctl VERB [flags] [positionals]`; `spoolctl VERB --help` says the same as these "
        "pages, which are generated from the same source. Flags stand after the verb, before or "
        "after the positionals; `--flag value` and `--flag=value` are equivalent; there are no "
        "abbreviations.",
    ]
    for group in GROUPS:
        rows = [name for name, row in VERBS.items() if row.group == group]
        parts.append(f"## {group}")
        parts.append("\n".join(f"- [{name}]({name}.md): {VERBS[name].summary}" for name in rows))
    parts += [
        "## Flags of every verb",
        _flag_table(COMMON),
        "Every verb also has `--help` (`-h`), which touches no queue. `spoolctl --version` prints "
        "the version.",
        "## Environment variables",
        "Read by spoolctl:",
        _rows("variable", {name: _read(variable) for name, variable in VARIABLES.items()}),
        "Given to the commands that it runs:",
        _rows("variable", GIVEN_TO_JOBS),
        "## Exit codes",
        _exit_table(),
        "## Error codes",
        _rows("code", {name: row.summary for name, row in ERRORS.items()}),
        "## Warning codes",
        _rows("code", {name: row.summary for name, row in WARNINGS.items()}),
    ]
    return "\n\n".join(parts) + "\n"


def _exit_table() -> str:
    codes: dict[int, list[str]] = {status: [] for status in EXITS}
    for name, error in ERRORS.items():
        codes[error.exit_code].append(f"`{name}`")
    rows = [
        f"| {status} | {_escaped(row.meaning)} | {_retryable(row.retryable)} "
        f"| {' '.join(codes[status])} |"
        for status, row in EXITS.items()
    ]
    return "| exit | meaning | worth repeating | error codes |\n|---|---|---|---|\n" + "\n".join(
        rows
    )


def _rows(title: str, rows: dict[str, str]) -> str:
    lines = [f"| `{name}` | {_escaped(text)} |" for name, text in rows.items()]
    return f"| {title} | meaning |\n|---|---|\n" + "\n".join(lines)


def _read(variable: Variable) -> str:
    return f"{variable.description} (default: {variable.default})"


def _retryable(value: bool | None) -> str:
    return "" if value is None else _answer(value)


def page(verb: Verb) -> str:
    """The page of one verb."""
    parts = [f"# spoolctl {verb.name}", f"```text\n{_usage(verb)}\n```"]
    parts += [_paragraph(text) for text in (verb.description, *verb.epilog)]
    if verb.positionals:
        rows = [f"| `{_shown(item)}` | {_item_text(item)} |" for item in verb.positionals]
        parts.append("| positional | meaning |\n|---|---|\n" + "\n".join(rows))
    flags = [flag for flag in verb.flags if flag not in COMMON]
    if flags:
        parts.append("## Flags")
        parts.append(_flag_table(flags))
    if verb.exclusive:
        pairs = ", ".join(f"`{one}` with `{other}`" for one, other in verb.exclusive)
        parts.append(f"Not together: {pairs}.")
    parts.append("As for every verb: [the common flags](README.md#flags-of-every-verb).")
    if verb.examples:
        parts.append("## Examples")
        lines = [shlex.join(words) for words in verb.examples]
        parts.append("```sh\n" + "\n".join(lines) + "\n```")
    parts.append("## For programs")
    parts.append(_for_programs(verb))
    return "\n\n".join(parts) + "\n"


def _for_programs(verb: Verb) -> str:
    lines = [
        f"- `data` of the `--json` envelope: {_escaped(verb.data_schema.rstrip('.'))}"
        f" (`spoolctl schema --json --verb {verb.name}`)",
        f"- Output modes: {', '.join(verb.output_modes)}",
        f"- Changes the queue: {'yes' if verb.mutates else 'no'}",
        f"- Destructive: {_answer(verb.destructive)}",
        f"- Safe to repeat: {_answer(verb.idempotent)}",
        f"- Exit status: see the {EXIT_CODES}",
    ]
    return "\n".join(lines)


def _answer(value: bool | str) -> str:
    if isinstance(value, str):
        return _escaped(value.rstrip("."))
    return "yes" if value else "no"


def _usage(verb: Verb) -> str:
    """The usage lines, as `--help` has them."""
    lines = verb_help(verb).split("\n\n")[0].split("\n")
    return "\n".join(line.removeprefix("usage:").strip() for line in lines)


def _paragraph(text: str) -> str:
    """Running text; or a table of its own lines, kept as it is."""
    return f"```text\n{text}\n```" if "\n" in text else _escaped(text)


def _shown(item: Positional) -> str:
    name = item.metavar or item.name.upper()
    shapes = {"1": name, "?": f"[{name}]", "+": f"{name} [{name} ...]"}
    return shapes.get(item.nargs, f"[--] {name}...")


def _item_text(item: Positional) -> str:
    text = _escaped(item.help)
    if item.choices:
        text += "; one of " + ", ".join(f"`{choice}`" for choice in item.choices)
    return text


def _flag_table(flags: tuple[Flag, ...] | list[Flag]) -> str:
    rows = [
        f"| {', '.join(f'`{spelling}`' for spelling in flag.spellings)} | {_value(flag)} | "
        f"{_default(flag)} | {_meaning(flag)} |"
        for flag in sorted(flags, key=lambda flag: flag.name.lstrip("-"))
    ]
    return "| flag | value | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)


def _value(flag: Flag) -> str:
    if flag.type == "boolean":
        return ""
    shown = f"`{flag.metavar}`" if flag.metavar else flag.type
    return f"{shown}, repeatable" if flag.repeatable else shown


def _default(flag: Flag) -> str:
    if flag.required:
        return "required"
    if flag.type == "boolean" or flag.default in (None, (), []):
        return ""
    return f"`{flag.default}`"


def _meaning(flag: Flag) -> str:
    notes = [_escaped(flag.help)]
    if flag.choices:
        notes.append("one of " + ", ".join(f"`{choice}`" for choice in flag.choices))
    if flag.limit:
        notes.append(_range(flag.limit))
    if flag.words:
        notes.append("or " + ", ".join(f"`{word}`" for word in flag.words))
    if flag.config is not None:
        notes.append(f"default in the [config file](../configuration.md): `{flag.config}`")
    return "; ".join(notes)


def _range(name: str) -> str:
    limit = LIMITS[name]
    largest = "2^63-1" if limit.maximum == 2**63 - 1 else str(limit.maximum)
    span = f"{limit.minimum} to {largest}"
    if limit.exclusive:
        span = f"above {span}"
    return f"{span} characters" if limit.type == "length" else span


def _escaped(text: str) -> str:
    """Text for a table cell or a paragraph: what Markdown would take for marks is masked."""
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")

"""`--help`, made from the spec of the verbs."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill, wrap

from spoolctl.cli.codes import EXITS
from spoolctl.cli.spec import Flag, Verb, load
from spoolctl.cli.verbs import GROUPS, VERBS

WIDTH = 79
"""Fixed, so that help, docs and tests see one text."""

EXIT_LINE = f"Exit status: {', '.join(f'{code} {row.short}' for code, row in EXITS.items())}."


def program_help() -> str:
    """The text of `spoolctl --help`: every verb under its heading, with an example each."""
    lines = [
        "usage: spoolctl VERB [flags] [positionals]",
        "       spoolctl VERB --help",
        "",
        "A durable local queue for shell commands: one SQLite file, no daemon.",
    ]
    for group in GROUPS:
        lines += ["", f"{group}:"]
        for name, row in VERBS.items():
            if row.group == group:
                lines.append(f"  {name:<16} {row.summary}")
    lines += ["", "Examples:"]
    lines += [f"  {shell_line(load(name).examples[0])}" for name in VERBS if load(name).examples]
    lines += ["", "  -h, --help       show this text, or that of a verb"]
    lines += ["      --version    show the version", ""]
    lines += [*wrap(EXIT_LINE, WIDTH), ""]
    return "\n".join(lines)


def verb_help(verb: Verb) -> str:
    """The text of `spoolctl VERB --help`."""
    lines = [*_usage(verb), "", *_paragraph(verb.description)]
    if verb.positionals:
        lines += ["", "Positionals:"]
        for each in verb.positionals:
            lines += _entry(each.metavar or each.name.upper(), each.help)
    lines += ["", "Flags:"]
    for flag in sorted(verb.flags, key=lambda flag: flag.name.lstrip("-")):
        lines += _entry(_spelling(flag), _flag_text(verb, flag))
    lines += _entry("-h, --help", "show this text")
    lines += ["", "Examples:"]
    lines += [f"  {shell_line(words)}" for words in verb.examples]
    for paragraph in (*verb.epilog, EXIT_LINE):
        lines += ["", *_paragraph(paragraph)]
    return "\n".join([*lines, ""])


def shell_line(words: tuple[str, ...]) -> str:
    """An argument vector as it is typed."""
    from shlex import join

    return join(words)


def _usage(verb: Verb) -> Iterator[str]:
    words = ["[flags]"]
    for each in verb.positionals:
        name = each.metavar or each.name.upper()
        shape = {"1": name, "?": f"[{name}]", "+": f"{name} [{name} ...]"}
        words.append(shape.get(each.nargs, f"-- {name} ..."))
    yield f"usage: spoolctl {verb.name} {' '.join(words)}"
    for flag in verb.flags:
        if flag.name in verb.replaces_positional:
            yield f"       spoolctl {verb.name} [flags] {flag.name} {flag.metavar}"


def _paragraph(text: str) -> list[str]:
    """Wrapped, unless it is a table (lines of its own)."""
    return text.split("\n") if "\n" in text else wrap(text, WIDTH)


def _spelling(flag: Flag) -> str:
    # The short form first, as is the custom.
    names = ", ".join(sorted(flag.spellings, key=lambda each: (each.startswith("--"), each)))
    return f"{names} {_metavar(flag)}" if flag.type != "boolean" else names


def _metavar(flag: Flag) -> str:
    return flag.metavar or (flag.type.upper() if flag.type != "integer" else "N")


def _flag_text(verb: Verb, flag: Flag) -> str:
    text = flag.help
    if flag.choices and flag.type in ("enum", "enum_csv"):
        text += f" ({', '.join(flag.choices)})"
    if flag.repeatable:
        text += "; may be repeated"
    if flag.required:
        text += "; required"
    if flag.default not in (None, False, ()):
        text += f" [default: {flag.default}]"
    if flag.config is not None:
        text += f" [config file: {flag.config}]"
    others = [b if a == flag.name else a for a, b in verb.exclusive if flag.name in (a, b)]
    return text + (f"; not with {', '.join(others)}" if others else "")


def _entry(left: str, text: str) -> list[str]:
    indent = " " * 26
    if len(left) > 22:
        return [f"  {left}", fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent)]
    return [fill(text, WIDTH, initial_indent=f"  {left:<24}", subsequent_indent=indent)]

"""Words in, arguments out: one scanner for every verb, driven by its `Verb`.

Written by hand and not on argparse: what is wrong has to be told apart (unknown flag,
missing value, missing positional, ...) by code and not by argparse's sentences, which
differ between Python versions, as do its rules for `--` and for negative numbers; and `add`
starts faster without it.

What is wrong is reported in this order: a value flag without its value, or a switch with
one; unknown flags; bad values; excluded combinations; what is missing; what is too much.
"""

from __future__ import annotations

from collections.abc import Sequence

from spoolctl.cli import values
from spoolctl.cli.spec import Flag, Positional, Verb
from spoolctl.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    Defaults: TypeAlias = "Callable[[Args, Sequence[Flag]], Mapping[str, Any]]"
    """Asked for what the config file says of flags that were not given: flag -> value."""

HELP = ("--help", "-h")


class UsageError(InvalidInput):
    """The command line is wrong. `code` is one of the interface's; the rest is advice."""

    def __init__(
        self,
        message: str,
        code: str = "INVALID_INPUT",
        *,
        remediation: str | None = None,
        did_you_mean: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.remediation = remediation
        self.did_you_mean = did_you_mean


class Args:
    """The arguments of one call: an attribute for each flag and positional.

    `given` holds the names of the flags that were on the command line, `configured` those
    whose value is from the config file.
    """

    def __init__(self) -> None:
        self.given: frozenset[str] = frozenset()
        self.configured: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the verb has no argument {name!r}")


class HelpAsked(Exception):
    """`--help` was among the flags."""


def wants_json(words: Sequence[str]) -> bool:
    """Whether an envelope was asked for, before it is known whether the words are valid."""
    for word in words:
        if word == "--":
            return False
        if word == "--json" or word.startswith("--json="):
            return True
    return False


def parse(verb: Verb, words: Sequence[str], defaults: Defaults | None = None) -> Args:
    """The arguments of `verb` from the words after it, with `defaults` for what is not given.

    Raises:
        HelpAsked: `--help` or `-h` was among them, before any word that makes no sense.
        UsageError: they are wrong; nothing was opened.
        InvalidInput: from `defaults`.
    """
    scan = _Scan(verb)
    scan.run(list(words))
    if scan.unknown:
        raise _unknown(verb, scan.unknown[0])
    args = _convert(verb, scan)
    _check_exclusive(verb, args)
    # What the words alone are wrong in comes first, unless the file may complete them.
    needed = any(flag.required and flag.name not in args.given for flag in verb.flags)
    if needed:
        _configure(verb, args, defaults)
    for flag in verb.flags:
        if flag.required and flag.name not in args.given | args.configured:
            raise UsageError(f"{verb.name} needs {flag.name}", "MISSING_REQUIRED")
    _assign_positionals(verb, scan, args)
    if not needed:
        _configure(verb, args, defaults)
    return args


def _configure(verb: Verb, args: Args, defaults: Defaults | None) -> None:
    wanted = [
        flag
        for flag in verb.flags
        if flag.config and flag.name not in args.given and not set_aside(verb, flag, args.given)
    ]
    chosen = defaults(args, wanted) if defaults is not None and wanted else {}
    for flag in wanted:
        if flag.name in chosen:
            value = chosen[flag.name]
            setattr(args, flag.dest, (value,) if flag.repeatable else value)
    args.configured = frozenset(chosen)


def set_aside(verb: Verb, flag: Flag, given: frozenset[str]) -> bool:
    """Whether a flag that was given leaves no room for the config file's value of this one."""
    return any(
        (one == flag.name and other in given) or (other == flag.name and one in given)
        for one, other in verb.exclusive
    )


class _Scan:
    """One pass over the words: which flags were given with which text, and what is left."""

    def __init__(self, verb: Verb) -> None:
        self.verb = verb
        self.by_spelling = {each: flag for flag in verb.flags for each in flag.spellings}
        self.takes_command = any(each.nargs == "remainder" for each in verb.positionals)
        self.given: list[tuple[Flag, str, str | None]] = []
        self.unknown: list[str] = []
        self.rest: list[str] = []
        self.dashed = False
        self._stray: str | None = None
        self._closed = False

    def run(self, words: list[str]) -> None:
        index = 0
        while index < len(words):
            word = words[index]
            index += 1
            if word == "--":
                self._tail(words[index:])
                break
            if word in HELP:
                raise HelpAsked
            if not self._is_flag(word):
                self._word(word)
                continue
            index += self._flag(word, words[index] if index < len(words) else None)
        if self._stray is not None and not self.unknown:
            raise UsageError(
                f"the word {self._stray!r} of the command starts with '-'"
                if self._stray.startswith("-")
                else f"the word {self._stray!r} stands apart from the command",
                remediation="put `--` before the command: "
                f"spoolctl {self.verb.name} [flags] -- COMMAND ...",
            )

    def _is_flag(self, word: str) -> bool:
        if word in self.by_spelling:
            return True
        return len(word) > 1 and word[0] == "-" and not _is_negative(word)

    def _word(self, word: str) -> None:
        # Negative numbers, too: of `ls -1` nobody should have to know that it is one.
        if self.takes_command and (self._closed or word.startswith("-")):
            self._stray = self._stray or word
        self.rest.append(word)

    def _tail(self, words: list[str]) -> None:
        if self.takes_command and self.rest and not self.unknown:
            # (After an unknown flag they may be its value: the flag is what is wrong.)
            # `git checkout -- file` must not silently lose its `--`.
            raise UsageError(
                "words of the command stand before `--`",
                remediation="put `--` before the whole command",
            )
        self.dashed = True
        self.rest += words

    def _flag(self, word: str, following: str | None) -> int:
        """Take a flag; returns how many of the following words were its value."""
        spelling, attached = self._split(word)
        flag = self.by_spelling.get(spelling)
        if flag is None:
            if self.takes_command and self.rest:
                self._stray = self._stray or word
            elif spelling in HELP and attached is not None:
                raise UsageError(f"{spelling} takes no value")
            else:
                self.unknown.append(spelling)
            return 0
        self._closed = bool(self.rest)
        if flag.type == "boolean":
            if attached is not None:
                raise UsageError(f"{spelling} takes no value")
            self.given.append((flag, spelling, None))
            return 0
        if attached is not None:
            self.given.append((flag, spelling, attached))
            return 0
        if following is None or (self._is_flag(following) and not _is_negative(following)):
            raise UsageError(
                f"{spelling} needs a value",
                remediation=f"a value that starts with '-' is attached: {spelling}=VALUE",
            )
        self.given.append((flag, spelling, following))
        return 1

    def _split(self, word: str) -> tuple[str, str | None]:
        """Spelling and attached value: `--flag=value`, `-cVALUE`, `-c=VALUE`."""
        if word in self.by_spelling:
            return word, None
        name, equals, value = word.partition("=")
        if equals and (word.startswith("--") or len(name) == 2):
            return name, value
        if not word.startswith("--"):
            flag = self.by_spelling.get(word[:2])
            if flag is not None and flag.type != "boolean":
                return word[:2], word[2:]
        return word, None


def _is_negative(word: str) -> bool:
    """Whether the word is a negative number, and so a value and never a flag."""
    body = word[1:]
    return word[:1] == "-" and body[:1] in tuple(".0123456789") and body.strip(".0123456789") == ""


def _unknown(verb: Verb, spelling: str) -> UsageError:
    spellings = [each for flag in verb.flags for each in flag.spellings]
    return UsageError(
        f"{verb.name} has no flag {spelling}",
        "UNKNOWN_FLAG",
        remediation=f"`spoolctl {verb.name} --help` names every flag",
        did_you_mean=values.closest(spelling, [*spellings, *HELP]),
    )


def _convert(verb: Verb, scan: _Scan) -> Args:
    args = Args()
    collected: dict[str, list[Any]] = {}
    single: dict[str, Any] = {}
    for flag, spelling, text in scan.given:
        value = True if text is None else _value(flag, spelling, text)
        if flag.repeatable:
            collected.setdefault(flag.dest, []).append(value)
        else:
            single[flag.dest] = value
    for flag in verb.flags:
        if flag.repeatable:
            default = flag.default
            fallback = () if default in (None, ()) else (default,)
            value = tuple(collected[flag.dest]) if flag.dest in collected else fallback
        else:
            value = single.get(flag.dest, flag.default)
        setattr(args, flag.dest, value)
    args.given = frozenset(flag.name for flag, _, _ in scan.given)
    return args


def _value(flag: Flag, spelling: str, text: str) -> Any:
    try:
        return values.convert(flag, text)
    except InvalidInput as error:
        raise UsageError(
            f"{spelling}: {error}",
            remediation=getattr(error, "remediation", None),
            did_you_mean=getattr(error, "did_you_mean", None),
        ) from None


def _check_exclusive(verb: Verb, args: Args) -> None:
    for one, other in verb.exclusive:
        if one in args.given and other in args.given:
            raise UsageError(
                f"{one} and {other} exclude each other", remediation="give one of them"
            )


def _assign_positionals(verb: Verb, scan: _Scan, args: Args) -> None:
    rest = scan.rest
    for positional in verb.positionals:
        many = positional.repeatable
        words, rest = (rest, []) if many else (rest[:1], rest[1:])
        if not words and positional.required:
            instead = next((each for each in verb.replaces_positional if each in args.given), None)
            if instead is None:
                raise UsageError(_missing(verb, positional), "MISSING_REQUIRED")
        converted = tuple(_positional_value(positional, word) for word in words)
        if many:
            setattr(args, positional.name, converted)
        else:
            setattr(args, positional.name, converted[0] if converted else None)
    if rest:
        raise UsageError(f"{verb.name} does not take the word {rest[0]!r}")


def _missing(verb: Verb, positional: Positional) -> str:
    if positional.nargs == "remainder":
        return f"{verb.name} needs a command"
    choices = f": {', '.join(positional.choices)}" if positional.choices else ""
    return f"{verb.name} needs {positional.metavar or positional.name.upper()}{choices}"


def _positional_value(positional: Positional, word: str) -> Any:
    try:
        return values.convert(positional, word)
    except InvalidInput as error:
        raise UsageError(
            f"{positional.metavar or positional.name.upper()}: {error}",
            did_you_mean=getattr(error, "did_you_mean", None),
        ) from None

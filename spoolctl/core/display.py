"""How texts that come from users are shown: with nothing in them that a terminal obeys."""

from __future__ import annotations

from collections.abc import Sequence

JOINERS = "\u200c\u200d"
"""Characters that take no room, and hold parts of an emoji together."""


def visible(text: str) -> str:
    """The text with everything escaped that a terminal would obey instead of show.

    Control characters (C0, DEL, C1), line and paragraph separators, format characters such
    as bidirectional overrides, and lone surrogates; joiners inside emoji are kept.
    """
    if text.isprintable():
        return text
    from unicodedata import category

    return "".join(
        char
        if char.isprintable()
        or char in JOINERS
        or category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else _escaped(char)
        for char in text
    )


def _escaped(char: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\e"}.get(char)
    if named:
        return named
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def command(argv: Sequence[str]) -> str:
    """The command as a person would type it, in one safe line.

    A word that cannot be shown as it is stands in the quotes in which bash, zsh and ksh read
    escapes, so that a line break and the two characters `\\n` look different.
    """
    from shlex import quote

    return " ".join(quote(word) if visible(word) == word else _in_escapes(word) for word in argv)


def _in_escapes(word: str) -> str:
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{visible(''.join(map(_of_a_shell, plain)))}'"


def _of_a_shell(char: str) -> str:
    """Where a shell reads an escape of `visible` in another way: to it, `\\x9b` is a byte."""
    if "\x80" <= char <= "\xff" and visible(char) != char:
        return f"\\u{ord(char):04x}"
    if "\udc80" <= char <= "\udcff":  # a byte that is no part of a character
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char

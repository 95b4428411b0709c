"""Text for people, the JSON envelope for programs, and the way both leave the process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from spoolctl.core.display import JOINERS, command, visible
from spoolctl.version import CONTRACT_VERSION, __version__

__all__ = ["command", "visible"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

Json: TypeAlias = "dict[str, Any]"

STATE_COLORS = {
    "done": "32",
    "succeeded": "32",
    "running": "36",
    "queued": "34",
    "dead": "31",
    "failed": "31",
    "timed_out": "31",
    "abandoned": "33",
    "canceled": "33",
}
"""State -> SGR parameter; the 16 basic colours follow the user's theme."""


class OutputClosed(Exception):
    """The reader of stdout has gone away."""


class OutputFailed(Exception):
    """stdout cannot be written for another reason (a full disk); the message tells why."""


class Out:
    """Standard output and error, written straight to their descriptors.

    Not through `sys.stdout`: it may be None, buffers what must not be lost, and complains
    at exit. A stderr that cannot be written is ignored: it must never end a verb.
    """

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.started = False
        """Whether anything has been written to stdout."""

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data` to stdout.

        Raises:
            OutputClosed: nobody reads it any more.
            OutputFailed: it cannot be written.
        """
        self.started = self.started or bool(data)
        try:
            write_all(self.stdout, data)
        except BrokenPipeError:
            raise OutputClosed from None
        except OSError as error:
            raise OutputFailed(os.strerror(error.errno or 0)) from None

    def line(self, text: str) -> None:
        """Write one line of text to stdout."""
        self.write(encode(text + "\n"))

    def note(self, text: str) -> None:
        """Write one line to stderr, if that is possible."""
        self.error_text(text + "\n")

    def error_text(self, text: str) -> None:
        """Write text to stderr as it is, if that is possible."""
        self.error_bytes(encode(text))

    def error_bytes(self, data: bytes) -> None:
        """Write bytes to stderr, if that is possible."""
        with suppress(OSError):
            write_all(self.stderr, data)

    def check_reader(self) -> None:
        """Raise OutputClosed if nobody reads stdout any more; for those who rarely write."""
        import select

        poll = select.poll()
        poll.register(self.stdout, 0)  # errors are always reported (poll(2))
        if poll.poll(0):
            raise OutputClosed

    def is_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return os.isatty(self.stdout)

    def errors_are_seen(self) -> bool:
        """Whether stderr is a terminal."""
        return os.isatty(self.stderr)

    def has_live_line(self) -> bool:
        """Whether stderr is a terminal that can draw a line anew.

        One that calls itself dumb (a shell in an editor, some CI logs) shows the codes instead.
        """
        return self.errors_are_seen() and not _is_dumb()

    def columns(self) -> int:
        """How wide the terminal behind stdout is."""
        return _columns(self.stdout)

    def error_columns(self) -> int:
        """How wide the terminal behind stderr is."""
        return _columns(self.stderr)


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def _columns(fd: int) -> int:
    forced = os.environ.get("COLUMNS", "")
    if forced.isascii() and forced.isdigit() and int(forced[:6]) > 0:
        return int(forced[:6])
    try:
        return os.get_terminal_size(fd).columns or 80
    except OSError:
        return 80


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything, also to a descriptor that somebody made non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            import select

            select.select([], [fd], [])


def encode(text: str) -> bytes:
    """UTF-8; what cannot be encoded (a file name's stray bytes) is shown escaped."""
    return text.encode("utf-8", "backslashreplace")


# -- for programs ---------------------------------------------------------------------------


def envelope(
    data: Json | None,
    *,
    started_mono: float,
    meta: Mapping[str, Any] | None = None,
    warnings: Sequence[tuple[str, str]] = (),
    errors: Sequence[Json] = (),
) -> bytes:
    """The one JSON object of a call, with its newline.

    In ASCII with escapes: safe on a terminal, whatever a job's texts contain.
    """
    import json

    whole = {
        "ok": not errors,
        "tool_version": __version__,
        "data": data,
        "meta": {**_meta(data, started_mono), **(meta or {})},
        "warnings": [{"code": code, "message": message} for code, message in warnings],
        "commands": [],
        "errors": list(errors),
    }
    return json.dumps(whole, separators=(", ", ": ")).encode("ascii") + b"\n"


def _meta(data: Json | None, started_mono: float) -> Json:
    return {
        "request_id": "req_" + os.urandom(6).hex(),
        "ts_iso": now_iso(),
        "elapsed_ms": max(0, int((time.monotonic() - started_mono) * 1000)),
        "contract_version": CONTRACT_VERSION,
        "data_hash": data_hash(data),
    }


def data_hash(data: Json | None) -> str:
    """A hash that depends on `data` alone."""
    import json
    from hashlib import sha256

    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + sha256(encode(text)).hexdigest()


def now_iso() -> str:
    """The current time in UTC with milliseconds; `SOURCE_DATE_EPOCH` replaces the clock."""
    at = time.time()
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    if fixed.isascii() and fixed.isdigit() and len(fixed) <= 11:
        at = float(fixed)
    whole, millis = divmod(int(at * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{millis:03d}Z"


# -- for people -----------------------------------------------------------------------------


def visible_lines(text: str) -> str:
    """Like `visible`, but line ends and tabs stay: for a job's output on a terminal."""
    return "\n".join(
        "\t".join(visible(part) for part in line.split("\t")) for line in text.split("\n")
    )


def shorten(text: str, length: int) -> str:
    """At most `length` characters, with `...` at the end of what was cut."""
    return text if len(text) <= length else text[: length - 3] + "..."


def local_time(at: float) -> str:
    """Local date and time with its offset, as in `2026-09-21T14:03:05+02:00`."""
    try:
        here = time.localtime(at)
    except (OverflowError, OSError, ValueError):
        return f"{at:.0f}"
    offset = time.strftime("%z", here)
    return time.strftime("%Y-%m-%dT%H:%M:%S", here) + f"{offset[:3]}:{offset[3:5]}"


def duration(seconds: float) -> str:
    """A span for people: `0.4s`, `12s`, `3m 20s`, `2h 5m`, `3d 4h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    for size, unit, below in ((86_400, "d", "h"), (3600, "h", "m"), (60, "m", "s")):
        if whole >= size:
            part = {"h": 3600, "m": 60, "s": 1}[below]
            return f"{whole // size}{unit} {whole % size // part}{below}"
    return f"{whole}s"


def width(text: str) -> int:
    """How many columns a terminal needs for a printable text."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    from unicodedata import combining, east_asian_width

    if combining(char) or char in JOINERS or "\ufe00" <= char <= "\ufe0f":
        return 0
    return 2 if east_asian_width(char) in ("W", "F") else 1


def fit(text: str, columns: int) -> str:
    """The text cut to so many columns, with `...` where something was cut."""
    if width(text) <= columns:
        return text
    room, kept = max(0, columns - 3), 0
    for index, char in enumerate(text):
        kept += _char_width(char)
        if kept > room:
            return text[:index] + "..."[:columns]
    return text


class Style:
    """Colours, or none: `--color`, NO_COLOR and whether stdout is a terminal decide."""

    def __init__(self, when: str, *, terminal: bool) -> None:
        auto = terminal and not os.environ.get("NO_COLOR") and not _is_dumb()
        self.on = when == "always" or (when == "auto" and auto)

    def state(self, state: str) -> str:
        """The name of a state in its colour."""
        color = STATE_COLORS.get(state)
        return f"\x1b[{color}m{state}\x1b[0m" if self.on and color else state

    def bold(self, text: str) -> str:
        """A heading."""
        return f"\x1b[1m{text}\x1b[0m" if self.on else text

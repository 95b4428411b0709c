"""`spoolctl output`: what a job wrote to stdout and stderr."""

from __future__ import annotations

from spoolctl.cli import members
from spoolctl.cli.parse import UsageError
from spoolctl.cli.spec import COMMON, DB, JOB_ID, Flag, JsonSchema, Verb
from spoolctl.core.paths import STREAMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.core.records import Attempt, StreamInfo
    from spoolctl.engine.output import Reader
    from spoolctl.queue import Queue

PREVIEW_BYTES = 4096
TAIL_BYTES = 64 * 1024
"""At most so much of the last lines goes into an envelope."""


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes
    from spoolctl.core.states import AttemptState

    stream = shapes.closed(
        path=shapes.nullable(shapes.STRING),
        preview=shapes.STRING,
        preview_truncated=shapes.BOOLEAN,
        size_bytes=shapes.COUNT,
        stored=members.stored_schema(),
        dropped_bytes=shapes.COUNT,
        shortened=shapes.BOOLEAN,
        tail=shapes.STRING,
        tail_truncated=shapes.BOOLEAN,
        optional=("tail", "tail_truncated"),
    )
    return shapes.one_of(
        shapes.closed(attempts=shapes.array(shapes.ID, maxItems=0)),
        shapes.closed(
            job_id=shapes.ID,
            attempt_no=shapes.ID,
            attempt_state=shapes.words(AttemptState),
            attempts_total=shapes.ID,
            streams={
                **shapes.closed(stdout=stream, stderr=stream, optional=STREAMS),
                "minProperties": 1,
            },
        ),
    )


VERB = Verb(
    name="output",
    description=(
        "What an attempt of a job (by default the latest) wrote to stdout and stderr, kept "
        "byte for byte. On a terminal control characters are shown escaped; --raw gives the "
        "bytes as they are."
    ),
    data_schema="Size, place and beginning (4096 bytes) of each stream of one attempt.",
    schema=schema,
    positionals=(JOB_ID,),
    flags=(
        Flag(
            "--attempt",
            "integer",
            "the number of the attempt (default: the latest)",
            limit="attempt_number",
        ),
        Flag(
            "--follow",
            "boolean",
            "print what comes, until the attempt has ended",
            aliases=("-f",),
            default=False,
        ),
        Flag(
            "--raw",
            "boolean",
            "the bytes of one stream (--stream stdout or stderr) and nothing else",
            default=False,
        ),
        Flag(
            "--retries",
            "boolean",
            "with --follow: go on with the next attempts until the job has settled",
            default=False,
        ),
        Flag(
            "--stream",
            "enum",
            "which stream",
            metavar="STREAM",
            choices=("both", "stderr", "stdout"),
            default="both",
        ),
        Flag(
            "--tail",
            "integer",
            "only the last so many lines; with --follow: begin there",
            metavar="LINES",
            limit="tail_lines",
        ),
        DB,
        *COMMON,
    ),
    exclusive=(("--raw", "--json"), ("--follow", "--json")),
    examples=(
        ("spoolctl", "output", "1"),
        ("spoolctl", "output", "--stream", "stdout", "--raw", "1"),
        ("spoolctl", "output", "--follow", "--tail", "20", "1"),
    ),
    output_modes=("envelope", "text", "raw"),
)


def run(args: Args, app: App) -> int:
    """Check the combination of flags, then read."""
    if args.raw and args.stream == "both":
        raise UsageError(
            "--raw gives one stream", remediation="add --stream stdout or --stream stderr"
        )
    if args.retries and not args.follow:
        raise UsageError("--retries goes with --follow")
    streams = STREAMS if args.stream == "both" else (args.stream,)
    if args.follow:
        return _follow(args, app, streams)
    queue = app.queue
    attempt = queue.attempt(args.id, args.attempt)
    if attempt is None:
        return _nothing_yet(args, app)
    members.warn_if_incomplete(app, attempt)
    if app.json:
        return _envelope(args, app, attempt, streams)
    return _text(args, app, attempt, streams)


def _nothing_yet(args: Args, app: App) -> int:
    remark = f"Job {args.id} has no attempts yet"
    if args.raw:
        app.out.note(remark)
        return 0
    app.warn("NO_ATTEMPTS_YET", f"job {args.id} has never been started")
    return app.show({"attempts": []}, remark)


# -- for programs ---------------------------------------------------------------------------


def _envelope(args: Args, app: App, attempt: Attempt, streams: Iterable[str]) -> int:
    queue = app.queue
    latest = queue.attempt(args.id)
    parts = {}
    for stream in streams:
        with queue.reader(attempt, stream) as reader:
            parts[stream] = _member(reader, args.tail)
            warn_if_missing(app, attempt, stream, reader.info)
    data = {
        "job_id": args.id,
        "attempt_no": attempt.attempt_no,
        "attempt_state": attempt.state.value,
        "attempts_total": latest.attempt_no if latest else attempt.attempt_no,
        "streams": parts,
    }
    return app.show(data, "")


def _member(reader: Reader, tail: int | None) -> dict[str, Any]:
    info = reader.info
    preview = b"".join(reader.chunks(0, end=PREVIEW_BYTES))
    member: dict[str, Any] = {
        "path": members.path_of(info),
        "preview": preview.decode("utf-8", "replace"),
        "preview_truncated": reader.kept_bytes > len(preview),
        "size_bytes": info.size_bytes,
        "stored": info.stored,
        "dropped_bytes": info.dropped_bytes,
        "shortened": info.shortened,
    }
    if tail is not None:
        start, end = reader.last_lines(tail), reader.kept_bytes
        kept = max(start, end - TAIL_BYTES)
        lines = b"".join(reader.chunks(kept, end=end))
        member["tail"] = lines.decode("utf-8", "replace")
        member["tail_truncated"] = kept > start
    return member


def warn_if_missing(app: App, attempt: Attempt, stream: str, info: StreamInfo) -> None:
    """A captured stream whose file is gone reads as empty; that must not pass unnoticed."""
    if info.stored == "missing":
        app.warn(
            "OUTPUT_MISSING",
            f"the {stream} of job {attempt.job_id} attempt {attempt.attempt_no} is gone: "
            f"{info.path}",
        )


# -- for people -----------------------------------------------------------------------------


def _text(args: Args, app: App, attempt: Attempt, streams: Iterable[str]) -> int:
    for stream in streams:
        with app.queue.reader(attempt, stream) as reader:
            warn_if_missing(app, attempt, stream, reader.info)
            app.show_warnings()
            start = 0 if args.tail is None else reader.last_lines(args.tail)
            if args.raw:
                for piece in reader.chunks(start):
                    app.out.write(piece)
                continue
            app.out.line(_header(attempt.job_id, attempt.attempt_no, stream))
            _write_content(app, reader, start)
    return 0


def _header(job_id: int, attempt_no: int, stream: str) -> str:
    return f"=== job {job_id} attempt {attempt_no} {stream} ==="


def _write_content(app: App, reader: Reader, start: int) -> None:
    """The content, ended with exactly one newline, in constant memory."""
    newlines = 0
    something = False
    for piece in _safe(app, _marked(reader, start)):
        body = piece.rstrip(b"\n")
        if body:
            _write_newlines(app, newlines)
            app.out.write(body)
            newlines = 0
        newlines += len(piece) - len(body)
        something = something or bool(piece)
    if something:
        app.out.write(b"\n")


def _write_newlines(app: App, count: int) -> None:
    """In pieces: a stream may have gigabytes of them."""
    while count > 0:
        app.out.write(b"\n" * min(count, TAIL_BYTES))
        count -= TAIL_BYTES


def _marked(reader: Reader, start: int) -> Iterator[bytes]:
    """The pieces, with a line in place of what the output limit dropped."""
    info = reader.info
    if not info.dropped_bytes or start > info.gap_start:
        yield from reader.chunks(start)
        return
    yield from reader.chunks(start, end=info.gap_start)
    yield f"\n[... {info.dropped_bytes} bytes dropped by the output limit ...]\n".encode()
    yield from reader.chunks(info.gap_start)


def _safe(app: App, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """As they are into a pipe; on a terminal with control characters shown escaped."""
    if not app.out.is_terminal():
        yield from pieces
        return
    escape = Escape()
    for piece in pieces:
        yield escape(piece)
    yield escape(b"", final=True)


class Escape:
    """Makes bytes safe for a terminal, piece by piece; characters may be cut by pieces."""

    def __init__(self) -> None:
        from codecs import getincrementaldecoder

        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._held = ""

    def __call__(self, piece: bytes, *, final: bool = False) -> bytes:
        from spoolctl.cli.render import encode, visible_lines

        text = self._held + self._decode(piece, final)
        # A carriage return before a newline is a line's end, also when a piece ends between.
        self._held = "\r" if text.endswith("\r") and not final else ""
        text = text[: len(text) - len(self._held)].replace("\r\n", "\n")
        return encode(visible_lines(text))


# -- as it comes ----------------------------------------------------------------------------


def _follow(args: Args, app: App, streams: Iterable[str]) -> int:
    from spoolctl.cli.signals import interruptible

    with interruptible():
        seen = write_followed(
            app,
            app.queue,
            args.id,
            streams=tuple(streams),
            raw=args.raw,
            attempt_no=args.attempt,
            tail_lines=args.tail,
            retries=args.retries,
        )
    if not seen and app.queue.attempt(args.id) is None:
        app.out.note(f"Job {args.id} ended without an attempt")
    return 0


def write_followed(
    app: App,
    queue: Queue,
    job_id: int,
    *,
    streams: tuple[str, ...],
    raw: bool = False,
    attempt_no: int | None = None,
    tail_lines: int | None = None,
    retries: bool = False,
) -> bool:
    """Write a job's output as it comes, a header wherever the stream changes (not with
    `raw`); returns whether there was any."""
    plain = raw or not app.out.is_terminal()
    escapes = {} if plain else {stream: Escape() for stream in streams}
    last: tuple[int, str] | None = None
    line_open = False
    for piece in queue.follow(
        job_id,
        streams=streams,
        attempt_no=attempt_no,
        tail_lines=tail_lines,
        retries=retries,
        on_idle=app.out.check_reader,
    ):
        if raw:
            app.out.write(piece.data)
            last = (piece.attempt_no, piece.stream)
            continue
        if last != (piece.attempt_no, piece.stream):
            if last is not None and last[0] != piece.attempt_no:
                line_open = _write_held(app, escapes) or line_open
            if line_open:
                app.out.write(b"\n")
            last = (piece.attempt_no, piece.stream)
            app.out.line(_header(job_id, piece.attempt_no, piece.stream))
            line_open = False
        data = escapes[piece.stream](piece.data) if escapes else piece.data
        app.out.write(data)
        if data:  # not where all of it is held back, half a character
            line_open = not data.endswith(b"\n")
    line_open = _write_held(app, escapes) or line_open
    if line_open:
        app.out.write(b"\n")
    return last is not None


def _write_held(app: App, escapes: dict[str, Escape]) -> bool:
    """Write what was held back of an attempt that has ended (half a character); whether there
    was any."""
    held = b"".join(escape(b"", final=True) for escape in escapes.values())
    app.out.write(held)
    return bool(held)

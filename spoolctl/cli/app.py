"""What a verb gets besides its arguments: the queue, and the way out for its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spoolctl.cli import render
from spoolctl.cli.parse import Args
from spoolctl.cli.render import Json, Out, Style
from spoolctl.cli.spec import Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.config import Location
    from spoolctl.queue import Queue


class App:
    """One call of one verb.

    The queue is opened when it is first asked for: after all checks of the arguments.
    `warnings` is the caller's list: it outlives a failure.
    """

    def __init__(
        self,
        verb: Verb,
        args: Args,
        out: Out,
        *,
        started_mono: float,
        warnings: list[tuple[str, str]],
    ) -> None:
        self.verb = verb
        self.args = args
        self.out = out
        self.json: bool = args.json
        self.style = Style(args.color, terminal=out.is_terminal())
        self.warnings = warnings
        self._started_mono = started_mono
        self._location: Location | None = None
        self._queue: Queue | None = None

    # -- the queue --------------------------------------------------------------------------

    @property
    def location(self) -> Location:
        """Which file is the queue, and why that one.

        Raises:
            InvalidInput: a broken config file or an empty path.
        """
        if self._location is None:
            from spoolctl.config import locate

            self._location = locate(self.args.db)
            for sentence in self._location.remarks:
                self.warn("CONFIG_IGNORED", sentence)
        return self._location

    @property
    def queue(self) -> Queue:
        """The open queue. Only `add`, `run` and `work` create it where there is none.

        Raises:
            NotFound: there is none.
            StoreUnusable, StoreBusy: it cannot be opened.
        """
        if self._queue is None:
            from spoolctl.queue import Queue

            create = self.verb.name in ("add", "run", "work")
            self._queue = Queue(self.location.path, create=create)
        return self._queue

    def queue_if_any(self) -> Queue | None:
        """The open queue, or None, with the warning NO_QUEUE, where there is none."""
        from spoolctl.errors import NotFound

        try:
            return self.queue
        except NotFound:
            self.warn("NO_QUEUE", f"there is no queue at {self.location.path}")
            return None

    def close(self) -> None:
        """Release the queue."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    # -- the result -------------------------------------------------------------------------

    def warn(self, code: str, message: str) -> None:
        """Add a warning to the result."""
        self.warnings.append((code, message))

    def show(
        self,
        data: Json,
        text: str | Callable[[], str],
        *,
        meta: Mapping[str, Any] | None = None,
        exit_code: int = 0,
    ) -> int:
        """Print the result in the mode that was asked for; returns the exit status.

        `text` has no newline at its end; empty text prints nothing. It is made only where
        it is needed, if it is a function.
        """
        if self.json:
            self.out.write(self._envelope(data, meta))
            return exit_code
        self.show_warnings()
        rendered = text if isinstance(text, str) else text()
        if rendered:
            self.out.line(rendered)
        return exit_code

    def _envelope(self, data: Json, meta: Mapping[str, Any] | None) -> bytes:
        return render.envelope(
            data, started_mono=self._started_mono, meta=meta, warnings=self.warnings
        )

    def show_warnings(self) -> None:
        """Print the warnings so far to stderr, one line each (text mode only)."""
        if self.json:
            return
        for _, message in self.warnings:
            self.out.note(f"warning: {render.visible(message)}")
        self.warnings.clear()

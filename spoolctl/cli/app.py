"""What a verb gets besides its arguments: the queue, and the way out for its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spoolctl.cli import render, values
from spoolctl.cli.parse import Args
from spoolctl.cli.render import Json, Out, Style
from spoolctl.cli.spec import Flag, Verb
from spoolctl.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.config import Location
    from spoolctl.queue import Queue


class Place:
    """Where the queue is, and what is to hold there for flags that are not given."""

    def __init__(self, warnings: list[tuple[str, str]]) -> None:
        self._warnings = warnings
        self._location: Location | None = None

    def locate(self, db: str | None) -> Location:
        """Which file is the queue, and why that one; found once. `db`: the value of `--db`.

        Raises:
            InvalidInput: a broken config file or an empty path.
        """
        if self._location is None:
            from spoolctl.config import locate

            self._location = locate(db)
            self._warn()
        return self._location

    def _warn(self) -> None:
        remarks = () if self._location is None else self._location.remarks
        self._warnings.extend(("CONFIG_IGNORED", sentence) for sentence in remarks)

    def defaults(self, args: Args, flags: Sequence[Flag]) -> dict[str, Any]:
        """What the config file says of these flags, checked by their own rules.

        Raises:
            ConfigBroken: a value is bad, and the queue was found by this file or by default.
                Where it was named in another way, there is a warning, and no default at all.
        """
        location = self.locate(args.db)
        from spoolctl.config import ConfigBroken, without_config

        said = [flag for flag in flags if flag.config in location.settings]
        try:
            return {
                flag.name: configured(location.config_path, location.settings, flag)
                for flag in said
            }
        except ConfigBroken as broken:
            self._location = without_config(location, broken)
            self._warn()
            return {}


def configured(path: str, settings: Mapping[str, Any], flag: Flag) -> Any:
    """The value, in the config file at `path`, for a flag whose key it has.

    Raises:
        ConfigBroken: it is none by the rules of the flag.
    """
    key = flag.config or ""
    value = settings[key]
    if value is None and flag.config_null:
        return None
    try:
        return values.from_json(flag, value)
    except InvalidInput as error:
        from spoolctl.config import ConfigBroken

        raise ConfigBroken(path, f"has a bad `{key}`: {error}") from None


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
        place: Place,
    ) -> None:
        self.verb = verb
        self.args = args
        self.out = out
        self.json: bool = args.json
        self.style = Style(args.color, terminal=out.is_terminal())
        self.warnings = warnings
        self._started_mono = started_mono
        self._place = place
        self._queue: Queue | None = None

    # -- the queue --------------------------------------------------------------------------

    @property
    def location(self) -> Location:
        """Which file is the queue, and why that one.

        Raises:
            InvalidInput: a broken config file or an empty path.
        """
        return self._place.locate(self.args.db)

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
            self._queue = Queue(self.location.path, create=create, brief=True)
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

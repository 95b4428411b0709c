"""`spoolctl events`: read, await or follow the event ledger."""

from __future__ import annotations

import json
import time

from spoolctl.cli import members, render
from spoolctl.cli.parse import UsageError
from spoolctl.cli.render import OutputClosed, OutputFailed
from spoolctl.cli.spec import COMMON, DB, Flag, JsonSchema, Verb
from spoolctl.core.pauses import pause
from spoolctl.errors import NotFound, SpoolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.core.records import EventRow
    from spoolctl.queue import EventPage, Queue
    from spoolctl.waiting import Waiter

DEFAULT_LIMIT = 1000
PAGE = 500
"""Entries that a follower reads, and writes, at a time."""

BURST_LOOK_S = 0.02
"""How long to gather what comes in a burst; each look costs as much as many events."""

STARTUP_POLL_S = 0.5
"""How often to look for a queue that is not there yet."""


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes

    return shapes.closed(count=shapes.COUNT, events=shapes.array(members.event_schema()))


VERB = Verb(
    name="events",
    description=(
        "The ledger of everything that happened, in order. At once; or with --wait as soon as "
        "there is something new; or with --follow as it happens (with --json one object a "
        "line). Ids ascend and are never reused: keep meta.pagination.cursor and give it to "
        "--since-id to miss nothing."
    ),
    data_schema="The entries, ascending.",
    schema=schema,
    flags=(
        Flag("--follow", "boolean", "print events as they happen", default=False),
        Flag(
            "--idle-timeout",
            "float",
            "with --follow: end after so many seconds without a new event",
            metavar="SECONDS",
            limit="wait_seconds",
        ),
        Flag("--job", "integer", "only events of this job", metavar="ID", limit="id"),
        Flag("--limit", "integer", "how many at most (1000); 0 for all", limit="event_limit"),
        Flag(
            "--max-events",
            "integer",
            "with --follow: end after so many events",
            limit="events_to_follow",
        ),
        Flag(
            "--poll-interval",
            "float",
            "look at least so often where there can be no doorbell",
            metavar="SECONDS",
            default=0.5,
            limit="poll_interval_seconds",
        ),
        Flag(
            "--since-id",
            "integer",
            "only events with a greater id",
            metavar="ID",
            aliases=("--since-cursor",),
            limit="event_id",
        ),
        Flag("--wait", "boolean", "return as soon as there is an event", default=False),
        Flag(
            "--wait-timeout",
            "float",
            "with --wait: return after so many seconds all the same",
            metavar="SECONDS",
            default=30.0,
            limit="wait_seconds",
        ),
        DB,
        *COMMON,
    ),
    exclusive=(
        ("--wait", "--follow"),
        ("--limit", "--follow"),
        ("--max-events", "--wait"),
        ("--idle-timeout", "--wait"),
    ),
    examples=(
        ("spoolctl", "events", "--since-id", "0"),
        ("spoolctl", "events", "--wait", "--since-id", "41", "--json"),
        ("spoolctl", "events", "--follow", "--json", "--idle-timeout", "60"),
    ),
    output_modes=("envelope", "text", "frames"),
    extra={
        "frames": {
            "enter_with": ["--follow", "--json"],
            "control_frames": ["end", "error"],
            "record_schema": "#/streams/events_follow",
            "cursor": {"field": "id", "flag": "--since-id", "aliases": ["--since-cursor"]},
        }
    },
)


def run(args: Args, app: App) -> int:
    """Choose among the three ways to read."""
    if not args.follow:
        for name in ("--max-events", "--idle-timeout"):
            if name in args.given:
                raise UsageError(f"{name} goes with --follow")
    if args.follow:
        return _follow(args, app)
    if args.wait:
        return _wait(args, app)
    queue = app.queue_if_any()
    return _show(args, app, _page(args, queue) if queue else None)


# -- one page -------------------------------------------------------------------------------


def _page(args: Args, queue: Queue) -> EventPage:
    """One more than asked for, to know whether the limit cuts the page short."""
    limit = _limit(args)
    return queue.events(
        since_id=args.since_id or 0, job_id=args.job, limit=None if limit is None else limit + 1
    )


def _limit(args: Args) -> int | None:
    return DEFAULT_LIMIT if args.limit is None else args.limit or None


def _show(
    args: Args, app: App, page: EventPage | None, *, meta: Mapping[str, Any] | None = None
) -> int:
    limit, since_id = _limit(args), args.since_id or 0
    events = page.events[:limit] if page else []
    cut = page is not None and len(events) < len(page.events)
    pagination = {
        "cursor": events[-1].id if cut else max(since_id, page.last_id if page else 0),
        "first_id": page.first_id if page else None,
    }
    data = {"count": len(events), "events": [members.event(row) for row in events]}
    return app.show(
        data,
        lambda: "\n".join(_line(row) for row in events) or "No events",
        meta={"pagination": pagination, **(meta or {})},
    )


def _line(row: EventRow) -> str:
    worker = render.visible(row.worker_name or "-")
    return (
        f"{row.id}  {render.local_time(row.at)}  #{row.job_id} {row.event.value}  {worker}  "
        f"{render.visible(row.detail or '-')}"
    )


# -- waiting --------------------------------------------------------------------------------


def _wait(args: Args, app: App) -> int:
    from spoolctl.cli.signals import interruptible

    started = time.monotonic()
    until = started + args.wait_timeout
    with interruptible():
        queue = _queue_by(app, until)
        page = None if queue is None else _await_events(args, queue, until)
    if queue is None:
        app.queue_if_any()
    reason = "records_available" if page is not None and page.events else "timeout"
    waited_ms = int((time.monotonic() - started) * 1000)
    return _show(args, app, page, meta={"wait": {"reason": reason, "waited_ms": waited_ms}})


def _await_events(args: Args, queue: Queue, until_mono: float) -> EventPage:
    with queue.waiter(poll_s=_poll_s(args)) as waiter:
        while True:
            changed = queue.changed()
            page = _page(args, queue)
            if page.events:
                return page
            while queue.changed() == changed:
                left = until_mono - time.monotonic()
                if left <= 0:
                    return page
                waiter.sleep(left)


def _poll_s(args: Args) -> float | None:
    # The default is for where there is no bell; one that was asked for always holds.
    poll_s: float = args.poll_interval
    return poll_s if "--poll-interval" in args.given else None


def _queue_by(app: App, until_mono: float | None) -> Queue | None:
    """The queue, waiting for its first `add` if need be; None if it did not come in time."""
    while True:
        try:
            return app.queue
        except NotFound:
            left = STARTUP_POLL_S if until_mono is None else until_mono - time.monotonic()
            if left <= 0:
                return None
            app.out.check_reader()
            pause(min(left, STARTUP_POLL_S))


# -- following ------------------------------------------------------------------------------


def _follow(args: Args, app: App) -> int:
    """Print events until an end is reached or a signal comes."""
    from spoolctl.cli.signals import stoppable

    with stoppable():
        queue = app.queue_if_any()
        since_id = args.since_id
        if since_id is None:
            since_id = queue.events(since_id=0, limit=1).last_id if queue else 0
        app.show_warnings()
        stream = _Stream(args, app, since_id)
        if queue is None:
            queue = _queue_by(app, stream.until_mono)
        return stream.run(queue)
    return 0


class _Stream:
    """The events that are being followed, and how far they have been printed."""

    def __init__(self, args: Args, app: App, since_id: int) -> None:
        self._args = args
        self._app = app
        self._since_id = since_id
        self._left = args.max_events
        self._quiet_since_mono = time.monotonic()

    @property
    def until_mono(self) -> float | None:
        """When it has been quiet for too long."""
        idle_s: float | None = self._args.idle_timeout
        return None if idle_s is None else self._quiet_since_mono + idle_s

    def run(self, queue: Queue | None) -> int:
        """Print until the end; returns the exit status."""
        if queue is None:
            return self._end("idle_timeout")
        try:
            with queue.waiter(poll_s=_poll_s(self._args)) as waiter:
                return self._end(self._print_all(queue, waiter))
        except (OutputClosed, OutputFailed):
            raise
        except SpoolError as error:
            if not self._app.json:
                raise
            message = " ".join(str(error).split()) or error.code
            self._control(type="error", reason="sqlite_error", message=message, exit_code=3)
            return 3

    def _print_all(self, queue: Queue, waiter: Waiter) -> str:
        """Print what there is and what comes; returns why it has ended."""
        while True:
            looked_mono = time.monotonic()
            changed = queue.changed()
            while self._print_page(queue):
                pass
            if self._left == 0:
                return "max_events"
            while queue.changed() == changed:
                until = self.until_mono
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return "idle_timeout"
                if not waiter.sleep(left, watch=self._app.out.stdout):
                    raise OutputClosed
            # What comes alone is printed at once; of what comes in a burst, much at a time.
            pause(max(0.0, looked_mono + BURST_LOOK_S - time.monotonic()))

    def _print_page(self, queue: Queue) -> bool:
        """Print the next events; False if there are no more to be printed now."""
        limit = PAGE if self._left is None else min(PAGE, self._left)
        page = queue.events(since_id=self._since_id, job_id=self._args.job, limit=limit)
        # Others' events need not be looked at again.
        full = len(page.events) == limit
        self._since_id = page.events[-1].id if full else max(self._since_id, page.last_id)
        if not page.events:
            return False
        as_text = _frame if self._app.json else _line
        lines = "".join(f"{as_text(row)}\n" for row in page.events)
        self._app.out.write(render.encode(lines))
        self._quiet_since_mono = time.monotonic()
        if self._left is not None:
            self._left -= len(page.events)
        return full and self._left != 0

    def _end(self, reason: str) -> int:
        if self._app.json:
            self._control(type="end", reason=reason)
        return 0

    def _control(self, **members: Any) -> None:
        self._app.out.write(json.dumps({"control": members}).encode("ascii") + b"\n")


def _frame(row: EventRow) -> str:
    return json.dumps(members.event(row))

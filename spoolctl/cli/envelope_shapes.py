"""The JSON Schemas of the envelope in which every verb answers, and of streamed frames."""

from __future__ import annotations

from spoolctl.cli import shapes
from spoolctl.cli.codes import ERRORS, EXITS, WARNINGS
from spoolctl.cli.members import event_schema
from spoolctl.cli.shapes import JsonSchema, closed
from spoolctl.version import CONTRACT_VERSION

LIST_PAGE = closed(
    cursor=shapes.COUNT,
    first_id=shapes.nullable(shapes.ID),
    limit=shapes.COUNT,
    truncated=shapes.BOOLEAN,
    scanned=shapes.COUNT,
    scan_limit=shapes.COUNT,
    optional=("scanned", "scan_limit"),
)
EVENTS_PAGE = closed(cursor=shapes.COUNT, first_id=shapes.nullable(shapes.ID))
WAIT = closed(
    reason={"type": "string", "enum": ["records_available", "timeout"]},
    waited_ms=shapes.COUNT,
)


def envelope() -> JsonSchema:
    """One answer. `data` is described by the schema of its verb; null on failure."""
    meta = closed(
        request_id=shapes.TEXT,
        ts_iso={"type": "string", "pattern": "Z$"},
        elapsed_ms=shapes.COUNT,
        contract_version={"const": CONTRACT_VERSION},
        data_hash=shapes.TEXT,
        pagination=shapes.one_of(LIST_PAGE, EVENTS_PAGE),
        wait=WAIT,
        optional=("pagination", "wait"),
    )
    warning = closed(code=shapes.words(WARNINGS), message=shapes.TEXT)
    error = closed(
        code=shapes.words(ERRORS),
        message=shapes.TEXT,
        remediation=shapes.TEXT,
        exit_code={"type": "integer", "enum": [code for code in EXITS if code]},
        did_you_mean=shapes.TEXT,
        optional=("did_you_mean",),
    )
    return closed(
        ok=shapes.BOOLEAN,
        tool_version=shapes.TEXT,
        data={"type": ["object", "null"]},
        meta=meta,
        warnings=shapes.array(warning),
        commands=shapes.array(shapes.STRING, maxItems=0),
        errors=shapes.array(error, maxItems=1),
    )


def events_follow() -> JsonSchema:
    """One line of `events --follow --json`: an event, or a control frame."""
    end = closed(
        type={"const": "end"}, reason={"type": "string", "enum": ["idle_timeout", "max_events"]}
    )
    error = closed(
        type={"const": "error"},
        reason={"const": "sqlite_error"},
        message=shapes.TEXT,
        exit_code={"const": 3},
    )
    return shapes.one_of(event_schema(), closed(control=shapes.one_of(end, error)))

"""`spoolctl doctor`: is everything ready? Looks only: creates, migrates and writes nothing."""

from __future__ import annotations

import os

from spoolctl.cli import shapes
from spoolctl.cli.render import local_time, visible
from spoolctl.cli.spec import COMMON, DB, JsonSchema, Verb
from spoolctl.core.tuples import NamedTuple
from spoolctl.version import CONTRACT_VERSION, __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.config import Location
    from spoolctl.engine.diagnosis import Diagnosis

STATUSES = ("pass", "warn", "fail", "skip")
FILE_SYSTEMS = ("local", "network", "shared", "unknown")

CHECKS = (
    "config_valid",
    "db_path_resolved",
    "spool_directory_writable",
    "database_exists",
    "sqlite_open_readwrite",
    "schema_version",
    "contract_metadata",
)
"""Every check, in the order in which they are made and listed."""

PATIENCE_S = 60.0
"""Jobs that nobody serves are a warning when they have waited that long."""

ROOM_BYTES = 64 * 1024
"""With less room on the disk hardly anything can be recorded any more."""


class Check(NamedTuple):
    """The result of one check. `blocked_by`: the check that made it pointless."""

    id: str
    status: str
    message: str
    remediation: str | None = None
    blocked_by: str | None = None


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.config import SOURCES

    maybe = shapes.nullable
    check = shapes.closed(
        id=shapes.words(CHECKS),
        status=shapes.words(STATUSES),
        message=shapes.TEXT,
        remediation=maybe(shapes.TEXT),
        blocked_by=maybe(shapes.words(CHECKS)),
    )
    lane = shapes.closed(queue=shapes.TEXT, due=shapes.ID, oldest_due_at=shapes.NUMBER)
    return shapes.closed(
        ready=shapes.BOOLEAN,
        summary=shapes.table(("passed", "warnings", "failed", "skipped"), shapes.COUNT),
        config=shapes.closed(
            config_path=shapes.TEXT,
            config_exists=shapes.BOOLEAN,
            config_valid=shapes.BOOLEAN,
            db_path=maybe(shapes.TEXT),
            db_source=maybe(shapes.words(SOURCES)),
        ),
        checks=shapes.array(check, minItems=len(CHECKS), maxItems=len(CHECKS)),
        versions=shapes.closed(
            tool_version=shapes.TEXT,
            contract_version={"const": CONTRACT_VERSION},
            schema_version=shapes.INTEGER,
        ),
        file_system=maybe(shapes.words(FILE_SYSTEMS)),
        workers=maybe(shapes.table(("alive", "dead", "unclear"), shapes.COUNT)),
        unserved=maybe(shapes.array(lane)),
        orphaned_attempts=maybe(shapes.COUNT),
        optional=("file_system", "workers", "unserved", "orphaned_attempts"),
    )


VERB = Verb(
    name="doctor",
    description="Check that the queue can be used: config file, path, folder and the room on its "
    "disk, file, layout, and the program itself. Also says when the file system is one that "
    "spoolctl cannot vouch for, when due jobs wait that no living worker serves, and when jobs are "
    "left over from dead workers. Creates, migrates and writes nothing, and works while others "
    "write. Exits 3 when something is not ready.",
    data_schema="Whether all is ready, seven checks in fixed order, and what was found.",
    schema=schema,
    flags=(DB, *COMMON),
    examples=(("spoolctl", "doctor"), ("spoolctl", "doctor", "--json")),
    epilog=(
        "file_system, workers, unserved (queues with due jobs and no living worker) and "
        "orphaned_attempts are null where the queue could not be read.",
    ),
)


def run(args: Args, app: App) -> int:
    """Make all checks and show the results."""
    from spoolctl.config import ConfigBroken

    broken: ConfigBroken | None = None
    place: Location | None = None
    try:
        place = _locate(args.db)
    except ConfigBroken as error:
        broken = error
    found = _diagnose(place) if place is not None else None
    checks = _config_checks(place, broken)
    if place is not None and found is not None:
        checks += _queue_checks(place, found)
    checks.append(_contract_check())
    data = _data(place, broken, found, checks)
    return app.show(data, lambda: _text(data), exit_code=0 if data["ready"] else 3)


def _locate(db: str | None) -> Location:
    """Where the queue is, after all values of the config file have been looked at."""
    from spoolctl.cli import settings
    from spoolctl.config import ConfigBroken, locate, without_config

    place = locate(db)
    try:
        settings.check(place.config_path, place.settings)
    except ConfigBroken as broken:
        return without_config(place, broken)
    return place


def _diagnose(place: Location) -> Diagnosis:
    from spoolctl.engine.clock import SystemClock
    from spoolctl.engine.diagnosis import diagnose

    return diagnose(place.path, now=SystemClock().now())


# -- the checks -----------------------------------------------------------------------------


def _config_checks(place: Location | None, broken: Exception | None) -> list[Check]:
    """The first check; where it fails, also those that depend on it."""
    from spoolctl.cli.settings import unknown

    first = CHECKS[0]
    if place is None:
        advice = "repair or remove the config file, or name the queue with --db"
        failed = Check(first, "fail", str(broken), advice)
        return [failed, *_skipped(CHECKS[1:6], first)]
    if place.remarks:
        return [Check(first, "warn", " ".join(place.remarks), "repair or remove the config file")]
    ignored = unknown(place.settings)
    if ignored:
        names = ", ".join(repr(key) for key in ignored)
        return [Check(first, "warn", f"keys that mean nothing are ignored: {names}", "remove them")]
    exists = "is understood" if place.config_exists else "does not exist, and need not"
    return [Check(first, "pass", f"{place.config_path} {exists}")]


def _queue_checks(place: Location, found: Diagnosis) -> list[Check]:
    """Checks 2 to 6."""
    checks = [
        Check(CHECKS[1], "pass", f"the queue is {place.path} ({place.source})"),
        _folder_check(os.path.dirname(place.path), found.file_system),
        _exists_check(place.path, found.examination.kind),
    ]
    if checks[-1].status == "fail":
        return [*checks, *_skipped(CHECKS[4:6], CHECKS[3])]
    checks.append(_usable_check(place.path, found))
    if checks[-1].status == "fail":
        return [*checks, *_skipped(CHECKS[5:6], CHECKS[4])]
    return [*checks, _layout_check(found)]


def _skipped(ids: tuple[str, ...], blocked_by: str) -> list[Check]:
    return [
        Check(each, "skip", f"not checked: {blocked_by} failed", None, blocked_by) for each in ids
    ]


def _no_folder(folder: str) -> tuple[str, str]:
    """Message and remediation: whether the first `add` can make it."""
    above = folder
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return f"{above} is in the way: it is no folder", "name another queue with --db"
    if not os.access(above, os.W_OK | os.X_OK):
        return (
            f"there is no folder {folder}, and {above} is not writable",
            f"make {above} writable, or name another queue with --db",
        )
    return (
        f"there is no folder {folder}",
        "it is made by the first `spoolctl add`; or name another queue with --db",
    )


def _folder_check(folder: str, file_system: str) -> Check:
    name = CHECKS[2]
    if not os.path.isdir(folder):
        return Check(name, "fail", *_no_folder(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            name, "fail", f"the folder {folder} is not writable", f"make {folder} writable"
        )
    if not _has_room(folder):
        return Check(name, "fail", f"there is no room on the disk of {folder}", "free some space")
    if file_system == "network":
        return Check(
            name,
            "fail",
            f"{folder} is on a network file system, on which SQLite's log does not work",
            "put the queue on a local disk, with --db or SPOOLCTL_DB",
        )
    if file_system == "local":
        return Check(name, "pass", f"{folder} is writable, on a local file system")
    what = {
        "shared": "on a file system that another machine or container may see, too: after a "
        "restart, jobs of workers that died are taken back only with `retry --force`",
    }.get(file_system, "on a file system of unknown kind: it is treated as one that is shared")
    return Check(
        name,
        "warn",
        f"{folder} is writable, but {what}",
        "put the queue on a local disk if you can, with --db or SPOOLCTL_DB",
    )


def _has_room(folder: str) -> bool:
    """Whether the disk takes a few pages more, and a file; where it does not say, it does."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return True
    blocks = disk.f_bavail if os.geteuid() else disk.f_bfree
    files = disk.f_favail if os.geteuid() else disk.f_ffree
    has_files = files > 0 or not disk.f_files  # some file systems do not count them
    return has_files and (blocks * disk.f_frsize >= ROOM_BYTES or not disk.f_blocks)


def _exists_check(path: str, kind: str) -> Check:
    name = CHECKS[3]
    if kind == "missing":
        return Check(
            name, "fail", f"there is no file {path}", "it is made by the first `spoolctl add`"
        )
    if not os.path.isfile(path):
        return Check(name, "fail", f"{path} is not a regular file", "name another queue with --db")
    return Check(name, "pass", f"{path} exists")


ADVICE = {
    "empty": "it becomes a queue with the first `spoolctl add`",
    "foreign": "it belongs to another program: name another queue with --db",
    "damaged": "move it away, with its -wal and -shm, and restore a backup or begin anew",
}
"""Kind of a file that cannot serve -> what to try."""


def _usable_check(path: str, found: Diagnosis) -> Check:
    name, seen = CHECKS[4], found.examination
    if seen.kind not in ("queue", "older", "newer"):
        message = seen.message or f"{path} is empty"
        advice = ADVICE.get(seen.kind, "name another queue with --db")
        return Check(name, "fail", message, advice)
    if not os.access(path, os.R_OK | os.W_OK):
        return Check(name, "fail", f"{path} is not writable", f"make {path} writable")
    if seen.kind == "queue" and found.unserved is None:
        return Check(name, "warn", f"{path} could not be read: {seen.message}", "try again later")
    return _served_check(name, path, found)


def _served_check(name: str, path: str, found: Diagnosis) -> Check:
    """The file is fine; is somebody there for what it holds?"""
    sentences, advice, urgent = [f"{path} can be used"], [], False
    for lane in found.unserved or ():
        sentences.append(
            f"{lane.due} due job(s) wait in queue {lane.queue}, the oldest since "
            f"{local_time(lane.oldest_at)}, and no living worker serves it"
        )
        advice.append(f"spoolctl work --drain --queue {lane.queue}")
        urgent = urgent or _age_s(lane.oldest_at) > PATIENCE_S
    if found.orphans:
        sentences.append(f"{found.orphans} attempt(s) of dead workers have not been taken back yet")
        if not (found.workers and found.workers.alive):
            advice.append("spoolctl work --drain")
            urgent = True
    return Check(
        name,
        "warn" if urgent else "pass",
        "; ".join(sentences),
        "run: " + "; ".join(dict.fromkeys(advice)) if advice else None,
    )


def _age_s(at: float) -> float:
    import time

    return time.time() - at


def _layout_check(found: Diagnosis) -> Check:
    from spoolctl.store.examination import layout_version

    name, seen = CHECKS[5], found.examination
    if seen.kind == "older":
        return Check(
            name,
            "fail",
            f"the file has {seen.message}",
            "any verb that uses it brings it up to date",
        )
    if seen.kind == "newer":
        return Check(name, "fail", seen.message, "use the spoolctl that wrote it, or a newer one")
    return Check(name, "pass", f"layout {layout_version()}")


def _contract_check() -> Check:
    from spoolctl.cli.contract import capabilities
    from spoolctl.cli.schema import schemas
    from spoolctl.cli.verbs import VERBS

    name = CHECKS[6]
    try:
        described, shaped = capabilities()["verbs"], schemas()["verbs"]
    except Exception as error:
        # Whatever is wrong with the installed files, it must be reported and not raised.
        message = f"this installation cannot describe itself: {type(error).__name__}: {error}"
        return Check(name, "fail", message, "install spoolctl anew")
    if set(described) != set(VERBS) or set(shaped) != set(VERBS):
        return Check(name, "fail", "not all verbs are described", "install spoolctl anew")
    return Check(name, "pass", f"capabilities and schemas describe all {len(VERBS)} verbs")


# -- the result -----------------------------------------------------------------------------


def _data(
    place: Location | None,
    broken: Exception | None,
    found: Diagnosis | None,
    checks: list[Check],
) -> dict[str, Any]:
    from spoolctl.store.examination import layout_version

    statuses = [check.status for check in checks]
    data: dict[str, Any] = {
        "ready": "fail" not in statuses,
        "summary": {
            "passed": statuses.count("pass"),
            "warnings": statuses.count("warn"),
            "failed": statuses.count("fail"),
            "skipped": statuses.count("skip"),
        },
        "config": {
            "config_path": place.config_path if place else getattr(broken, "path", ""),
            "config_exists": place.config_exists if place else True,
            "config_valid": place.config_valid if place else False,
            "db_path": place.path if place else None,
            "db_source": place.source if place else None,
        },
        "checks": [check._asdict() for check in checks],
        "versions": {
            "tool_version": __version__,
            "contract_version": CONTRACT_VERSION,
            "schema_version": layout_version(),
        },
        "file_system": found.file_system if found else None,
        "workers": None,
        "unserved": None,
        "orphaned_attempts": found.orphans if found else None,
    }
    if found is not None and found.workers is not None and found.unserved is not None:
        data["workers"] = found.workers._asdict()
        data["unserved"] = [
            {"queue": lane.queue, "due": lane.due, "oldest_due_at": lane.oldest_at}
            for lane in found.unserved
        ]
    return data


def _text(data: dict[str, Any]) -> str:
    summary = data["summary"]
    lines = [
        f"ready: {'yes' if data['ready'] else 'no'}",
        f"db: {visible(data['config']['db_path'] or '-')}",
        f"schema: {data['versions']['schema_version']}",
        f"checks: {summary['passed']} passed, {summary['warnings']} warnings, "
        f"{summary['failed']} failed, {summary['skipped']} skipped",
    ]
    for title, status in (("failed checks:", "fail"), ("warnings:", "warn"), ("notes:", "pass")):
        # Of what has passed only what comes with advice is worth a line.
        shown = [
            check
            for check in data["checks"]
            if check["status"] == status and (status != "pass" or check["remediation"])
        ]
        lines += [title] if shown else []
        for check in shown:
            lines.append(f"  {check['id']}: {visible(check['message'])}")
            if check["remediation"]:
                lines.append(f"    {visible(check['remediation'])}")
    return "\n".join(lines)

"""A look at the path that changes nothing: what is there, and may it be opened?"""

from __future__ import annotations

import os
import sqlite3
import stat

from spoolctl.core.tuples import NamedTuple
from spoolctl.store.sqlite.files import has_content, planted, uri, why
from spoolctl.store.sqlite.schema.migrations import SCHEMA_VERSION

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

APPLICATION_ID = 0x53706C71
"""In the file's header (bytes 68-71): "Splq"."""


class Probe(NamedTuple):
    """What the look has shown.

    `kind`: `missing`, `empty` (zero bytes: a new queue), `queue`, or, with a `message`,
    `failing` (the disk does not serve it now) or one of the kinds of StoreUnusable. `version`:
    the layout's number, 0 where unknown. It is the one in the file itself; what is still in
    the log alone is not seen.
    """

    kind: str
    version: int = 0
    message: str = ""


def probe(path: str) -> Probe:
    """Look at the file without creating, locking, migrating or recovering anything.

    Another program's database stays as it is, and so do its `-wal` and `-shm`.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return Probe("missing")
    except (OSError, ValueError) as error:
        return Probe("path", message=f"cannot use {path}: {why(error)}")
    if stat.S_ISDIR(status.st_mode):
        return Probe("path", message=f"{path} is a folder, not a queue file")
    if not stat.S_ISREG(status.st_mode):
        return Probe("path", message=f"{path} is not a regular file")
    if status.st_nlink > 1:
        # By its other name it would have another log: what one side commits the other
        # overwrites (sqlite.org/howtocorrupt.html, "multiple links to the same file").
        return Probe(
            "path",
            message=f"{path} has {status.st_nlink} names (hard links): used by more than one,"
            " it would be damaged; remove the others, or replace it by a copy of itself",
        )
    if not os.access(path, os.R_OK):
        return Probe("path", message=f"cannot read {path}: Permission denied")
    if not status.st_mode & _OTHERS_WRITE:  # access control lists show up in the group bits
        stranger = planted(path, status.st_uid)
        if stranger:
            return Probe("path", message=stranger)
    if status.st_size == 0:
        return Probe("empty")
    try:
        return _probe_header(path)
    except sqlite3.DatabaseError as error:
        return _unreadable(path, str(error))


def _probe_header(path: str) -> Probe:
    # immutable: no locks, no recovery, no -shm made (sqlite.org/uri.html).
    db = sqlite3.connect(uri(path, "mode=ro&immutable=1"), uri=True, timeout=0)
    try:
        try:
            application = _pragma(db, "application_id")
        except sqlite3.DatabaseError:
            # After a crash in the middle of a checkpoint the file is shorter than its header
            # says, and whole again with its log. With this pragma the header counts alone.
            if not has_content(path + "-wal"):
                raise
            db.execute("PRAGMA writable_schema = ON")
            application = _pragma(db, "application_id")
        version = _pragma(db, "user_version")
    finally:
        db.close()
    if application != APPLICATION_ID:
        return Probe("foreign", message=f"{path} is a database of another program")
    if version > SCHEMA_VERSION:
        return Probe("newer", version, newer_message(path, version))
    return Probe("queue", version)


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _unreadable(path: str, text: str) -> Probe:
    if "not a database" in text:
        return Probe("foreign", message=f"{path} is not a queue file")
    if "malformed" in text:
        return Probe("damaged", message=f"{path} is damaged: {text}")
    # Whoever may not read it was told so before.
    kind = "failing" if is_failing(text) else "path"
    return Probe(kind, message=f"cannot open {path}: {text}")


def is_failing(text: str) -> bool:
    """Whether an error of SQLite says that the disk, or a limit of the process, is in the way."""
    return "disk I/O" in text or "unable to open" in text


def newer_message(path: str, version: int) -> str:
    """What to say of a file whose layout this program does not know."""
    return (
        f"{path} was written by a newer spoolctl"
        f" (layout {version}; this program knows {SCHEMA_VERSION})"
    )

"""Opening the queue's file: creating it, bringing its layout up to date, choosing the log."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing

from spoolctl.core.paths import beside, owners
from spoolctl.errors import (
    InvalidInput,
    NotFound,
    SpoolError,
    StoreFailing,
    StoreFull,
    StoreUnusable,
)
from spoolctl.store.sqlite.connection import Connection
from spoolctl.store.sqlite.files import (
    create_private,
    has_content,
    inode,
    planted,
    refusal,
    uri,
    why,
)
from spoolctl.store.sqlite.probe import APPLICATION_ID, is_failing, probe
from spoolctl.store.sqlite.schema.migrations import MIGRATIONS

WAL_LIMIT_BYTES = 16 << 20
"""A log that grew during a burst is cut back to this size when it starts over."""

CHECKPOINT_PAGES = 1000
"""Pages in the log at which a commit writes them back (4 MB, below WAL_LIMIT_BYTES). Jobs change
the same few pages again and again: the longer the log, the fewer are written twice. But whoever is
the last to close the file removes the log, which may take 1 ms for each MB (where the disk is told
of what is free: `mount -o discard`); and the longer it is, the longer everybody waits meanwhile."""

LONGEST_PATH_BYTES = 504
"""SQLite's own limit (MAX_PATHNAME in os_unix.c), with room for the suffix of its journal."""

LONGEST_NAME_BYTES = 255 - len("-journal")
"""The same in the folder: NAME_MAX of all file systems that matter."""

LOOK_AGAIN_S = 0.05

OPEN_WAIT_S = 5.0
"""How long opening waits at least: for another program that creates or migrates the file."""


def open_connection(path: str, *, create: bool, wait_s: float) -> Connection:
    """Open the queue at `path`; see `open_store` for what is raised.

    Trouble with the disk, or damage, is believed at the second look only: where the layout
    cannot be read for once, SQLite itself says that the file is malformed.
    """
    try:
        return _open(path, create=create, wait_s=wait_s)
    except SpoolError as error:
        if not isinstance(error, StoreFailing) and getattr(error, "kind", "") != "damaged":
            raise
    from spoolctl.core.pauses import pause

    pause(LOOK_AGAIN_S)
    return _open(path, create=create, wait_s=wait_s)


def _open(path: str, *, create: bool, wait_s: float) -> Connection:
    try:
        path = os.path.realpath(path)
    except (OSError, ValueError) as error:  # a NUL in the name
        raise StoreUnusable(f"cannot use {path!r}: {why(error)}", kind="path", path=path) from error
    name = os.fsencode(path)
    if len(name) > LONGEST_PATH_BYTES or len(os.path.basename(name)) > LONGEST_NAME_BYTES:
        raise StoreUnusable(
            f"cannot use {path!r}: SQLite takes paths of up to {LONGEST_PATH_BYTES} bytes,"
            f" with names of up to {LONGEST_NAME_BYTES}",
            kind="path",
            path=path,
        )
    seen = probe(path)
    if seen.kind in ("missing", "empty"):
        if not create:
            raise NotFound(f"no queue at {path}", where=path)
        if seen.kind == "missing":
            _refuse_to_mix_up(path)
            _create_file(path)
    elif seen.kind == "failing":
        raise StoreFailing(seen.message)
    elif seen.kind != "queue":
        raise StoreUnusable(seen.message, kind=seen.kind, path=path)
    connection = _connect(path, "mode=rw")
    try:
        connection.wait_s = max(wait_s, OPEN_WAIT_S)
        _prepare(connection, create=create)
    except (StoreUnusable, StoreFull) as error:
        connection.close()
        connection = _open_at_rest(path, error)
    except BaseException:
        connection.close()
        raise
    connection.wait_s = wait_s
    return connection


def _connect(path: str, options: str, *, read_only: bool = False) -> Connection:
    seen = inode(path)
    try:
        # mode=rw never creates; it falls back to reading where writing is not allowed.
        db = sqlite3.connect(
            uri(path, options), uri=True, timeout=0, isolation_level=None, cached_statements=256
        )
    except sqlite3.Error as error:
        if is_failing(str(error)) and not _is_obstructed(path):
            raise StoreFailing(f"cannot open {path}: {error}") from error
        raise StoreUnusable(f"cannot open {path}: {error}", kind="path", path=path) from error
    return Connection(path, db, seen, read_only=read_only)


def read_only(path: str, *, immutable: bool) -> Connection:
    """A connection that cannot write. `immutable`: without locks, its log left alone, and
    nothing made beside the file; only right while nobody writes.

    Raises StoreUnusable.
    """
    return _connect(path, "mode=ro&immutable=1" if immutable else "mode=ro", read_only=True)


def _prepare(connection: Connection, *, create: bool) -> None:
    """Settings of the connection; the layout, if it is missing or old; the log."""
    execute = connection.execute
    try:
        if sys.platform == "darwin":
            # Otherwise fsync(2) there does not reach the platter.
            execute("PRAGMA fullfsync = ON")
            execute("PRAGMA checkpoint_fullfsync = ON")
        # Functions with side effects stay out of reach of a schema that somebody prepared.
        execute("PRAGMA trusted_schema = OFF")
        # No temporary files: /tmp may be full, or not there.
        execute("PRAGMA temp_store = MEMORY")
        execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        version = connection.ask("PRAGMA user_version")
        if version == 0 and not create:
            # Somebody is creating it, or died while doing so.
            raise NotFound(f"no queue at {connection.path}", where=connection.path)
        if version < len(MIGRATIONS):
            migrate(connection)
        # Read the layout now, while it is known that no harm is done by looking again.
        connection.ask("SELECT 1 FROM sqlite_master LIMIT 1")
    except sqlite3.Error as error:
        raise connection.translate(error) from error
    connection.check_file()


def _open_at_rest(path: str, error: StoreUnusable | StoreFull) -> Connection:
    """Where file or folder cannot be written, SQLite may not be able to make the files that it
    shares with others. A file at rest, with nothing in its log, can be read without them.
    """
    if _is_writable(path) or has_content(path + "-wal"):
        if isinstance(error, StoreFailing) and _is_obstructed(path):
            raise StoreUnusable(str(error), kind="path", path=path) from error
        raise error
    connection = read_only(path, immutable=True)
    try:
        version = connection.ask("PRAGMA user_version")
    except sqlite3.Error as failed:
        connection.close()
        raise error from failed
    if version == len(MIGRATIONS):
        return connection
    connection.close()
    if version == 0:  # its creator died
        raise error
    raise StoreUnusable(
        f"{path} was made by an earlier spoolctl and has to be brought up to date, but it cannot"
        " be written (a copy of it can)",
        kind="read_only",
        path=path,
    ) from error


def _is_obstructed(path: str) -> bool:
    """Whether SQLite could not open its files, or make them, on a healthy disk either."""
    if not _is_writable(path):
        return True
    beside = (f"{path}{suffix}" for suffix in ("-wal", "-shm", "-journal"))
    return any(
        os.path.lexists(each) and not (os.path.isfile(each) and os.access(each, os.R_OK | os.W_OK))
        for each in beside
    )


def _is_writable(path: str) -> bool:
    return os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)


# -- layout -----------------------------------------------------------------------------


def migrate(connection: Connection, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Bring the file to this program's layout, one transaction per step.

    A program killed at any point leaves the old layout or the new one. Of a new file the
    first page is written first, which bears our mark: a creator killed after that leaves
    something that the next one recognizes and completes.
    """
    execute = connection.execute
    connection.sync_fully()
    if connection.ask("PRAGMA application_id") != APPLICATION_ID:
        connection.insist(lambda: _write_first_page(connection))
    _use_log(connection)
    version = connection.ask("PRAGMA user_version")
    while version < len(migrations):
        connection.begin("BEGIN IMMEDIATE")
        with connection.ending():
            # Again, inside: another program may have been first.
            version = execute("PRAGMA user_version").fetchone()[0]
            if version < len(migrations):
                for statement in migrations[version]:
                    execute(statement)
                version += 1
                execute(f"PRAGMA user_version = {version}")
    # Into the file itself, where a probe sees it; if somebody is in the way, later.
    connection.ask("PRAGMA wal_checkpoint(PASSIVE)")


def _write_first_page(connection: Connection) -> None:
    """One page, with the two settings that it must have from the start; all or nothing.

    Before there is a log, a commit fails while anybody reads: to be tried again.
    """
    connection.begin("BEGIN")
    with connection.ending():
        # Takes effect only before the first page is made, which a BEGIN IMMEDIATE would do.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _require_ours(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _require_ours(connection: Connection) -> None:
    """What may have come between our look and our lock: another creator, or another program."""
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    if mark == APPLICATION_ID:
        return
    if mark or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise StoreUnusable(
            f"{connection.path} is a database of another program",
            kind="foreign",
            path=connection.path,
        )


def _use_log(connection: Connection) -> None:
    if connection.ask("PRAGMA journal_mode = WAL") != "wal":
        raise StoreUnusable(
            f"SQLite's write-ahead log does not work at {connection.path}",
            kind="unsupported",
            path=connection.path,
        )


# -- creating, copying ------------------------------------------------------------------


def _refuse_to_mix_up(path: str) -> None:
    """Files of which SQLite would take one for the other's log, and read or remove it."""
    stranger = planted(path, os.geteuid())
    if stranger:
        raise StoreUnusable(stranger, kind="path", path=path)
    mixed = [(path, owner) for owner in owners(path) if os.path.isfile(owner)]
    mixed += [(each, path) for each in beside(path) if probe(each).kind == "queue"]
    for part, whole in mixed:
        message = f"cannot create {path}: {part} would be taken for a part of {whole}"
        raise StoreUnusable(message, kind="path", path=path)


def _create_file(path: str) -> None:
    """Make an empty file (0600) and its missing folders (0700), synced."""
    from spoolctl.folders import make_folder, sync_folder

    folder = os.path.dirname(path)
    try:
        make_folder(folder)
        create_private(path)
        sync_folder(folder)
    except FileExistsError:
        return  # another creator was first: whatever it is, it is looked at like any file
    except OSError as error:
        raise refusal(error, "cannot create", path) from error


def backup(connection: Connection, target: str) -> None:
    """Copy the database, as of the read transaction around this, to a new file (0600).

    Raises InvalidInput if something is there already, StoreUnusable with its path if it cannot
    be made. Removes a half-written copy.
    """
    from spoolctl.folders import sync_folder

    try:
        create_private(target)
    except FileExistsError:
        raise InvalidInput(f"{target} exists already") from None
    except OSError as error:
        raise refusal(error, "cannot create", target) from error
    try:
        _copy(connection, os.path.abspath(target))
        sync_folder(os.path.dirname(os.path.abspath(target)))
    except BaseException:
        for leftover in (target, *beside(target)):
            if os.path.exists(leftover):
                os.unlink(leftover)
        raise


def _copy(connection: Connection, target: str) -> None:
    name = uri(target, "mode=rw")
    try:
        with closing(sqlite3.connect(name, uri=True, isolation_level=None)) as copy:
            copy.execute("PRAGMA synchronous = FULL")
            connection.copy_to(copy)
    except sqlite3.Error as error:
        text = str(error)
        if "is full" in text:
            raise StoreFull(f"no room on the disk for {target}") from error
        if is_failing(text):
            raise StoreFailing(f"the disk does not serve {target}: {text}") from error
        raise StoreUnusable(f"cannot write {target}: {text}", kind="path", path=target) from error

"""One connection to the queue's file: opening, creating, transactions, errors.

Only SQLite opens the file, its `-wal` and its `-shm`: POSIX locks vanish when any descriptor
of a file is closed in the process. What has to be known beforehand comes from stat(2) and
from SQLite itself, through a connection that takes no locks and touches no neighbour.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from spoolctl.errors import (
    InvalidInput,
    NotFound,
    SpoolError,
    StoreBusy,
    StoreFull,
    StoreGone,
    StoreUnusable,
)
from spoolctl.store.sqlite.schema.migrations import MIGRATIONS, SCHEMA_VERSION

APPLICATION_ID = 0x53706C71
"""In the file's header (bytes 68-71): "Splq"."""

# A WAL that grew during a burst is cut back to this at the next reset.
WAL_LIMIT_BYTES = 16 << 20


class Probe(NamedTuple):
    """What a look at the path, which changes nothing, has shown.

    `kind`: `missing`, `empty` (zero bytes: a new queue), `queue`, or one of the kinds of
    StoreUnusable with its `message`. `version` is the layout's number (0 where unknown).
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
        return Probe("path", message=f"cannot use {path}: {_why(error)}")
    if stat.S_ISDIR(status.st_mode):
        return Probe("path", message=f"{path} is a folder, not a queue file")
    if not stat.S_ISREG(status.st_mode):
        return Probe("path", message=f"{path} is not a regular file")
    if status.st_size == 0:
        return Probe("empty")
    return _probe_header(path)


def _probe_header(path: str) -> Probe:
    try:
        # immutable: no locks, no recovery, no -shm made (sqlite.org/uri.html).
        conn = sqlite3.connect(_uri(path, "mode=ro&immutable=1"), uri=True, timeout=0)
    except sqlite3.Error as error:
        return Probe("path", message=f"cannot open {path}: {error}")
    try:
        try:
            application = int(conn.execute("PRAGMA application_id").fetchone()[0])
        except sqlite3.DatabaseError:
            # After a crash in the middle of a checkpoint the file is shorter than its header
            # says, and whole again with its log. With this pragma the header counts alone.
            if not _has_content(path + "-wal"):
                raise
            conn.execute("PRAGMA writable_schema = ON")
            application = int(conn.execute("PRAGMA application_id").fetchone()[0])
        version = int(conn.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return _probe_failed(path, error)
    finally:
        conn.close()
    if application != APPLICATION_ID:
        return Probe("foreign", message=f"{path} is a database of another program")
    if version > SCHEMA_VERSION:
        return Probe("newer", version, newer_message(path, version))
    return Probe("queue", version)


def _probe_failed(path: str, error: sqlite3.DatabaseError) -> Probe:
    text = str(error)
    if "not a database" in text:
        return Probe("foreign", message=f"{path} is not a queue file")
    if "malformed" in text:
        return Probe("damaged", message=f"{path} is damaged: {text}")
    return Probe("path", message=f"cannot open {path}: {text}")


def newer_message(path: str, version: int) -> str:
    """What to say of a file whose layout this program does not know."""
    return (
        f"{path} was written by a newer spoolctl"
        f" (layout {version}; this program knows {SCHEMA_VERSION})"
    )


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _uri(path: str, options: str) -> str:
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    # Exactly one slash in front: two would start the name of a host.
    return f"file:/{quoted.lstrip('/')}?{options}"


def _inode(path: str) -> tuple[int, int] | None:
    """Device and inode, or None where nothing is (any more)."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


class Connection:
    """A connection with its transactions. Not thread-safe."""

    def __init__(self, path: str, db: sqlite3.Connection, inode: tuple[int, int] | None) -> None:
        self.path = path
        self.wait_s = 0.0
        self._db = db
        self._inode = inode
        self._log_inode: tuple[int, int] | None = None
        self._full_sync: bool | None = None
        self._closed = False
        self.execute = db.execute
        self.executemany = db.executemany

    def close(self) -> None:
        """Release the file. May be called twice."""
        self._closed = True
        self._db.close()

    # -- transactions -------------------------------------------------------------------

    @contextmanager
    def write(self, *, full: bool = True) -> Iterator[None]:
        """A write transaction. With `full`, its commit is synced to disk before this returns.

        Raises StoreBusy, StoreFull, StoreGone or StoreUnusable; then nothing was written and
        the connection can be used again.
        """
        self.check_file()
        try:
            self._begin(full)
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise self.translate(error) from error
        except BaseException:  # Ctrl-C too: the lock must not stay with us
            self._roll_back()
            raise

    @contextmanager
    def read(self) -> Iterator[None]:
        """A read transaction: everything inside sees one snapshot."""
        try:
            self._retry_locked(self._begin_reading)
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise self.translate(error) from error
        except BaseException:
            self._roll_back()
            raise

    def _begin(self, full: bool) -> None:
        if full is not self._full_sync:
            # Cannot change inside a transaction, so it is chosen before it begins.
            self._db.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full_sync = full
        # IMMEDIATE: one that reads first and writes later can fail at once, whatever the wait.
        self._retry_locked(lambda: self._db.execute("BEGIN IMMEDIATE"))
        self._check_version()

    def _begin_reading(self) -> None:
        try:
            self._db.execute("BEGIN")
            self._check_version()
        except BaseException:
            self._roll_back()
            raise

    def _check_version(self) -> None:
        """Inside a transaction, so that a migration by another program cannot slip between."""
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StoreUnusable(newer_message(self.path, version), kind="newer", path=self.path)

    def _roll_back(self) -> None:
        # After some errors (a full disk) SQLite has rolled back by itself.
        if not self._closed and self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:
                if self._db.in_transaction:
                    raise

    def _retry_locked(self, begin: Any) -> None:
        """Try again while the lock is taken. SQLite's own wait is unfair and up to 100 ms long."""
        give_up = None
        while True:
            try:
                begin()
                return
            except sqlite3.OperationalError as error:
                if not is_locked(error):
                    raise
            now = time.monotonic()
            if give_up is None:
                give_up = now + self.wait_s
            if now >= give_up:
                raise StoreBusy(f"{self.path} is locked by another program") from None
            time.sleep(0.001 + 0.004 * os.urandom(1)[0] / 255)

    def data_version(self) -> int:
        """Differs whenever another connection has committed since the last look."""
        try:
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error as error:
            raise self.translate(error) from error

    # -- the file -----------------------------------------------------------------------

    def check_file(self) -> None:
        """Raise StoreGone if the path, or its log, leads to another file than the open one."""
        if _inode(self.path) != self._inode:
            raise StoreGone(self.path)
        log = _inode(self.path + "-wal")
        if self._log_inode is None:
            self._log_inode = log
        elif log != self._log_inode:
            raise StoreGone(self.path)

    def translate(self, error: sqlite3.Error) -> SpoolError:
        """The error of ours that says the same, by SQLite's stable texts (sqlite3_errstr)."""
        text = str(error)
        if isinstance(error, sqlite3.ProgrammingError):
            return SpoolError(text)
        try:
            self.check_file()
        except StoreGone as gone:
            return gone
        if is_locked(error):
            return StoreBusy(f"{self.path} is locked by another program")
        if "is full" in text:
            return StoreFull(f"no room on the disk for {self.path}")
        if "readonly" in text:
            return StoreUnusable(f"{self.path} is read-only", kind="read_only", path=self.path)
        if "disk I/O" in text or "unable to open" in text:
            return StoreFull(f"the disk does not serve {self.path}: {text}")
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in text:
            return SpoolError(f"{self.path}: {text}")
        return StoreUnusable(f"{self.path} is damaged: {text}", kind="damaged", path=self.path)


def is_locked(error: sqlite3.Error) -> bool:
    """Whether waiting may help."""
    text = str(error)
    return "is locked" in text or "locking protocol" in text


# -- opening ----------------------------------------------------------------------------


def open_connection(path: str, *, create: bool, wait_s: float) -> Connection:
    """Open the queue at `path`; see `open_store` for what is raised."""
    path = os.path.realpath(path)
    seen = probe(path)
    if seen.kind in ("missing", "empty"):
        if not create:
            raise NotFound(f"no queue at {path}", where=path)
        if seen.kind == "missing":
            _create_file(path)
    elif seen.kind != "queue":
        raise StoreUnusable(seen.message, kind=seen.kind, path=path)
    connection = _connect(path, wait_s)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: str, wait_s: float) -> Connection:
    inode = _inode(path)
    try:
        # mode=rw: never creates; falls back to reading where writing is not allowed.
        db = sqlite3.connect(
            _uri(path, "mode=rw"),
            uri=True,
            timeout=0,
            isolation_level=None,
            cached_statements=256,
        )
    except sqlite3.Error as error:
        raise StoreUnusable(f"cannot open {path}: {error}", kind="path", path=path) from error
    connection = Connection(path, db, inode)
    connection.wait_s = wait_s
    return connection


def read_only(path: str, *, immutable: bool) -> Connection:
    """A connection that cannot write. `immutable`: without locks, its log left alone, and
    nothing made beside the file; only right while nobody writes.

    Raises StoreUnusable.
    """
    options = "mode=ro&immutable=1" if immutable else "mode=ro"
    try:
        db = sqlite3.connect(_uri(path, options), uri=True, timeout=0, isolation_level=None)
    except sqlite3.Error as error:
        raise StoreUnusable(f"cannot open {path}: {error}", kind="path", path=path) from error
    return Connection(path, db, _inode(path))


def _prepare(connection: Connection) -> None:
    """Settings of the connection; the layout, if it is missing or old; the log."""
    execute = connection.execute
    try:
        if sys.platform == "darwin":
            # Otherwise fsync(2) there does not reach the platter.
            execute("PRAGMA fullfsync = ON")
            execute("PRAGMA checkpoint_fullfsync = ON")
        execute("PRAGMA trusted_schema = OFF")
        execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        versions: list[int] = []

        def read_version() -> None:
            versions.append(execute("PRAGMA user_version").fetchone()[0])

        connection._retry_locked(read_version)
        if versions[0] < SCHEMA_VERSION:
            migrate(connection)
        connection._retry_locked(lambda: _use_log(connection))
    except sqlite3.Error as error:
        raise connection.translate(error) from error
    connection.check_file()


def _use_log(connection: Connection) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnusable(
            f"SQLite's write-ahead log does not work at {connection.path}",
            kind="unsupported",
            path=connection.path,
        )


def migrate(connection: Connection, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Bring the file to this program's layout, one transaction per step.

    A program killed at any point leaves the old layout or the new one. A new file stays
    empty until all of its first layout is in it.
    """
    execute = connection.execute
    execute("PRAGMA synchronous = FULL")
    connection._full_sync = True
    # Takes effect only before the first table of a new file.
    execute("PRAGMA auto_vacuum = INCREMENTAL")
    while True:
        connection._retry_locked(lambda: execute("BEGIN IMMEDIATE"))
        try:
            # Again, inside: another program may have been first.
            version = execute("PRAGMA user_version").fetchone()[0]
            if version >= len(migrations):
                execute("ROLLBACK")
                return
            if version == 0:
                _require_empty(connection)
                execute(f"PRAGMA application_id = {APPLICATION_ID}")
            for statement in migrations[version]:
                execute(statement)
            execute(f"PRAGMA user_version = {version + 1}")
            execute("COMMIT")
        except BaseException:
            connection._roll_back()
            raise


def _require_empty(connection: Connection) -> None:
    if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        # Came between our look and our lock.
        raise StoreUnusable(
            f"{connection.path} is a database of another program",
            kind="foreign",
            path=connection.path,
        )


# -- creating ---------------------------------------------------------------------------


def _create_file(path: str) -> None:
    """Make an empty file (0600) and its missing folders (0700), whatever the umask; synced."""
    try:
        _create_folder(os.path.dirname(path))
        create_private(path)
        sync_folder(os.path.dirname(path))
    except FileExistsError:
        if not os.path.isfile(path):
            raise StoreUnusable(
                f"cannot create {path}: something else is there", kind="path", path=path
            ) from None
    except OSError as error:
        kind = "read_only" if _is_read_only(error) else "path"
        raise StoreUnusable(f"cannot create {path}: {_why(error)}", kind=kind, path=path) from error


def _is_read_only(error: OSError) -> bool:
    import errno

    return error.errno == errno.EROFS


def create_private(path: str) -> None:
    """Make an empty file, 0600. Raises FileExistsError."""
    if sys.platform == "linux":
        # mknod(2) makes it without opening it: no descriptor of ours is ever closed on a
        # file in which SQLite, in another thread, may hold locks already.
        os.mknod(path, stat.S_IFREG | 0o600)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    if stat.S_IMODE(os.stat(path).st_mode) != 0o600:
        os.chmod(path, 0o600)


def _create_folder(path: str) -> None:
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _create_folder(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    if stat.S_IMODE(os.stat(path).st_mode) != 0o700:
        os.chmod(path, 0o700)
    sync_folder(parent)


def sync_folder(path: str) -> None:
    """Make new names in the folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError:
        # Some file systems cannot sync a folder (EINVAL); they have nothing better to offer.
        pass
    finally:
        os.close(descriptor)


def backup(connection: Connection, target: str) -> None:
    """Copy the database of the running read transaction to the new file `target` (0600).

    Raises InvalidInput if something is there already. Removes a half-written copy.
    """
    try:
        create_private(target)
    except FileExistsError:
        raise InvalidInput(f"{target} exists already") from None
    except OSError as error:
        raise StoreUnusable(
            f"cannot create {target}: {_why(error)}", kind="path", path=target
        ) from error
    try:
        _copy(connection, target)
        sync_folder(os.path.dirname(os.path.abspath(target)))
    except BaseException:
        for leftover in (target, target + "-journal", target + "-wal", target + "-shm"):
            if os.path.exists(leftover):
                os.unlink(leftover)
        raise


def _copy(connection: Connection, target: str) -> None:
    copy = sqlite3.connect(_uri(os.path.abspath(target), "mode=rw"), uri=True, isolation_level=None)
    try:
        copy.execute("PRAGMA synchronous = FULL")
        # In pieces, so that Ctrl-C works; no pause between, since the read transaction
        # around it keeps writers from changing what is being copied.
        connection._db.backup(copy, pages=4096, sleep=0)
    except sqlite3.Error as error:
        text = str(error)
        if "is full" in text:
            raise StoreFull(f"no room on the disk for {target}") from error
        raise StoreUnusable(f"cannot write {target}: {text}", kind="path", path=target) from error
    finally:
        copy.close()

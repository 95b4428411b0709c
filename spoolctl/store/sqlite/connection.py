"""One connection to the queue's file: transactions, waits for the lock, errors.

Only SQLite opens the file, its `-wal` and its `-shm`: POSIX locks vanish when any descriptor
of a file is closed in the process.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spoolctl.core.retry import spread
from spoolctl.errors import (
    InvalidInput,
    SpoolError,
    StoreBusy,
    StoreFailing,
    StoreFull,
    StoreGone,
    StoreUnusable,
)
from spoolctl.store.sqlite.files import inode
from spoolctl.store.sqlite.probe import is_failing, newer_message
from spoolctl.store.sqlite.schema.migrations import SCHEMA_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from weakref import finalize


SHORTEST_PAUSE_S = 0.0002
LONGEST_PAUSE_S = 0.004
AGING = 8.0
"""By so much more often the lock is looked for after each second of waiting."""


class OpenFiles:
    """The files that a connection has open, to tell whether their paths still lead to them."""

    def __init__(self, path: str, opened: tuple[int, int] | None) -> None:
        self._path = path
        self._file = opened
        self._pid = os.getpid()
        # The log, and its index, by which all who use the file agree on what the log holds.
        self._beside: dict[str, tuple[int, int] | None] = {path + "-wal": None, path + "-shm": None}

    def check_process(self) -> None:
        """Raise InvalidInput in a fork of the process that opened them.

        A fork has a copy of the connection and none of its locks (fcntl(2)): whoever closes last
        would take the log away from under it, and what it had committed to that would be lost.
        """
        if os.getpid() != self._pid:
            raise InvalidInput("a queue is not taken along by a fork: open it anew there")

    def check(self) -> None:
        """Raise StoreGone if the path, its log or the log's index is not the open file, and
        InvalidInput in a fork."""
        self.check_process()
        if inode(self._path) != self._file:
            raise StoreGone(self._path)
        for path, opened in self._beside.items():
            found = inode(path)
            if opened is None:
                self._beside[path] = found
            elif found != opened:
                raise StoreGone(self._path)

    def may_be_closed(self, db: sqlite3.Connection) -> bool:
        """Whether `db`, which has them open, can do no harm by being closed.

        If it can, it is kept open until the process is gone. Whoever closes last writes the
        log back as far as it knows it, and unlinks it by its name: what others have committed
        since would be lost.
        """
        try:
            self.check()
        except (StoreGone, InvalidInput, OSError):
            _never_close(db)
            return False
        return True


class Connection:
    """A connection with its transactions. Not thread-safe.

    `wait_s`: how long a write waits for the lock. `read_only`: opened in a way that cannot
    write (and that sees no changes by others). `locks_met`: how often another program was in the
    way.
    """

    def __init__(
        self,
        path: str,
        db: sqlite3.Connection,
        opened: tuple[int, int] | None,
        *,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self.wait_s = 0.0
        self.locks_met = 0
        self.execute = db.execute
        self.executemany = db.executemany
        self._db = db
        self._files = OpenFiles(path, opened)
        self.check_file = self._files.check
        self._full_sync: bool | None = None
        self._read_only = read_only
        self._closed = False
        self._unclosed: finalize[[sqlite3.Connection], Connection] | None = None

    def close(self) -> None:
        """Release the file. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._unclosed is not None:
            self._unclosed.detach()
        if self._read_only or self._files.may_be_closed(self._db):
            self._db.close()

    def expect_no_close(self) -> None:
        """Take the same care where nobody calls `close`, as programs do that just end."""
        # Not for verbs, which always call it: they would pay for the import.
        from weakref import finalize

        if not self._read_only:
            self._unclosed = finalize(self, self._files.may_be_closed, self._db)

    # -- transactions -------------------------------------------------------------------

    @contextmanager
    def write(self, *, full: bool = True, eager: bool = False) -> Iterator[None]:
        """A write transaction. With `full`, its commit is synced to disk before this returns.

        `eager`: look for the lock more often than others do. For those who leave it free
        between their transactions, and would never get it from workers that do not.

        Raises StoreBusy, StoreFull, StoreGone or StoreUnusable, and InvalidInput in a fork; then
        nothing was written and the connection can be used again.
        """
        self.check_file()
        if self._read_only:
            raise self._refused()
        try:
            self._choose_sync(full)
            # As `ending` does it; a second generator would cost as much as a statement.
            try:
                self.begin("BEGIN IMMEDIATE", eager=eager)
                self._check_version()
                yield
                self.execute("COMMIT")
            except BaseException:  # Ctrl-C too: the lock must not stay with us
                self._roll_back()
                raise
        except sqlite3.Error as error:
            raise self.translate(error) from error

    @contextmanager
    def read(self) -> Iterator[None]:
        """A read transaction: everything inside sees one snapshot.

        Raises InvalidInput in a fork, and where something is asked for that no column can hold, and
        what `translate` makes of SQLite's errors.
        """
        self._files.check_process()
        try:
            self.insist(self._begin_reading)
            with self.ending():
                yield
        except sqlite3.Error as error:
            raise self.translate(error) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise InvalidInput(f"no such value can be in a queue: {error}") from None

    def begin(self, statement: str, *, eager: bool = False) -> None:
        """Start a transaction; waits for the lock up to `wait_s`."""
        # IMMEDIATE or EXCLUSIVE: one that reads first and writes later can fail at once,
        # whatever the wait.
        try:
            self.insist(lambda: self.execute(statement), eager=eager)
        except BaseException:  # Ctrl-C, just when the lock had been obtained
            self._roll_back()
            raise

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Commit at the end of the block; roll back if it, or the commit, fails."""
        try:
            yield
            self.execute("COMMIT")
        except BaseException:  # Ctrl-C too: the lock must not stay with us
            self._roll_back()
            raise

    def ask(self, statement: str) -> Any:
        """The first value that a pragma gives; waits while another program is in the way."""
        answers: list[Any] = []
        self.insist(lambda: answers.append(self.execute(statement).fetchone()))
        return answers[0][0] if answers[0] else None

    def insist(self, attempt: Callable[[], object], *, eager: bool = False) -> None:
        """Try again while the lock is taken, for up to `wait_s`.

        SQLite's own wait is unfair, and sleeps up to 100 ms at a time.
        """
        began = None
        longest_s = LONGEST_PAUSE_S / 10 if eager else LONGEST_PAUSE_S
        while True:
            try:
                attempt()
                return
            except sqlite3.OperationalError as error:
                if not is_locked(error):
                    raise
            now = time.monotonic()
            if began is None:
                began = now
                self.locks_met += 1
            waited_s = now - began
            if waited_s >= self.wait_s:
                raise self._busy() from None
            # About as long again as until now: most transactions are over in less than 1 ms.
            # Whoever has waited for very long looks more often again, lest in a crowd those who
            # have just come get it before, for ever.
            pause_s = min(waited_s, longest_s / (1 + AGING * waited_s))
            from spoolctl.core.pauses import pause

            pause(max(pause_s, SHORTEST_PAUSE_S) * (0.5 + spread()))

    def sync_fully(self) -> None:
        """From here on commits are synced to disk before they return."""
        self._choose_sync(True)

    def _choose_sync(self, full: bool) -> None:
        # Cannot change inside a transaction, so it is chosen before one begins.
        if full is not self._full_sync:
            # The first statement of a connection reads the layout, and may meet a lock.
            self.ask(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full_sync = full

    def _begin_reading(self) -> None:
        try:
            self.execute("BEGIN")
            self._check_version()  # the first look: it fixes the snapshot, or finds a lock
        except BaseException:
            self._roll_back()
            raise

    def _check_version(self) -> None:
        """Inside a transaction, so that a migration by another program cannot slip between."""
        version = self.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StoreUnusable(newer_message(self.path, version), kind="newer", path=self.path)

    def _roll_back(self) -> None:
        # After some errors (a full disk) SQLite has rolled back by itself.
        if not self._closed and self._db.in_transaction:
            try:
                self.execute("ROLLBACK")
            except sqlite3.Error:
                if self._db.in_transaction:
                    raise

    # -- other --------------------------------------------------------------------------

    def data_version(self) -> int:
        """Differs whenever another connection has committed since the last look."""
        self._files.check_process()
        try:
            return int(self.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error as error:
            raise self.translate(error) from error

    def teach(self, name: str, arguments: int, function: Callable[..., bool]) -> None:
        """Make a function known to the SQL of this connection."""
        self._db.create_function(name, arguments, function, deterministic=True)

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy everything, as of the read transaction that is open. Raises sqlite3.Error."""
        # In pieces, so that Ctrl-C works; no pause between, since no writer can change the
        # snapshot that is being copied.
        self._db.backup(target, pages=4096, sleep=0)

    def translate(self, error: sqlite3.Error) -> SpoolError:
        """The error of ours that says the same, by SQLite's fixed texts (sqlite3_errstr)."""
        text = str(error)
        if isinstance(error, sqlite3.ProgrammingError):
            return SpoolError(text)
        try:
            self.check_file()
        except StoreGone as gone:
            return gone
        if is_locked(error):
            return self._busy()
        if "is full" in text:
            return StoreFull(f"no room on the disk for {self.path}")
        if "readonly" in text:
            return self._refused()
        if is_failing(text):
            return StoreFailing(f"the disk does not serve {self.path}: {text}")
        damage = any(sign in text for sign in ("malformed", "no such", "Could not decode"))
        if isinstance(error, sqlite3.OperationalError) and not damage:
            return SpoolError(f"{self.path}: {text}")
        return StoreUnusable(f"{self.path} is damaged: {text}", kind="damaged", path=self.path)

    def _busy(self) -> StoreBusy:
        return StoreBusy(f"{self.path} is locked by another program")

    def _refused(self) -> StoreUnusable:
        return StoreUnusable(f"{self.path} is read-only", kind="read_only", path=self.path)


def _never_close(db: sqlite3.Connection) -> None:
    """Let the connection end with the process only, as if that had been killed."""
    try:
        import ctypes
    except (ImportError, OSError):  # built without it, no descriptor left to read it
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


def is_locked(error: sqlite3.Error) -> bool:
    """Whether waiting may help."""
    text = str(error)
    return "is locked" in text or "locking protocol" in text

"""The error family. Imports nothing, so that every room may raise from it.

An error carries a stable `code` and facts as attributes. What to advise and which
exit code to use is decided in one place, `cli/main.py`.
"""

from __future__ import annotations


class SpoolError(Exception):
    """Anything spoolctl refuses or fails to do. `code` is stable; scripts may match it."""

    code = "INTERNAL"

    def __reduce__(self) -> tuple[object, ...]:
        # The default makes it anew from its message alone, for which not all constructors are
        # made; and an error that cannot be unpickled breaks the pool of processes it came from.
        return _remade, (type(self), self.args), self.__dict__


def _remade(kind: type[SpoolError], args: tuple[object, ...]) -> SpoolError:
    error = kind.__new__(kind, *args)
    error.args = args  # those that are OSErrors leave it to their __init__
    return error


class InvalidInput(SpoolError, ValueError):
    """A value has the wrong type, range, grammar or choice. Nothing was opened or changed."""

    code = "INVALID_INPUT"


class NotFound(SpoolError, LookupError):
    """No such job or attempt. `where` is the queue file that was searched."""

    code = "NOT_FOUND"

    def __init__(
        self,
        message: str,
        *,
        job_ids: tuple[int, ...] = (),
        attempt_no: int | None = None,
        known_attempts: tuple[int, ...] = (),
        where: str | None = None,
    ) -> None:
        super().__init__(message)
        self.job_ids = job_ids
        self.attempt_no = attempt_no
        self.known_attempts = known_attempts
        self.where = where


class IllegalTransition(SpoolError):
    """The job's state does not allow this. Nothing was written."""

    code = "CONFLICT"

    def __init__(self, state: str, event: str, *, job_id: int | None = None) -> None:
        what = f"job {job_id}" if job_id is not None else "a job"
        super().__init__(f"{what} is {state}: it cannot be {event}")
        self.state = state
        self.event = event
        self.job_id = job_id


class KeyConflict(SpoolError):
    """The idempotency key is in use by a job with a different execution.

    `fields` names what differs; values are never included (they may be secret). `index` is
    the job's place among those that were added together, from 0.
    """

    code = "IDEMPOTENCY_CONFLICT"

    def __init__(self, key: str, job_id: int, state: str, fields: tuple[str, ...]) -> None:
        super().__init__(
            f"key {key!r} belongs to job {job_id} ({state}), which differs in: {', '.join(fields)}"
        )
        self.key = key
        self.job_id = job_id
        self.fields = fields
        self.index = 0


class SafetyBlock(SpoolError):
    """A destructive or interrupting action without its confirmation. Nothing was changed."""

    code = "SAFETY_BLOCK"

    def __init__(self, message: str, *, action: str, job_id: int | None = None) -> None:
        super().__init__(message)
        self.action = action
        self.job_id = job_id


class WaitTimeout(SpoolError, TimeoutError):
    """The time given to a wait passed before it was fulfilled. `pending` are the open ids."""

    code = "TIMEOUT"

    def __init__(self, message: str, *, pending: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.pending = pending


class StoreBusy(SpoolError):
    """The write lock stayed taken, or the disk was full for a moment. Safe to repeat."""

    code = "LOCKED"


class StoreFull(StoreBusy):
    """There is no room on the disk. Nothing was written; repeat when there is."""

    code = "INTERNAL"


class StoreFailing(StoreFull):
    """The disk does not serve the file now (an I/O error), or we have no descriptor left for it.

    Nothing was written; repeat when it does.
    """


class StoreUnusable(SpoolError):
    """The file cannot serve as a queue: not ours, damaged, unreadable, or made by a newer version.

    `kind` is one of `path` (cannot be opened at this path), `foreign` (another program's
    file), `damaged`, `newer` (a newer spoolctl's layout), `read_only`, `unsupported` (a file
    system on which SQLite's WAL does not work).
    """

    code = "INTERNAL"

    def __init__(self, message: str, *, kind: str, path: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.path = path


class StoreGone(SpoolError):
    """The queue's file was removed or replaced while it was open."""

    code = "INTERNAL"

    def __init__(self, path: str) -> None:
        super().__init__(f"the queue at {path} was removed or replaced while it was in use")
        self.path = path


class Untrusted(SpoolError):
    """The queue could be written by another user; running its commands needs consent."""

    code = "SAFETY_BLOCK"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"refusing to run commands from {path}: {reason}")
        self.path = path
        self.reason = reason

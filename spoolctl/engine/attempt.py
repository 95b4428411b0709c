"""One attempt: start it, limit its time, end its tree, say how it ended."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Mapping

from spoolctl.core.paths import stream_path, workers_dir
from spoolctl.core.records import Claimed, Outcome, Recorded
from spoolctl.core.states import AttemptState, Reason
from spoolctl.core.words import Enum
from spoolctl.engine.capture import NOTHING, Streams, open_stream
from spoolctl.engine.children import Exit
from spoolctl.engine.spares import Spares
from spoolctl.folders import make_folder, naming, words_of
from spoolctl.process import locks
from spoolctl.process.identity import start_of
from spoolctl.process.roster import Roster
from spoolctl.process.spawn import SpawnFailed, spawn
from spoolctl.process.tree import Ending, Target

MARK = "SPOOLCTL_ATTEMPT_PATH"
SHUT_DOWN = "worker shut down"


# No fault of the job's, and likely to pass: worth waiting for instead of spending its budget.
_SCARCE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
)
# A file system that has met an error is often mounted anew, read-only.
_FAILING = frozenset({errno.EIO, errno.EROFS})


class NoResources(Exception):
    """The machine is short of something (disk, memory, processes, files); try again later."""

    @property
    def is_failing(self) -> bool:
        """Whether the disk does not serve: to let go of what is not needed would not help."""
        return getattr(self.__cause__, "errno", None) in _FAILING


class Why(Enum):
    """Why the processes of an attempt are being ended."""

    FAILED = "failed"
    TIMEOUT = "timeout"
    LOST = "lost"
    SHUTDOWN = "shutdown"
    OUTPUT_LIMIT = "output_limit"
    STORE_GONE = "store_gone"


class Slot:
    """One place for a running command, with the lock that its processes inherit.

    The lock file is used again by the next attempt as soon as nobody holds it; survivors of
    a succeeded attempt keep theirs, and the slot goes on with a new file.
    """

    def __init__(self, db_path: str, token: str, index: int) -> None:
        self.index = index
        self._base = os.path.join(workers_dir(db_path), f"{token}.{index}")
        self._turn = 0
        self._left: list[str] = []  # files that survivors held when we last looked
        self._fd: int | None = None

    @property
    def lock_path(self) -> str:
        """The current lock file."""
        return f"{self._base}.{self._turn}"

    def lock(self) -> int:
        """The held lock's descriptor, for the next command. Raises OSError."""
        while self._fd is None:
            try:
                self._fd = locks.take(self.lock_path)
            except FileNotFoundError:
                make_folder(os.path.dirname(self._base))
                continue
            if self._fd is None:
                self.leave()
        return self._fd

    def _tidy(self) -> None:
        """Remove lock files whose survivors have ended."""
        self._left = [path for path in self._left if not locks.remove(path)]

    def handed_over(self) -> None:
        """The command has inherited the lock: drop our copy, or we would keep it alive.

        Before that it gives up a lock that no command needs yet; `lock` takes it again.
        """
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def is_free(self) -> bool:
        """Whether no process of the slot's last attempt holds the lock any more."""
        if self._fd is None:
            try:
                self._fd = locks.take(self.lock_path)
            except OSError:
                return False  # cannot tell: look closer
        return self._fd is not None

    def leave(self) -> None:
        """Survivors may hold the lock: the next command gets another, or it would be taken
        for one of them."""
        if self._fd is None:
            self._left.append(self.lock_path)
            self._turn += 1
            self._tidy()

    def close(self) -> None:
        """Give the slot up; a lock file that nobody holds is removed."""
        if self.is_free():
            with contextlib.suppress(OSError):
                os.unlink(self.lock_path)
        self.handed_over()


class Running:
    """An attempt whose command has been started.

    `ending` is set while its processes are being ended, `why` says for what; `due_mono` is
    when that goes on. `lost`: canceled or forced, the result will not count. `ended` and
    `duration_s` are set when the leader has exited. `told` is what was last said of
    processes that cannot be ended. `key` names it in the crew, `place` in the roster.
    """

    def __init__(
        self, claimed: Claimed, slot: Slot, streams: Streams, pid: int, mono: float
    ) -> None:
        self.claimed = claimed
        self.slot = slot
        self.streams = streams
        self.pid = pid
        self.started_mono = mono
        self._start: str | None = None
        self._lock_path: str | None = slot.lock_path
        self.ended: Exit | None = None
        self.duration_s = 0.0
        self.why: Why | None = None
        self.lost = False
        self.key = pid
        self.place = slot.index
        self.ending: Ending | None = None
        self.due_mono = 0.0
        self.told: str | None = None

    @property
    def attempt_id(self) -> int:
        """The attempt's id in the store."""
        return self.claimed.attempt_id

    @property
    def target(self) -> Target:
        """What its processes are known by."""
        return Target(self.claimed.token, self.pid, self._start, self._lock_path)

    @property
    def gone(self) -> bool:
        """Whether the leader has exited and, if they had to, all its processes too."""
        return self.ended is not None and (self.ending is None or self.ending.gone)

    def identify(self, roster: Roster) -> None:
        """Note when the leader started, here and in the roster: with its pid, that names it."""
        if self._learn_start():
            roster.spawned(self.place, self.pid, self._start)

    def _learn_start(self) -> bool:
        # Only while the leader is not collected: later its pid may be a stranger's.
        if self._start is not None or self.key != self.pid:
            return False
        self._start = start_of(self.pid)
        return True

    def unlock(self) -> None:
        """Nobody holds the attempt's lock any more, nor can; the slot uses it again."""
        self._lock_path = None

    def has_ended(self, ended: Exit, mono: float) -> None:
        """The leader has exited, at this time on the monotonic clock."""
        self.ended = ended
        self.duration_s = max(0.0, mono - self.started_mono)

    def end(self, why: Why, grace_s: float, mono: float) -> None:
        """Begin to end the attempt's processes. The first reason given is the one that counts."""
        self.why = self.why or why
        if self.ending is None:
            self._learn_start()
            self.ending = Ending(self.target, grace_s=grace_s, now_mono=mono)
            self.due_mono = mono


def start(
    claimed: Claimed,
    slot: Slot,
    roster: Roster,
    *,
    db_path: str,
    base_env: Mapping[str, str],
    spares: Spares,
    streams: Streams | None,
    mono: float,
) -> Running:
    """Start the attempt's command.

    Announced in the roster before it is spawned: whatever kills the worker from then on,
    its guardian and the reaper know what to look for. `streams`: its files, if they are made.

    Raises:
        SpawnFailed: it cannot be started, a failure of the job.
        NoResources: it cannot be started now, no fault of the job's.
    """
    try:
        lock_fd = slot.lock()
        roster.announce(slot.index, claimed.token, slot.lock_path)
        streams = streams or Streams(db_path, claimed.token, spares)
    except OSError as error:
        if streams is not None:
            _discard(streams)
        if error.errno in _SCARCE | _FAILING:
            raise NoResources(words_of(error)) from error
        raise SpawnFailed(f"cannot create output files: {words_of(error)}") from error
    stdin_fd = -1
    try:
        stdin_fd = _open_stdin(claimed, db_path)
        pid = spawn(
            claimed.argv,
            cwd=claimed.cwd,
            env=environment(claimed, slot.index, db_path, base_env),
            umask=claimed.umask,
            stdin_fd=stdin_fd,
            stdout_fd=streams.stdout.fd,
            stderr_fd=streams.stderr.fd,
            lock_fd=lock_fd,
        )
    except (SpawnFailed, OSError) as error:
        _discard(streams)
        if isinstance(error, SpawnFailed) and not error.temporary:
            raise
        text = words_of(error) if isinstance(error, OSError) else str(error)
        raise NoResources(text) from error
    finally:
        if stdin_fd >= 0:
            os.close(stdin_fd)
    slot.handed_over()
    return Running(claimed, slot, streams, pid, mono)


def _discard(streams: Streams) -> None:
    streams.close()
    for stream in (streams.stdout, streams.stderr):
        with contextlib.suppress(OSError):
            os.unlink(stream.path)


def _open_stdin(claimed: Claimed, db_path: str) -> int:
    """What the command reads: its stored input, or nothing at all. Raises OSError."""
    if not claimed.stdin:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    # An unlinked file and not a pipe: there is nobody to feed a pipe if the worker dies.
    path = stream_path(db_path, claimed.token, "stdin")
    fd = open_stream(path, append=False, fresh=True)
    try:
        os.unlink(path)
        left = memoryview(claimed.stdin)
        with naming(path):
            while left:
                left = left[os.write(fd, left) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def environment(
    claimed: Claimed, slot: int, db_path: str, base_env: Mapping[str, str]
) -> dict[str, str]:
    """The command's environment: the worker's, what was captured, what was asked for, ours."""
    env = dict(base_env)
    env.update(claimed.env)
    outer = base_env.get(MARK)
    env.update(
        SPOOLCTL_JOB_ID=str(claimed.job_id),
        SPOOLCTL_ATTEMPT=str(claimed.attempt_no),
        SPOOLCTL_ATTEMPT_ID=claimed.token,
        SPOOLCTL_QUEUE=claimed.queue,
        SPOOLCTL_DB=db_path,
        SPOOLCTL_SLOT=str(slot),
    )
    # Ids of the attempts around this one stay in the path: ending an outer attempt ends the
    # jobs of a worker that runs inside it too.
    env[MARK] = f"{outer}:{claimed.token}" if outer else claimed.token
    if claimed.key is not None:
        env["SPOOLCTL_KEY"] = claimed.key
    else:
        env.pop("SPOOLCTL_KEY", None)  # an outer job's
    return env


def outcome(
    running: Running, *, inline_bytes: int, limit_bytes: int, survivors: int | None
) -> Outcome:
    """What to record of an attempt that is gone.

    `survivors`: processes that a succeeded attempt left running, None if unknown; the streams
    that they may still write to stay files. Raises OSError if a stream cannot be read or synced.
    """
    out, err = running.streams.finish(inline_bytes, limit_bytes, keep=survivors != 0)
    state, reason, exit_code, error = _verdict(running)
    if error is None and (out.size_bytes or err.size_bytes) and _disk_full(running.streams):
        error = "output may be incomplete: the disk is full"
    return Outcome(
        attempt_id=running.attempt_id,
        state=state,
        reason=reason,
        exit_code=exit_code,
        error=error,
        duration_s=running.duration_s,
        survivors=survivors,
        stdout=out,
        stderr=err,
    )


def never_ran(
    attempt_id: int,
    state: AttemptState = AttemptState.ABANDONED,
    reason: Reason = Reason.WORKER_SHUTDOWN,
    text: str = SHUT_DOWN,
    *,
    started: bool = False,
) -> Outcome:
    """What to record of an attempt whose command never ran: by default that the claim is taken
    back. `started`: it counts as an attempt all the same."""
    end = (None, text, 0.0, 0, NOTHING, NOTHING)
    return Outcome(attempt_id, state, reason, *end, started=started)


def _verdict(running: Running) -> tuple[AttemptState, Reason | None, int | None, str | None]:
    code = running.ended.code if running.ended else None
    if running.why is Why.TIMEOUT:
        text = f"timed out after {running.claimed.timeout_s}s"
        return AttemptState.TIMED_OUT, Reason.TIMEOUT, None, text
    if running.why is Why.SHUTDOWN:
        return AttemptState.ABANDONED, Reason.WORKER_SHUTDOWN, None, SHUT_DOWN
    if running.why is Why.OUTPUT_LIMIT:
        return AttemptState.FAILED, Reason.OUTPUT_LIMIT, None, "output limit exceeded"
    if code == 0:
        return AttemptState.SUCCEEDED, None, 0, None
    return AttemptState.FAILED, Reason.PROCESS_EXIT, code, exit_text(code or 0)


def exit_text(code: int) -> str:
    """An exit code in words; a negative one is the signal that ended the command."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"exit {code} (killed by {signal.Signals(-code).name})"
    except ValueError:
        return f"exit {code} (killed by signal {-code})"


def line_of(claimed: Claimed, outcome: Outcome, recorded: Recorded) -> str:
    """What the worker's log says of an attempt that was recorded."""
    after = recorded.job_state.value if recorded.job_state else "discarded"
    return (
        f"spoolctl: job {claimed.job_id} attempt {claimed.attempt_no} {outcome.state.value}"
        f" ({outcome.duration_s:.1f}s) -> {after}"
    )


def _disk_full(streams: Streams) -> bool:
    try:
        return os.fstatvfs(streams.stdout.fd).f_bavail == 0
    except OSError:
        return False

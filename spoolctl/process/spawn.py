"""Start a command as the submitter's shell would have, with nothing of the worker in it.

The path of posix_spawn(3): a vfork, however large the worker, and no Python code between fork
and exec. The worker is single-threaded, so folder and umask may be changed around the call.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence

ALL_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_TEMPORARY = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_NOT_HERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ESTALE, errno.ELOOP})
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_LOCK_FD = 199
"""Where a command has its lock: above what shells use (0-9, 10 and up, 63 and down, 255)."""


class SpawnFailed(Exception):
    """The command could not be started; nothing runs. The message is for people.

    `temporary`: for want of processes, memory or descriptors, which may come back.
    """

    def __init__(self, message: str, *, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary


def spawn(
    argv: Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str],
    umask: int | None,
    stdin_fd: int,
    stdout_fd: int,
    stderr_fd: int,
    lock_fd: int | None,
) -> int:
    """Start a command in a session of its own; returns its pid once it has been executed.

    It gets default signal dispositions, an empty mask, `cwd` and `umask` (None: the
    worker's), exactly `env`, the three streams, the lock under some number above 2, and no
    other descriptor. The program is looked up in `env`'s PATH, relative to `cwd`.

    Raises:
        SpawnFailed: not started, and why.
    """
    _keep_descriptors()
    with contextlib.ExitStack() as undo:
        if cwd is not None:
            undo.enter_context(_folder(cwd))
        if umask is not None:
            undo.callback(os.umask, os.umask(umask))
        streams = [_above_stdio(fd, undo) for fd in (stdin_fd, stdout_fd, stderr_fd)]
        lock = None if lock_fd is None else _above_stdio(lock_fd, undo)
        return _spawn_here(argv, env, streams, lock)


def prepare_signals() -> None:
    """Make this process fit to be a worker, whatever it inherited.

    Nothing stays blocked. SIGCHLD gets its default back: a parent that ignored it would have
    let the kernel throw every exit code away. Other ignored signals stay ignored here; `spawn`
    gives commands the defaults.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def become_subreaper() -> bool:
    """Make orphans below this process its children (prctl(2)); whether that is possible."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _spawn_here(
    argv: Sequence[str], env: Mapping[str, str], streams: list[int], lock: int | None
) -> int:
    denied: OSError | None = None
    for path in _candidates(argv[0], env):
        try:
            return _start(path, argv, env, streams, lock)
        except ValueError as error:
            raise SpawnFailed(f"cannot pass on the command: {error}") from None
        except OSError as error:
            if error.errno not in _NOT_HERE or os.sep in argv[0]:
                raise _failed(path, argv[0], error) from None
            # As a shell does: go on looking, but remember that one was there.
            denied = error
            where = path
    if denied is not None:
        raise _failed(where, argv[0], denied)
    raise SpawnFailed(f"no such program: {argv[0]}")


def _candidates(name: str, env: Mapping[str, str]) -> Iterator[str]:
    """Where the program may be, in order. Not remembered: a program may be installed, or
    another put before it, between two jobs, and a look costs 2 us a folder."""
    if os.sep in name:
        yield name
        return
    if not name:
        return
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name) if folder else os.path.join(os.curdir, name)
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(mode):
            yield path


def _start(
    path: str, argv: Sequence[str], env: Mapping[str, str], streams: list[int], lock: int | None
) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
    if lock is not None:
        actions.append((os.POSIX_SPAWN_DUP2, lock, _lock_number(lock)))
    try:
        return os.posix_spawn(
            path,
            list(argv),
            env,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=ALL_SIGNALS,
        )
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID
        return _start_by_fork(path, argv, env, streams, lock)


def _start_by_fork(
    path: str, argv: Sequence[str], env: Mapping[str, str], streams: list[int], lock: int | None
) -> int:
    import subprocess

    with _default_signals():
        child = subprocess.Popen(
            argv,
            executable=path,
            env=env,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,
        )
    # Its end is collected by our own loop: keep `subprocess` from waiting for it.
    child.returncode = 0
    return child.pid


@contextlib.contextmanager
def _default_signals() -> Iterator[None]:
    """For the length of a fork: what we ignore or block is not inherited."""
    ignored = [s for s in ALL_SIGNALS if signal.getsignal(s) is signal.SIG_IGN]
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _folder(path: str) -> Iterator[None]:
    """Be in the folder `path` for a moment. Our own may have been removed meanwhile."""
    flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        home = os.open(".", flags)
    except OSError as error:
        if error.errno in _TEMPORARY:
            raise SpawnFailed(f"cannot open a folder: {error.strerror}", temporary=True) from None
        home = os.open("/", flags)
    try:
        try:
            os.chdir(path)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise SpawnFailed(f"cannot enter folder {path}: {why}") from None
        try:
            yield
        finally:
            os.fchdir(home)
    finally:
        os.close(home)


def _above_stdio(fd: int, undo: contextlib.ExitStack) -> int:
    # A worker started with closed streams has files on 0-2, which the child's own would
    # overwrite before they are copied.
    if fd > 2:
        return fd
    try:
        copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as error:
        temporary = error.errno in _TEMPORARY
        raise SpawnFailed(f"cannot pass on a file: {error.strerror}", temporary=temporary) from None
    undo.callback(os.close, copy)
    return copy


def _lock_number(lock: int) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = _LOCK_FD if soft == resource.RLIM_INFINITY else min(_LOCK_FD, soft - 1)
    # A copy onto itself would keep close-on-exec with some C libraries.
    return number if number != lock else number - 1


_kept = False


def _keep_descriptors() -> None:
    """Once: what this process inherited open goes no further. All that Python opens is
    close-on-exec anyway."""
    global _kept
    if _kept:
        return
    _kept = True
    for fd in open_descriptors():
        if fd > 2:
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, False)


def open_descriptors() -> list[int]:
    """The numbers of our open files; those up to 1023 that may be where nothing tells."""
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except OSError:  # a jail without /dev/fd, or /proc of another PID namespace behind it
        return list(range(1024))


def _failed(path: str, name: str, error: OSError) -> SpawnFailed:
    code = error.errno
    if code in _TEMPORARY:
        return SpawnFailed(f"cannot start a process: {error.strerror}", temporary=True)
    if code == errno.ENOEXEC:
        return SpawnFailed(f"exec format error: {path} is no program (a script needs a #! line)")
    if code == errno.ENOENT and os.path.exists(path):
        return SpawnFailed(f"cannot run {path}: the interpreter that it names is missing")
    if code == errno.ENOENT:
        return SpawnFailed(f"no such program: {name}")
    return SpawnFailed(f"cannot run {path}: {error.strerror}")

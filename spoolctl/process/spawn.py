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
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

ALL_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_TEMPORARY = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
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
    if not argv or not argv[0]:
        raise SpawnFailed("the command has no name")
    _keep_descriptors()
    mask = None
    copies: list[int] = []
    try:
        _enter(cwd)
        if umask is not None:
            mask = os.umask(umask)
        fds = [_above_stdio(fd, copies) for fd in (stdin_fd, stdout_fd, stderr_fd)]
        lock = None if lock_fd is None else _above_stdio(lock_fd, copies)
        return _spawn_here(argv, env, fds, lock)
    finally:
        if mask is not None:
            os.umask(mask)
        for fd in copies:
            os.close(fd)
        if not _trips:
            _go_home()


@contextlib.contextmanager
def several() -> Iterator[None]:
    """For commands that are started one after the other: within the block `spawn` stays in the
    folder of each until the next, instead of going back to this process's own every time."""
    global _trips
    _trips += 1
    try:
        yield
    finally:
        _trips -= 1
        if not _trips:
            _go_home()


def prepare_signals() -> Callable[[], None]:
    """Make this process fit to be a worker, whatever it inherited; returns what undoes it.

    Nothing stays blocked. SIGCHLD gets its default back: a parent that ignored it would have
    let the kernel throw every exit code away. SIGIO, which says that somebody opens a file on
    which we have a lease (see `engine.spares`), must not end us. Other ignored signals stay
    ignored here; `spawn` gives commands the defaults.
    """
    before = {
        signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL),
        signal.SIGIO: signal.signal(signal.SIGIO, signal.SIG_IGN),
    }
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def undo() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    return undo


def become_subreaper() -> bool:
    """Make orphans below this process its children (prctl(2)); whether that is possible."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    """Have the kernel kill this process when its parent dies (prctl(2)); whether it will.

    It does not for a parent that has died already: look at getppid(2) afterwards.
    """
    return _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def resign_as_subreaper() -> None:
    """Orphans below this process are again the business of whoever adopted them before.

    A program that only had a worker in it for a while would collect zombies for the rest of
    its life.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def is_subreaper() -> bool:
    """Whether orphans below this process become its children; False where that is unknown."""
    try:
        import ctypes

        answer = ctypes.c_int(0)
        return _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer)) and answer.value != 0
    except ImportError:
        return False


def _prctl(option: int, argument: object) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, argument, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _spawn_here(
    argv: Sequence[str], env: Mapping[str, str], streams: list[int], lock: int | None
) -> int:
    try:
        try:
            return _start(argv, env, streams, lock)
        except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID
            return _start_by_fork(argv, env, streams, lock)
    except ValueError as error:
        raise SpawnFailed(f"cannot pass on the command: {error}") from None
    except OSError as error:
        raise _failed(argv[0], env, error) from None


def _start(
    argv: Sequence[str], env: Mapping[str, str], streams: list[int], lock: int | None
) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
    if lock is not None:
        actions.append((os.POSIX_SPAWN_DUP2, lock, _lock_number(lock)))
    # posix_spawnp searches from the child's folder, but along the parent's PATH. What it
    # finds is not remembered: a program may be installed, or another put before it,
    # between two jobs.
    path, ours = env.get("PATH"), os.environ.get("PATH")
    if path != ours:
        _put_path(path)
    try:
        return os.posix_spawnp(
            argv[0],
            list(argv),
            env,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=ALL_SIGNALS,
        )
    finally:
        if path != ours:
            _put_path(ours)


def _put_path(path: str | None) -> None:
    # Where posix_spawnp looks (None: along the system's default). In the C library's
    # environment alone; `os.environ` keeps saying what is ours.
    if path is None:
        os.unsetenv("PATH")
    else:
        os.putenv("PATH", path)


def _start_by_fork(
    argv: Sequence[str], env: Mapping[str, str], streams: list[int], lock: int | None
) -> int:
    import subprocess

    with _default_signals():
        child = subprocess.Popen(
            list(argv),
            env=env,  # whose PATH it searches
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


_trips = 0
_home = -1
"""Open on this process's own folder while it is in another's."""


def _enter(folder: str | None) -> None:
    """Go into `folder`, or (None) be where this process belongs."""
    global _home
    if folder is None:
        if not _go_home():
            raise SpawnFailed("the worker's own folder cannot be entered any more")
        return
    if _home < 0:
        _home = _open_here()
    try:
        os.chdir(folder)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SpawnFailed(f"cannot enter folder {folder}: {why}") from None


def _open_here() -> int:
    """A descriptor of our own folder, which may have been removed since."""
    flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(".", flags)
    except OSError as error:
        if error.errno in _TEMPORARY:
            raise SpawnFailed(f"cannot open a folder: {error.strerror}", temporary=True) from None
        return os.open("/", flags)


def _go_home() -> bool:
    """Whether this process is in its own folder again.

    A command may have taken the right to enter it from us (chmod). That is no reason to fail:
    what was to be started runs already. It is in the root until it may go home.
    """
    global _home
    if _home >= 0:
        try:
            os.fchdir(_home)
        except OSError:
            with contextlib.suppress(OSError):
                os.chdir("/")
            return False
        os.close(_home)
        _home = -1
    return True


def _above_stdio(fd: int, copies: list[int]) -> int:
    # A worker started with closed streams has files on 0-2, which the child's own would
    # overwrite before they are copied.
    if fd > 2:
        return fd
    try:
        copies.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
    except OSError as error:
        temporary = error.errno in _TEMPORARY
        raise SpawnFailed(f"cannot pass on a file: {error.strerror}", temporary=temporary) from None
    return copies[-1]


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


_NO_SHELL = " (an alias? -- bash -ic '...'; set up by a profile? -- bash -lc '...')"
"""What somebody may have meant whose shell knows a name that is no program's."""


def _failed(name: str, env: Mapping[str, str], error: OSError) -> SpawnFailed:
    """Why the program `name` could not be started, in words."""
    code = error.errno
    if code in _TEMPORARY:
        return SpawnFailed(f"cannot start a process: {error.strerror}", temporary=True)
    path = _first_of(name, env)
    if path is None:
        return SpawnFailed(f"no such program: {name}{'' if os.sep in name else _NO_SHELL}")
    if code == errno.ENOEXEC:
        return SpawnFailed(f"exec format error: {path} is no program (a script needs a #! line)")
    if code == errno.ENOENT:
        return SpawnFailed(f"cannot run {path}: the interpreter that it names is missing")
    return SpawnFailed(f"cannot run {path}: {error.strerror}")


def _first_of(name: str, env: Mapping[str, str]) -> str | None:
    """The first file that the search for the program meets, whether it is one or not."""
    if os.sep in name or not name:
        return name if os.path.lexists(name) else None
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = f"{folder or os.curdir}/{name}"
        if os.path.lexists(path):
            return path
    return None

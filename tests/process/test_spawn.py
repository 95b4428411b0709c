"""A command starts as from the submitter's own shell: nothing of the worker is in it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spoolctl.process import spawn as module
from spoolctl.process.spawn import SpawnFailed, spawn
from tests.helpers import clean_env
from tests.process.staging import HERE

REPORT = str(HERE / "report.py")
# The C library's own two (32 and 33 with glibc): its posix_spawn leaves them ignored in every
# child of every program, and no program can use them.
INTERNAL = 0b11 << 31


class Spawner:
    """Spawns a command that says in what state it was started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = os.open(folder / "out", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def start(self, *argv: str, **changes: Any) -> int:
        """As `spawn`, with defaults; returns the exit code."""
        os.ftruncate(self.out, 0)
        os.lseek(self.out, 0, os.SEEK_SET)
        words: dict[str, Any] = {
            "cwd": None,
            "env": {"PATH": os.environ["PATH"]},
            "umask": None,
            "stdin_fd": self.null,
            "stdout_fd": self.out,
            "stderr_fd": 2,
            "lock_fd": None,
        }
        pid = spawn(argv, **{**words, **changes})
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def report(self, **changes: Any) -> dict[str, Any]:
        """The state of a command that was started so."""
        assert self.start(sys.executable, "-I", "-S", REPORT, **changes) == 0
        return dict(json.loads(self.output()))

    def output(self) -> str:
        """What the last command wrote."""
        return os.pread(self.out, 1 << 20, 0).decode()


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    made = Spawner(tmp_path)
    yield made
    os.close(made.out)
    os.close(made.null)


def test_it_leads_a_session_of_its_own(spawner: Spawner) -> None:
    seen = spawner.report()
    assert seen["pid"] == seen["sid"] == seen["pgid"]
    assert seen["ppid"] == os.getpid()


def test_descriptors_are_the_streams_and_the_lock(spawner: Spawner) -> None:
    leak = os.open("/dev/zero", os.O_RDONLY)
    assert spawner.report()["fds"] == {"0": "/dev/null", "1": str(spawner.folder / "out")} | {
        "2": os.readlink("/proc/self/fd/2")
    }
    fds = spawner.report(lock_fd=leak)["fds"]
    assert len(fds) == 4
    assert fds[max(fds, key=int)] == "/dev/zero"
    os.close(leak)


def test_what_the_worker_inherited_goes_no_further(tmp_path: Path) -> None:
    seen = _in_a_worker(tmp_path, pass_fds=(9, 150), shell="exec 9</dev/zero")
    assert set(seen["fds"]) == {"0", "1", "2"}


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-", "0<&- 2>&-"])
def test_a_worker_with_closed_streams_passes_the_right_ones(tmp_path: Path, closed: str) -> None:
    seen = _in_a_worker(tmp_path, redirect=closed, lock=True)
    place = str(tmp_path)
    number = max(seen["fds"], key=int)
    assert seen["fds"] == {
        "0": "/dev/null",
        "1": f"{place}/report",
        "2": f"{place}/err",
        number: f"{place}/lock",
    }
    assert int(number) > 2


@pytest.mark.parametrize(
    "start",
    ["", "nohup", "trap '' HUP INT QUIT TERM CHLD USR1 PIPE TSTP TTIN TTOU;", "blocked"],
)
def test_signals_have_their_defaults_and_none_is_blocked(tmp_path: Path, start: str) -> None:
    seen = _in_a_worker(tmp_path, start=start)
    assert seen["ignored"] & ~INTERNAL == 0
    assert seen["blocked"] == 0
    assert seen["exit"] == 0  # also where the worker was started with SIGCHLD ignored


def _in_a_worker(
    folder: Path,
    *,
    start: str = "",
    shell: str = "",
    redirect: str = "",
    lock: bool = False,
    pass_fds: tuple[int, ...] = (),
) -> dict[str, Any]:
    """What a command reports whose worker was started in the way described."""
    worker = f"{sys.executable} {HERE / 'spawner.py'} {folder} {int(lock)} {start == 'blocked'}"
    prefix = "" if start == "blocked" else start
    script = f"{shell}\n{prefix} {worker} {redirect}"
    if 150 in pass_fds:
        extra = os.open("/dev/zero", os.O_RDONLY)
        os.dup2(extra, 150)
        os.close(extra)
    try:
        subprocess.run(
            ["bash", "-c", script],
            env=clean_env(),
            check=True,
            pass_fds=[fd for fd in pass_fds if fd == 150],
            timeout=30,
        )
    finally:
        if 150 in pass_fds:
            os.close(150)
    return dict(json.loads((folder / "report").read_text().partition("\n")[0])) | {
        "exit": int((folder / "exit").read_text())
    }


def test_folder_and_umask_are_the_commands_and_the_workers_are_kept(
    spawner: Spawner, tmp_path: Path
) -> None:
    here, mask = os.getcwd(), os.umask(0o022)
    try:
        seen = spawner.report(cwd=str(tmp_path), umask=0o137)
        assert (seen["cwd"], seen["umask"]) == (str(tmp_path), 0o137)
        assert os.getcwd() == here
        assert os.umask(0o022) == 0o022
        seen = spawner.report()
        assert (seen["cwd"], seen["umask"]) == (here, 0o022)
        with pytest.raises(SpawnFailed):
            spawner.start("no-such-program", cwd=str(tmp_path), umask=0o777)
        assert os.getcwd() == here
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(mask)


def test_several_are_started_on_one_trip(spawner: Spawner, tmp_path: Path) -> None:
    """Each in its own folder, one that cannot be entered among them, and home at the end."""
    here = os.getcwd()
    other = tmp_path / "other"
    other.mkdir()
    with module.several():
        for folder, expected in ((tmp_path, tmp_path), (other, other), (None, here)):
            seen = spawner.report(cwd=None if folder is None else str(folder))
            assert seen["cwd"] == str(expected)
        with pytest.raises(SpawnFailed, match="cannot enter folder"):
            spawner.start("true", cwd="/no/such")
        assert spawner.report(cwd="/")["cwd"] == "/"
        assert spawner.start("sh", "-c", f"mv {other} {other}.moved", cwd=str(other)) == 0
        with pytest.raises(SpawnFailed, match="cannot enter folder"):
            spawner.start("true", cwd=str(other))
    assert os.getcwd() == here


def test_a_home_that_is_closed_to_us_fails_nothing_that_was_started(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a command did to it is no reason to take another, that runs, for not started."""
    here, real = os.getcwd(), os.fchdir

    def refuse(_fd: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchdir", refuse)
    assert spawner.start("true", cwd=str(tmp_path)) == 0
    assert os.getcwd() == "/", "not in the way of who wants to remove that folder"
    with pytest.raises(SpawnFailed, match="own folder"):
        spawner.start("true", cwd=None)
    assert spawner.start("true", cwd="/") == 0
    monkeypatch.setattr(os, "fchdir", real)
    assert spawner.report(cwd=None)["cwd"] == here
    assert os.getcwd() == here


def test_a_worker_whose_folder_was_removed_goes_on(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    seen = _in_a_worker(tmp_path, shell=f"cd {gone} && rmdir {gone}")
    assert seen["cwd"] == str(tmp_path)


def test_the_environment_is_exactly_what_was_given(spawner: Spawner) -> None:
    env = {"A": "1", "B": "x=y", "EMPTY": "", "BYTES": "\udcff"}
    assert spawner.report(env=env)["env"] == env
    assert spawner.report(env={})["env"] == {}


def test_arguments_arrive_as_they_are(spawner: Spawner) -> None:
    words = ["", " ", "\n", "ü", "*", "\udcfe", "--", "a" * 100_000]
    script = "import sys, os; os.write(1, repr(sys.argv[1:]).encode())"
    assert spawner.start(sys.executable, "-I", "-S", "-c", script, *words) == 0
    assert spawner.output() == repr(words)


# -- finding the program --------------------------------------------------------------------


def _program(path: Path, text: str = "#!/bin/sh\necho $0\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_commands_own_path_counts_not_the_workers(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = _program(tmp_path / "bin" / "spoolctl-test-tool")
    with pytest.raises(SpawnFailed, match="no such program: spoolctl-test-tool"):
        spawner.start("spoolctl-test-tool")
    spawner.start("spoolctl-test-tool", env={"PATH": f"/nowhere:{tool.parent}"})
    assert spawner.output() == f"{tool}\n"
    # Our own search goes on along our own path.
    os.waitpid(os.posix_spawnp("true", ["true"], {}), 0)
    monkeypatch.setenv("PATH", str(tool.parent))
    with pytest.raises(SpawnFailed):
        spawner.start("spoolctl-test-tool", env={"PATH": "/nowhere"})


def test_without_a_path_the_systems_default_counts(spawner: Spawner) -> None:
    assert spawner.start("true", env={}) == 0


def test_relative_programs_and_folders_count_from_the_commands_folder(
    spawner: Spawner, tmp_path: Path
) -> None:
    _program(tmp_path / "work" / "tool")
    _program(tmp_path / "work" / "sub" / "other")
    cwd = str(tmp_path / "work")
    assert spawner.start("./tool", cwd=cwd) == 0
    assert spawner.start("sub/other", cwd=cwd) == 0
    for path in ("", ".", ":/bin", "/bin:", "sub:."):
        assert spawner.start("tool", cwd=cwd, env={"PATH": path}) == 0
    assert spawner.start("other", cwd=cwd, env={"PATH": "sub"}) == 0
    with pytest.raises(SpawnFailed):
        spawner.start("./tool")


def test_a_program_installed_between_two_jobs_is_found(spawner: Spawner, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    _program(second / "tool")
    env = {"PATH": f"{first}:{second}:/bin"}
    assert spawner.start("tool", env=env) == 0
    assert spawner.output() == f"{second}/tool\n"
    _program(first / "tool")
    assert spawner.start("tool", env=env) == 0
    assert spawner.output() == f"{first}/tool\n"


def test_what_cannot_be_executed_is_passed_over_as_by_a_shell(
    spawner: Spawner, tmp_path: Path
) -> None:
    _program(tmp_path / "a" / "tool", mode=0o644)
    (tmp_path / "b" / "tool").mkdir(parents=True)
    _program(tmp_path / "c" / "tool")
    path = ":".join(str(tmp_path / name) for name in "abc")
    assert spawner.start("tool", env={"PATH": path}) == 0
    assert spawner.output() == f"{tmp_path}/c/tool\n"


# -- failures -------------------------------------------------------------------------------


def _failures(folder: Path) -> dict[str, tuple[tuple[str, ...], dict[str, Any], str]]:
    plain = _program(folder / "plain.txt", mode=0o644)
    headless = _program(folder / "headless", text="echo hi\n")
    lost = _program(folder / "lost", text="#!/no/such/interpreter\n")
    return {
        "missing": (
            ("no-such-tool",),
            {},
            "no such program: no-such-tool (an alias? -- bash -ic '...'; set up by a profile?"
            " -- bash -lc '...')",
        ),
        "missing path": (("./no/tool",), {}, "no such program: ./no/tool"),
        "empty": (("", "x"), {}, "the command has no name"),
        "nothing": ((), {}, "the command has no name"),
        "mode": ((str(plain),), {}, f"cannot run {plain}: Permission denied"),
        "folder": ((str(folder),), {}, f"cannot run {folder}: Permission denied"),
        "no #!": (
            (str(headless),),
            {},
            f"exec format error: {headless} is no program (a script needs a #! line)",
        ),
        "interpreter": ((str(lost),), {}, f"cannot run {lost}: the interpreter that it names"),
        "cwd": (
            ("true",),
            {"cwd": "/no/such"},
            "cannot enter folder /no/such: No such file or directory",
        ),
        "cwd is a file": (
            ("true",),
            {"cwd": str(plain)},
            f"cannot enter folder {plain}: Not a directory",
        ),
        "cwd with NUL": (("true",), {"cwd": "a\0b"}, "cannot enter folder"),
        "NUL": (("true", "a\0b"), {}, "cannot pass on the command: embedded null byte"),
        "surrogate": (("true", "\ud800"), {}, "cannot pass on the command: "),
        "env name": (("true",), {"env": {"A=B": "1"}}, "cannot pass on the command: "),
        "too long": (("true", "x" * (1 << 20)), {}, "Argument list too long"),
    }


CASES = [
    "missing",
    "missing path",
    "empty",
    "nothing",
    "mode",
    "folder",
    "no #!",
    "interpreter",
    "cwd",
    "cwd is a file",
    "cwd with NUL",
    "NUL",
    "surrogate",
    "env name",
    "too long",
]


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_started_says_why(spawner: Spawner, tmp_path: Path, case: str) -> None:
    argv, changes, words = _failures(tmp_path)[case]
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(SpawnFailed) as caught:
        spawner.start(*argv, **changes)
    assert words in str(caught.value)
    assert caught.value.temporary is False
    assert set(os.listdir("/proc/self/fd")) == before


def test_want_of_descriptors_is_temporary(tmp_path: Path) -> None:
    def exhaust() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        while True:
            os.open(os.devnull, os.O_RDONLY)

    assert _in_scarcity(exhaust) == "temporary: cannot open a folder: Too many open files"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without processes")
def test_want_of_processes_is_temporary() -> None:
    def exhaust() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        os.setresgid(54321, 54321, 54321)
        os.setresuid(54321, 54321, 54321)

    found = _in_scarcity(exhaust)
    assert found == "temporary: cannot start a process: Resource temporarily unavailable"


def _in_scarcity(exhaust: Callable[[], None]) -> str:
    """What spawning fails with in a process that has run out of something."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with contextlib.suppress(OSError):
                exhaust()
            try:
                spawn(
                    ["true"],
                    cwd="/",
                    env={},
                    umask=None,
                    stdin_fd=0,
                    stdout_fd=1,
                    stderr_fd=2,
                    lock_fd=None,
                )
                text = "started"
            except SpawnFailed as error:
                text = ("temporary: " if error.temporary else "final: ") + str(error)
            os.write(writing, text.encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    text = os.read(reading, 4096).decode()
    os.close(reading)
    return text


# -- without POSIX_SPAWN_SETSID -------------------------------------------------------------


def test_the_way_by_fork_starts_the_same(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    changes = {"cwd": str(tmp_path), "umask": 0o137, "env": {"A": "1"}, "lock_fd": lock}
    try:
        expected = spawner.report(**changes)

        def unavailable(*_: object, **__: object) -> int:
            raise NotImplementedError("setsid unavailable on this platform")

        monkeypatch.setattr(module.os, "posix_spawnp", unavailable)
        seen = spawner.report(**changes)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with pytest.raises(SpawnFailed, match="no such program"):
            spawner.start("no-such-tool")
        with pytest.raises(SpawnFailed, match="no such program"):
            spawner.start("./no-such-tool")
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(lock)
    assert seen["pid"] == seen["sid"] == seen["pgid"]
    assert seen["ignored"] & ~INTERNAL == seen["blocked"] == 0
    assert sorted(seen["fds"].values()) == sorted(expected["fds"].values())
    for name in ("cwd", "umask", "env", "ppid"):
        assert seen[name] == expected[name]


def test_a_subreaper_gets_the_orphans(tmp_path: Path) -> None:
    code = """
import os, sys, threading, time
from spoolctl.process.spawn import become_subreaper, is_subreaper, prepare_signals
from spoolctl.engine.children import Children
mine = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ, setsid=True)
children = Children()
def others():
    answers = {children.others(), children.others(), threaded(children.others)}
    assert len(answers) == 1, answers
    return answers.pop()
def threaded(call):
    answer = []
    thread = threading.Thread(target=lambda: answer.append(call()))
    thread.start()
    thread.join()
    return answer[0]
prepare_signals()
assert not is_subreaper()
assert become_subreaper()
assert is_subreaper()
assert others() is False
beside = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
assert others() is False
words = ["sh", "-c", "(sleep 60 & echo $! > pid)"]
pid = os.posix_spawn("/bin/sh", words, os.environ, setsid=True)
assert others() is True
os.waitpid(pid, 0)
children.watch(pid)
assert others() is True
orphan = int(open("pid").read())
children.watch(orphan)
assert others() is False
children.release(orphan)
os.kill(orphan, 9)
while others():
    children.poll()
for one in (mine, beside):
    os.kill(one, 9)
    os.waitid(os.P_PID, one, os.WEXITED | os.WNOWAIT)
    assert children.poll() == []
    assert os.waitpid(one, 0)[1] == 9
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=clean_env(), check=True)

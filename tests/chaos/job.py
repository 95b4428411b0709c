"""The command that a storm's jobs run: misbehaves as told and keeps its own ledger.

    job.py FOLDER [NAME=VALUE ...]

`life` seconds of the main process, `exit` its exit code while the attempt's number is below
`until` (0 afterwards), `out` and `err` bytes that it writes; `term=ignore`; `child` a list of
children to start, each with `child_life` seconds and `child_term`; `err_by=child` lets the
first child write stderr; `pause` seconds between beats. `later`: attempts after the first do
nothing but live so long and succeed.

Children, by how they hide: `plain` forks, `group` has its own process group, `setsid` its own
session, `double` is a daemon (two forks, new session), `bare` such a daemon without any open
file, `clean` one with an empty environment. `mute` has neither files nor environment but stays
in the session, `hidden` is the same in a session of its own. `stop` stops itself, `storm` forks
again and again.

Every process of an attempt shares one lock per job, inherited from the main one. A main
process that finds it taken has seen a second copy.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import ledger  # type: ignore[import-not-found]  # beside this file, not in a package here

CHUNK = 8192
DAEMONS = ("double", "bare", "clean")
LEADERS = ("setsid", "hidden", *DAEMONS)
FILELESS = ("bare", "mute", "hidden")
NAMELESS = ("clean", "mute", "hidden")


class Process:
    """This process as it appears in the ledger."""

    def __init__(self, folder: str, role: str, who: tuple[str, str, str]) -> None:
        self.folder = folder
        self.role = role
        self.who = who
        self.job, self.token, self.number = int(who[0]), who[1], int(who[2])
        self.pid = os.getpid()
        with open("/proc/self/stat") as file:
            self.start = file.read().rpartition(")")[2].split()[19]
        self.open()

    def open(self) -> None:
        """(Re)open the ledger, which children that close everything need again."""
        path = os.path.join(self.folder, ledger.LEDGER)
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, kind: str, word: object = "-") -> None:
        """Append one record."""
        at = f"{ledger.boot_time():.6f}"
        record = (at, kind, self.job, self.token, self.number, self.pid, self.start, self.role)
        ledger.write(self.fd, ledger.Record(*record, word))

    def live(self, seconds: float, pause: float) -> None:
        """Beat until the time is over."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.note("beat")
            time.sleep(min(pause, left))


def main() -> None:
    """Do what the words ask for."""
    folder = sys.argv[1]
    want = dict(word.split("=", 1) for word in sys.argv[2:])
    env = os.environ
    if "as" in want:  # a child that was executed anew, with an empty environment
        job, token, number = want["who"].split(",")
        run_child(Process(folder, want["as"], (job, token, number)), want)
    who = env["SPOOLCTL_JOB_ID"], env["SPOOLCTL_ATTEMPT_ID"], env["SPOOLCTL_ATTEMPT"]
    me = Process(folder, "main", who)
    me.note("start", os.getppid())
    take_lock(me)
    if "later" in want and me.number > 1:
        want = {"life": want["later"]}
    if want.get("term") == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = [name for name in want.get("child", "").split(",") if name]
    for index, name in enumerate(children):
        start_child(me, name, want, writes=index == 0 and want.get("err_by") == "child")
    life, pause = float(want.get("life", "0")), float(want.get("pause", "0.03"))
    produce(me, want, life, pause)
    code = int(want.get("exit", "0")) if me.number < int(want.get("until", "1000000")) else 0
    me.note("end", code)
    os._exit(code)


def take_lock(me: Process) -> None:
    """Hold the job's lock, together with all that this process forks; note a second copy."""
    path = os.path.join(me.folder, ledger.LOCKS, str(me.job))
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(fd, True)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        me.note("second")


def produce(me: Process, want: dict[str, str], life: float, pause: float) -> None:
    """Write the streams, spread over the life of the process, noting each write."""
    streams = [("stdout", 1, int(want.get("out", "0")))]
    if want.get("err_by") != "child":
        streams.append(("stderr", 2, int(want.get("err", "0"))))
    writers = [write_stream(me, *stream) for stream in streams]
    chunks = max(-(-size // CHUNK) for _, _, size in streams) or 1
    for _ in range(chunks):
        for writer in writers:
            next(writer, None)
        me.live(life / chunks, pause)


def write_stream(me: Process, name: str, fd: int, size: int) -> Iterator[None]:
    """Write one chunk per step; a full disk ends it early, and that is noted too."""
    data, done = ledger.content(me.token, name, size), 0
    while done < size:
        me.note("will", f"{name}:{min(size, done + CHUNK)}")
        try:
            done += os.write(fd, data[done : min(size, done + CHUNK)])
        except OSError:
            me.note("did", f"{name}:{done}")
            return
        me.note("did", f"{name}:{done}")
        yield


def start_child(me: Process, name: str, want: dict[str, str], *, writes: bool) -> None:
    """Fork a child of this kind; a daemon's middle process is collected here."""
    pid = os.fork()
    if pid:
        if name in DAEMONS:
            os.waitpid(pid, 0)
        return
    if name == "group":
        os.setpgid(0, 0)
    elif name in LEADERS:
        os.setsid()
    if name in DAEMONS and os.fork():
        os._exit(0)
    if name in FILELESS:
        os.closerange(0, 256)
    if name in NAMELESS:
        words = [f"as={name}", f"who={','.join(me.who)}"]
        words += [f"{key}={want[key]}" for key in ("child_life", "child_term") if key in want]
        os.execve(sys.executable, [*python(), __file__, me.folder, *words], {})
    run_child(Process(me.folder, name, me.who), want, writes=writes)


def python() -> list[str]:
    """The interpreter with as little start-up as possible."""
    return [sys.executable, "-I", "-S", "-B"]


def run_child(me: Process, want: dict[str, str], *, writes: bool = False) -> None:
    """What a child does until its time is over. Does not return."""
    me.note("start", os.getppid())
    ignore = want.get("child_term") == "ignore"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore else signal.SIG_DFL)
    life, pause = float(want.get("child_life", "1")), float(want.get("pause", "0.03"))
    if me.role == "stop":
        os.kill(me.pid, signal.SIGSTOP)
    if me.role == "storm":
        fork_on(me, life)
    elif writes:
        size = int(want.get("err", "0"))
        for _ in write_stream(me, "stderr", 2, size):
            me.live(life / max(1, -(-size // CHUNK)), pause)
    else:
        me.live(life, pause)
    me.note("end", 0)
    os._exit(0)


def fork_on(me: Process, life: float) -> None:
    """A bounded fork storm: whoever is killed has handed over just before."""
    end = time.monotonic() + life
    while time.monotonic() < end:
        if os.fork():
            time.sleep(0.002)
            os._exit(0)
        me = Process(me.folder, me.role, me.who)
        me.note("start", os.getppid())
        time.sleep(0.004)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        with open(os.path.join(sys.argv[1], "errors"), "a") as errors:
            traceback.print_exc(file=errors)
        os._exit(99)

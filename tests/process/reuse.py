"""Give pids away again, in a PID namespace of one's own: reuse.py CASE FOLDER.

Run as `unshare -p -f --mount-proc python3 reuse.py ...`. Prints what became of the strangers
that got the numbers, as JSON. A stranger notes every signal that it gets.
"""

import json
import os
import signal
import sys
import time

from spoolctl.core.records import Identity
from spoolctl.process import boot, identity, locks
from spoolctl.process.ending import Ending, Signals
from spoolctl.process.identity import Evidence, judge
from spoolctl.process.search import Snapshot, Target
from spoolctl.process.table import MARK, read_proc
from spoolctl.process.tree import end_all

case, folder = sys.argv[1:]
TOKEN = "ab" * 16
LOG = os.path.join(folder, "signals")


def fork_as(pid, body):
    """A child with this pid (CONFIG_CHECKPOINT_RESTORE's ns_last_pid), which runs `body`."""
    for _ in range(1000):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
        child = os.fork()
        if child == 0:
            try:
                body()
            finally:
                os._exit(0)
        if child == pid:
            return
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    raise AssertionError(f"no child with pid {pid}")


def victim():
    """An attempt's command, in its own session."""
    os.setsid()
    os.execve("/bin/sleep", ["sleep", "600"], {MARK: TOKEN})


def stranger():
    """Notes every signal; leads a session."""
    os.setsid()
    record_signals()


def record_signals():
    def note(number, _frame):
        with open(LOG, "a") as file:
            file.write(f"{os.getpid()} {number}\n")

    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, note)
    with open(os.path.join(folder, f"ready.{os.getpid()}"), "w"):
        pass
    while True:
        signal.pause()


def wait_for(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def ready(pid):
    wait_for(lambda: os.path.exists(os.path.join(folder, f"ready.{pid}")))


def end_process(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def is_execed(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().startswith(b"sleep")


def start_victim(pid):
    fork_as(pid, victim)
    wait_for(lambda: is_execed(pid))
    return Target(TOKEN, pid, identity.start_of(pid), None)


def tick():
    # The clock of start times counts 10 ms.
    time.sleep(0.03)


def outcome(pids, **more):
    alive = {}
    time.sleep(0.1)  # a signal may be on its way
    for pid in pids:
        proc = read_proc(pid)
        alive[pid] = proc is not None and proc.lives
    signals = []
    if os.path.exists(LOG):
        with open(LOG) as file:
            signals = file.read().splitlines()
    print(json.dumps({"alive": list(alive.values()), "signals": signals, **more}), flush=True)
    os._exit(0)  # init of this namespace: everything else dies with it


def leader():
    """The command's number now belongs to the leader of a stranger's session."""
    target = start_victim(500)
    end_process(500)
    tick()
    fork_as(500, stranger)
    ready(500)
    left = end_all([target], grace_s=0, until_mono=time.monotonic() + 5)
    outcome([500], gone=left == [])


def session_of_the_dead():
    """The same, but the stranger's leader has ended too: only a member of its session is left."""
    target = start_victim(500)
    end_process(500)
    tick()

    def daemon():
        os.setsid()
        fork_as(600, record_signals)
        os._exit(0)

    fork_as(500, daemon)
    os.waitpid(500, 0)
    ready(600)
    ending = Ending(target, grace_s=0, now_mono=0.0)
    for now in (0.0, 1.0, 3.0, 9.0):
        assert ending.step(Snapshot.take(), now) is not None
    # It is even a child of the searcher: as PID 1 here that adopts everybody.
    outcome([600], gone=ending.gone, stuck=ending.stuck)


def in_the_grace():
    """The command ends within the grace, and its number is given away before the kill."""
    target = start_victim(500)
    ending = Ending(target, grace_s=0.3, now_mono=time.monotonic())
    held = []

    class Late(Signals):
        def one(self, proc, number):
            if number == signal.SIGTERM and not held:
                held.append(proc)
                end_process(500)
                tick()
                fork_as(500, stranger)
                ready(500)
            return super().one(proc, number)

        def group(self, member, number):
            held.append(member)
            super().group(member, number)

    ending._signals = Late()
    until = time.monotonic() + 5
    while (pause := ending.step(Snapshot.take(), time.monotonic())) is not None:
        assert time.monotonic() < until, ending.stuck
        time.sleep(pause)
    outcome([500], gone=ending.gone, looked_stale=len(held) == 1)


def between_look_and_kill():
    """Signals meant for a process that has ended reach nobody, alone or as a group."""
    start_victim(500)
    seen = read_proc(500)
    end_process(500)
    tick()
    fork_as(500, stranger)
    ready(500)
    answers = [Signals().one(seen, n) for n in (signal.SIGTERM, signal.SIGKILL)]
    Signals().group(seen, signal.SIGKILL)
    outcome([500], answers=answers)


def member():
    """A member known from earlier looks has ended; its number belongs to a stranger."""
    target = start_victim(500)

    def helper():
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "600"], {MARK: TOKEN})

    fork_as(600, helper)
    wait_for(lambda: is_execed(600))
    ending = Ending(target, grace_s=0.2, now_mono=time.monotonic())
    ending.step(Snapshot.take(), time.monotonic())
    wait_for(lambda: read_proc(600).state == "Z" and read_proc(500).state == "Z")
    os.waitpid(600, 0)
    tick()
    fork_as(600, stranger)
    ready(600)
    while (pause := ending.step(Snapshot.take(), time.monotonic())) is not None:
        time.sleep(pause)
    outcome([600], gone=ending.gone)


def owner():
    """A dead owner's pid belongs to another process, which even holds a lock as workers do."""
    path = os.path.join(folder, "w.lock")
    fd = locks.take(path)
    found = os.fstat(fd)

    def worker():
        locks.take(path + ".other")
        stranger()

    fork_as(500, lambda: signal.pause())
    start = identity.start_of(500)
    who = Identity(boot.boot_id(), boot.pid_namespace(), 500, start, found.st_dev, found.st_ino)
    evidence = Evidence(os.path.join(folder, "queue.db"))
    before = judge(who, path, evidence=evidence)
    end_process(500)
    os.close(fd)
    between = judge(who, path, evidence=evidence)
    tick()
    fork_as(500, worker)
    ready(500)
    after = judge(who, path, evidence=evidence)
    outcome([500], verdicts=[one.verdict.value for one in (before, between, after)])


def pid_one():
    """A worker that was PID 1 of its container, and is PID 1 of the next one."""
    path = os.path.join(folder, "one.lock")
    fd = locks.take(path)
    found = os.fstat(fd)
    me = identity.self_identity(found.st_dev, found.st_ino)
    evidence = Evidence(os.path.join(folder, "queue.db"))
    dead = me._replace(start=str(int(me.start) - 5))
    verdicts = [judge(who, path, evidence=evidence).verdict.value for who in (me, dead)]
    outcome([], pid=me.pid, verdicts=verdicts)


def churn():
    """With 400 pids in all, attempts end while strangers come and go as fast as they can."""
    with open("/proc/sys/kernel/pid_max", "w") as file:
        file.write("400")

    def strangers():
        until = time.monotonic() + 4
        while time.monotonic() < until:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGCONT):
                    signal.signal(number, lambda n, _: os._exit(9))
                time.sleep(0.0005)
                os._exit(0)
            status = os.waitpid(pid, 0)[1]
            if status:
                with open(LOG, "a") as file:
                    file.write(f"{pid} {status}\n")
        os._exit(0)

    churners = set()
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            strangers()
        churners.add(pid)
    rounds = 0
    until = time.monotonic() + 3.5
    script = "trap '' TERM; setsid sleep 0.04 & (sleep 0.03 &) ; sleep 0.05 & sleep 600"
    while time.monotonic() < until:
        rounds += 1
        token = os.urandom(16).hex()
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], {MARK: token}, setsid=True)
        target = Target(token, pid, identity.start_of(pid), None)
        left = end_all([target], grace_s=0.06, until_mono=time.monotonic() + 5)
        assert left == [], left[0].stuck
        # As init we inherit whatever is orphaned here; uncollected it would keep its number.
        while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            churners.discard(ended)
    for pid in churners:
        os.waitpid(pid, 0)
    outcome([], rounds=rounds)


globals()[case]()

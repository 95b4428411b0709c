"""As little of a worker as its guardian needs: small_worker.py FOLDER ATTEMPTS SCRIPT.

Starts a guardian and ATTEMPTS shells that run SCRIPT, prints their pids as one line of JSON,
and waits. Lines on its standard input: "replace" (start another guardian when the first has
died), "move" (to another folder), "forget" (announce, but do not note, one more attempt),
"fork" (leave a forked copy), "loop" (start 300 attempts), "close" (an end in good order),
"dismiss" (the same, and the guardian is not left to find that out). In the environment: GRACE.
"""

import json
import os
import sys
import time

from spoolctl.process import locks
from spoolctl.process.guardian import Guardian
from spoolctl.process.identity import start_of
from spoolctl.process.roster import Roster
from spoolctl.process.spawn import become_subreaper, prepare_signals, spawn
from spoolctl.process.table import MARK

folder, count, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
grace_s = float(os.environ.get("GRACE", "5"))
prepare_signals()
become_subreaper()
null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
roster = Roster.create(os.path.join(folder, "worker.lock"), count)


def guard():
    fd = locks.take(os.path.join(folder, "worker.guard"))
    try:
        return Guardian.start(roster.path, fd, roster_fd=roster.fd, grace_s=grace_s)
    finally:
        os.close(fd)


def attempt(slot, *, note=True):
    token = os.urandom(16).hex()
    lock_path = os.path.join(folder, f"worker.{slot}.0")
    lock = locks.take(lock_path)
    roster.announce(slot, token, lock_path)
    pid = spawn(
        ["/bin/bash", "-c", script],
        cwd="/",
        env={**os.environ, "PATH": "/usr/bin:/bin", MARK: token},
        umask=None,
        stdin_fd=null,
        stdout_fd=null,
        stderr_fd=null,
        lock_fd=lock,
    )
    os.close(lock)
    if note:
        roster.spawned(slot, pid, start_of(pid))
    return pid


guardian = guard()
pids = [attempt(slot) for slot in range(count)]
print(json.dumps({"guardian": guardian.pid, "attempts": pids}), flush=True)
for line in sys.stdin:
    if line == "replace\n":
        os.waitpid(guardian.pid, 0)
        guardian.let_go()
        guardian = guard()
        answer = guardian.pid
    elif line == "move\n":
        os.chdir("/")
        answer = True
    elif line == "forget\n":
        answer = attempt(count, note=False)
    elif line == "fork\n":
        answer = os.fork()
        if answer == 0:
            time.sleep(60)  # and no exec, which would close what it must not hold
            os._exit(0)
    elif line == "loop\n":
        print("true", flush=True)
        for slot in range(count, count + 300):
            attempt(slot)
        answer = None
    elif line in ("close\n", "dismiss\n"):
        for slot in range(count):
            roster.clear(slot)
        if line == "dismiss\n":
            guardian.kill()
        answer = guardian.close(5)
        roster.close(unlink=True)
    print(json.dumps(answer), flush=True)

"""A worker that spawns report.py: spawner.py FOLDER LOCK BLOCKED. Its own streams may be closed."""

import os
import signal
import sys

from spoolctl.process.spawn import prepare_signals, spawn

folder, with_lock, blocked = sys.argv[1], sys.argv[2] == "1", sys.argv[3] == "True"
prepare_signals()
if blocked:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def make(name):
    return os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


# Opened in this order they take the numbers of closed streams, crosswise.
lock = make("lock") if with_lock else None
err, out, null = make("err"), make("report"), os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
pid = spawn(
    [sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), "report.py")],
    cwd=folder,
    env={},
    umask=None,
    stdin_fd=null,
    stdout_fd=out,
    stderr_fd=err,
    lock_fd=lock,
)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
with open(os.path.join(folder, "exit"), "w") as file:
    file.write(str(code))

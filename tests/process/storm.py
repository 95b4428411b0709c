"""A bounded fork storm: storm.py KIND SECONDS. Ends by itself after 5 s at the latest.

wide: everybody forks, up to a few hundred. hop: one process that is always another one (the
parent ends after each fork). hop-session: the same, each in a session of its own. respawn: a
parent that replaces each child that dies.
"""

import os
import signal
import sys
import time

kind, seconds = sys.argv[1:]
until = time.monotonic() + 5
signal.signal(signal.SIGTERM, signal.SIG_IGN)


def settle():
    os.execv("/bin/sleep", ["sleep", seconds])


if kind == "wide":
    for _ in range(8):  # 2 ** 8 processes
        os.fork()
    while time.monotonic() < until:
        time.sleep(0.01)
        if os.fork() == 0:
            settle()
        if os.getpid() % 4:
            settle()
elif kind == "respawn":
    while time.monotonic() < until:
        if os.fork() == 0:
            settle()
        os.wait()
else:
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        if kind == "hop-session":
            os.setsid()
settle()

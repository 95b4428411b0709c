"""A command that starts one child, which hides in the ways named and becomes sleep(1).

    hider.py WAYS LEADER SECONDS

WAYS, joined by "+": session (setsid), group (own process group), orphan (its parent ends),
environ (cleared), descriptors (all closed), ignore (signals), stop (SIGSTOP), none.
LEADER: "stays" or "exits" when the child is ready.
"""

import os
import signal
import sys
import time


def child(ways, seconds):
    if "session" in ways:
        os.setsid()
    if "group" in ways:
        os.setpgid(0, 0)
    if "ignore" in ways:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    if "stop" in ways and os.fork() == 0:
        # Stopped from outside, when it has become what it wants to be.
        parent = os.getppid()
        while os.readlink(f"/proc/{parent}/exe") == os.readlink("/proc/self/exe"):
            time.sleep(0.001)
        os.kill(parent, signal.SIGSTOP)
        os._exit(0)
    if "descriptors" in ways:
        os.closerange(0, 1024)
    os.execve("/bin/sleep", ["sleep", seconds], {} if "environ" in ways else os.environ)


def main():
    ways, leader, seconds = sys.argv[1].split("+"), sys.argv[2], sys.argv[3]
    ready, go = os.pipe()  # closed by execve: then the child is what it wants to be
    first = os.fork()
    if first == 0:
        os.close(ready)
        if "orphan" in ways and os.fork():
            os._exit(0)
        child(ways, seconds)
    os.close(go)
    if "orphan" in ways:
        os.waitpid(first, 0)
    os.read(ready, 1)
    if leader == "exits":
        os._exit(0)
    while True:
        signal.pause()


main()

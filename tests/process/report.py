"""Print, as JSON, in what state this process was started."""

import contextlib
import json
import os

fds = {}
for name in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):  # that of the listing itself
        fds[name] = os.readlink(f"/proc/self/fd/{name}")
with open("/proc/self/status") as file:
    status = dict(line.split(":", 1) for line in file)
with open("/proc/self/environ", "rb") as file:
    environ = file.read().split(b"\0")[:-1]
print(
    json.dumps(
        {
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "sid": os.getsid(0),
            "pgid": os.getpgid(0),
            # What Python itself ignores at its start (SIGPIPE, SIGXFSZ) was not inherited.
            "ignored": int(status["SigIgn"], 16) & ~(1 << 12 | 1 << 24),
            "blocked": int(status["SigBlk"], 16),
            "umask": int(status["Umask"], 8),
            "cwd": os.getcwd(),
            "fds": fds,
            "env": dict(os.fsdecode(item).split("=", 1) for item in environ),
        }
    )
)

"""Fill and drain the queues that are Python packages; run by the interpreter that has them.

    python peer_drivers.py huey|litequeue|rq fill|drain JOBS WIDTH [sync] [streams] [subprocess]

Works in the current folder. Each job is one posix_spawn of `true` and a wait, the fastest
way that Python has, and its exit code is kept. With `streams` so is what it writes: both
streams go to fresh files, as those of the floor do. With `subprocess` (litequeue) it is one
`subprocess.run`, as in the loop that its users write.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

TRUE = shutil.which("true") or "/bin/true"
KEEPS_STREAMS = "streams" in sys.argv
FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def run_true() -> int:
    """What every job does."""
    fds = _fresh_files()
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds, 1)]
    pid = os.posix_spawn(TRUE, ["true"], os.environ, file_actions=actions)
    for fd in fds:
        os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_true_as_users_do() -> int:
    """What every job does where a loop is written as usual."""
    fds = _fresh_files()
    out, err = fds or (None, None)
    code = subprocess.run(["true"], stdout=out, stderr=err, check=False).returncode
    for fd in fds:
        os.close(fd)
    return code


def _fresh_files() -> tuple[int, ...]:
    """For the two streams, if these are to be kept."""
    if not KEEPS_STREAMS:
        return ()
    name = os.urandom(8).hex()
    return tuple([os.open(f"{name}.{stream}", FRESH, 0o600) for stream in ("stdout", "stderr")])


def huey(what: str, jobs: int, width: int, sync: bool) -> None:
    """huey on SQLite, threads in one consumer."""
    import threading

    from huey import SqliteHuey  # type: ignore[import-not-found]
    from huey.signals import SIGNAL_COMPLETE  # type: ignore[import-not-found]

    app = SqliteHuey(filename="huey.db", fsync=sync, journal_mode="wal")
    task = app.task()(run_true)
    if what == "fill":
        for _ in range(jobs):
            task()
        return
    finished = threading.Event()
    left = [jobs]
    lock = threading.Lock()

    @app.signal(SIGNAL_COMPLETE)  # type: ignore[untyped-decorator]
    def one_done(*_: object) -> None:
        with lock:
            left[0] -= 1
            if not left[0]:
                finished.set()

    consumer = app.create_consumer(workers=width, worker_type="thread", periodic=False)
    consumer.start()
    finished.wait()
    os._exit(0)


def litequeue(what: str, jobs: int, width: int, sync: bool) -> None:
    """litequeue and a loop; one process per slot."""
    from litequeue import LiteQueue  # type: ignore[import-not-found]

    if what == "fill":
        queue = LiteQueue("lite.db")
        with queue.transaction():
            for number in range(jobs):
                queue.conn.execute(
                    f"INSERT INTO {queue.table} (data, message_id, status, in_time)"
                    " VALUES ('true', ?, 0, 0)",
                    (f"{number:08d}",),
                )
        return
    if what == "drain" and width > 1:
        _processes("litequeue", jobs, width)
        return
    run = run_true_as_users_do if "subprocess" in sys.argv else run_true
    queue = LiteQueue("lite.db", timeout=30)
    if sync:
        queue.conn.execute("PRAGMA synchronous = FULL")
    while (message := queue.pop()) is not None:
        if run() == 0:
            queue.done(message.message_id)
        else:
            queue.mark_failed(message.message_id)


def rq(what: str, jobs: int, width: int, sync: bool) -> None:
    """RQ without a fork per job; one process per slot."""
    import logging

    from redis import Redis  # type: ignore[import-not-found]
    from rq import Queue, SimpleWorker  # type: ignore[import-not-found]

    connection = Redis(unix_socket_path=os.path.abspath("redis.sock"))
    queue = Queue(connection=connection)
    if what == "fill":
        for _ in range(jobs):
            queue.enqueue("peer_drivers.run_true")
        return
    if what == "drain" and width > 1:
        _processes("rq", jobs, width)
        return
    logging.disable(logging.CRITICAL)
    SimpleWorker([queue], connection=connection).work(burst=True, logging_level="CRITICAL")


def _processes(kind: str, jobs: int, width: int) -> None:
    words = [sys.executable, __file__, kind, "one", str(jobs), "1", *sys.argv[5:]]
    workers = [subprocess.Popen(words) for _ in range(width)]
    codes = [worker.wait() for worker in workers]
    if any(codes):
        sys.exit("a worker failed")


if __name__ == "__main__":
    # Found again by its name in the queue's own processes.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    driver = {"huey": huey, "litequeue": litequeue, "rq": rq}[sys.argv[1]]
    driver(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), "sync" in sys.argv[5:])

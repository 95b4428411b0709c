"""Other queues, as far as a package registry has them.

    python3 -m benchmarks.peers FOLDER      install what can be had into FOLDER

Debian packages are unpacked, not installed; Python packages go into a virtual environment.
Each queue is driven in the way that is fastest for it, and keeps exit codes where it can.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.base import TRUE, Bench, stop, until

DEBIAN = (
    "task-spooler", "nq", "parallel", "redis-server", "redis-tools", "libjemalloc2", "liblzf1",
    "liblua5.1-0", "lua-bitop", "lua-cjson", "libatomic1", "libhiredis0.14",
)  # fmt: skip
PYTHON = ("huey", "litequeue", "rq")
DRIVER = Path(__file__).with_name("peer_drivers.py")


class Peer(NamedTuple):
    """One queue in one setting. `most`: the longest queue that it is still at its best with.

    `measure` makes a function that fills a queue and tells how long draining it takes.
    """

    name: str
    syncs: bool
    most: int
    measure: Callable[[Bench, int, int], Callable[[], float]]


def install(folder: Path) -> list[str]:
    """Fetch what can be had; returns what could not, and why."""
    missing = []
    packages, root = folder / "packages", folder / "root"
    packages.mkdir(parents=True, exist_ok=True)
    for name in DEBIAN:
        error = _try(["apt-get", "download", "-q", name], packages)
        if error:
            missing.append(f"{name}: {error}")
    for package in sorted(packages.glob("*.deb")):
        _try(["dpkg-deb", "-x", str(package), str(root)], packages)
    _try([sys.executable, "-m", "venv", str(folder / "venv")], folder)
    for name in PYTHON:
        error = _try([str(folder / "venv/bin/pip"), "install", "-q", name], folder)
        if error:
            missing.append(f"{name}: {error}")
    return missing


def _try(words: list[str], folder: Path) -> str | None:
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error.strerror)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]


def available(bench: Bench) -> tuple[list[Peer], list[str]]:
    """The queues that are there, and the names of those that are not."""
    there, missing = [], []
    for peer, needs in _ALL:
        places = [] if bench.peers is None else [bench.peers / each for each in needs]
        if places and all(place.exists() for place in places):
            there.append(peer)
        else:
            missing.append(peer.name)
    return there, missing


def _program(bench: Bench, name: str) -> str:
    assert bench.peers is not None
    return str(bench.peers / "root/usr/bin" / name)


# -- queues that are programs -----------------------------------------------------------------


def _task_spooler(bench: Bench, jobs: int, width: int) -> Callable[[], float]:
    def measure() -> float:
        tsp = _program(bench, "tsp")
        with bench.folder() as folder:
            (folder / "tmp").mkdir()
            gate = folder / "gate"
            os.mkfifo(gate)
            env = {
                "TS_SOCKET": str(folder / "socket"),
                "TS_MAXFINISHED": str(jobs + 10),
                "TS_SLOTS": "1",
                "TMPDIR": str(folder / "tmp"),
            }
            try:
                # Everything queues up behind a job that waits for the gate to open.
                bench.run([tsp, "sh", "-c", f"read line < {gate}"], folder, env=env)
                for _ in range(jobs):
                    last = bench.run([tsp, TRUE], folder, env=env).stdout.strip()
                began = time.perf_counter()
                gate.write_text("go\n")
                bench.run([tsp, "-S", str(width)], folder, env=env)
                bench.run([tsp, "-w", last], folder, env=env)
                took = time.perf_counter() - began
                # The last one to start need not be the last one to end.
                until(
                    lambda: (
                        bench.run([tsp, "-l"], folder, env=env).stdout.count(" finished ") > jobs
                    )
                )
                return took
            finally:
                bench.run([tsp, "-K"], folder, env=env, expect=None)

    return measure


def _nq(bench: Bench, jobs: int, width: int) -> Callable[[], float]:
    """Strictly one after another in a folder; several folders stand for several slots."""

    def measure() -> float:
        nq = _program(bench, "nq")
        with bench.folder() as folder:
            gate = folder / "gate"
            os.mkfifo(gate)
            envs = [{"NQDIR": str(folder / f"lane{number}")} for number in range(width)]
            for env in envs:
                bench.run([nq, "-q", "sh", "-c", f"read line < {gate}"], folder, env=env)
            for number in range(jobs):
                bench.run([nq, "-q", TRUE], folder, env=envs[number % width])
            began = time.perf_counter()
            gate_fd = os.open(gate, os.O_WRONLY)
            os.write(gate_fd, b"go\n" * width)
            waits = [bench.start([nq, "-w"], folder, env=env) for env in envs]
            codes = [wait.wait() for wait in waits]
            took = time.perf_counter() - began
            os.close(gate_fd)
            if any(codes):
                raise RuntimeError(f"nq: {codes}")
            return took

    return measure


def _parallel(bench: Bench, jobs: int, width: int) -> Callable[[], float]:
    def measure() -> float:
        with bench.folder() as folder:
            (folder / "list").write_text("".join(f"{number}\n" for number in range(jobs)))
            words = [_program(bench, "parallel"), "--will-cite", "--joblog", "log", "-n0"]
            took = bench.seconds_of([*words, "-j", str(width), "-a", "list", TRUE], folder)
            if len((folder / "log").read_text().splitlines()) != jobs + 1:
                raise RuntimeError("parallel: not all jobs are in the log")
            return took

    return measure


# -- queues that are Python packages ----------------------------------------------------------


def _driven(
    kind: str, *, sync: bool, usual: bool = False, streams: bool = False
) -> Callable[[Bench, int, int], Callable[[], float]]:
    """Filled and drained by `peer_drivers.py` under the interpreter that has the package.

    `usual`: its commands run by `subprocess.run`, not in the fastest way there is. `streams`:
    what they write goes to files, and is not thrown away.
    """

    def make(bench: Bench, jobs: int, width: int) -> Callable[[], float]:
        assert bench.peers is not None
        python = str(bench.peers / "venv/bin/python")
        asked = {"sync": sync, "subprocess": usual, "streams": streams}
        tail = [str(jobs), str(width), *(word for word, is_so in asked.items() if is_so)]

        def measure() -> float:
            with bench.folder() as folder:
                redis = _start_redis(bench, folder, sync=sync) if kind == "rq" else None
                try:
                    bench.run([python, str(DRIVER), kind, "fill", *tail], folder)
                    return bench.seconds_of([python, str(DRIVER), kind, "drain", *tail], folder)
                finally:
                    if redis is not None:
                        stop(redis)

        return measure

    return make


def _start_redis(bench: Bench, folder: Path, *, sync: bool) -> subprocess.Popen[bytes]:
    assert bench.peers is not None
    keep = ["--appendonly", "yes", "--appendfsync", "always"] if sync else ["--appendonly", "no"]
    socket = folder / "redis.sock"
    words = [_program(bench, "redis-server"), "--port", "0", "--unixsocket", str(socket)]
    libraries = str(bench.peers / f"root/usr/lib/{os.uname().machine}-linux-gnu")
    server = bench.start([*words, "--save", "", *keep], folder, env={"LD_LIBRARY_PATH": libraries})
    until(lambda: socket.exists() or server.poll() is not None)
    if server.poll() is not None:
        raise RuntimeError("redis-server does not start")
    return server


_SITE = "venv/bin/python"
_ALL: tuple[tuple[Peer, tuple[str, ...]], ...] = (
    (Peer("task-spooler", False, 500, _task_spooler), ("root/usr/bin/tsp",)),
    (Peer("nq", False, 2000, _nq), ("root/usr/bin/nq",)),
    # Each waiting job watches all before it: short queues are its best.
    (Peer("nq, 100 jobs", False, 100, _nq), ("root/usr/bin/nq",)),
    (Peer("GNU parallel --joblog", False, 2000, _parallel), ("root/usr/bin/parallel",)),
    (Peer("huey, fsync", True, 2000, _driven("huey", sync=True)), (_SITE,)),
    (Peer("huey, no fsync", False, 2000, _driven("huey", sync=False)), (_SITE,)),
    (Peer("litequeue, FULL", True, 2000, _driven("litequeue", sync=True)), (_SITE,)),
    (Peer("litequeue", False, 2000, _driven("litequeue", sync=False)), (_SITE,)),
    (
        Peer(
            "litequeue and subprocess, FULL",
            True,
            2000,
            _driven("litequeue", sync=True, usual=True),
        ),
        (_SITE,),
    ),
    (
        Peer("litequeue and subprocess", False, 2000, _driven("litequeue", sync=False, usual=True)),
        (_SITE,),
    ),
    # The same, keeping what commands write, as spoolctl and those that are programs do.
    (
        Peer("huey, no fsync, streams", False, 2000, _driven("huey", sync=False, streams=True)),
        (_SITE,),
    ),
    (
        Peer("litequeue, streams", False, 2000, _driven("litequeue", sync=False, streams=True)),
        (_SITE,),
    ),
    (
        Peer(
            "litequeue and subprocess, streams",
            False,
            2000,
            _driven("litequeue", sync=False, usual=True, streams=True),
        ),
        (_SITE,),
    ),
    (
        Peer("RQ, appendfsync always", True, 1000, _driven("rq", sync=True)),
        (_SITE, "root/usr/bin/redis-server"),
    ),
    (
        Peer("RQ, no append file", False, 1000, _driven("rq", sync=False)),
        (_SITE, "root/usr/bin/redis-server"),
    ),
)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for sentence in install(target.resolve()):
        print(f"not to be had: {sentence}", file=sys.stderr)

"""A large stream: shown, wrapped in JSON, summed up."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from benchmarks.base import Bench, Result, figure, fill

FULL_MB = 300

# The largest memory of a child counts what its parent had when it was made (getrusage(2)), so
# the parent has to be smaller than what is measured.
LAUNCHER = """
import os, resource, sys
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
with open(sys.argv[1], "w") as note:
    note.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def large_stream(bench: Bench) -> list[Result]:
    """Memory and the first byte of `output`, `output --json` and `feedback` of 300 MB."""
    size = bench.size(FULL_MB, least=5)
    line = "0123456789abcdef" * 4
    command = f"yes {line} | head -c {size * 1000 * 1000}"
    results = []
    with bench.folder(large=True) as folder:
        path = folder / "queue.db"
        (job,) = fill(path, [["sh", "-c", command]])
        began = time.perf_counter()
        bench.run(bench.spool("work", "--db", path, "--drain"), folder)
        took = time.perf_counter() - began
        results.append(figure(f"worker for a job that writes {size} MB", "s", [took]))
        verbs = {
            "status (for comparison)": ["status"],
            "output": ["output", str(job)],
            "output --raw": ["output", "--stream", "stdout", "--raw", str(job)],
            "output --json": ["output", "--json", str(job)],
            "output --tail 20": ["output", "--tail", "20", str(job)],
            "feedback": ["feedback", str(job)],
            "feedback --json": ["feedback", "--json", str(job)],
        }
        for name, (verb, *words) in verbs.items():
            seen = [_run(bench, bench.spool(verb, "--db", path, *words), folder) for _ in range(3)]
            results.append(figure(f"{name}: memory", "MB", [one[0] for one in seen], at_most=40))
            results.append(figure(f"{name}: first byte", "ms", [1000 * one[1] for one in seen]))
            results.append(figure(f"{name}: all of it", "s", [one[2] for one in seen]))
    return results


def _run(bench: Bench, words: list[str | os.PathLike[str]], folder: Path) -> tuple[float, ...]:
    """Largest memory in MB, seconds to the first byte and to the end."""
    began = time.perf_counter()
    note = folder / "memory"
    launcher = [bench.python, "-I", "-S", "-c", LAUNCHER, str(note), *words]
    process = bench.start(launcher, folder, stdout=subprocess.PIPE)
    assert process.stdout is not None
    fd = process.stdout.fileno()
    os.read(fd, 1)
    first = time.perf_counter() - began
    while os.read(fd, 1 << 20):
        pass
    code = process.wait()
    process.stdout.close()
    if code != 0:
        raise RuntimeError(f"{words}: exit {code}")
    return int(note.read_text()) / 1024, first, time.perf_counter() - began

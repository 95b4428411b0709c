"""What all benchmarks share: results, rounds of contenders side by side, processes, queues."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
import venv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# Where commands are looked for: that of a plain login, not the developer's.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

TRUE = shutil.which("true", path=PATH) or "/bin/true"
"""The command of every drain, named so that nobody has to search for it."""


class Result(NamedTuple):
    """One measured figure: the median of `values`, in `unit`.

    `goal` is a text for people; `met` says whether it was reached (None: no goal).
    """

    name: str
    unit: str
    values: list[float]
    goal: str = ""
    met: bool | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)


def figure(
    name: str,
    unit: str,
    values: Iterable[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    worst_at_most: float | None = None,
    note: str = "",
) -> Result:
    """A result with a goal for its median, or for its worst (highest) value."""
    found = list(values)
    middle = statistics.median(found)
    goals = []
    met = True
    if at_least is not None:
        goals.append(f">= {at_least:g}")
        met = met and middle >= at_least
    if at_most is not None:
        goals.append(f"<= {at_most:g}")
        met = met and middle <= at_most
    if worst_at_most is not None:
        goals.append(f"worst <= {worst_at_most:g}")
        met = met and max(found) <= worst_at_most
    return Result(name, unit, found, ", ".join(goals), met if goals else None, note)


class Bench:
    """The settings of a run, and a scratch folder for each measurement.

    `runs`: rounds behind a median. `scale`: 1.0 for the sizes that docs/benchmarks.md names;
    less for trying out. `peers`: where `benchmarks.peers` has put other queues; None: none.
    """

    def __init__(self, scratch: Path, *, runs: int, scale: float, peers: Path | None) -> None:
        self.scratch = scratch
        self.runs = runs
        self.scale = scale
        self.peers = peers
        self._folders = 0
        # Bytecode beside the scratch files: warm for every program, and the checkout stays clean.
        self.env = {
            "HOME": str(scratch),
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "PYTHONPYCACHEPREFIX": str(scratch / "bytecode"),
        }

        # An interpreter without whatever has been installed into ours: .pth files alone can
        # cost more than everything that is measured here.
        venv.create(scratch / "python", symlinks=True)
        self.python = str(scratch / "python/bin/python")

    def spool(self, *words: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
        """The command line of spoolctl from this checkout."""
        return [self.python, "-m", "spoolctl", *words]

    def size(self, full: int, *, least: int = 1) -> int:
        """A number of jobs at this scale."""
        return max(least, round(full * self.scale))

    def seconds(self, full: float, *, least: float = 2.0) -> float:
        """A length of time at this scale."""
        return max(least, full * self.scale)

    @contextmanager
    def folder(self, *, large: bool = False) -> Iterator[Path]:
        """A fresh folder. A large one is removed afterwards, others at the end of the run.

        For minutes after files were removed ext4 looks for inodes that were not freed lately
        (`recently_deleted`), so whoever makes new files then pays up to ten times as much: the
        floors, which make two for each command, would come out far too low.
        """
        self._folders += 1
        path = self.scratch / f"{self._folders:04d}"
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            if large:
                shutil.rmtree(path, ignore_errors=True)

    def start(
        self, words: Sequence[str | os.PathLike[str]], folder: Path, **kwargs: object
    ) -> subprocess.Popen[bytes]:
        """Start a program with our environment and nothing to read."""
        kwargs.setdefault("stdout", subprocess.DEVNULL)
        kwargs.setdefault("stderr", subprocess.DEVNULL)
        env = {**self.env, **kwargs.pop("env", {})}  # type: ignore[dict-item]
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            words, cwd=folder, env=env, stdin=subprocess.DEVNULL, **kwargs
        )

    def run(
        self,
        words: Sequence[str | os.PathLike[str]],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        expect: int | None = 0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; RuntimeError if it exits with another code."""
        done = subprocess.run(
            words,
            cwd=folder,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if expect is not None and done.returncode != expect:
            raise RuntimeError(f"{words}: exit {done.returncode}: {done.stderr[-500:]}")
        return done

    def seconds_of(self, words: Sequence[str | os.PathLike[str]], folder: Path) -> float:
        """How long a program takes from its start to its end. RuntimeError if it fails."""
        log = folder / "stderr"
        with log.open("wb") as errors:
            began = time.perf_counter()
            code = self.start(words, folder, stderr=errors).wait()
            took = time.perf_counter() - began
        if code != 0:
            raise RuntimeError(f"{words}: exit {code}: {log.read_text()[-500:]}")
        return took

    def rounds(
        self, contenders: Mapping[str, Callable[[], float]], *, runs: int | None = None
    ) -> dict[str, list[float]]:
        """Measure all contenders once a round, in turn, the first round thrown away.

        Side by side: what else the machine does at the time hits all of them alike.
        """
        found: dict[str, list[float]] = {name: [] for name in contenders}
        names = list(contenders)
        for number in range((runs or self.runs) + 1):
            # Each takes its turn in going first.
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                value = contenders[name]()
                if number:
                    found[name].append(value)
        return found


def fill(path: Path, commands: Sequence[Sequence[str]], **options: object) -> list[int]:
    """A queue with these commands; returns the ids."""
    from spoolctl import Queue

    with Queue(path) as queue:
        return [job.id for job in queue.add_many(commands, cwd="/", **options)]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(above, below, strict=True)]


def until(condition: Callable[[], object], *, timeout_s: float = 60.0) -> None:
    """Wait for a condition, looking every 5 ms. RuntimeError after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("timed out")
        time.sleep(0.005)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a worker to end, and wait."""
    if process.poll() is None:
        process.terminate()
    process.wait()

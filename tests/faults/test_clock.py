"""The wall clock of real workers is stepped: no job is stolen, none is stranded."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.clocks import step_clock
from tests.faults.preload import build, compiler
from tests.helpers import clean_env, eventually, spoolctl
from tests.worker.conftest import Bench

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C compiler, or no Linux")

HOUR, YEAR = 3600.0, 365 * 86400.0
STEPS = [HOUR, -HOUR, YEAR, -YEAR]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim, compiled."""
    return build("clock", tmp_path_factory.mktemp("clock"))


Clocked = Callable[[str], dict[str, str]]


@pytest.fixture
def clocked(bench: Bench, library: Path) -> Clocked:
    """The environment of a program whose wall clock is that of the file with this name."""

    def environment(name: str) -> dict[str, str]:
        path = bench.folder / name
        if not path.exists():
            step_clock(path, 0.0)
        return {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(path)}

    return environment


def test_the_shim_shifts_the_wall_clock_alone(clocked: Clocked, bench: Bench) -> None:
    code = (
        "import os, time; print(time.time(), time.monotonic(),"
        " time.clock_gettime(time.CLOCK_BOOTTIME), 'LD_PRELOAD' in os.environ)"
    )
    env = clocked("clock")
    step_clock(bench.folder / "clock", -YEAR)
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_env(env), capture_output=True, text=True, check=True
    )
    wall, mono, boot, leaks = done.stdout.split()
    assert float(wall) - time.time() == pytest.approx(-YEAR, abs=60)
    assert 0 <= time.monotonic() - float(mono) < 60
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - float(boot) < 60
    assert leaks == "False"


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize("steps", [(HOUR, -HOUR, YEAR), (-HOUR, HOUR, -YEAR)])
@pytest.mark.parametrize("who", ["worker", "reaper", "both"])
def test_a_step_steals_no_living_workers_job_and_strands_no_dead_ones(
    bench: Bench, clocked: Clocked, who: str, steps: tuple[float, ...]
) -> None:
    job = bench.add("-c", "echo $$ >> ran; until test -e go; do sleep 0.02; done")
    owner = bench.work("--once", env=clocked("worker"))
    first = bench.wait_file("ran")
    reaper = bench.work("-j", "2", env=clocked("reaper"))
    other = bench.add("--", "true")
    bench.wait_state(other, "done")
    for step in steps:
        for name in ("worker", "reaper"):
            if who in (name, "both"):
                step_clock(bench.folder / name, step)
        time.sleep(0.4)  # the owner beats and the reaper scans all along
        bench.wait_state(bench.add("--", "true"), "done")
    assert bench.job(job)["state"] == "running"
    assert (bench.folder / "ran").read_text() == first
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    eventually(lambda: len((bench.folder / "ran").read_text().split()) == 2, timeout_s=30)
    (bench.folder / "go").touch()
    bench.wait_state(job, "done")
    assert bench.trail(job) == ["added", "claimed", "reaped", "claimed", "succeeded"]
    durations = [each["duration_seconds"] for each in bench.attempts(job)]
    assert all(each is None or 0 <= each < 120 for each in durations)
    reaper.terminate()
    reaper.communicate(timeout=30)
    assert reaper.returncode == 0


@pytest.mark.parametrize("step", STEPS)
def test_a_relative_delay_is_kept_whatever_the_wall_clock_says(
    bench: Bench, clocked: Clocked, step: float
) -> None:
    """`--after` means time that passes: neither sooner nor later by a step."""
    began = time.monotonic()
    soon = bench.add("--after", "1.5s", "--", "true")
    late = bench.add("--after", "50m", "--", "true")
    worker = bench.work(env=clocked("worker"))
    eventually(lambda: list(Path(f"{bench.db}.d", "workers").glob("*.bell")), what="the worker")
    step_clock(bench.folder / "worker", step)
    bench.wait_state(soon, "done")
    assert time.monotonic() - began >= 1.5
    assert bench.job(late)["state"] == "queued"
    worker.terminate()
    worker.communicate(timeout=30)


@pytest.mark.parametrize(("step", "due"), [(HOUR, True), (-HOUR, False)])
def test_a_time_of_day_follows_the_wall_clock(
    bench: Bench, clocked: Clocked, step: float, due: bool
) -> None:
    """`--at` means the wall clock, and follows it."""
    at = str(time.time() + 1800)
    job = bench.add("--at", at, "--", "true")
    env = clocked("worker")
    step_clock(bench.folder / "worker", step)
    done = spoolctl("work", "--db", str(bench.db), "--once", env=env, cwd=bench.folder)
    assert done.returncode == 0, done.stderr
    assert bench.job(job)["state"] == ("done" if due else "queued")

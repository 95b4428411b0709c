"""Every call on the queue's files may fail: nothing is lost, and what happened is said."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from spoolctl import Queue
from spoolctl.errors import StoreFull
from tests.faults.preload import build, compiler
from tests.faults.sweep import SCENARIOS, Bench, Failure, Fault, Result, environment, sweep
from tests.helpers import eventually
from tests.worker.conftest import Bench as WorkerBench
from tests.worker.conftest import alive

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C compiler, or no Linux")

SEED = 20261130

A_FEW = {
    ("work", "ENOSPC"): 5,
    ("work", "EIO"): 6,
    ("work", "EMFILE"): 3,
    ("add", "ENOSPC"): 2,
    ("add to no queue", "EIO"): 3,
    ("cancel", "EIO"): 1,
    ("prune", "ENOSPC"): 1,
    ("backup", "ENOSPC"): 2,
}
"""How many calls fail in the short run. `python3 -m tests.faults.sweep` takes them all."""

BenchOf = Callable[[str], Bench]


@pytest.fixture(scope="module")
def bench_of(tmp_path_factory: pytest.TempPathFactory) -> BenchOf:
    """A bench for each scenario, made when it is needed."""
    folder = Path(os.path.realpath(tmp_path_factory.mktemp("faults")))
    made: dict[str, Bench] = {}

    def bench(name: str) -> Bench:
        if name not in made:
            made[name] = Bench(SCENARIOS[name], folder / str(len(made)))
        return made[name]

    return bench


def broken(bench: Bench, error: str, sample: int) -> list[Failure]:
    """What broke when some of the calls failed with this error."""
    found = [one for _, one in sweep(bench, error, every=False, sample=sample, seed=SEED)]
    assert len(found) == sample
    return [one for one in found if isinstance(one, Failure)]


@pytest.mark.parametrize(("name", "error"), A_FEW)
def test_whatever_call_fails_nothing_is_lost(bench_of: BenchOf, name: str, error: str) -> None:
    assert broken(bench_of(name), error, A_FEW[name, error]) == []


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EMFILE", "EROFS"])
@pytest.mark.parametrize(("name", "sample"), [("work", 6), ("work after a kill", 2)])
def test_whatever_call_of_a_worker_fails_nothing_is_lost(
    bench_of: BenchOf, name: str, sample: int, error: str
) -> None:
    assert broken(bench_of(name), error, sample) == []


def failing(bench: Bench, error: str, kinds: str, only: str, nth: int = 1) -> Result:
    """Run the scenario; the n-th call of these kinds on such a file fails."""
    result = bench.run(Fault(error, kinds, nth, only=only))
    assert any("INJECTED" in each for each in result.calls)
    return result


@pytest.mark.parametrize("error", ["EIO", "EROFS"])
@pytest.mark.parametrize(("only", "nth"), [(".stdout", 1), (".stderr", 1), (".lock", 5)])
def test_a_job_does_not_pay_for_files_that_its_worker_cannot_make(
    bench_of: BenchOf, error: str, only: str, nth: int
) -> None:
    """The bench checks that each job ran once, also the one that may not be tried again."""
    result = failing(bench_of("work"), error, "w", only, nth)
    assert result.code == 0
    assert f"waiting: {os.strerror(getattr(errno, error))}: /q/queue.db.d/" in result.said


def test_what_an_earlier_try_could_not_remove_is_not_in_the_way(bench_of: BenchOf) -> None:
    result = failing(bench_of("work"), "EIO", "u", ".stdin")
    assert result.code == 0
    assert "waiting: Input/output error: /q/queue.db.d/attempts/" in result.said
    assert "going on" in result.said


@pytest.mark.parametrize("name", ["add", "work", "status"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_read_that_fails_once_is_no_damage(bench_of: BenchOf, name: str, number: int) -> None:
    result = failing(bench_of(name), "EIO", "r", "queue.db", number)
    assert "damaged" not in result.said
    assert result.code == 0, result.said


def test_a_disk_that_does_not_serve_for_long_is_no_damage_either(bench_of: BenchOf) -> None:
    result = bench_of("add").run(Fault("EIO", "ro", 1, 10_000))
    assert result.code == 3
    assert "cannot open /q/queue.db" in result.said
    assert "look at the disk" in result.said


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize(("only", "nth"), [("queue.db.d", 1), ("workers", 1), (".lock", 2)])
def test_what_keeps_a_worker_from_starting_is_named_with_its_file(
    bench_of: BenchOf, error: str, only: str, nth: int
) -> None:
    result = failing(bench_of("work"), error, "w", only, nth)
    assert result.code == 3
    assert f"spoolctl: error: {os.strerror(getattr(errno, error))}: /q" in result.said


@pytest.mark.parametrize("what", ["boot_id", "timens_offsets", "self/stat"])
@pytest.mark.parametrize("name", ["work", "work after a kill"])
def test_a_worker_that_cannot_tell_who_it_is_does_not_begin(
    bench_of: BenchOf, name: str, what: str
) -> None:
    """With gaps in its identity, nobody could ever be sure that it is dead."""
    result = failing(bench_of(name), "EMFILE", "d", what)
    assert result.code == 3
    assert "spoolctl: error: Too many open files: /proc/" in result.said


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_no_room_for_the_log_is_no_fault_of_the_path(bench_of: BenchOf, suffix: str) -> None:
    result = bench_of("add").run(Fault("ENOSPC", "w", 1, 10_000, f"queue.db{suffix}"))
    assert result.code == 3
    assert "the disk does not serve /q/queue.db" in result.said


@pytest.mark.parametrize("call", [r"u unlink /q/copy.db.tmp-\w+", "o open.* /q", "w fsync /q"])
def test_a_backup_that_fails_last_leaves_nothing_behind(bench_of: BenchOf, call: str) -> None:
    """The bench looks for leftovers. These calls come after the copy has its name."""
    bench = bench_of("backup")
    calls = bench.calls("wuo")
    number = max(at for at, each in enumerate(calls, 1) if re.fullmatch(call, each))
    assert bench.run(Fault("EIO", "wuo", number)).code == 3


def test_a_bell_that_cannot_be_rung_does_not_undo_an_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(tmp_path / "queue.db") as queue:

        def fail(_lane: str) -> list[str]:
            raise StoreFull("the disk does not serve")

        monkeypatch.setattr(queue._store, "bells", fail)
        monkeypatch.setattr(queue._store, "owner_token", fail)
        job = queue.add(["true"])
        assert queue.cancel(job.id).job.id == job.id


def test_what_cannot_be_read_holds_up_no_other_job(bench: WorkerBench) -> None:
    jobs = [bench.add("-c", f"echo $$ > pid{n}; sleep 300") for n in (1, 2)]
    worker = bench.work("-j", "2")
    pids = [int(bench.wait_file(f"pid{n}")) for n in (1, 2)]
    path = str(bench.attempts(jobs[0])[0]["stdout_path"])
    worker.kill()
    worker.wait()
    eventually(lambda: not any(map(alive, pids)), what="the guardian's work")
    fault = Fault("EIO", "ro", 1, 10**6, os.path.basename(path))
    library = build("disk", bench.folder)
    other = bench.work(env=environment(library, bench.folder, bench.folder / "calls", fault))
    eventually(lambda: "reaped" in bench.trail(jobs[1]), what="the other one taken back")
    why = "cannot be read (Input/output error: "
    eventually(lambda: why in bench.job(jobs[0])["recovery"]["reason"], what="the reason")
    assert "reaped" not in bench.trail(jobs[0])
    other.kill()
    other.wait()
    bench.work("-j", "2")
    eventually(lambda: "reaped" in bench.trail(jobs[0]), what="both taken back")

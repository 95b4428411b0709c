"""Running jobs: results, budgets, slots, time limits, what cannot be started."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spoolctl import Queue
from spoolctl.core.states import State
from spoolctl.engine.ahead import MOST_IF_HELPED
from tests.helpers import eventually
from tests.worker.conftest import Bench, alive


def test_a_thousand_jobs_in_one_thread_without_zombies_or_open_files(bench: Bench) -> None:
    script = (
        "from spoolctl import Queue\n"
        f"with Queue({str(bench.db)!r}) as q: q.add_many([['true']] * 1000)"
    )
    os.spawnve(
        os.P_WAIT,
        sys.executable,
        [sys.executable, "-c", script],
        {**os.environ, "PYTHONPATH": os.getcwd()},
    )
    worker = bench.work("--drain", "-j", "4", stderr=subprocess.DEVNULL)
    seen = []

    def look() -> bool:
        try:
            tasks = len(os.listdir(f"/proc/{worker.pid}/task"))
            files = len(os.listdir(f"/proc/{worker.pid}/fd"))
            children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
            seen.append((tasks, files, sum(not alive(int(pid)) for pid in children)))
        except (FileNotFoundError, ProcessLookupError):
            pass
        return worker.poll() is not None

    eventually(look, timeout_s=60)
    assert worker.returncode == 0
    assert bench.json("status")["counts"]["done"] == 1000
    assert {tasks for tasks, _, _ in seen} == {1}
    # Two streams for each that runs or is not recorded yet, and what it always has open.
    assert max(files for _, files, _ in seen) <= 32 + 2 * (4 + 2 * MOST_IF_HELPED)
    # A leader that has just ended is one until the loop has looked.
    assert max(zombies for _, _, zombies in seen) <= 8


def test_a_queue_at_rest_is_one_file(bench: Bench) -> None:
    for number in range(30):
        bench.add("--max-retries", "0", "-c", f"echo {number}; echo e >&2; exit {number % 3}")
    bench.drain("-j", "3")
    support = Path(f"{bench.db}.d")
    left = [str(path.relative_to(support)) for path in support.rglob("*") if path.is_file()]
    assert left == []
    assert sorted(path.name for path in bench.folder.iterdir()) == ["queue.db", "queue.db.d"]
    assert bench.run("output", "--stream", "stdout", "--raw", "7").stdout == "6\n"


def test_large_output_stays_a_file_and_comes_back_exactly(bench: Bench) -> None:
    job = bench.add("-c", "head -c 300000 /dev/urandom | tee copy")
    bench.drain()
    attempt = bench.attempts(job)[0]
    assert attempt["stored"]["stdout"] == "file"
    assert Path(attempt["stdout_path"]).read_bytes() == (bench.folder / "copy").read_bytes()


def test_retries_back_off_then_the_job_is_dead(bench: Bench) -> None:
    job = bench.add("--max-retries", "1", "-c", "echo try $SPOOLCTL_ATTEMPT; exit 7")
    log = bench.drain()
    assert f"job {job} attempt 1 failed" in log
    assert "-> queued" in log
    assert f"job {job} attempt 2 failed" in log
    assert "-> dead" in log
    shown = bench.job(job)
    assert (shown["state"], shown["attempts"], shown["last_exit_code"]) == ("dead", 2, 7)
    first, second = bench.attempts(job)
    assert second["started_at"] - first["finished_at"] >= 1.9
    assert bench.trail(job) == ["added", "claimed", "failed", "claimed", "failed", "dead"]
    assert bench.run(
        "output", "--raw", "--stream", "stdout", "--attempt", "1", str(job)
    ).stdout == ("try 1\n")


def test_a_time_limit_ends_the_whole_tree(bench: Bench) -> None:
    job = bench.add(
        "--timeout", "1", "--max-retries", "0",
        "-c", "trap '' TERM; sleep 300 & setsid sleep 300 & echo $! > pid; wait",
    )  # fmt: skip
    bench.drain()
    attempt = bench.attempts(job)[0]
    assert (attempt["state"], attempt["failure_reason"]) == ("timed_out", "timeout")
    assert attempt["exit_code"] is None
    assert not alive(int((bench.folder / "pid").read_text()))


def test_what_cannot_be_started_fails_and_the_worker_goes_on(bench: Bench) -> None:
    plain = bench.folder / "plain"
    plain.write_text("no program")
    jobs = [
        bench.add("--max-retries", "0", "--", "no-such-program-anywhere"),
        bench.add("--max-retries", "0", "--", str(plain)),
        bench.add("--max-retries", "0", "--cwd", str(bench.folder / "gone"), "--", "true"),
        bench.add("--max-retries", "0", "--", str(bench.folder)),
    ]
    good = bench.add("--", "true")
    bench.drain()
    for job in jobs:
        attempt = bench.attempts(job)[0]
        assert (attempt["state"], attempt["failure_reason"]) == ("failed", "spawn_failed")
        assert attempt["exit_code"] is None
        assert attempt["error"].startswith("spawn failed: ")
    assert bench.job(good)["state"] == "done"


def test_output_files_that_cannot_be_made_fail_the_job_not_the_worker(bench: Bench) -> None:
    job = bench.add("--max-retries", "0", "--", "true")
    support = Path(f"{bench.db}.d")
    support.mkdir(mode=0o700, exist_ok=True)
    (support / "attempts").write_text("in the way")
    bench.drain()
    assert bench.attempts(job)[0]["failure_reason"] == "spawn_failed"
    assert str(support / "attempts") in bench.attempts(job)[0]["error"]
    (support / "attempts").unlink()
    good = bench.add("--", "echo", "after repair")
    bench.drain()
    assert bench.job(good)["state"] == "done"


def test_a_ceiling_holds_over_all_workers(bench: Bench) -> None:
    # Each job notes how many run beside it.
    script = (
        "echo >> up; a=$(wc -l < up); b=$(cat down 2>/dev/null | wc -l); "
        "echo $((a - b)) >> seen; sleep 0.05; echo >> down"
    )
    for _ in range(12):
        bench.add("-c", script)
    workers = [bench.work("--drain", "-j", "4", "--slots", "2") for _ in range(2)]
    for worker in workers:
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    beside = [int(line) for line in (bench.folder / "seen").read_text().split()]
    assert len(beside) == 12
    assert max(beside) <= 2


def test_jobs_get_their_environment_and_nothing_of_the_workers_descriptors(bench: Bench) -> None:
    job = bench.add(
        "--key", "k1", "--env", "COLOUR=blue", "--queue", "paint",
        "--", sys.executable, "-c",
        "import os, json; print(json.dumps([dict(os.environ), sorted(os.listdir('/proc/self/fd')),"
        " os.getcwd(), os.getsid(0) == os.getpid(), open('/proc/self/status').read()]))",
    )  # fmt: skip
    bench.drain("--queue", "paint")
    env, fds, cwd, leads, status = json.loads(
        bench.run("output", "--raw", "--stream", "stdout", str(job)).stdout
    )
    assert env["COLOUR"] == "blue"
    assert env["SPOOLCTL_JOB_ID"] == str(job)
    assert env["SPOOLCTL_ATTEMPT"] == "1"
    assert env["SPOOLCTL_QUEUE"] == "paint"
    assert env["SPOOLCTL_DB"] == str(bench.db)
    assert env["SPOOLCTL_KEY"] == "k1"
    assert env["SPOOLCTL_ATTEMPT_PATH"].endswith(env["SPOOLCTL_ATTEMPT_ID"])
    assert len(fds) == 5  # 0, 1, 2, the attempt's lock, and the listing's own
    assert cwd == str(bench.folder)
    assert leads
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert int(fields["SigBlk"], 16) == 0
    # Python itself ignores SIGPIPE (13) and SIGXFSZ (25); glibc's posix_spawn its own 32 and 33.
    unavoidable = sum(1 << number - 1 for number in (13, 25, 32, 33))
    assert int(fields["SigIgn"], 16) & ~unavoidable == 0


def test_lanes_are_served_in_order_of_preference(bench: Bench) -> None:
    for queue in ("low", "high", "other"):
        for _ in range(2):
            bench.add("--queue", queue, "-c", f"echo {queue} >> order")
    bench.drain("--queue", "high", "--queue", "low")
    assert (bench.folder / "order").read_text().split() == ["high", "high", "low", "low"]
    bench.drain("--all-queues")
    assert bench.json("status")["counts"]["done"] == 6


def test_a_number_of_jobs_then_the_worker_ends(bench: Bench) -> None:
    for _ in range(5):
        bench.add("--", "true")
    worker = bench.work("--max-jobs", "3", "-j", "2")
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert bench.json("status")["counts"]["done"] == 3


def test_an_idle_worker_ends_after_its_time(bench: Bench) -> None:
    bench.add("--", "true")
    worker = bench.work("--idle-timeout", "0.3")
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert bench.json("status")["counts"]["done"] == 1


def test_a_job_added_to_an_idle_worker_starts_at_once(bench: Bench) -> None:
    bench.add("--", "true")
    worker = bench.work("--poll-interval", "600")
    bench.wait_state(1, "done")
    for _ in range(5):
        job = bench.add("--", "true")
        eventually(lambda job=job: bench.job(job)["state"] == "done", timeout_s=5)
    worker.terminate()
    worker.communicate(timeout=30)


def test_the_end_of_a_job_wakes_who_waits_for_it(bench: Bench) -> None:
    job = bench.add("-c", "until test -e go; do sleep 0.01; done")
    worker = bench.work()
    bench.wait_state(job, "running")

    def wait() -> State:
        with Queue(bench.db) as queue:
            return queue.wait([job], poll_s=600, timeout_s=20)[job].state

    with ThreadPoolExecutor() as pool:
        state = pool.submit(wait)
        eventually(lambda: list(Path(f"{bench.db}.d", "waiters").glob("*.bell")), what="its bell")
        (bench.folder / "go").touch()
        assert state.result(10) is State.DONE
    worker.terminate()
    worker.communicate(timeout=30)


def test_impossible_rows_are_healed_and_other_jobs_run(bench: Bench) -> None:
    broken = bench.add("--", "true")
    good = bench.add("--", "true")
    with sqlite3.connect(bench.db) as conn:
        conn.execute("UPDATE jobs SET state = 'running', ready = 0 WHERE id = ?", (broken,))
    conn.close()
    bench.drain()
    assert bench.job(good)["state"] == "done"
    assert bench.job(broken)["state"] == "done"


def test_survivors_of_a_success_are_left_and_counted(bench: Bench) -> None:
    job = bench.add("-c", "setsid sleep 300 > /dev/null 2>&1 & echo $! > pid")
    bench.drain()
    pid = int((bench.folder / "pid").read_text())
    try:
        assert alive(pid)
        assert bench.attempts(job)[0]["survivors"] == 1
        assert bench.job(job)["state"] == "done"
    finally:
        os.kill(pid, 9)


def test_the_end_of_a_pipeline_is_no_survivor(bench: Bench) -> None:
    job = bench.add("--", "bash", "-c", "echo late > >(sleep 0.02; cat)")
    bench.drain()
    attempt = bench.attempts(job)[0]
    assert attempt["survivors"] == 0
    assert bench.run("output", "--raw", "--stream", "stdout", str(job)).stdout == "late\n"


def test_a_program_that_had_a_worker_in_it_adopts_no_orphans_afterwards(bench: Bench) -> None:
    """They would be its zombies for the rest of its life."""
    script = f"""
import os, subprocess, time
from spoolctl import Queue
from spoolctl.engine.options import WorkOptions
with Queue({str(bench.db)!r}) as queue:
    queue.add(["true"])
    assert queue.work(WorkOptions(drain=True), log=lambda line: None).executed == 1
words = ["sh", "-c", "sh -c 'echo $$; exec sleep 0.05' &"]
orphan = int(subprocess.run(words, capture_output=True, check=True).stdout)
until = time.monotonic() + 30
while time.monotonic() < until:
    try:
        with open(f"/proc/{{orphan}}/stat") as file:
            parent = file.read().rpartition(")")[2].split()[1]
    except OSError:
        break
    assert parent != str(os.getpid()), "adopted"
    time.sleep(0.01)
"""
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", script], env=environ, check=False)
    assert done.returncode == 0

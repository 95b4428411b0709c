"""`spoolctl run`: with and without workers, killed, stopped, unread."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pexpect
import pytest

from spoolctl import Queue
from spoolctl.core.states import State
from tests.helpers import clean_env, eventually
from tests.worker.conftest import QUICK, Bench, alive

Start = Callable[..., "subprocess.Popen[bytes]"]
WAIT_S = 60

PATIENT = {"SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "3600"}
"""No heartbeat wakes it meanwhile, and nobody is silent for too long."""

ALONE = """\
import fcntl, os, sys, time
job = os.environ["SPOOLCTL_JOB_ID"]
lock = open("lock-" + job, "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open("trouble", "a").write("two copies of job " + job)
open("ledger-" + job, "a").write("start\\n")
time.sleep(float(sys.argv[1]))
open("ledger-" + job, "a").write("end\\n")
"""
"""A command that notices if another copy of it runs, and says when it began and ended."""


def words(bench: Bench, *rest: str) -> list[str]:
    return [sys.executable, "-m", "spoolctl", "run", "--db", str(bench.db), *rest]


@pytest.fixture
def start(bench: Bench) -> Iterator[Start]:
    """Starts `run`; none outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*rest: str, env: Mapping[str, str] = QUICK, **kwargs: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            words(bench, *rest),
            cwd=bench.folder,
            env=clean_env(env),
            stdin=subprocess.DEVNULL,
            stdout=kwargs.pop("stdout", subprocess.PIPE),
            stderr=kwargs.pop("stderr", subprocess.PIPE),
            **kwargs,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out.decode(), err.decode()


def python(source: str, *rest: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", source, *rest)


# -- alone ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "status", "said"),
    [
        (("-c", "true"), 0, ""),
        (("-c", "exit 3"), 3, "exit 3"),
        (("-c", "kill -9 $$"), 137, "exit -9 (killed by SIGKILL)"),
        (("--timeout", "1", "--", "sleep", "60"), 6, "timed out after 1s"),
        (("--", "/no/such/program"), 6, "spawn failed: no such program: /no/such/program"),
        (("--force", "--", "/no/\x1b[31m"), 6, "spawn failed: no such program: /no/\\e[31m"),
    ],
)
def test_it_needs_no_worker_and_exits_as_the_command(
    start: Start, rest: tuple[str, ...], status: int, said: str
) -> None:
    err = f"spoolctl: job 1 dead: {said}\n" if said else ""
    assert end_of(start("--no-retry", *rest)) == (status, "", "spoolctl: job 1\n" + err)


def test_both_streams_are_ours_byte_for_byte(start: Start) -> None:
    large = bytes(range(256)) * 5000
    source = (
        "import os, sys\n"
        "for _ in range(5000): os.write(1, bytes(range(256)))\n"
        "os.write(2, b'\\xff\\0no newline')"
    )
    out, err = start(*python(source)).communicate(timeout=WAIT_S)
    assert out == large
    assert err == b"spoolctl: job 1\n\xff\0no newline"


def test_output_comes_while_the_command_runs(bench: Bench, start: Start) -> None:
    process = start("-c", "echo first; until [ -e go ]; do sleep 0.02; done; echo last")
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    (bench.folder / "go").touch()
    assert end_of(process)[:2] == (0, "last\n")


def test_the_command_gets_what_was_asked_for(bench: Bench, start: Start) -> None:
    (bench.folder / "in").write_text("from a file\n")
    script = 'cat; echo "$A $SPOOLCTL_QUEUE $SPOOLCTL_KEY"; pwd'
    flags = ("--stdin", "in", "--env", "A=b", "--queue", "q", "--key", "k", "--cwd", "/")
    assert end_of(start(*flags, "-c", script))[:2] == (0, "from a file\nb q k\n/\n")


def test_for_programs_there_is_one_answer(bench: Bench, start: Start) -> None:
    status, out, err = end_of(start("--json", "--no-retry", "-c", "echo out; exit 3"))
    assert (status, err) == (3, "")
    data = json.loads(out)["data"]
    assert (data["job_id"], data["state"]) == (1, "queued")
    assert data["outcome"] == {"state": "dead", "exit_code": 3, "last_error": "exit 3"}
    assert bench.json("output", "1")["streams"]["stdout"]["preview"] == "out\n"


def test_retries_are_waited_for_and_told(bench: Bench, start: Start) -> None:
    script = 'echo try $SPOOLCTL_ATTEMPT; [ "$SPOOLCTL_ATTEMPT" = 3 ]'
    status, out, err = end_of(start("--retry-delay", "0.05", "-c", script))
    assert (status, out) == (0, "try 1\ntry 2\ntry 3\n")
    assert (
        len(re.findall(r"(?m)^spoolctl: job 1 is tried again( in 0\.\ds)? \(exit 1\)$", err)) == 2
    )
    workers = {event["worker_id"] for event in bench.json("show", "1")["events"][1:]}
    assert len(workers) == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds the relay in /proc")
def test_attempts_that_were_over_before_anybody_looked_are_told(bench: Bench, start: Start) -> None:
    """The process that writes the output is held up from its beginning until the last attempt."""
    script = 'echo try $SPOOLCTL_ATTEMPT; [ "$SPOOLCTL_ATTEMPT" = 3 ] && echo > three'
    process = start("--retry-delay", "0.05", "-c", script)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    eventually(lambda: children.read_text())
    relay = int(children.read_text().split()[0])
    os.kill(relay, signal.SIGSTOP)
    try:
        bench.wait_file("three")
    finally:
        os.kill(relay, signal.SIGCONT)
    status, out, err = end_of(process)
    assert (status, out) == (0, "try 1\ntry 2\ntry 3\n")
    assert err.count("is tried again") == 2


def test_a_delay_is_waited_for(start: Start) -> None:
    begun = time.monotonic()
    assert end_of(start("--after", "0.3s", "--", "true"))[0] == 0
    assert time.monotonic() - begun > 0.3


def test_jobs_that_wait_already_are_not_touched(bench: Bench, start: Start) -> None:
    before = bench.add("--priority", "9", "--", "true")
    assert end_of(start("--", "true"))[0] == 0
    assert bench.job(before)["state"] == "queued"


def test_it_serves_no_lane_in_the_eyes_of_others(bench: Bench, start: Start) -> None:
    process = start("-c", "echo > began; until [ -e go ]; do sleep 0.02; done")
    bench.wait_file("began")
    with Queue(bench.db) as queue:
        assert queue.unserved(["default"]) == {"default"}
    (bench.folder / "go").touch()
    assert end_of(process)[0] == 0


def test_bad_input_makes_no_queue(bench: Bench, start: Start) -> None:
    for rest in (
        (),
        ("echo hi && echo there",),
        ("--wait", "--", "true"),
        ("--batch", "file"),
        ("--key-for", "1h", "--", "true"),
        ("--max-retries", "-1", "--", "true"),
    ):
        status, out, err = end_of(start(*rest))
        assert (status, out) == (1, ""), rest
        assert err.startswith("spoolctl: error: ")
    assert not bench.db.exists()


def test_a_queue_that_others_may_write_is_refused_before_anything_is_added(
    bench: Bench, start: Start
) -> None:
    bench.add("--", "true")
    bench.db.chmod(0o666)
    status, out, err = end_of(start("--", "true"))
    assert (status, out) == (2, "")
    assert "--trust" in err
    assert bench.json("status")["counts"]["queued"] == 1
    assert end_of(start("--trust", "--", "true"))[0] == 0


def test_where_no_worker_can_be_it_says_that_the_job_is_in_the_queue(
    bench: Bench, start: Start
) -> None:
    bench.add("--", "true")
    (bench.folder / "queue.db.d").touch()
    status, out, err = end_of(start("--", "true"))
    assert (status, out) == (3, "")
    assert "spoolctl: job 2 is in the queue" in err
    (bench.folder / "queue.db.d").unlink()
    assert bench.job(2)["state"] == "queued"


@pytest.mark.skipif(
    os.geteuid() != 0 or not sys.platform.startswith("linux"), reason="needs root, to mount"
)
def test_a_read_only_place_is_an_answer_and_no_job(bench: Bench) -> None:
    bench.add("--", "true")
    script = 'mount --bind -o ro . . && mount -o remount,bind,ro . && cd . && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *words(bench, "--json", "--", "true")],
        cwd=bench.folder,
        env=clean_env(),
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    if b'"errors"' not in done.stdout:
        pytest.skip(f"no mount here: {done.stderr.decode()}")
    assert done.returncode == 3
    assert json.loads(done.stdout)["errors"][0]["code"] == "INTERNAL"
    assert bench.json("status")["counts"]["queued"] == 1


# -- keys -----------------------------------------------------------------------------------


def test_a_key_leads_to_the_job_that_is_there(bench: Bench, start: Start) -> None:
    rest = ("--key", "k", "--key-for", "ever", "-c", "echo once; echo x >> ledger; exit 0")
    assert end_of(start(*rest))[:2] == (0, "once\n")
    assert end_of(start(*rest))[:2] == (0, "once\n")
    status, out, _ = end_of(start("--json", *rest))
    assert (status, json.loads(out)["data"]["deduplicated"]) == (0, True)
    assert (bench.folder / "ledger").read_text() == "x\n"


def test_two_calls_with_one_key_make_one_run(bench: Bench, start: Start) -> None:
    rest = ("--key", "k", "-c", "echo x >> ledger; echo hi; until [ -e go ]; do sleep 0.02; done")
    one = start(*rest)
    bench.wait_file("ledger")
    two = start(*rest)
    assert two.stdout is not None
    assert two.stdout.readline() == b"hi\n"
    (bench.folder / "go").touch()
    assert end_of(one)[:2] == (0, "hi\n")
    assert end_of(two)[:2] == (0, "")
    assert (bench.folder / "ledger").read_text() == "x\n"


# -- beside workers -------------------------------------------------------------------------


def until_served(bench: Bench) -> None:
    with Queue(bench.db) as queue:
        eventually(lambda: not queue.unserved(["default"]))


def owners(bench: Bench, job_id: int) -> list[str]:
    events = bench.json("show", str(job_id))["events"]
    return [event["worker_id"] for event in events if event["event"] == "claimed"]


def test_a_live_worker_is_given_the_job(bench: Bench, start: Start) -> None:
    bench.work("--worker-id", "other", stderr=subprocess.DEVNULL)
    until_served(bench)
    assert end_of(start("--no-retry", "-c", "echo out; exit 4"))[:2] == (4, "out\n")
    assert owners(bench, 1) == ["other"]


def test_a_worker_that_dies_before_it_takes_the_job_is_replaced(bench: Bench, start: Start) -> None:
    worker = bench.work("--worker-id", "other", stderr=subprocess.DEVNULL)
    until_served(bench)
    worker.send_signal(signal.SIGSTOP)
    process = start("-c", "echo out", env=PATIENT)
    assert process.stderr is not None
    assert process.stderr.readline() == b"spoolctl: job 1\n"
    # It is alive, and so left the job; only that is awaited for so long.
    assert (
        process.stderr.readline() == b"spoolctl: job 1 waits for a worker that serves its queue\n"
    )
    assert bench.job(1)["state"] == "queued"
    worker.kill()
    assert end_of(process)[:2] == (0, "out\n")
    assert owners(bench, 1) != ["other"]


def test_a_worker_that_is_silent_for_too_long_is_not_waited_for(bench: Bench, start: Start) -> None:
    worker = bench.work("--worker-id", "other", stderr=subprocess.DEVNULL)
    until_served(bench)
    worker.send_signal(signal.SIGSTOP)
    assert end_of(start("-c", "echo out"))[:2] == (0, "out\n")
    assert owners(bench, 1) != ["other"]


def test_a_worker_that_leaves_without_the_job_is_replaced(bench: Bench, start: Start) -> None:
    worker = bench.work("--max-jobs", "1", "--worker-id", "other", stderr=subprocess.DEVNULL)
    until_served(bench)
    first = bench.add("-c", "until [ -e go ]; do sleep 0.02; done")
    bench.wait_state(first, "running")
    process = start("--", "echo", "out", env=PATIENT)
    assert process.stderr is not None
    assert process.stderr.readline() == b"spoolctl: job 2\n"
    (bench.folder / "go").touch()
    assert end_of(process)[:2] == (0, "out\n")
    assert owners(bench, 2) != ["other"]
    worker.wait(WAIT_S)


def test_a_worker_that_dies_with_the_job_is_reaped_and_replaced(bench: Bench, start: Start) -> None:
    worker = bench.work("--worker-id", "other", stderr=subprocess.DEVNULL)
    until_served(bench)
    script = 'echo try $SPOOLCTL_ATTEMPT; [ "$SPOOLCTL_ATTEMPT" = 2 ] || exec sleep 60'
    process = start("--retry-delay", "0.05", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"try 1\n"
    worker.kill()
    assert end_of(process)[:2] == (0, "try 2\n")
    assert owners(bench, 1)[0] == "other"
    assert "reaped" in bench.trail(1)


def test_a_worker_that_comes_between_two_attempts_gets_the_next(bench: Bench, start: Start) -> None:
    script = (
        'if [ "$SPOOLCTL_ATTEMPT" = 2 ]; then echo out; exit 0; fi; echo > began; '
        "until [ -e go ]; do sleep 0.02; done; exit 1"
    )
    process = start("--retry-delay", "0.05", "-c", script)
    bench.wait_file("began")
    bench.work("--worker-id", "other", stderr=subprocess.DEVNULL)
    until_served(bench)
    (bench.folder / "go").touch()
    assert end_of(process)[:2] == (0, "out\n")
    assert owners(bench, 1)[1] == "other"


# -- stopped --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_puts_the_job_back(
    bench: Bench, start: Start, number: signal.Signals
) -> None:
    source = (
        "import os, signal\n"
        "signal.signal(15, lambda *_: (os.write(1, b'bye\\n'), os._exit(7)))\n"
        "os.write(1, b'hi\\n')\n"
        "while True: signal.pause()"
    )
    process = start("--no-retry", *python(source))
    assert process.stdout is not None
    assert process.stdout.readline() == b"hi\n"
    process.send_signal(number)
    assert end_of(process) == (
        -number,
        "bye\n",
        "spoolctl: job 1\nspoolctl: job 1 is in the queue: `spoolctl work --drain` runs it, "
        "`spoolctl cancel 1` withdraws it\n",
    )
    job = bench.job(1)
    assert (job["state"], job["attempts"]) == ("queued", 0)
    assert bench.trail(1) == ["added", "claimed", "released"]


def test_a_signal_while_another_works_leaves_the_job_alone(bench: Bench, start: Start) -> None:
    bench.work(stderr=subprocess.DEVNULL)
    until_served(bench)
    process = start("-c", "echo hi; until [ -e go ]; do sleep 0.02; done")
    assert process.stdout is not None
    assert process.stdout.readline() == b"hi\n"
    process.send_signal(signal.SIGINT)
    status, out, err = end_of(process)
    assert (status, out) == (-signal.SIGINT, "")
    assert "job 1 goes on; `spoolctl wait 1` waits for it" in err
    (bench.folder / "go").touch()
    bench.wait_state(1, "done")


def test_a_cancel_from_elsewhere_ends_it(bench: Bench, start: Start) -> None:
    process = start("-c", "echo hi; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == b"hi\n"
    bench.run("cancel", "--running", "--yes", "1")
    status, _, err = end_of(process)
    assert status == 6
    assert "job 1 canceled" in err


def test_on_a_terminal_with_ctrl_c(bench: Bench) -> None:
    rest = words(bench, "-c", "echo started; exec sleep 60")
    shell = pexpect.spawn(rest[0], rest[1:], cwd=str(bench.folder), env=clean_env(), timeout=WAIT_S)
    shell.expect_exact("started")
    shell.sendintr()
    shell.expect_exact("job 1 is in the queue")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.signalstatus == signal.SIGINT
    assert bench.job(1)["state"] == "queued"


# -- killed ---------------------------------------------------------------------------------


def test_killed_at_any_moment_the_job_is_there_or_was_never_accepted(
    bench: Bench, start: Start
) -> None:
    began = time.monotonic()
    start("--retry-delay", "0.05", *python(ALONE, "0.15")).communicate()
    whole_s = time.monotonic() - began
    killed = 0
    for moment in range(10):
        process = start("--retry-delay", "0.05", *python(ALONE, "0.15"))
        time.sleep(whole_s * moment / 10)
        process.kill()
        _, err = process.communicate()
        killed += err.startswith(b"spoolctl: job")
    with Queue(bench.db) as queue:
        jobs = queue.jobs()
    assert killed + 1 <= len(jobs) <= 11
    bench.drain("-j", "4")
    with Queue(bench.db) as queue:
        assert {job.state for job in queue.jobs()} == {State.DONE}
    assert not (bench.folder / "trouble").exists()
    for job in jobs:
        assert (bench.folder / f"ledger-{job.id}").read_text().endswith("end\n")


def test_killed_it_leaves_nothing_running(bench: Bench, start: Start) -> None:
    process = start("-c", "echo hi; echo $$ > pid; sleep 60 & wait")
    assert process.stdout is not None
    assert process.stdout.readline() == b"hi\n"
    leader = int(bench.wait_file("pid"))
    process.kill()
    # Both ends of its output are closed only when the process that writes it has ended, too.
    process.communicate(timeout=WAIT_S)
    eventually(lambda: not alive(leader), timeout_s=30)
    assert bench.job(1)["state"] == "running"
    (bench.folder / "pid").unlink()
    next_one = bench.work("--drain", stderr=subprocess.DEVNULL)
    bench.wait_file("pid")
    assert "reaped" in bench.trail(1)
    bench.run("cancel", "--running", "--yes", "1")
    next_one.wait(WAIT_S)


def test_the_same_call_after_a_kill_goes_on_with_the_job(bench: Bench, start: Start) -> None:
    rest = ("--key", "k", "--retry-delay", "0.05", *python(ALONE, "0.3"))
    first = start(*rest)
    bench.wait_file("ledger-1")
    first.kill()
    assert end_of(start(*rest))[0] == 0
    assert not (bench.folder / "trouble").exists()
    assert (bench.folder / "ledger-1").read_text() == "start\nstart\nend\n"


# -- readers --------------------------------------------------------------------------------


def test_a_reader_that_does_not_read_holds_nothing_up(bench: Bench, start: Start) -> None:
    size = 2 << 20
    process = start("--", "head", "-c", str(size), "/dev/zero")
    assert process.stderr is not None
    assert process.stderr.readline() == b"spoolctl: job 1\n"
    eventually(lambda: bench.job(1)["state"] == "done", timeout_s=30)
    out, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, len(out)) == (0, size)


def test_a_reader_that_does_not_read_keeps_no_killed_call_alive(bench: Bench, start: Start) -> None:
    process = start("-c", "head -c 2000000 /dev/zero; exec sleep 60")
    assert process.stdout is not None
    # More than one page, so that the pipe has room again, but not for all that is offered.
    assert process.stdout.read(5000) == bytes(5000)
    process.kill()
    process.wait(WAIT_S)

    def words_of_others() -> list[str]:
        return [str(pid) for pid in _processes_with(str(bench.db)) if pid != process.pid]

    eventually(lambda: not words_of_others(), timeout_s=30, what="the relay and the command end")


def _processes_with(word: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            content = Path(f"/proc/{name}/cmdline").read_bytes()
            stat = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        if name.isdigit() and os.fsencode(word) in content and ") Z " not in stat:
            found.append(int(name))
    return found


def test_a_reader_that_leaves_ends_it_quietly_and_the_job_is_in_the_queue(
    bench: Bench, start: Start
) -> None:
    process = start("-c", "while :; do echo y; sleep 0.01; done")
    assert process.stdout is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (-signal.SIGPIPE, b"spoolctl: job 1\n")
    assert bench.trail(1) == ["added", "claimed", "released"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_said_and_the_job_is_in_the_queue(
    bench: Bench, start: Start
) -> None:
    with open("/dev/full", "wb") as full:
        process = start("-c", "echo hi; exec sleep 60", stdout=full)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 3
    assert b"spoolctl: job 1 is in the queue" in err
    assert b"cannot write to stdout: No space left on device" in err
    assert bench.job(1)["state"] == "queued"


def test_a_lost_stderr_loses_nothing_else(bench: Bench, start: Start) -> None:
    read, write = os.pipe()
    os.close(read)
    process = start("-c", "echo err >&2; echo out", stderr=write)
    os.close(write)
    out, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, b"out\n")


def test_a_nonblocking_stdout_gets_everything(start: Start) -> None:
    read, write = os.pipe()
    flags = fcntl.fcntl(write, fcntl.F_GETFL)
    fcntl.fcntl(write, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    process = start("--", "head", "-c", "300000", "/dev/zero", stdout=write)
    os.close(write)
    with open(read, "rb") as file:
        assert len(file.read()) == 300000
    assert process.wait(WAIT_S) == 0

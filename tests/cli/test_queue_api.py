"""`from spoolctl import Queue`: the public API, and that the verbs use nothing else."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spoolctl
from spoolctl import Queue
from spoolctl.core.limits import LIMITS
from spoolctl.core.retry import RetryPolicy
from spoolctl.core.states import State
from spoolctl.engine.options import WorkOptions
from spoolctl.errors import (
    IllegalTransition,
    InvalidInput,
    KeyConflict,
    NotFound,
    SafetyBlock,
    SpoolError,
    WaitTimeout,
)
from tests.helpers import clean_env
from tests.helpers import spoolctl as run

CLI = Path(spoolctl.__file__).parent / "cli"


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.chdir(tmp_path)
    with Queue("queue.db") as opened:
        yield opened


def drain(queue: Queue) -> None:
    run("work", "--drain", "--db", queue.path)


def test_a_job_from_start_to_end(queue: Queue) -> None:
    job = queue.add(["sh", "-c", "echo hi; echo $A >&2"], env={"A": "1"}, tags={"t": "x"})
    assert (job.id, job.state, job.ready) == (1, State.QUEUED, True)
    assert job.cwd == os.getcwd()
    drain(queue)
    assert queue.wait([1], timeout_s=10)[1].state is State.DONE
    assert queue.get(1).last_exit_code == 0
    assert queue.output(1) == b"hi\n"
    assert queue.output(1, stream="stderr") == b"1\n"
    assert [row.event.value for row in queue.events().events] == ["added", "claimed", "succeeded"]
    assert queue.detail(1).env == (("A", "1"),)
    assert queue.counts().states[State.DONE] == 1


def test_many_at_once(queue: Queue) -> None:
    jobs = queue.add_many(
        [["true"], {"argv": ["false"], "queue": "b", "priority": 2}, ("echo", "x")],
        tags={"batch": "7"},
        priority=1,
    )
    assert [job.id for job in jobs] == [1, 2, 3]
    assert [(job.queue, job.priority) for job in jobs] == [
        ("default", 1),
        ("b", 2),
        ("default", 1),
    ]
    assert {job.tags for job in jobs} == {(("batch", "7"),)}
    assert [job.id for job in queue.jobs(queue="b")] == [2]
    assert [job.id for job in queue.jobs(tags={"batch": None}, limit=None)] == [3, 2, 1]
    assert [job.id for job in queue.jobs(states=["queued"], before_id=3, limit=1)] == [2]


def test_all_or_nothing(queue: Queue) -> None:
    with pytest.raises(InvalidInput):
        queue.add_many([["true"], []])
    queue.add(["true"], key="k")
    with pytest.raises(KeyConflict):
        queue.add_many([["true"], {"argv": ["false"], "key": "k"}])
    assert queue.counts().states[State.QUEUED] == 1


@pytest.mark.parametrize(
    ("argv", "options", "said"),
    [
        ([], {}, "at least one word"),
        ([""], {}, "first word"),
        ("true", {}, "list of words"),
        (["a\0b"], {}, "NUL"),
        (["\udcff"], {}, "UTF-8"),
        ([b"true"], {}, "text"),
        (["true"], {"queue": "a b"}, "queue"),
        (["true"], {"priority": 2**31}, "priority"),
        (["true"], {"priority": True}, "priority"),
        (["true"], {"priority": 1.0}, "priority"),
        (["true"], {"timeout_s": 0}, "timeout_s"),
        (["true"], {"max_retries": -1}, "max_retries"),
        (["true"], {"max_crashes": 2**63}, "max_crashes"),
        (["true"], {"delay_s": -1}, "delay_s"),
        (["true"], {"delay_s": float("nan")}, "delay_s"),
        (["true"], {"delay_s": float("inf")}, "delay_s"),
        (["true"], {"run_at": 1e12}, "run_at"),
        (["true"], {"delay_s": 1, "run_at": 1}, "not both"),
        (["true"], {"cwd": ""}, "cwd"),
        (["true"], {"cwd": "a\0"}, "cwd"),
        (["true"], {"env": {"": "x"}}, "env"),
        (["true"], {"env": {"A=B": "x"}}, "env"),
        (["true"], {"env": {"A": "x" * 4097}}, "env"),
        (["true"], {"env": {"A": 1}}, "env"),
        (["true"], {"key": " "}, "key"),
        (["true"], {"key": "a\nb"}, "key"),
        (["true"], {"tags": {"a b": "x"}}, "tags"),
        (["true"], {"tags": [("a", "1"), ("a", "2")]}, "twice"),
        (["true"], {"tags": {str(n): "" for n in range(17)}}, "at most 16"),
        (["true"], {"note": "x" * 10001}, "note"),
        (["true"], {"stdin": "text"}, "stdin"),
        (["true"], {"stdin": b"x" * (LIMITS["stdin_bytes"].maximum + 1)}, "stdin"),
        (["true"], {"policy": RetryPolicy(jitter=2)}, "jitter"),
        (["true"], {"policy": RetryPolicy(backoff="odd")}, "backoff"),
        (["true"], {"policy": RetryPolicy(delays_s=(-1.0,))}, "retry delay"),
        (["true"], {"policy": RetryPolicy(final_exits=((0, 300),))}, "final_exits"),
    ],
)
def test_the_limits_hold_here_too(
    queue: Queue, argv: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        queue.add(argv, **options)
    assert queue.first_job_id() is None


def test_the_extremes_are_accepted(queue: Queue) -> None:
    job = queue.add(
        ["x" * 100_000, "\n\t'\"", "", "ü"],
        queue="a" * 64,
        priority=-(2**31),
        timeout_s=2**63 - 1,
        max_retries=2**63 - 1,
        max_crashes=None,
        run_at=31_536_000_000,
        key="k" * 256,
        note="n\0\n" * 3000,
        env={"A" * 128: "v" * 4096},
        tags={f"{n}": "v" * 1024 for n in range(16)},
    )
    again = queue.get(job.id)
    assert again == job
    assert (again.argv[1:], again.max_retries) == (("\n\t'\"", "", "ü"), 2**63 - 1)
    assert again.note == "n\0\n" * 3000


def test_errors_say_what_they_mean(queue: Queue) -> None:
    for call in (queue.get, queue.detail, queue.cancel, queue.retry, queue.output):
        with pytest.raises(NotFound) as caught:
            call(9)
        assert isinstance(caught.value, LookupError)
    with pytest.raises(NotFound) as missing:
        queue.wait([9, 8])
    assert missing.value.job_ids == (9, 8)
    job = queue.add(["true"])
    with pytest.raises(WaitTimeout) as late:
        queue.wait([job.id], timeout_s=0.01)
    assert late.value.pending == (1,)
    assert isinstance(late.value, TimeoutError)
    with pytest.raises(IllegalTransition):
        queue.retry(job.id)
    with pytest.raises(InvalidInput):
        queue.jobs(states=["nonesuch"])
    with pytest.raises(InvalidInput):
        queue.output(job.id, stream="stdin") or queue.reader(queue.attempt(1), "x")  # type: ignore[arg-type]
    assert issubclass(SafetyBlock, SpoolError)


NO_IDS = [None, "1", 1.0, True, [1], {}, object(), 0, -1, 2**63, 2**70]
NO_TEXTS = [5, b"x", ["x"], "\ud800", object()]
NO_LISTS = [5, "dead", b"dead", object()]
NO_SPANS = ["1", [1], True, float("nan"), object()]
NO_COUNTS = ["1", 1.5, True, [1], -1, 2**70, object()]
WRONG = {
    "get": {"job_id": NO_IDS},
    "detail": {"job_id": NO_IDS},
    "retry": {"job_id": NO_IDS},
    "cancel": {"job_id": NO_IDS, "confirm_s": [None, *NO_SPANS]},
    "attempt": {"job_id": NO_IDS, "attempt_no": [0, *NO_COUNTS]},
    "output": {"job_id": NO_IDS, "attempt_no": [0, *NO_COUNTS], "stream": [None, "x", 5, []]},
    "reader": {"attempt": [None, 1, ()], "stream": [None, "stdin", 5, []]},
    "follow": {
        "job_id": NO_IDS,
        "streams": [None, "stdout", ["stdin"], [5], *NO_LISTS],
        "attempt_no": [0, *NO_COUNTS],
        "tail_lines": NO_COUNTS,
    },
    "jobs": {
        "states": [None, *NO_LISTS, ["nonesuch"], [5], [[]]],
        "queue": NO_TEXTS,
        "tags": [
            None,
            ["a"],
            ["ab"],
            [5],
            [("a",)],
            [("a", "b", "c")],
            {1: "x"},
            {"a": 1},
            5,
            "ab",
        ],
        "priority_min": ["1", 1.5, True, 2**70],
        "since": [*NO_SPANS, float("inf")],
        "command": NO_TEXTS,
        "before_id": ["1", 1.5, 2**70],
        "after_id": ["1", 1.5, 2**70],
        "sort": [None, 5, [], "up"],
        "limit": NO_COUNTS,
    },
    "recent_dead": {"limit": [None, *NO_COUNTS]},
    "events": {
        "since_id": [None, *NO_COUNTS],
        "since": NO_COUNTS,
        "job_id": NO_IDS[1:],
        "limit": NO_COUNTS,
    },
    "waiter": {"poll_s": [*NO_SPANS, -1]},
    "wait": {
        "job_ids": [None, 1, "1", ["1"], [None], [1.0], [0]],
        "timeout_s": NO_SPANS,
        "timeout": NO_SPANS,
        "poll_s": [*NO_SPANS, -1],
    },
    "unserved": {"lanes": [None, "default", 5, [5], [None]]},
    "prune": {"older_than_s": [None, *NO_SPANS], "states": [None, *NO_LISTS, ["x"]]},
    "backup": {"target": [None, 5, ["x"], True, "", "a\0b"]},
    "submit": {"jobs": [None, 5, "ab", [5], [["true"]]]},
    "add_many": {"jobs": [None, 5, "ab", [5], [{}], [{"argv": ["true"], "odd": 1}]]},
    "add": {
        "argv": [None, 5, "true", [], [5]],
        "queue": [None, *NO_TEXTS],
        "priority": [None, "1", 1.5],
        "delay_s": NO_SPANS,
        "run_at": NO_SPANS,
        "timeout_s": ["1", 1.5, 0],
        "max_retries": [None, *NO_COUNTS],
        "max_crashes": NO_COUNTS,
        "cwd": [5, [], True],
        "env": [None, 5, "AB", ["AB"], [("A",)], {1: "x"}, {"A": 1}],
        "key": [5, b"k", []],
        "key_for_s": NO_SPANS,
        "tags": [None, 5, "ab", ["ab"], [("a",)], {"a": None}],
        "note": [5, b"n", []],
        "policy": [
            None,
            "fixed",
            RetryPolicy(delays_s=5),  # type: ignore[arg-type]
            RetryPolicy(delays_s=("1",)),  # type: ignore[arg-type]
            RetryPolicy(base_s=None),  # type: ignore[arg-type]
            RetryPolicy(max_delay_s="1"),  # type: ignore[arg-type]
            RetryPolicy(jitter="1"),  # type: ignore[arg-type]
            RetryPolicy(backoff=[]),  # type: ignore[arg-type]
            RetryPolicy(final_exits=5),  # type: ignore[arg-type]
            RetryPolicy(final_exits=(1,)),  # type: ignore[arg-type]
            RetryPolicy(final_exits=(("1", 2),)),  # type: ignore[arg-type]
            RetryPolicy(final_exits=((1, 2, 3),)),  # type: ignore[arg-type]
        ],
        "stdin": ["x", 5, bytearray(b"x")],
        "capture_env": ["PATH", 5, [5]],
    },
    "work": {
        "options": [
            "drain",
            5,
            *(
                WorkOptions(**{name: wrong})
                for name, values in {
                    "lanes": ["default", 5, [5], ["a b"]],
                    "jobs": [None, 0, *NO_COUNTS],
                    "slots": [0, *NO_COUNTS],
                    "max_jobs": [0, *NO_COUNTS],
                    "idle_timeout_s": NO_SPANS,
                    "poll_interval_s": [None, 0, *NO_SPANS],
                    "worker_id": [5, "", b"x"],
                    "reap_after_s": NO_SPANS,
                    "heartbeat_interval_s": [None, 0, *NO_SPANS],
                    "shutdown_timeout_s": NO_SPANS,
                    "max_output_bytes": [None, *NO_COUNTS],
                    "inline_bytes": [None, *NO_COUNTS],
                    "grace_s": [None, *NO_SPANS],
                    "job_id": NO_IDS[1:],
                }.items()
                for wrong in values
            ),
        ],
    },
}
"""Method -> parameter -> what it refuses, the other parameters being right."""
RIGHT: dict[str, dict[str, Any]] = {
    "reader": {"stream": "stdout"},
    "wait": {"job_ids": [1]},
    "prune": {"older_than_s": 0},
    "add": {"argv": ["true"]},
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_every_argument_of_the_wrong_type_or_range_is_bad_input(queue: Queue, name: str) -> None:
    job = queue.add(["true"])
    drain(queue)
    right = {"job_id": job.id, "attempt": queue.attempt(job.id), **RIGHT.get(name, {})}
    method = getattr(queue, name)
    names = inspect.signature(method).parameters
    right = {each: value for each, value in right.items() if each in names}
    for parameter, values in WRONG[name].items():
        assert parameter in names
        for wrong in values:
            try:
                answer = method(**{**right, parameter: wrong})
                answer = list(answer)  # a generator checks when it is asked first
            except InvalidInput:
                continue
            pytest.fail(f"{name}({parameter}={wrong!r}): {answer!r}")
    assert queue.first_job_id() == job.id
    assert len(queue.jobs(limit=None)) == 1


def test_the_table_of_wrong_arguments_is_whole() -> None:
    free = {"first", "watch", "reverse", "waits", "retries", "on_idle", "on_retry", "running"}
    free |= {"force", "dry_run", "log", "progress", "helper", "self", "options"}
    for name, method in inspect.getmembers(Queue, inspect.isfunction):
        if not name.startswith("_"):
            assert set(inspect.signature(method).parameters) - free <= set(WRONG.get(name, {}))


@pytest.mark.parametrize("wrong", [5, True, ["x"], "", "a\0b"])
def test_a_queue_wants_a_path(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        Queue(wrong)
    with pytest.raises(InvalidInput):
        Queue("queue.db", wait_s="5")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked",
    [{"command": "\ud800"}, {"priority_min": 1 << 70}, {"before_id": 1 << 70}],
)
def test_what_cannot_be_in_a_queue_is_bad_input(queue: Queue, asked: dict[str, Any]) -> None:
    queue.add(["true"])
    with pytest.raises(InvalidInput):
        queue.jobs(**asked)
    with pytest.raises(InvalidInput):
        queue.events(since_id=1 << 70)


def test_no_queue_is_made_unless_asked(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Queue(tmp_path / "q.db", create=False)
    assert not (tmp_path / "q.db").exists()


def test_a_path_is_found_like_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOOLCTL_DB", str(tmp_path / "named.db"))
    with Queue() as queue:
        assert queue.path == str((tmp_path / "named.db").resolve())


def test_wait_of_nothing_returns(queue: Queue) -> None:
    assert queue.wait([]) == {}


def test_wait_wakes_at_once(queue: Queue) -> None:
    job = queue.add(["true"])

    def cancel() -> None:
        with Queue(queue.path) as other:
            other.cancel(job.id)

    timer = threading.Timer(0.2, cancel)
    timer.start()
    began = time.monotonic()
    assert queue.wait([job.id], poll_s=600, timeout_s=30)[job.id].state is State.CANCELED
    assert time.monotonic() - began < 20
    timer.join()


def test_wait_polls_where_no_doorbell_can_hang(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impossible(*_: object, **__: object) -> None:
        raise PermissionError(13, "read-only")

    monkeypatch.setattr("os.mkfifo", impossible)
    job = queue.add(["true"])

    def cancel() -> None:
        with Queue(queue.path) as other:
            other.cancel(job.id)

    timer = threading.Timer(0.2, cancel)
    timer.start()
    assert queue.wait([job.id], timeout_s=20)[job.id].state is State.CANCELED
    timer.join()


def test_a_worker_of_a_queue_named_twice(queue: Queue) -> None:
    queue.add_many([["true"]] * 3)
    options = WorkOptions(lanes=("default", "other", "default"), drain=True, jobs=4)
    assert queue.work(options).executed == 3


SIGNALS = """
import signal, sys
from spoolctl import Queue
from spoolctl.engine.options import WorkOptions
numbers = (signal.SIGCHLD, signal.SIGIO, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
for number in numbers:
    signal.signal(number, print)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGCHLD])
with Queue("queue.db") as queue:
    queue.add(["true"])
    assert queue.work(WorkOptions(once=True)).executed == 1
assert all(signal.getsignal(number) is print for number in numbers)
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR1, signal.SIGCHLD}
"""


def test_a_worker_in_ones_own_process_gives_the_signals_back(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SIGNALS], cwd=tmp_path, env=clean_env(), check=True)


def test_following_from_python(queue: Queue) -> None:
    queue.add(["sh", "-c", "echo a; echo b >&2"])
    drain(queue)
    pieces = list(queue.follow(1))
    assert {(piece.attempt_no, piece.stream, piece.data) for piece in pieces} == {
        (1, "stdout", b"a\n"),
        (1, "stderr", b"b\n"),
    }


def test_following_begins_where_it_is_told(queue: Queue) -> None:
    queue.add(
        ["sh", "-c", "echo $SPOOLCTL_ATTEMPT; exit 1"],
        max_retries=2,
        policy=RetryPolicy(delays_s=(0.0,)),
    )
    drain(queue)
    assert [piece.data for piece in queue.follow(1, retries=True)] == [b"3\n"]
    for first in (1, 2, 3):
        pieces = list(queue.follow(1, attempt_no=first, waits=True, retries=True))
        assert [piece.attempt_no for piece in pieces] == [1, 2, 3][first - 1 :]
    assert list(queue.follow(1, attempt_no=4, waits=True, retries=True)) == []
    with pytest.raises(NotFound):
        list(queue.follow(1, attempt_no=4))


def test_the_api_is_documented_and_typed() -> None:
    for name, member in inspect.getmembers(Queue):
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        assert inspect.getdoc(member), name
        function = member.fget if isinstance(member, property) else member
        assert function is not None
        hints = function.__annotations__
        assert "return" in hints, name
        assert set(inspect.signature(function).parameters) - {"self"} <= set(hints), name


LOOKS_AT_FILES = {"doctor.py": "spoolctl.store.examination"}
"""`doctor` looks at files that may be no queue, and which it must not open as one."""


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_no_verb_reaches_around_the_queue(path: Path) -> None:
    """The command line knows `Queue` and what it returns, never a store."""
    excepted = LOOKS_AT_FILES.get(path.name, "nothing")
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        wrong = [name for name in names if name.startswith("spoolctl.store")]
        assert not [name for name in wrong if not name.startswith(excepted)], path.name
        assert not (isinstance(node, ast.Attribute) and node.attr == "_store"), path.name


def test_short_names_of_parameters(tmp_path: Path) -> None:
    with Queue(tmp_path / "queue.db") as queue:
        job = queue.add(["true"])
        queue.add(["true"])
        assert [entry.job_id for entry in queue.events(since=1).events] == [2]
        with pytest.raises(WaitTimeout):
            queue.wait([job.id], timeout=0.01)
        with pytest.raises(InvalidInput, match="the same"):
            queue.wait([job.id], timeout=1, timeout_s=1)
        with pytest.raises(InvalidInput, match="the same"):
            queue.events(since=1, since_id=1)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
def test_a_path_that_is_no_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was found, and is the name of a folder that nobody gave."""
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    with pytest.raises(InvalidInput, match=r"^the path '.*' is not valid UTF-8"):
        Queue(os.fsdecode(folder) + "/queue.db")
    done = run("work", "--once", cwd=os.fsdecode(folder))
    assert "is not valid UTF-8: name another queue" in done.stderr

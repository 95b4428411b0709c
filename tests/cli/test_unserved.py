"""A queue that no worker serves: `add` says so, and takes the job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spoolctl import Queue
from spoolctl.core.states import State
from spoolctl.errors import StoreBusy
from spoolctl.store import open_store
from tests.cli.conftest import Call
from tests.helpers import clean_env, eventually

NOBODY = "no live worker serves the queue gpu: start `spoolctl work --queue gpu`"
Work = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def work(db: str) -> Iterator[Work]:
    """Starts a worker; returns when it is there."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        with closing(open_store(db, create=True, wait_s=5.0)) as store:
            before = len(store.workers())
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "spoolctl", "work", "--db", db, *words],
                    env=clean_env(),
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            eventually(lambda: len(store.workers()) > before, what="a worker")
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def states(db: str) -> list[State]:
    with Queue(db) as queue:
        return [job.state for job in queue.jobs(reverse=True)]


def test_said_on_stderr_and_in_the_envelope_and_the_job_is_there(call: Call, db: str) -> None:
    said = call("add", "--db", db, "--queue", "gpu", "--", "true")
    assert (said.status, said.text, said.err) == (0, "Added job 1\n", f"warning: {NOBODY}\n")
    said = call("add", "--db", db, "--queue", "gpu", "-p", "--", "true")
    assert (said.status, said.text, said.err) == (0, "2\n", f"warning: {NOBODY}\n")
    said = call("add", "--json", "--db", db, "--queue", "gpu", "--", "true")
    assert (said.status, said.err) == (0, "")
    assert said.envelope["warnings"] == [{"code": "NO_WORKER", "message": NOBODY}]
    assert states(db) == [State.QUEUED] * 3


def test_the_usual_queue_may_be_filled_before_there_is_a_worker(call: Call, db: str) -> None:
    for words in ((), ("--queue", "default")):
        assert call("add", "--json", "--db", db, *words, "--", "true").warnings == []


@pytest.mark.parametrize("words", [("--queue", "gpu"), ("--queue", "a", "--queue", "gpu"), ()])
def test_nothing_is_said_where_a_worker_serves_it(
    call: Call, db: str, work: Work, words: tuple[str, ...]
) -> None:
    worker = work(*(words or ("--all-queues",)))
    add = ("add", "--json", "--db", db, "--queue", "gpu", "--after", "1h", "--", "true")
    assert call(*add).warnings == []
    worker.kill()
    worker.wait()
    assert call(*add).warnings == ["NO_WORKER"]


def test_a_worker_of_another_queue_does_not_count(call: Call, db: str, work: Work) -> None:
    work()
    assert call("add", "--json", "--db", db, "--queue", "gpu", "true").warnings == ["NO_WORKER"]


def test_a_similar_queue_that_has_jobs_is_named(call: Call, db: str) -> None:
    call("add", "--db", db, "--queue", "gpu", "--", "true")
    said = call("add", "--db", db, "--queue", "gpus", "--", "true")
    assert said.err.endswith("--queue gpus` (there is a queue gpu)\n")
    assert "there is" not in call("add", "--db", db, "--queue", "other", "--", "true").err


def test_a_batch_says_it_once_for_each_queue(call: Call, db: str, tmp_path: Path) -> None:
    lines = [{"c": "true", "queue": name} for name in ("gpu", "gpu", "default", "cpu")]
    batch = tmp_path / "batch"
    batch.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = call("add", "--json", "--db", db, "--batch", str(batch))
    assert [each["message"][:38] for each in said.envelope["warnings"]] == [
        "no live worker serves the queue cpu: s",
        "no live worker serves the queue gpu: s",
    ]


def test_nothing_is_said_of_a_job_that_has_settled(call: Call, db: str) -> None:
    add = ("add", "--json", "--db", db, "--queue", "gpu", "--key", "k", "--key-for", "1h", "true")
    assert call(*add).warnings == ["NO_WORKER"]
    call("cancel", "--db", db, "1")
    again = call(*add)
    assert again.data["deduplicated"]
    assert again.warnings == []


def test_a_question_that_cannot_be_answered_costs_nothing(
    call: Call, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> frozenset[str]:
        raise StoreBusy("locked")

    monkeypatch.setattr(Queue, "unserved", refuse)
    said = call("add", "--json", "--db", db, "--queue", "gpu", "true")
    assert (said.status, said.warnings) == (0, [])

"""A `Queue` object that lives long in a program of its own, and may never be closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spoolctl import Queue
from tests.helpers import clean_env

REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        raise ImportError(f"{name} is not there any more")

sys.meta_path.insert(0, Refuse())
"""

ALL_CALLS = f"""
from spoolctl import Queue

queue = Queue("queue.db")
{REFUSE}
words = ["echo", 'say "a\\\\b"']
first = queue.add(words, env={{"A": "\\n"}}, tags={{"t": "x"}}, note="n", key="k")
queue.add_many([["true"]] * 3)
assert queue.get(1).argv == first.argv
assert queue.detail(1).attempts == ()
assert len(queue.jobs(command='"a', sort="started", tags={{"t": None}})) == 1
assert queue.counts().states and queue.recent_dead(5) == [] and queue.events().last_id
assert queue.attempt(1) is None and queue.output(1) == b""
queue.unserved(["default"])
queue.cancel(2)
queue.retry(2)
queue.cancel(2)
assert queue.wait([2], timeout_s=5)[2].state.value == "canceled"
assert queue.prune(0, states=["canceled"]).jobs == 1
queue.backup("copy.db")
queue.close()
"""

NO_BELL = f"""
from spoolctl import Queue

queue = Queue("queue.db", brief=True)
{REFUSE}
print(queue.add(["true"]).id)
"""

NEVER_CLOSED = """
from spoolctl import Queue

queue = Queue("queue.db")
queue.add(["true"])
print("open", flush=True)
input()
"""


def _run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=clean_env(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_open_queue_imports_nothing_more(tmp_path: Path) -> None:
    """For want of a descriptor, or of the file since an upgrade, that could fail."""
    _run(ALL_CALLS, tmp_path)


def test_a_bell_that_cannot_be_imported_does_not_make_a_commit_look_undone(tmp_path: Path) -> None:
    (tmp_path / "queue.db.d").mkdir()
    assert _run(NO_BELL, tmp_path) == "1\n"


def test_what_was_acknowledged_survives_a_queue_that_was_never_closed(tmp_path: Path) -> None:
    """Whoever closes last writes the log back: not one that has been taken away meanwhile."""
    never = subprocess.Popen(
        [sys.executable, "-c", NEVER_CLOSED],
        cwd=tmp_path,
        env=clean_env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert never.stdout is not None
    assert never.stdout.readline() == b"open\n"
    for beside in ("queue.db-wal", "queue.db-shm"):
        os.unlink(tmp_path / beside)
    with Queue(tmp_path / "queue.db") as queue:
        told = [queue.add(["echo", str(n)]).id for n in range(5)]
    never.communicate(b"\n", timeout=60)
    assert never.returncode == 0
    with Queue(tmp_path / "queue.db", create=False) as queue:
        assert sorted(job.id for job in queue.jobs()) == told
        assert {job.argv[0] for job in queue.jobs()} == {"echo"}


def test_a_program_that_was_removed_while_it_ran_ends_without_a_traceback(tmp_path: Path) -> None:
    script = f"import sys\nfrom spoolctl.cli.main import main\n{REFUSE}\nsys.exit(main(['list']))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=clean_env(), capture_output=True
    )
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.startswith(b"spoolctl: error: ")
    assert done.stderr.count(b"\n") == 1


FORKED = """
import os, sys
from spoolctl import Queue
from spoolctl.errors import InvalidInput
queue = Queue("queue.db")
job = queue.add(["true"])
pid = os.fork()
if pid == 0:
    calls = [
        lambda: queue.add(["false"]),
        lambda: queue.get(1),
        lambda: queue.wait([1], timeout_s=0),
        lambda: queue.work(),
        lambda: queue.changed(),
        lambda: next(queue.follow(1)),
        lambda: queue.backup("copy.db"),
        lambda: queue.prune(0),
    ]
    for call in calls:
        try:
            call()
        except InvalidInput as error:
            assert "fork" in str(error)
        else:
            os._exit(1)
    queue.close()
    Queue("queue.db").add(["own"])
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
queue.add(["after"])
print([each.argv for each in queue.jobs(reverse=True)])
"""


def test_a_fork_of_a_program_does_not_use_its_queue(tmp_path: Path) -> None:
    """It would hold none of the locks, and what it committed could be lost."""
    assert _run(FORKED, tmp_path).strip() == "[('true',), ('own',), ('after',)]"

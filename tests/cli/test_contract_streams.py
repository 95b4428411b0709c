"""Every verb with a reader that has left, with closed streams, with a full disk behind them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spoolctl.cli.spec import load
from spoolctl.cli.verbs import VERBS
from tests.cli.scene import Scene
from tests.helpers import clean_env, spoolctl

MODES = [[], ["--json"]]


def words_for(verb: str, scene: Scene, mode: list[str]) -> list[str]:
    """A call of the verb that prints something and changes as little as it can."""
    words = [word for word in load(verb).examples[0][1:] if word != "--json"]
    takes_db = any(flag.name == "--db" for flag in load(verb).flags)
    where = ["--db", str(scene.db)] if takes_db else []
    special = {
        "cancel": [scene.id("waiting")],
        "retry": [scene.id("dead")],
        "run": ["--", "echo", "hello"],
        "wait": [scene.id("done")],
        "work": ["--once", "--queue", "nobody"],
        "backup": ["copy.db"],
    }
    return [verb, *where, *mode, *special.get(verb, words[1:])]


def run(
    words: list[str], scene: Scene, redirection: str = "", **streams: int
) -> subprocess.CompletedProcess[bytes]:
    """The real program through a shell that redirects its streams."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "spoolctl", *words],
        cwd=scene.folder,
        env=clean_env(),
        stdin=subprocess.DEVNULL,
        stdout=streams.get("stdout", subprocess.PIPE),
        stderr=streams.get("stderr", subprocess.PIPE),
        timeout=60,
        check=False,
    )


@pytest.fixture
def fresh(scene: Scene, tmp_path: Path) -> Scene:
    """A copy of the queue's file alone."""
    shutil.copy(scene.db, tmp_path / "queue.db")
    return Scene(tmp_path, tmp_path / "queue.db", scene.jobs)


@pytest.mark.parametrize("mode", MODES, ids=["text", "json"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_reader_that_has_left_ends_it_quietly(verb: str, mode: list[str], fresh: Scene) -> None:
    read, write = os.pipe()
    os.close(read)
    done = run(words_for(verb, fresh, mode), fresh, stdout=write)
    os.close(write)
    assert done.returncode == -signal.SIGPIPE
    assert re.sub(rb"^spoolctl: job \d+\n$", b"", done.stderr) == b""


@pytest.mark.parametrize("mode", MODES, ids=["text", "json"])
@pytest.mark.parametrize("verb", VERBS)
def test_closed_streams_change_no_status(verb: str, mode: list[str], fresh: Scene) -> None:
    words = words_for(verb, fresh, mode)
    closed = run(words, fresh, ">&- 2>&- <&-")
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, b"", b"")


@pytest.mark.parametrize("mode", MODES, ids=["text", "json"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_lost_stderr_loses_nothing_else(verb: str, mode: list[str], fresh: Scene) -> None:
    words = words_for(verb, fresh, mode)
    read, write = os.pipe()
    os.close(read)
    done = run(words, fresh, stderr=write)
    os.close(write)
    assert done.returncode == 0
    assert done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("mode", MODES, ids=["text", "json"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk_behind_stdout_is_said(verb: str, mode: list[str], fresh: Scene) -> None:
    done = run(words_for(verb, fresh, mode), fresh, ">/dev/full")
    assert done.returncode == 3
    assert b"cannot write to stdout" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", "2>/dev/full", "2>&-", ">&- 2>&-"])
def test_work_loses_no_job_to_its_streams(redirection: str, tmp_path: Path) -> None:
    db = str(tmp_path / "queue.db")
    for _ in range(3):
        spoolctl("add", "--db", db, "--", "echo", "hello")
    scene = Scene(tmp_path, Path(db), {})
    run(["work", "--json", "--drain", "--db", db], scene, redirection)
    assert spoolctl("wait", "--db", db, "1", "2", "3").returncode == 0
    for job_id in "123":
        done = spoolctl("output", "--raw", "--stream", "stdout", "--db", db, job_id)
        assert done.stdout == "hello\n"


def test_work_goes_on_when_the_reader_of_its_log_leaves(tmp_path: Path) -> None:
    db = str(tmp_path / "queue.db")
    for _ in range(5):
        spoolctl("add", "--db", db, "--", "true")
    read, write = os.pipe()
    os.close(read)
    scene = Scene(tmp_path, Path(db), {})
    done = run(["work", "--drain", "--db", db], scene, stderr=write)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, b"Drained: executed 5 job(s)\n")

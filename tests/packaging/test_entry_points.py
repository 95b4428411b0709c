"""The checkout, the installed command and the one-file program behave alike."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from spoolctl.version import __version__
from tests.helpers import ROOT, clean_env, eventually, processes_of

BUILDER = ROOT / "scripts/build-zipapp"


class Program(NamedTuple):
    """One way to call spoolctl: its words, and a folder that is not the checkout."""

    words: tuple[str, ...]
    cwd: Path
    env: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.words, *words],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def build_zipapp(target: Path) -> Path:
    subprocess.run([sys.executable, str(BUILDER), str(target)], check=True)
    return target


def install(folder: Path) -> Path:
    """`pip install` of a copy of the sources into a new environment, without any network."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "spoolctl", source / "spoolctl", ignore=ignore)
    quiet = clean_env({"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1"})
    # The wheel is built by the setuptools of the environment that runs the tests.
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q"]
    subprocess.run([*wheel, "-w", str(folder), str(source)], check=True, env=quiet)
    (built,) = folder.glob("*.whl")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--no-deps", "-q", str(built)]
    subprocess.run(pip, check=True, env=quiet)
    shutil.rmtree(source)
    return venv / "bin/spoolctl"


def can_build_wheels() -> bool:
    found = importlib.util.find_spec("setuptools")
    if found is None:
        return False
    import setuptools

    return tuple(int(part) for part in setuptools.__version__.split(".")[:2]) >= (70, 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all processes that run these tests side by side: each thing is made once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of the whole run
    (folder / "made").mkdir(exist_ok=True)
    return folder / "made"


def once(made: Path, name: str, make: Callable[[Path], object]) -> str:
    """The file of this name in `made`, made by the first who needs it."""
    path = made / name
    with open(made / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(path)
    return str(path)


@pytest.fixture(params=["checkout", "zipapp", "zipapp_run_directly", "installed"])
def program(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> Program:
    env = clean_env()
    cwd = tmp_path / "here"
    cwd.mkdir()
    if request.param == "checkout":
        return Program((sys.executable, "-m", "spoolctl"), cwd, env)
    del env["PYTHONPATH"]
    if request.param == "installed":
        if not can_build_wheels():
            pytest.skip("needs setuptools >= 70.1 to build a wheel without a network")
        command = once(made, "venv/bin/spoolctl", lambda _: install(made))
        return Program((command,), cwd, env)
    pyz = once(made, "spoolctl.pyz", build_zipapp)
    if request.param == "zipapp":
        return Program((sys.executable, pyz), cwd, env)
    env["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{env['PATH']}"
    return Program((pyz,), cwd, env)


def normal(text: str) -> str:
    """The text without times and pids."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.+Z-]+", "TIME", text)
    text = re.sub(r"\(\d+\.\ds\)", "(0.0s)", text)
    return re.sub(r"pid \d+", "pid N", text)


SESSION: Sequence[tuple[str, ...]] = (
    ("--version",),
    ("--help",),
    ("add", "--help"),
    ("status",),
    ("add", "--", "echo", "hello"),
    ("add", "--max-retries", "0", "--", "sh", "-c", "exit 3"),
    ("work", "--drain"),
    ("status",),
    ("output", "1"),
    ("wait", "1", "2"),
    ("show", "99"),
    ("nonsense",),
    ("add",),
)
"""Calls, in order, whose results have to be the same whatever the program's form."""


def what_it_says(program: Program) -> list[tuple[tuple[str, ...], int, str, str]]:
    results = []
    for words in SESSION:
        done = program.run(*words)
        out, err = (
            normal(text).replace(str(program.cwd), "HERE") for text in (done.stdout, done.stderr)
        )
        results.append((words, done.returncode, out, err))
    return results


def test_all_forms_of_the_program_say_the_same(program: Program, tmp_path: Path) -> None:
    # Beside the program's folder: queues are looked for upwards.
    other = tmp_path / "reference"
    other.mkdir()
    reference = Program((sys.executable, "-m", "spoolctl"), other, clean_env())
    said = what_it_says(program)
    assert said == what_it_says(reference)
    codes = {words: code for words, code, _, _ in said}
    assert codes[("work", "--drain")] == 0
    assert codes[("wait", "1", "2")] == 6
    assert codes[("show", "99")] == 1
    assert "hello" in next(out for words, _, out, _ in said if words == ("output", "1"))


def test_version_is_one_line_and_stands_in_every_envelope(program: Program) -> None:
    assert program.run("--version").stdout == f"spoolctl {__version__}\n"
    envelope = json.loads(program.run("status", "--json").stdout)
    assert envelope["tool_version"] == __version__


def test_files_of_the_project_do_not_stand_in_for_the_standard_library(program: Program) -> None:
    for name in ("json", "select", "signal", "sqlite3", "random", "datetime"):
        (program.cwd / f"{name}.py").write_text("raise SystemExit('not meant for you')\n")
    for words in (
        ("add", "--at", "0:00", "true"),
        ("add", "true"),
        ("work", "--once"),
        ("list", "--json"),
        ("wait", "2"),
    ):
        done = program.run(*words)
        assert done.returncode == 0, done.stderr
        assert "not meant for you" not in done.stderr


@pytest.fixture(params=["ascii", "latin-1"])
def odd_locale(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Variables under which Python takes words for something else than UTF-8."""
    if request.param == "ascii":
        return {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    made = tmp_path / "locales" / "de_DE.ISO-8859-1"
    made.parent.mkdir()
    words = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(made)]
    if not shutil.which("localedef") or subprocess.run(words, check=False).returncode:
        pytest.skip("needs localedef(1) and its sources")
    return {"LC_ALL": "de_DE.ISO-8859-1", "LOCPATH": str(made.parent)}


@pytest.mark.skipif(sys.platform == "darwin", reason="words are UTF-8 there whatever the locale")
def test_words_are_the_same_bytes_whatever_the_locale(
    program: Program, odd_locale: dict[str, str]
) -> None:
    (program.cwd / "ü").mkdir()
    odd = program._replace(env={**program.env, **odd_locale})
    added = odd.run("add", "--note", "ü", "--cwd", "ü", "--", "sh", "-c", "printf %s ü; pwd")
    assert (added.returncode, added.stdout) == (0, "Added job 1\n")
    assert program.run("work", "--once").returncode == 0
    said = program.run("output", "--raw", "--stream", "stdout", "1").stdout
    assert said == f"ü{program.cwd.resolve()}/ü\n"
    assert json.loads(program.run("show", "--json", "1").stdout)["data"]["job"]["note"] == "ü"
    assert odd.run("run", "--", "sh", "-c", "printf ü$PYTHONUTF8").stdout in ("ü", "ü0")
    assert odd.run("show", "1").stdout == program.run("show", "1").stdout


@pytest.mark.skipif(sys.platform == "darwin", reason="words are UTF-8 there whatever the locale")
def test_a_program_that_python_reads_from_stdin_does_its_work_whatever_the_locale(
    tmp_path: Path,
) -> None:
    """It cannot be started over: an `add` would do nothing, and say nothing."""
    odd = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-", "add", "--db", str(tmp_path / "q.db"), "true"],
        input="from spoolctl.__main__ import main\nmain()\n",
        env=clean_env({**odd, "PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Added job 1\n", "")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_its_guardian_ends_what_a_killed_worker_ran(program: Program) -> None:
    """Whatever the program's form, and although its folder is gone and PATH is of no use."""
    inside = program.cwd / "inside"
    inside.mkdir()
    db = program.cwd / "queue.db"
    queued = program.run("add", "--db", str(db), "--cwd", "/", "--", "/bin/sleep", "600")
    assert queued.returncode == 0, queued.stderr
    is_archive = program.words[0].endswith(".pyz")  # finds its interpreter by PATH
    words = [sys.executable, *program.words] if is_archive else program.words
    worker = subprocess.Popen(
        ["/bin/sh", "-c", 'rmdir "$0"; exec "$@"', str(inside), *words, "work", "--db", str(db)],
        cwd=inside,
        env={**program.env, "PATH": "/nowhere:/bin"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: commands_of(db), what="the job runs")
        worker.kill()
        worker.wait()
        eventually(lambda: not processes_of(db), what="its processes have been ended")
    finally:
        for pid in processes_of(db):
            os.kill(pid, signal.SIGKILL)


def commands_of(db: Path) -> list[int]:
    """Processes of the queue that are the job's command."""
    found = []
    for pid in processes_of(db):
        with suppress(OSError):  # one that has ended meanwhile
            if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_the_zipapp_is_the_same_bytes_whenever_it_is_built(tmp_path: Path) -> None:
    one, other = build_zipapp(tmp_path / "one.pyz"), build_zipapp(tmp_path / "other.pyz")
    assert one.read_bytes() == other.read_bytes()
    assert os.access(one, os.X_OK)


def test_the_zipapp_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build_zipapp(tmp_path / "spoolctl.pyz")).namelist()
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "spoolctl").rglob("*.py")}
    assert set(names) == {"__main__.py", "spoolctl/py.typed", *sources}

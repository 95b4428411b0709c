"""The quickstart page is run as it stands: in an interactive bash and in a plain one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pexpect
import pytest

from tests.docs.quickstart_steps import Step, check, pattern_of, read_steps
from tests.helpers import ROOT, clean_env, eventually, processes_of, spoolctl

PAGE = (ROOT / "docs" / "quickstart.md").read_text("utf-8")
STEPS = read_steps(PAGE)
GONE = "removed or replaced"

pytestmark = [
    pytest.mark.slow(seconds=40),
    pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc"),
]


class Setting(NamedTuple):
    """How the commands are run: from where, by which words, with which delay before reaping."""

    cwd: Path
    program: str
    env: dict[str, str]
    delay_s: tuple[float, float]

    def words(self, command: str) -> str:
        """The page's command, with the program's words replaced where another form is tried."""
        return command.replace("python3 -m spoolctl", self.program)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder for `mktemp -d`; whatever still works in it afterwards is ended."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    yield folder
    for pid in processes_of(folder):
        os.kill(pid, signal.SIGKILL)


def setting(form: str, scratch: Path, tmp_path: Path, *, hurry: bool = True) -> Setting:
    """`checkout`: the page's own words. `zipapp`: the one-file program. Without `hurry` the
    page's own times too: a dead worker is silent for half a minute before it counts as dead."""
    bin_dir = os.path.dirname(sys.executable)
    assert os.path.exists(os.path.join(bin_dir, "python3"))
    env = clean_env({"TMPDIR": str(scratch), "TERM": "dumb", "PS1": "$ "})
    env["PATH"] = f"{bin_dir}{os.pathsep}{env['PATH']}"
    del env["PYTHONPATH"]
    delay_s = (20.0, 45.0)
    if hurry:
        env["SPOOLCTL_TEST_REAP_THRESHOLD"] = "2"
        env["SPOOLCTL_TEST_HEARTBEAT_INTERVAL"] = "0.5"
        delay_s = (0.5, 20.0)
    if form == "checkout":
        return Setting(ROOT, "python3 -m spoolctl", env, delay_s)
    target = tmp_path / "spoolctl.pyz"
    subprocess.run([sys.executable, str(ROOT / "scripts/build-zipapp"), target], check=True)
    return Setting(tmp_path, f"python3 {target}", env, delay_s)


def the_queue(scratch: Path) -> Path:
    """The queue that the page's `mktemp -d` made room for."""
    (folder,) = scratch.iterdir()
    return folder / "queue.db"


def job_4(db: Path) -> tuple[str, int, int]:
    """State, crashes and attempts so far of the job whose worker is killed."""
    shown = spoolctl("show", "--db", str(db), "--json", "4")
    data = json.loads(shown.stdout)["data"]
    return data["job"]["state"], data["job"]["crashes"], len(data["attempts"])


def assert_nothing_left(scratch: Path) -> None:
    """`rm -rf $QS` is the end: no folder made again, no process of the queue left."""
    eventually(lambda: not processes_of(scratch), what="all processes of the queue have ended")
    assert [str(path) for path in scratch.rglob("*")] == []


def test_the_page_has_all_the_steps_that_the_tests_act_upon() -> None:
    commands = [command for step in STEPS for command in step.commands]
    assert len(commands) == 14
    assert commands[0] == "QS=$(mktemp -d)"
    assert commands[-1] == "rm -rf $QS"
    assert "kill -9 %1" in commands
    assert [step.in_background for step in STEPS if step.is_worker] == [False, True, True]
    assert "Stop it with Ctrl-C" in next(step for step in STEPS if step.is_worker).prose
    assert sum(len(step.expected) for step in STEPS) == 13


# -- in an interactive bash on a pseudo-terminal -----------------------------------------------


class Terminal:
    """A bash with job control, as a person has it."""

    PROMPT = "<<prompt>>"

    def __init__(self, how: Setting) -> None:
        self.bash = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile", "-i"],
            cwd=str(how.cwd),
            env=how.env,
            dimensions=(40, 1000),
            encoding="utf-8",
            timeout=60,
        )
        # Spelled in two parts, so that the echo of this line is not taken for the prompt.
        self.bash.sendline("bind 'set enable-bracketed-paste off'; PS1='<<prompt''>>'")
        self.bash.expect_exact(self.PROMPT)

    def run(self, command: str) -> str:
        """Type the command; what came between it and the next prompt."""
        self.bash.sendline(command)
        self.bash.expect_exact(self.PROMPT)
        _echo, _, output = str(self.bash.before).partition("\n")
        return output

    def run_until(self, command: str, lines: tuple[str, ...]) -> str:
        """Type the command, wait for these lines, press Ctrl-C, wait for the prompt."""
        self.bash.sendline(command)
        seen = self.wait_for(lines)
        self.bash.sendintr()
        self.bash.expect_exact(self.PROMPT)
        return seen + str(self.bash.before)

    def wait_for(self, lines: tuple[str, ...]) -> str:
        """Everything up to the last of these lines."""
        seen = ""
        for line in lines:
            self.bash.expect(pattern_of(line) + "\r\n")
            seen += str(self.bash.before) + str(self.bash.after)
        return seen

    def status_of_last(self) -> str:
        """Exit status of the last command, or of the last one in the background (`$!`)."""
        return self.run("echo $?").strip()


def run_on_terminal(how: Setting, scratch: Path) -> None:
    """Every step of the page; where its prose asks for patience, waits for what it promises."""
    shell = Terminal(how)
    killed_at = 0.0
    for step in STEPS:
        if step.is_worker and not step.in_background:
            check(step, shell.run_until(how.words(step.commands[0]), step.expected))
            assert shell.status_of_last() == "0"
            continue
        output = "".join(shell.run(how.words(command)) for command in step.commands)
        if step.commands == ("kill -9 %1",):
            killed_at = time.monotonic()
        if step.is_worker:
            db = the_queue(scratch)
            if step.expected:
                output += shell.wait_for(step.expected)
                low, high = how.delay_s
                assert low <= time.monotonic() - killed_at <= high
                eventually(lambda db=db: job_4(db) == ("running", 1, 2), timeout_s=30)
            else:
                eventually(lambda db=db: job_4(db)[0] == "running", timeout_s=30)
        check(step, output)
    shell.bash.expect(GONE)
    assert "status 3" in shell.run("wait $!; echo status $?")
    shell.bash.sendline("exit")
    shell.bash.expect(pexpect.EOF)
    assert_nothing_left(scratch)


def test_quickstart_in_an_interactive_bash(scratch: Path, tmp_path: Path) -> None:
    run_on_terminal(setting("checkout", scratch, tmp_path), scratch)


def test_quickstart_in_an_interactive_bash_with_the_zipapp(scratch: Path, tmp_path: Path) -> None:
    run_on_terminal(setting("zipapp", scratch, tmp_path), scratch)


# -- in a plain bash that reads a script -------------------------------------------------------


def script_of(how: Setting, log: Path) -> str:
    """The page's commands in order, a mark before each step, and the waits that its prose asks for.

    A script has no job control: `kill -9 %1` works there too, on the one process.
    """
    lines = []
    for number, step in enumerate(STEPS):
        lines.append(f"echo '-- step {number}'")
        lines += [how.words(command) for command in step.commands]
        if step.is_worker and step.in_background:
            said = "reaped job 4" if step.expected else None
            lines.append(f"until grep -q '{said}' '{log}'; do sleep 0.1; done" if said else "")
            lines.append("sleep 4")
    lines.append('wait $!; echo "status $?"')
    return "\n".join(lines) + "\n"


def outputs_of(log: str) -> list[str]:
    """What was printed in each step, cut at the marks."""
    return re.split(r"^-- step \d+\n", log, flags=re.MULTILINE)[1:]


def run_as_script(how: Setting, scratch: Path, tmp_path: Path) -> None:
    """Ctrl-C is what it is on a terminal: SIGINT to bash and all that it runs in front."""
    log, script = tmp_path / "log", tmp_path / "quickstart.sh"
    script.write_text(script_of(how, log))
    first_worker = next(step for step in STEPS if step.is_worker)
    with open(log, "ab") as file:
        bash = subprocess.Popen(
            ["bash", str(script)],
            cwd=how.cwd,
            env=how.env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        last = re.compile(pattern_of(first_worker.expected[-1]))
        eventually(lambda: last.search(log.read_text("utf-8")), timeout_s=60)
        os.killpg(bash.pid, signal.SIGINT)
        assert bash.wait(timeout=120) == 0, log.read_text("utf-8")
    finally:
        if bash.poll() is None:
            os.killpg(bash.pid, signal.SIGKILL)
            bash.wait()
    outputs = outputs_of(log.read_text("utf-8"))
    assert outputs[-1].endswith("status 3\n"), outputs[-1]
    assert GONE in outputs[-1]
    outputs[-1] = ""
    for step, output in zip(STEPS, outputs, strict=True):
        check(step, output)
    assert_nothing_left(scratch)


def test_quickstart_in_a_plain_bash(scratch: Path, tmp_path: Path) -> None:
    run_as_script(setting("checkout", scratch, tmp_path, hurry=False), scratch, tmp_path)


def test_quickstart_in_a_plain_bash_with_the_zipapp(scratch: Path, tmp_path: Path) -> None:
    run_as_script(setting("zipapp", scratch, tmp_path), scratch, tmp_path)


# -- the reader itself ---------------------------------------------------------------------------


def test_a_line_matches_whatever_its_pid_and_elapsed_time() -> None:
    reaped = pattern_of("spoolctl: reaped job 4 (worker pid <PID> died); now queued")
    assert re.fullmatch(reaped, "spoolctl: reaped job 4 (worker pid 77 died); now queued")
    assert not re.fullmatch(reaped, "spoolctl: reaped job 5 (worker pid 77 died); now queued")
    done = pattern_of("spoolctl: job 3 attempt 1 succeeded (3.0s) -> done")
    assert re.fullmatch(done, "spoolctl: job 3 attempt 1 succeeded (3.1s) -> done")
    assert not re.fullmatch(done, "spoolctl: job 3 attempt 1 failed (3.0s) -> done")


def test_missing_surplus_and_wrong_lines_are_noticed() -> None:
    step = Step(("python3 -m spoolctl status",), ("queued 3",), "")
    check(step, "queued 3\n")
    check(step, "[1]+  Killed\nqueued 3\nspoolctl: job 1 attempt 1 succeeded\n")
    for wrong in ("", "queued 4\n", "queued 3\nmore\n"):
        with pytest.raises(AssertionError):
            check(step, wrong)
    worker = Step(("python3 -m spoolctl work --db q",), ("spoolctl: a", "spoolctl: b"), "")
    check(worker, "spoolctl: a\nspoolctl: x\nspoolctl: b\n")
    with pytest.raises(AssertionError):
        check(worker, "spoolctl: b\nspoolctl: a\n")

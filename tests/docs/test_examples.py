"""The examples in the documents are run as they stand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, clean_env


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which `spoolctl` and `python3` are the ones under test."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    command = bin_dir / "spoolctl"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spoolctl "$@"\n')
    command.chmod(0o755)
    env = clean_env()
    path = [str(bin_dir), os.path.dirname(sys.executable), env["PATH"]]
    return {**env, "PATH": os.pathsep.join(path)}


def run_script(script: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_command_of_the_agent_guide_succeeds(tmp_path: Path, env: dict[str, str]) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    script = "".join(blocks("docs/agent-guide.md", "sh"))
    assert script.count("spoolctl ") > 15
    done = run_script(script, folder, env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    envelopes = [json.loads(line) for line in done.stdout.split("\n") if line.startswith("{")]
    assert all(envelope["ok"] for envelope in envelopes)
    added = [one["data"] for one in envelopes if "deduplicated" in (one["data"] or {})]
    assert [one["deduplicated"] for one in added[:2]] == [False, True]
    assert added[0]["job_id"] == added[1]["job_id"]
    assert (folder / "built").read_text() == "done\n"


def test_the_config_file_of_the_page_is_valid(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / ".spoolctl").mkdir()
    (content,) = blocks("docs/configuration.md", "json")
    (tmp_path / ".spoolctl" / "config.json").write_text(content)
    done = run_script("".join(blocks("docs/configuration.md", "sh")), tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert "max_retries: 1 (project_config)" in done.stdout


def test_the_readmes_first_command_runs_a_job_from_a_bare_checkout(
    tmp_path: Path, env: dict[str, str]
) -> None:
    command = blocks("README.md", "sh")[0]
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "spoolctl", checkout / "spoolctl", ignore=ignore)
    del env["PYTHONPATH"]
    done = run_script(command, checkout, env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Added job 1\n")
    assert "done 1" in done.stdout
    assert "spoolctl: job 1 attempt 1 succeeded" in done.stderr


def test_the_readmes_second_command_is_the_one_that_ci_runs() -> None:
    assert blocks("README.md", "sh")[1].strip() == "scripts/test"
    script = (ROOT / ".ci/run").read_text("utf-8")
    assert '"$1" scripts/test "${@:2}" && return 0\n' in script
    assert '\ntests "$python" || failed' in script


def test_the_python_page_runs_from_top_to_bottom(tmp_path: Path, env: dict[str, str]) -> None:
    program = "\n".join(blocks("docs/python-api.md", "python"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 queued\n")
    assert (tmp_path / "copy.db").exists()

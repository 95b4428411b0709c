"""Agents are killed at random; the last one finishes, and no job was submitted twice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, clean_env, eventually, processes_of

SCRIPT = ROOT / "examples/agent-handover/handover.py"


@pytest.mark.slow(seconds=9)
@pytest.mark.timeout(170)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_successor_that_knows_nothing_finishes_the_work(seed: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "5", "--seed", str(seed)],
        env=clean_env({"TMPDIR": str(tmp_path)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=160,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"agents killed: [1-5]; jobs: 20, done: 20", done.stdout), done.stdout
    assert "each job was submitted once" in done.stdout
    for number in range(1, 21):
        assert f"square-{number}: done, answer {number * number}" in done.stdout
    eventually(lambda: processes_of(tmp_path) == [], what="nothing left running")

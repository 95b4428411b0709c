"""The batch example, for real: a worker is killed in the middle and every file is right."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, clean_env, processes_of

SCRIPT = ROOT / "examples/compress-tree/compress_tree.py"


@pytest.mark.slow(seconds=5)
@pytest.mark.timeout(170)
def test_every_file_is_compressed_exactly_right_although_a_worker_is_killed(tmp_path: Path) -> None:
    kept = tmp_path / "packed"
    words = ["--files", "120", "-j", "3", "--into", str(kept)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env=clean_env({"TMPDIR": str(tmp_path)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=160,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed worker" in done.stdout
    assert "jobs: 120, done: 120" in done.stdout
    assert re.search(r"taken back from the killed worker: \d+", done.stdout)
    assert done.stdout.rstrip().endswith("every file compressed exactly right")
    packed = [path for path in kept.rglob("*") if path.is_file()]
    assert len(packed) == 120
    assert all(gzip.decompress(path.read_bytes()) is not None for path in packed)
    assert [path.name for path in tmp_path.iterdir()] == ["packed"], "the queue was not removed"
    assert processes_of(tmp_path) == []

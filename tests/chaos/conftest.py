"""Runs for the tests of the chaos suite, none of which outlives its test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.run import Run


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[[list[str]], Run]]:
    """A run with workers that lack some mechanisms; afterwards nothing of it is left."""
    runs: list[Run] = []

    def make(without: list[str]) -> Run:
        runs.append(Run(Path(os.path.realpath(tmp_path)), without=without))
        return runs[-1]

    yield make
    for run in runs:
        run.close()

"""Fixtures of the contract's tests, and the counts that they print; loaded by conftest.py."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.scene import Scene, make

COUNTED = ("validated outputs", "fuzz cases")


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A queue in which everything has happened once. To be read, not changed."""
    return make(tmp_path_factory.mktemp("scene"))


@pytest.fixture
def own_scene(scene: Scene, tmp_path: Path) -> Scene:
    """A copy of the scene that may be changed."""
    folder = tmp_path / "copy"
    shutil.copytree(scene.folder, folder)
    return Scene(folder, folder / scene.db.name, scene.jobs)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the sums of what tests recorded with `record_property`, also under xdist."""
    totals: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name in COUNTED:
                        totals[name] += value
    for name, total in totals.items():
        terminalreporter.write_line(f"contract: {total} {name}")

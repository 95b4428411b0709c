"""Real children on a stage that leaves none of them behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.staging import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A place to start attempts."""
    made = Stage(tmp_path)
    yield made
    made.clear()
    assert made.alive() == []


@pytest.fixture
def null() -> Iterator[int]:
    """A descriptor of /dev/null."""
    fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    yield fd
    os.close(fd)

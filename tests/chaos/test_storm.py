"""A short storm: many workers killed, frozen and terminated; afterwards all promises hold."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.run import Run, SmallDisk
from tests.chaos.storm import Storm

RAGE_S = 12.0


@pytest.mark.slow(seconds=20)
def test_a_short_storm(tmp_path: Path) -> None:
    folder = Path(os.path.realpath(tmp_path))
    disk = None
    with suppress(OSError):  # not root: the storm goes without full disks
        disk = SmallDisk(folder / "disk")
    run = Run(folder / "run", disk=disk)
    # Another one every time; the seed is in the message of a failure.
    seed = random.SystemRandom().getrandbits(32)
    storm = Storm(run, seed, workers=5, backlog=20)
    began = time.monotonic()
    try:
        storm.rage(lambda: time.monotonic() - began > RAGE_S)
        storm.calm()
        history = run.history()
    finally:
        run.close()
    assert check(history) == [], f"seed {seed}"
    assert run.fleet.kills > 10
    assert len(history.records) > 100

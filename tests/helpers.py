"""What several test folders need: running spoolctl, waiting for something, finding processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


def eventually(condition: Callable[[], T], *, timeout_s: float = 15.0, what: str = "") -> T:
    """The first true value of `condition`, asked every 10 ms; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(0.01)


def clean_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without spoolctl's variables, with the checkout importable."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPOOLCTL_")}
    return {**env, "PYTHONPATH": str(ROOT), **(extra or {})}


def spoolctl(
    *words: str,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m spoolctl` with these words to its end."""
    return subprocess.run(
        [sys.executable, "-m", "spoolctl", *words],
        cwd=cwd,
        env=clean_env(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def processes_of(db_path: str | Path) -> list[int]:
    """Living processes (Linux) that work on a queue: its path is in their words or environment.

    Zombies do not count, nor does this process.
    """
    needle = os.fsencode(str(db_path))
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            content = b""
            for part in ("cmdline", "environ"):
                with open(f"/proc/{name}/{part}", "rb") as file:
                    content += file.read()
            with open(f"/proc/{name}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if needle in content and state != b"Z":
            found.append(int(name))
    return found

"""No stranger ever gets a signal because it got a dead process's number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import clean_env
from tests.process.staging import HERE, needs_namespaces

pytestmark = needs_namespaces


def _run(case: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [
            "unshare",
            "-p",
            "-f",
            "--mount-proc",
            sys.executable,
            str(HERE / "reuse.py"),
            case,
            str(folder),
        ],
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    seen = dict(json.loads(done.stdout))
    assert seen["signals"] == [], "a stranger got a signal"
    assert all(seen["alive"]), "a stranger was killed"
    return seen


@pytest.mark.parametrize("case", ["leader", "in_the_grace", "member"])
def test_an_attempt_whose_numbers_were_given_away_is_gone(tmp_path: Path, case: str) -> None:
    assert _run(case, tmp_path)["gone"] is True


def test_the_kill_meant_for_a_dead_member_was_really_held_back(tmp_path: Path) -> None:
    assert _run("in_the_grace", tmp_path)["looked_stale"] is True


def test_a_strangers_leaderless_session_is_left_alone_and_reported(tmp_path: Path) -> None:
    seen = _run("session_of_the_dead", tmp_path)
    assert seen["gone"] is False
    assert "is in a session with the number of the attempt's command" in seen["stuck"]


def test_a_signal_finds_the_process_that_was_seen_or_nobody(tmp_path: Path) -> None:
    assert _run("between_look_and_kill", tmp_path)["answers"] == ["gone", "gone"]


def test_an_owner_whose_pid_another_worker_has_is_dead(tmp_path: Path) -> None:
    assert _run("owner", tmp_path)["verdicts"] == ["alive", "dead", "dead"]


def test_pid_1_of_the_last_container_is_dead_and_of_this_one_alive(tmp_path: Path) -> None:
    seen = _run("pid_one", tmp_path)
    assert seen["pid"] == 1
    assert seen["verdicts"] == ["alive", "dead"]


def _pid_max_is_per_namespace() -> bool:
    # Since Linux 6.14; before, it would be the whole machine's.
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor.split("-")[0])) >= (6, 14)


@pytest.mark.skipif(not _pid_max_is_per_namespace(), reason="pid_max is the whole machine's here")
def test_strangers_come_and_go_unharmed_while_attempts_are_ended(tmp_path: Path) -> None:
    before = Path("/proc/sys/kernel/pid_max").read_text()
    seen = _run("churn", tmp_path)
    assert seen["rounds"] > 5
    assert Path("/proc/sys/kernel/pid_max").read_text() == before

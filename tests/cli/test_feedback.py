"""`feedback`: the verdict in every situation, and the ends of streams."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest

from spoolctl.cli.feedback import decoded
from spoolctl.core.display import JOINERS
from tests.cli.contract import call, check
from tests.cli.scene import Scene
from tests.helpers import spoolctl

VERDICTS: dict[str, tuple[object, ...]] = {
    # state, succeeded, exit_code, failure_reason, remediation
    "waiting": ("queued", None, None, None, "spoolctl work --drain"),
    "scheduled": ("queued", None, None, None, "spoolctl work --drain"),
    "backoff": ("queued", None, 4, "process_exit", "spoolctl show {id}"),
    "done": ("done", True, 0, None, None),
    "dead": ("dead", False, 3, "process_exit", "spoolctl output {id}"),
    "unstartable": ("dead", False, None, "spawn_failed", "spoolctl output {id}"),
    "slow": ("dead", False, None, "timeout", "spoolctl output {id}"),
    "crashed": ("dead", False, None, "worker_crash", "spoolctl output {id}"),
    "stopped": ("canceled", False, None, "canceled", None),
    "canceled": ("canceled", False, None, None, None),
}


def feedback(scene: Scene, name: str, *words: str) -> dict[str, Any]:
    result = call(
        "feedback", "--json", "--db", str(scene.db), *words, scene.id(name), cwd=scene.folder
    )
    check(result)
    assert result.status == 0
    data: dict[str, Any] = result.json()["data"]
    return data


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_in_every_situation(name: str, scene: Scene) -> None:
    state, succeeded, exit_code, reason, remediation = VERDICTS[name]
    data = feedback(scene, name)
    assert data["state"] == state
    assert data["terminal"] == (state != "queued")
    assert data["succeeded"] is succeeded
    assert data["exit_code"] == exit_code
    assert data["failure_reason"] == reason
    expected = str(remediation).format(id=scene.id(name)) if remediation else None
    assert data["remediation"] == expected
    started = name not in ("waiting", "scheduled", "canceled")
    assert (data["latest_attempt_no"] is not None) == started
    assert (data["attempts_total"] > 0) == started
    assert (data["duration_seconds"] is not None) == (started and state != "queued")
    assert data["streams"]["stdout"]["missing"] is not started


@pytest.mark.parametrize("name", VERDICTS)
def test_it_agrees_with_show(name: str, scene: Scene) -> None:
    data = feedback(scene, name)
    shown = call("show", "--json", "--db", str(scene.db), scene.id(name), cwd=scene.folder).json()
    job, attempts = shown["data"]["job"], shown["data"]["attempts"]
    assert data["attempts"] == job["attempts"]
    assert data["last_error"] == job["last_error"]
    assert data["attempts_total"] == len(attempts)
    if data["terminal"]:
        assert data["failure_reason"] == job["last_failure_reason"]


def test_a_running_job(tmp_path: Path) -> None:
    # Asked from inside of the job itself.
    done = tmp_path / "verdict.json"
    ask = f'python3 -m spoolctl feedback --json "$SPOOLCTL_JOB_ID" > {done}'
    spoolctl("add", "--db", "q.db", "-c", f"echo so far; exec {ask}", cwd=tmp_path)
    spoolctl("work", "--drain", "--db", "q.db", cwd=tmp_path)
    data = json.loads(done.read_text())["data"]
    assert (data["state"], data["terminal"], data["succeeded"]) == ("running", False, None)
    assert (data["exit_code"], data["failure_reason"]) == (None, None)
    assert data["remediation"] == "spoolctl wait 1"
    assert data["duration_seconds"] is None
    assert data["streams"]["stdout"]["tail"] == "so far\n"
    assert data["streams"]["stdout"]["stored"] == "file"


def test_after_a_manual_retry_nothing_is_known(own_scene: Scene) -> None:
    spoolctl("retry", "--db", str(own_scene.db), own_scene.id("dead"))
    data = feedback(own_scene, "dead")
    assert (data["exit_code"], data["failure_reason"], data["last_error"]) == (None, None, None)
    assert data["remediation"] == "spoolctl work --drain"
    assert (data["attempts"], data["attempts_total"]) == (0, 1)


def test_a_job_that_does_not_exist(scene: Scene) -> None:
    result = call("feedback", "--json", "--db", str(scene.db), "999", cwd=scene.folder)
    check(result)
    assert result.json()["errors"][0]["code"] == "NOT_FOUND"


# -- streams --------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 100, 65_536])
def test_the_tail_is_the_end_of_the_stream(length: int, scene: Scene) -> None:
    data = feedback(scene, "noisy", "--tail-bytes", str(length))
    raw = call(
        *("output", "--raw", "--stream", "stdout", "--db", str(scene.db), scene.id("noisy")),
        cwd=scene.folder,
    ).stdout
    out, err = data["streams"]["stdout"], data["streams"]["stderr"]
    assert out["size_bytes"] == len(raw) == 200_000
    assert out["truncated"] is True
    assert out["tail"] == decoded(raw[-length:], cut=True)
    assert out["stored"] == "file"
    assert os.path.getsize(out["path"]) == 200_000
    assert err["size_bytes"] == 3
    assert err["truncated"] == (length < 3)
    assert (err["stored"], err["path"]) == ("database", None)
    assert err["tail"] == {1: "", 2: "é"}.get(length, "\ufffdé")


@pytest.mark.parametrize(
    ("data", "cut", "text"),
    [
        ("é".encode()[1:] + b"x", True, "x"),
        ("é".encode()[1:] + b"x", False, "\ufffdx"),
        ("🙂".encode()[1:] + b"x", True, "x"),
        (b"\x80\x80\x80\x80x", True, "\ufffdx"),
        (b"\xff\xfex", True, "\ufffd\ufffdx"),
        (b"", True, ""),
        (b"\x80", True, ""),
        ("aé".encode()[:-1], True, "a\ufffd"),
    ],
)
def test_orphaned_bytes_at_the_cut_are_dropped(data: bytes, cut: bool, text: str) -> None:
    assert decoded(data, cut=cut) == text


def test_a_file_that_is_gone_is_missing(own_scene: Scene) -> None:
    path = feedback(own_scene, "noisy")["streams"]["stdout"]["path"]
    copy = next((own_scene.folder / "queue.db.d" / "attempts").rglob("*.stdout"))
    assert os.path.basename(path) == copy.name
    copy.unlink()
    result = call(
        *("feedback", "--json", "--db", str(own_scene.db), own_scene.id("noisy")),
        cwd=own_scene.folder,
    )
    check(result)
    stream = result.json()["data"]["streams"]["stdout"]
    assert (stream["missing"], stream["stored"], stream["size_bytes"]) == (True, "missing", 0)
    assert stream["path"] == str(copy)
    assert [each["code"] for each in result.json()["warnings"]] == ["OUTPUT_MISSING"]


def test_an_empty_stream_is_not_missing(scene: Scene) -> None:
    stream = feedback(scene, "done")["streams"]["stderr"]
    assert (stream["missing"], stream["size_bytes"], stream["tail"]) == (False, 0, "")


# -- text -----------------------------------------------------------------------------------


def text(scene: Scene, name: str, *words: str) -> str:
    result = call("feedback", "--db", str(scene.db), *words, scene.id(name), cwd=scene.folder)
    check(result)
    return result.stdout.decode()


def test_text_names_state_tails_and_what_to_do(scene: Scene) -> None:
    shown = text(scene, "dead")
    assert shown.splitlines() == [
        f"#{scene.id('dead')}  dead  failed",
        "exit_code: 3",
        "failure_reason: process_exit",
        "last_error: exit 3",
        "attempts: 1  recorded: 1",
        shown.splitlines()[5],
        "=== stdout (0 bytes) ===",
        "=== stderr (5 bytes) ===",
        "oops",
        f"next: spoolctl output {scene.id('dead')}",
    ]
    assert shown.splitlines()[5].startswith("duration_seconds: ")


def test_text_can_be_narrowed_to_one_stream(scene: Scene) -> None:
    assert "stdout" not in text(scene, "dead", "--stream", "stderr")
    assert "stderr" not in text(scene, "done", "--stream", "stdout")
    narrowed = feedback(scene, "dead", "--stream", "stderr")
    assert set(narrowed["streams"]) == {"stdout", "stderr"}


def test_text_shows_no_control_characters(scene: Scene) -> None:
    shown = text(scene, "noisy", "--tail-bytes", "65536")
    allowed = "\n\t" + JOINERS  # random bytes hold one now and then
    assert not [each for each in shown if category(each) in ("Cc", "Cf") and each not in allowed]

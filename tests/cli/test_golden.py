"""The exact text and JSON of every queue verb, kept as files.

A change of output shows up as a change of `tests/cli/golden`. To write them anew, after
looking at what has changed:

    python3 -m tests.cli.test_golden
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import join

from tests.helpers import clean_env

GOLDEN = Path(__file__).parent / "golden"

FIRST = (
    ["add", "--", "echo", "hello from spoolctl"],
    ["add", "--queue", "b", "--priority", "5", "--key", "k", "--tag", "t=1", "--note", "n\x1b[2J"],
    ["add", "--no-retry", "-c", "echo oops >&2; exit 3"],
    ["add", "--at", "2100-01-01T00:00:00Z", "--env", "A=1", "--", "true"],
)
FIRST[1].extend(["--", "printf", "%s\\n", "a b"])

STEPS: dict[str, list[list[str]]] = {
    "add": [*FIRST, FIRST[1], ["add", "--key", "k", "--", "false"], ["add"], ["add", "-p", "true"]],
    "look": [
        ["status"],
        ["list"],
        ["list", "--state", "queued", "--tag", "t", "--limit", "1"],
        ["show", "2"],
        ["events", "--job", "2"],
        ["output", "2"],
        ["cancel", "4"],
        ["cancel", "4"],
        ["cancel", "--running", "1"],
        ["retry", "1"],
    ],
    "work": [
        ["work", "--once", "--worker-id", "w"],
        ["work", "--drain", "--worker-id", "w"],
        ["work", "--once", "--worker-id", "w"],
    ],
    "after": [
        ["status"],
        ["show", "3"],
        ["output", "1"],
        ["output", "--stream", "stderr", "3"],
        ["output", "--attempt", "2", "3"],
        ["events", "--since-id", "6"],
        ["wait", "1"],
        ["wait", "1", "3"],
        ["wait", "99"],
        ["retry", "3"],
        ["prune", "--older-than", "0"],
        ["prune", "--older-than", "0", "--dry-run"],
        ["prune", "--older-than", "0", "--yes"],
        ["list"],
        ["backup", "copy.db"],
        ["backup", "copy.db"],
    ],
    "run": [
        ["run", "--", "echo", "hello"],
        ["run", "--no-retry", "-c", "echo out; echo err >&2; exit 3"],
        ["run", "--final-exit", "2", "--queue", "b", "-c", "exit 2"],
        ["run"],
        ["run", "--batch", "file"],
    ],
}
"""Scene -> calls, in order; each once for people and, if it only reads, once for programs."""

READING = ("status", "list", "show", "events", "output", "wait")


def play(folder: Path) -> Iterator[tuple[str, str]]:
    """Play all scenes in an empty folder; yields each with what came of it."""
    for scene, calls in STEPS.items():
        parts = []
        for words in calls:
            parts.append(run(folder, words))
            if words[0] in READING or scene == "work":
                parts.append(run(folder, [words[0], "--json", *words[1:]]))
        yield scene, "\n".join(parts)


def run(folder: Path, words: list[str]) -> str:
    """One call as a person would see it, with everything left out that differs each time."""
    env = clean_env({"TZ": "UTC", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(folder)})
    captured = ("LC_", "VIRTUAL_ENV", "CONDA_PREFIX")
    done = subprocess.run(
        [sys.executable, "-m", "spoolctl", *words],
        cwd=folder,
        env={name: value for name, value in env.items() if not name.startswith(captured)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        umask=0o022,
        check=False,
    )
    out = done.stdout
    if "--json" in words and out:
        out = json.dumps(json.loads(out), indent=1, ensure_ascii=True) + "\n"
    lines = [f"$ spoolctl {join(words)}".encode("unicode_escape").decode()]
    lines += [out.rstrip("\n")] if out else []
    lines += [f"! {line}" for line in done.stderr.splitlines()]
    lines += [f"= {done.returncode}"] if done.returncode else []
    return normal("\n".join(lines), folder) + "\n"


RULES = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|\+00:00)", "TIME"),
    (r"\b4102444800(\.0)?\b", "THE-YEAR-2100"),
    (r"\b1\d{9}(\.\d+)?\b", "EPOCH"),
    (r"\b(req_)[0-9a-f]{12}", r"\1ID"),
    (r"sha256:[0-9a-f]{64}", "HASH"),
    (r'("elapsed_ms"|"worker_pid"|"duration_seconds"): [\d.]+', r"\1: N"),
    (r'("tool_version"): "[^"]+"', r"\1: VERSION"),
    (r"\((\d+) bytes\)|(freed|freeing) \d+ bytes", r"\2 N bytes"),
    (r"\b\d+\.\d+s\b", "N.Ns"),
)


def normal(text: str, folder: Path) -> str:
    """The text without times, sizes, random ids and places."""
    text = text.replace(str(folder), "HERE")
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return text


def test_output_is_as_it_was(tmp_path: Path) -> None:
    kept = {scene: (GOLDEN / f"{scene}.txt").read_text("utf-8") for scene in STEPS}
    assert dict(play(tmp_path.resolve())) == kept


def main() -> None:
    """Write the files anew."""
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        for scene, text in play(Path(os.path.realpath(name))):
            (GOLDEN / f"{scene}.txt").write_text(text, "utf-8")


if __name__ == "__main__":
    main()

"""What is committed is fit for any machine: no paths of one, no registry's address."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT

# Spelled in pieces, so that this file does not find itself.
FORBIDDEN = re.compile(
    "|".join(
        [
            r"(?<![\w.])/ro" + r"ot/",
            r"(?<![\w.])/ho" + r"me/(?!(someone|somebody|me|user|alice|bob)\b)\w",
            r"(?<![\w.])/Us" + r"ers/\w",
            r"(?<![\w.])/wo" + r"rk/",
            r"\bpy" + r"pi\.(org|python)",
            r"python" + r"hosted\.",
            r"registry\.np" + r"mjs",
            r"\bdeb\.deb" + r"ian\.",
        ]
    )
)


def committed() -> list[Path]:
    """The files that git knows; skips the test where there is no git or no repository."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git repository here")
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_no_committed_file_names_a_machines_path_or_a_registry() -> None:
    found = []
    for path in committed():
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text("utf-8", "replace").split("\n"), 1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_the_search_finds_what_it_looks_for() -> None:
    assert FORBIDDEN.search("cd /ro" + "ot/project")
    assert FORBIDDEN.search("index-url = https://py" + "pi.org/simple")
    assert not FORBIDDEN.search("see docs/ho" + "me/page and $HOME/x and net/wo" + "rk/")


def test_nothing_generated_or_private_is_committed() -> None:
    names = [path.relative_to(ROOT).as_posix() for path in committed()]
    wrong = re.compile(r"(^|/)(__pycache__|\.venv|\.spoolctl|build|dist)/|\.(pyc|pyz|db)$")
    assert [name for name in names if wrong.search(name) and "/data/" not in name] == []


def test_scripts_that_people_call_are_executable() -> None:
    for name in ("scripts/test", "scripts/build-zipapp", ".ci/run"):
        assert (ROOT / name).stat().st_mode & 0o111, name

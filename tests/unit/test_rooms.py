"""Imports go down only: errors <- core <- store|process <- engine <- queue <- cli."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "spoolctl"

BASE = {"errors", "version"}
# Private folders, for all who keep files.
FILES = {"folders"}
BELOW_QUEUE = {"engine", "store", "process", "core", *FILES, *BASE}
# `Queue` and what it is made of: one room, spread over a few files.
QUEUE = {"queue", "asked", "config", "ready", "submission", "waiting"}
MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "core": {"core", *BASE},
    "folders": set(),
    "store": {"store", "core", *FILES, *BASE},
    "process": {"process", "core", *FILES, *BASE},
    "engine": {"engine", "store", "process", "core", *FILES, *BASE},
    **dict.fromkeys(QUEUE, QUEUE | BELOW_QUEUE),
    "cli": {"cli"} | QUEUE | BELOW_QUEUE,
    # The package itself and `python -m spoolctl` are the doors to the rest.
    "__init__": {"queue", *BASE},
    "__main__": {"cli", *BASE},
}

FROM_PACKAGE = {"Queue": "queue", "__version__": "version"}
"""Where the names live that `from spoolctl import ...` gives."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The first part below the package: a folder's name, or a top module's."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(source: str, *, room: str) -> set[str]:
    """Rooms that the source imports from, anywhere in it, by name or relatively."""
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            raise AssertionError(f"a relative import in {room}: write the whole name")
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "spoolctl":
                name = parts[1] if len(parts) > 1 else "__init__"
                rooms.add(FROM_PACKAGE.get(name, name))
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    room = room_of(path)
    wrong = imported_rooms(path.read_text("utf-8"), room=room) - MAY_IMPORT[room]
    assert not wrong, f"{room} imports {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_sqlite_is_known_under_its_store_alone(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if "sqlite" not in path.relative_to(PACKAGE).parts:
        assert "sqlite3" not in names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_too_large_to_read_at_once(path: Path) -> None:
    assert path.stat().st_size <= 24 * 1024


def test_the_check_sees_imports_inside_functions() -> None:
    source = "def f():\n    from spoolctl.cli import main\n    import spoolctl.engine.loop\n"
    assert imported_rooms(source, room="core") == {"cli", "engine"}

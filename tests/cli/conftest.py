"""Calls of the command line inside this process: fast enough for thousands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spoolctl.cli.main import main
from spoolctl.cli.render import Out
from tests.cli.contract_plugin import own_scene, pytest_terminal_summary, scene

__all__ = ["own_scene", "pytest_terminal_summary", "scene"]


class Result(NamedTuple):
    """What a call led to."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """stdout as text."""
        return self.out.decode()

    @property
    def envelope(self) -> dict[str, Any]:
        """stdout as the one JSON object of a call."""
        assert self.out.endswith(b"\n")
        whole: dict[str, Any] = json.loads(self.out)
        return whole

    @property
    def data(self) -> dict[str, Any]:
        """The data of a call that succeeded."""
        whole = self.envelope
        assert whole["ok"], whole["errors"]
        data: dict[str, Any] = whole["data"]
        return data

    @property
    def error(self) -> dict[str, Any]:
        """The one error of a call that failed."""
        whole = self.envelope
        assert not whole["ok"]
        assert whole["data"] is None
        (error,) = whole["errors"]
        assert error["exit_code"] == self.status
        assert error["message"] in self.err
        found: dict[str, Any] = error
        return found

    @property
    def warnings(self) -> list[str]:
        """The codes of the warnings."""
        return [each["code"] for each in self.envelope["warnings"]]


Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call spoolctl in a folder of its own, with no variables of ours."""
    for name in [each for each in os.environ if each.startswith("SPOOLCTL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*words: str) -> Result:
        with open(tmp_path / "out", "w+b") as out, open(tmp_path / "err", "w+b") as err:
            status = main(words, out=Out(out.fileno(), err.fileno()))
            out.seek(0)
            err.seek(0)
            return Result(status, out.read(), err.read().decode())

    return run


@pytest.fixture
def db(tmp_path: Path) -> str:
    """The path of a queue that is not there yet."""
    return str(tmp_path / "q" / "queue.db")

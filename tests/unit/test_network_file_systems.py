"""A queue on a network file system is refused before anything is made there."""

from __future__ import annotations

from pathlib import Path

import pytest

import spoolctl.queue
from spoolctl.errors import StoreUnusable
from spoolctl.queue import Queue


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spoolctl.queue, "file_system", lambda _path: "network")
    with pytest.raises(StoreUnusable) as caught:
        Queue(tmp_path / "queue.db")
    assert caught.value.kind == "unsupported"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["local", "shared", "unknown"])
def test_other_file_systems_serve(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spoolctl.queue, "file_system", lambda _path: kind)
    with Queue(tmp_path / "queue.db") as queue:
        assert queue.add(["true"]).id == 1

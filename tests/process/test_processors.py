"""How many processors we may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spoolctl.process import processors


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max 100000\n", None),
        ("100000 100000\n", 1.0),
        ("50000 100000\n", 0.5),
        ("99900000 100000\n", None),
        ("", None),
        ("many\n", None),
        ("1 0\n", None),
    ],
)
def test_a_containers_quota_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, limit: float | None
) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(text)
    monkeypatch.setattr(processors, "_QUOTA", str(tmp_path / "missing"))
    everything = processors.usable()
    assert everything >= 1
    monkeypatch.setattr(processors, "_QUOTA", str(path))
    assert processors.usable() == (everything if limit is None else limit)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="macOS binds to no processor")
def test_who_is_bound_to_one_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert processors.usable() <= 1

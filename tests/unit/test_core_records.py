"""Records are small: an `add` pays for importing them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spoolctl.core import paths, records
from tests.helpers import ROOT, clean_env

HEAVY = {"dataclasses", "subprocess", "logging", "asyncio", "random", "hashlib", "urllib.parse"}


def test_every_record_is_a_tuple_with_names() -> None:
    kinds = [
        value
        for value in vars(records).values()
        if isinstance(value, type) and value.__module__ == records.__name__
    ]
    assert len(kinds) > 20
    for kind in kinds:
        assert issubclass(kind, tuple), kind
        assert kind.__doc__, kind


@pytest.mark.parametrize(
    "module", ["spoolctl.core.records", "spoolctl.store.sqlite.store", "spoolctl.errors"]
)
def test_heavy_modules_stay_off_the_way_of_an_add(module: str) -> None:
    source = f"import sys; sys.path.insert(0, sys.argv[1]); import {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", source, str(ROOT)],
        cwd=ROOT,
        env=clean_env(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not HEAVY & set(done.stdout.split())


def test_streams_of_different_attempts_have_different_files() -> None:
    names = {
        paths.stream_path("/q.db", token, stream)
        for token in ("aa01", "aa02", "bb01")
        for stream in paths.STREAMS
    }
    assert len(names) == 6
    assert all(name.startswith(paths.support_dir("/q.db") + "/") for name in names)

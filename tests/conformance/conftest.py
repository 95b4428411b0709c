"""The stores under test. A new store adds one entry to `STORES`; the suite stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spoolctl.store import open_store
from spoolctl.store.protocol import Store
from tests.conformance.kit import Clock, Desk

OpenAgain = Callable[[], Store]


def sqlite_at(folder: Path) -> OpenAgain:
    """Opens the same SQLite queue as often as it is called."""
    return lambda: open_store(str(folder / "queue.db"), create=True, wait_s=5.0)


STORES = {"sqlite": sqlite_at}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=sorted(STORES))
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenAgain]:
    """Opens further connections to the queue of this test."""
    opened: list[Store] = []
    make = STORES[request.param](tmp_path)

    def again() -> Store:
        opened.append(make())
        return opened[-1]

    yield again
    for store in opened:
        store.close()


@pytest.fixture
def store(open_again: OpenAgain) -> Store:
    return open_again()


@pytest.fixture
def desk(store: Store, clock: Clock) -> Desk:
    return Desk(store, clock)

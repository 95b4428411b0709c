"""The benchmarks by name, and where they stand."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.base import Bench, Result

ALL = {
    "drain": "drain.against_floors",
    "slow-disk": "drain.on_a_slow_disk",
    "peers": "drain.against_peers",
    "workers": "drain.several_workers",
    "add": "adding.one",
    "batch": "adding.many",
    "dispatch": "latency.dispatch",
    "wait": "latency.settled",
    "idle": "idle.doing_nothing",
    "sleepers": "idle.sleepers",
    "million": "scale.million",
    "promotion": "scale.promotion",
    "prune": "scale.prune",
    "crowd": "crowd.crowd",
    "followers": "crowd.followers",
    "streams": "streams.large_stream",
}


def load(name: str) -> Callable[[Bench], list[Result]]:
    """The function that measures."""
    module, _, function = ALL[name].partition(".")
    found: Callable[[Bench], list[Result]] = getattr(
        importlib.import_module(f"benchmarks.{module}"), function
    )
    return found

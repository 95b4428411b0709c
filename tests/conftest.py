"""For all tests: signals as a program on a terminal has them; the longest tests begin first."""

from __future__ import annotations

import signal

import pytest

# A shell without job control lets what it starts in the background ignore SIGINT, nohup lets
# it ignore SIGHUP; every program under test would inherit that, and rightly keep it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that take long first, as one that begins last would run alone at the end."""
    items.sort(key=lambda item: -_seconds(item))


def _seconds(item: pytest.Item) -> float:
    mark = item.get_closest_marker("slow")
    return 0.0 if mark is None else float(mark.kwargs.get("seconds", 1.0))

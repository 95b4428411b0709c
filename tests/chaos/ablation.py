"""Switch off one mechanism in this process, to show that the suite finds what it prevents.

Used by `launch.py` alone: the product itself has no such switches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

ABLATIONS: dict[str, Callable[[], None]] = {}
"""Name of the mechanism -> what takes it away."""


def switch_off(names: Iterable[str]) -> None:
    """Take these mechanisms away from this process."""
    for name in names:
        ABLATIONS[name]()

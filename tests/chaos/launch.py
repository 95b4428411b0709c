"""Start a worker for a storm: with a wall clock that can be stepped, and without a mechanism.

    python -m tests.chaos.launch DB JSON

JSON: the members of `WorkOptions`, and `clock` (a file of one double, seconds to add to
the wall clock; it may be changed at any time) and `without` (names from `ablation.py`).
"""

from __future__ import annotations

import json
import sys

from spoolctl.engine.log import LineLog
from spoolctl.engine.options import WorkOptions
from spoolctl.engine.worker import Worker
from spoolctl.errors import SpoolError
from spoolctl.store import open_store
from tests.chaos.clocks import SteppedClock


def main() -> int:
    """Work as told; 3 if the queue could not be used (any more)."""
    db, text = sys.argv[1:]
    asked = json.loads(text)
    without = asked.pop("without")
    if without:
        from tests.chaos.ablation import switch_off

        switch_off(without)
    clock = SteppedClock(asked.pop("clock"))
    lanes = asked.pop("lanes")
    options = WorkOptions(lanes=None if lanes is None else tuple(lanes), **asked)
    log = LineLog(2)
    try:
        store = open_store(db, create=True, wait_s=0.0)
        result = Worker(store, options, log=log, clock=clock).run()
    except (SpoolError, OSError) as error:
        log(f"spoolctl: cannot work: {error}")
        return 4
    if result.failure is not None:
        log(f"spoolctl: gave up: {result.failure}")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())

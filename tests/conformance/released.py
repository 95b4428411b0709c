"""Makes the file that stands for a released layout: a job of every kind.

    python -m tests.conformance.released tests/conformance/data/layout-1.db

Run once, by the version that releases the layout; the file is never made again.
"""

from __future__ import annotations

import os
import sys

from spoolctl.core.records import Capture, Context
from spoolctl.core.retry import RetryPolicy
from spoolctl.store import open_store
from tests.conformance.kit import Clock, Desk, failure, final_exit, success


def make(path: str) -> None:
    """Fill a new queue at `path`."""
    store = open_store(path, create=True, wait_s=1.0)
    desk = Desk(store, Clock())
    desk.add("echo", "hello", note="done", tags=(("kind", "example"),), key="k", stdin=b"in")
    desk.report(success(desk.claim_one(), stdout=Capture(6, b"hello\n")))
    desk.add("false", note="dead", max_retries=1)
    desk.run(failure)
    desk.clock.advance(10.0)
    desk.run(failure)
    desk.add("false", note="failed", policy=final_exit(3), queue="other")
    desk.report(failure(desk.claim_one(), stderr=Capture(10**6, None, dropped_bytes=7)))
    desk.add("sleep", "1", note="running", env=(("A", "1"),), cwd="/srv")
    desk.claim_one()
    desk.add("true", note="canceled")
    desk.cancel(5)
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    desk.add(odd, note="queued", context=Context("/" + odd, None, ()), priority=-1)
    desk.add("true", note="scheduled", run_at=desk.clock.at + 86_400.0)
    policy = RetryPolicy(delays_s=(60.0,), retry_for_s=3600.0)
    desk.add("false", note="waiting", policy=policy, max_crashes=None, timeout_s=None)
    desk.run(failure)
    store.note_recovery([4], verdict="unclear", reason="cannot see", now=desk.clock.now())
    while store.compact(pages=100):
        pass
    store.close()


if __name__ == "__main__":
    make(sys.argv[1])
    os.chmod(sys.argv[1], 0o644)

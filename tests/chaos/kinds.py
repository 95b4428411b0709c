"""What a storm's jobs do: a mix of behaviours, weighted, as words for job.py."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from tests.chaos.run import JOB_CONTROL


class Kind(NamedTuple):
    """One behaviour. `life_s`: range of the main process's life; `out`: of its output in bytes.

    Children that outlive what a success may leave running stand only with jobs that never
    succeed.
    """

    weight: int
    life_s: tuple[float, float]
    words: dict[str, Any]
    timeout_s: int = 20
    out: tuple[int, int] = (0, 20_000)
    wrap: tuple[str, ...] = ()


KINDS = {
    "quick": Kind(26, (0.0, 0.2), {}),
    "slow": Kind(12, (0.5, 2.5), {}),
    "loud": Kind(3, (0.0, 1.0), {}, out=(100_000, 300_000)),
    "fails": Kind(8, (0.0, 0.3), {"exit": 3}),
    "fails twice": Kind(6, (0.0, 0.3), {"exit": 3, "until": 3}),
    "times out": Kind(4, (30, 30), {}, timeout_s=1),
    "times out, ignores TERM": Kind(3, (30, 30), {"term": "ignore"}, timeout_s=1),
    "times out with children": Kind(
        3, (30, 30), {"child": "plain,group,setsid,double", "child_life": 20}, timeout_s=1
    ),
    "fails, its session goes on": Kind(
        4, (0.0, 0.5), {"exit": 3, "child": "plain,setsid", "child_life": 20}
    ),
    "fails, its daemon ignores TERM": Kind(
        3, (0.1, 0.5), {"exit": 3, "child": "double", "child_life": 20, "child_term": "ignore"}
    ),
    "fails, its daemon has no files": Kind(
        3, (0.0, 0.5), {"exit": 3, "child": "bare", "child_life": 20}
    ),
    "fails, its daemon has no environment": Kind(
        3, (0.1, 0.5), {"exit": 3, "child": "clean", "child_life": 20}
    ),
    "fails, its child has neither": Kind(
        2, (0.0, 0.5), {"exit": 3, "child": "mute", "child_life": 3}
    ),
    "slow, with a daemon": Kind(4, (0.5, 2.0), {"child": "setsid,double,bare", "child_life": 2}),
    "leaves a daemon that writes": Kind(
        3, (0.0, 0.5), {"child": "double", "child_life": 1, "err": 20_000, "err_by": "child"}
    ),
    "fails, a child is stopped": Kind(2, (0.1, 0.5), {"exit": 3, "child": "stop", "child_life": 1}),
    "fails, a fork storm goes on": Kind(
        2, (0.0, 0.3), {"exit": 3, "child": "storm", "child_life": 5}
    ),
    "under job control": Kind(4, (0.2, 1.5), {"child": "group"}, wrap=JOB_CONTROL),
}


def draw(rng: random.Random) -> tuple[Kind, dict[str, Any], dict[str, Any]]:
    """A kind, its words for job.py, and options of the job."""
    kind = rng.choices(list(KINDS.values()), [kind.weight for kind in KINDS.values()])[0]
    words = {
        "life": round(rng.uniform(*kind.life_s), 2),
        "out": rng.choice((0, rng.randint(*kind.out))),
        "err": rng.choice((0, rng.randint(0, 3000))),
        **kind.words,
    }
    options: dict[str, Any] = {
        "timeout_s": kind.timeout_s,
        "max_retries": rng.choice((0, 1, 2)),
        "max_crashes": rng.choice((0, 2, 20, None)),
        "queue": rng.choice(("default", "default", "default", "narrow")),
        "priority": rng.randint(-1, 1),
    }
    if rng.random() < 0.1:
        options["delay_s"] = rng.uniform(0, 2)
    return kind, words, options

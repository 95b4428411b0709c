#!/usr/bin/env python3
"""Kill an agent again and again at random moments; its last successor finishes the work.

    python3 examples/agent-handover/handover.py                 10 agents are killed
    python3 examples/agent-handover/handover.py --kills 50 --seed 7

Every agent gets nothing but a folder. In the end there are exactly twenty jobs, all done, and
the last agent prints their verdicts; exit status 0 means that this is so.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from spoolctl import Queue  # noqa: E402

JOBS = 20


def start(folder: Path, *, show: bool) -> subprocess.Popen[bytes]:
    """An agent in the folder, in a process group of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "SPOOLCTL_DB"}
    return subprocess.Popen(
        [sys.executable, str(HERE / "agent.py"), str(folder)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=None if show else subprocess.DEVNULL,
        stderr=None if show else subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_at(agent: subprocess.Popen[bytes], moment_s: float, *, whole_group: bool) -> bool:
    """SIGKILL the agent (and its worker) after so long; False if it had ended by itself."""
    try:
        agent.wait(moment_s)
    except subprocess.TimeoutExpired:
        if whole_group:
            os.killpg(agent.pid, signal.SIGKILL)
        else:
            agent.kill()
        agent.wait()
        return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=10, help="how many agents to kill (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments (1)")
    args = parser.parse_args()
    choose = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="agent-handover.") as scratch:
        folder = Path(scratch)
        (folder / ".spoolctl").mkdir(mode=0o700)  # the queue of this folder, of no one above
        killed = 0
        for _ in range(args.kills):
            agent = start(folder, show=False)
            whole_group = choose.random() < 0.5
            killed += kill_at(agent, choose.uniform(0.05, 3.0), whole_group=whole_group)
        ended = start(folder, show=True).wait()
        with Queue(folder / ".spoolctl" / "queue.db", create=False) as queue:
            keys = Counter(job.key for job in queue.jobs(limit=1000))
            states = Counter(job.state.value for job in queue.jobs(limit=1000))
            crashes = sum(e.event.value == "reaped" for e in queue.events(limit=None).events)
        once = len(keys) == JOBS and set(keys.values()) == {1}
        print(f"agents killed: {killed}; jobs: {sum(keys.values())}, done: {states['done']};")
        print(f"attempts taken back from killed workers: {crashes}")
        print("each job was submitted once" if once else "NOT each job was submitted once")
        return ended or not (once and states["done"] == JOBS)


if __name__ == "__main__":
    sys.exit(main())

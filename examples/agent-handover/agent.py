#!/usr/bin/env python3
"""An agent that may be killed at any moment: all that it knows is in the folder's queue.

    python3 examples/agent-handover/agent.py FOLDER

It submits twenty jobs, each under a key that protects for ever, works until they have settled
and prints one verdict per job. Whoever starts it again in the same folder, knowing nothing of
the agent before, goes on where that one died: a key that is taken means "already submitted".
Exit status 0: every job is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
JOBS = 20


def spoolctl(*words: str) -> dict[str, Any]:
    """One call; its data. Ends the agent with the tool's own message on failure."""
    done = subprocess.run(
        [sys.executable, "-m", "spoolctl", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    envelope = json.loads(done.stdout)
    if not envelope["ok"]:
        sys.exit(f"agent: {envelope['errors'][0]['message']}")
    data: dict[str, Any] = envelope["data"]
    return data


def submit() -> list[int]:
    """Submit every job exactly once, however often this is called; the ids in order."""
    ids = []
    for number in range(1, JOBS + 1):
        # The command's side effect: one line per run. Its output: the answer.
        script = f"echo {number} >> ran.log; echo $(({number} * {number}))"
        key = ["--key", f"square-{number}", "--key-for", "ever"]
        ids.append(int(spoolctl("add", "--json", *key, "-c", script)["job_id"]))
    return ids


def main() -> int:
    os.chdir(sys.argv[1])
    ids = submit()
    # This worker ends when nothing is left. Of an agent before us one may still be at it;
    # if it was killed as well, its jobs come back as soon as its death is proven.
    spoolctl("work", "--json", "--drain", "-j", "2", "--reap-after", "1")
    spoolctl("wait", "--json", *map(str, ids))
    verdicts = [spoolctl("feedback", "--json", str(job_id)) for job_id in ids]
    for number, verdict in enumerate(verdicts, 1):
        answer = verdict["streams"]["stdout"]["tail"].strip()
        print(f"square-{number}: {verdict['state']}, answer {answer}")
    return 0 if all(verdict["succeeded"] for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

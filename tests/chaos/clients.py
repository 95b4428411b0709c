"""Verbs run as programs, which may be killed before they have an answer."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.chaos.history import Act
from tests.chaos.ledger import boot_time
from tests.chaos.run import Run
from tests.helpers import ROOT, clean_env

REFUSALS = (1, 2, 4, 5)
"""Exit codes that say that nothing was changed: no such job, not now, locked, a conflict."""


class Client:
    """One verb at work."""

    def __init__(self, run: Run, kind: str, words: Sequence[str], job_id: int | None) -> None:
        self.kind = kind
        self.job_id = job_id
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - closed when heard
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spoolctl", kind, "--db", str(run.db), "--json", *words],
            cwd=ROOT,
            env=clean_env(),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.DEVNULL,
        )

    @classmethod
    def add(cls, run: Run, command: Sequence[str], *, queue: str, key: str) -> Client:
        """`spoolctl add`."""
        flags = ["--queue", queue, "--key", key, "--timeout", "5"]
        flags += ["--max-retries", "1", "--max-crashes", "2"]
        return cls(run, "add", [*flags, "--", *command], None)

    @classmethod
    def change(cls, run: Run, verb: str, job_id: int) -> Client:
        """`spoolctl cancel` or `spoolctl retry`, whatever the job does."""
        flags = ["--running", "--yes"] if verb == "cancel" else []
        return cls(run, verb, [*flags, str(job_id)], job_id)

    def kill(self) -> None:
        """SIGKILL it, if it has not ended."""
        self._process.kill()

    def heard(self, run: Run) -> bool:
        """Whether it has ended; then what it said is noted."""
        if self._process.poll() is None:
            return False
        self._out.seek(0)
        text = self._out.read()
        self._out.close()
        if self._process.returncode in REFUSALS or b"no room on the disk" in text:
            return True
        if self._process.returncode != 0:
            run.acts.append(Act(self.kind, self.job_id, sure=False, at=boot_time()))
            if self._process.returncode > 0:
                run.faults.append(f"{self.kind} failed: {text.decode(errors='replace')[-500:]}")
            return True
        answer = json.loads(text)
        job_id = answer["data"]["job_id"]
        gone = answer["data"].get("was_running", False) and not answer["warnings"]
        run.acts.append(Act(self.kind, job_id, at=boot_time(), gone=gone))
        return True

    def finish(self, run: Run) -> None:
        """Wait for its end and note what it said."""
        self._process.wait()
        self.heard(run)

"""The workers of a run: started, killed, stopped, and what is known of their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos import history
from tests.chaos.clocks import step_clock
from tests.chaos.ledger import boot_time
from tests.helpers import ROOT, clean_env

# Short times, so that everything that can happen to a worker happens often.
TIMES: dict[str, Any] = {
    "heartbeat_interval_s": 0.1,
    "reap_after_s": 0.5,
    "grace_s": 0.3,
    "poll_interval_s": 0.5,
}

GUARDIAN = b"guardian of"

NO_START = ("No space left", "disk is full", "locked")
"""What a worker may say that cannot even start."""


class Member:
    """One worker process, and what has been done to it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process
        self.doomed: float | None = None
        self.dead: float | None = None
        self.guarded = True
        self.killed = False
        self.stopped = False
        self.harmed = False
        self.terms = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def fact(self) -> history.Worker:
        """What the checker is told of it."""
        dead = self.dead if self.killed else None
        return history.Worker(self.name, self.pid, self.doomed, dead, self.guarded)


class Fleet:
    """All workers of a run. `alive` are those whose end has not been seen; `kills` counts the
    SIGKILLs that met a living worker, `pairs` those that took its guardian, too."""

    def __init__(self, db: Path, folder: Path, *, without: Sequence[str] = ()) -> None:
        self.db = db
        self.folder = folder
        self.without = tuple(without)
        self.alive: list[Member] = []
        self.all: list[Member] = []
        self.faults: list[str] = []
        self.kills = 0
        self.pairs = 0
        (folder / "logs").mkdir(parents=True)
        self.set_clock("true", 0.0)

    def set_clock(self, name: str, offset_s: float) -> None:
        """Step the wall clock of all workers that live by the clock of this name."""
        step_clock(self.folder / f"clock.{name}", offset_s)

    def start(
        self, *, clock: str = "true", without: Sequence[str] | None = None, **options: Any
    ) -> Member:
        """Start a worker with short times; `options` are members of `WorkOptions`."""
        name = f"w{len(self.all) + 1}"
        asked = {
            **TIMES,
            "lanes": ["default"],
            "worker_id": name,
            "clock": str(self.folder / f"clock.{clock}"),
            "without": list(self.without if without is None else without),
            **options,
        }
        with open(self.log_path(name), "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.launch", str(self.db), json.dumps(asked)],
                cwd=ROOT,
                env=clean_env(),
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        member = Member(name, process)
        self.alive.append(member)
        self.all.append(member)
        return member

    def log_path(self, name: str) -> Path:
        """Where a worker's stderr goes."""
        return self.folder / "logs" / name

    def log(self, member: Member) -> str:
        """What a worker has said so far."""
        return self.log_path(member.name).read_text(errors="replace")

    # -- violence -----------------------------------------------------------------------

    def children_of(self, member: Member) -> dict[int, bytes]:
        """The processes that a worker has started, by pid, with their words."""
        found = {}
        with suppress(OSError):
            children = Path(f"/proc/{member.pid}/task/{member.pid}/children").read_text().split()
            for pid in children:
                found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes()
        return found

    def guardian_of(self, member: Member) -> int | None:
        """The pid of a worker's guardian, if it has one now."""
        children = self.children_of(member)
        return next((pid for pid, words in children.items() if GUARDIAN in words), None)

    def commands_of(self, member: Member) -> list[int]:
        """The pids of the commands that a worker runs now."""
        children = self.children_of(member)
        return [pid for pid, words in children.items() if words and GUARDIAN not in words]

    def kill(self, member: Member, *, guardian: bool = False, group: bool = False) -> None:
        """SIGKILL a worker: alone, with its guardian, or with its whole process group."""
        watcher = self.guardian_of(member)
        healthy = watcher is not None and state_of(watcher) in "SR"
        member.guarded = not guardian and (healthy or not member.harmed)
        if guardian and watcher is not None:
            for pid in (member.pid, watcher):  # neither must see the other's end
                send(pid, signal.SIGSTOP)
        self._doom(member)
        if guardian and watcher is not None:
            send(watcher, signal.SIGKILL)
        if member.process.poll() is not None:
            return
        member.killed = True
        self.kills += 1
        self.pairs += guardian and watcher is not None
        if group:
            os.killpg(member.pid, signal.SIGKILL)
        else:
            member.process.kill()

    def harm_guardian(self, member: Member, number: signal.Signals) -> int | None:
        """Kill or freeze a worker's guardian; its pid, if there was one."""
        watcher = self.guardian_of(member)
        if watcher is not None:
            member.harmed = True
            send(watcher, number)
        return watcher

    def terminate(self, member: Member) -> None:
        """Ask a worker to stop; the second time means: at once."""
        self._doom(member)
        member.terms += 1
        member.process.send_signal(signal.SIGTERM)

    def _doom(self, member: Member) -> None:
        if member.doomed is None:
            member.doomed = boot_time()

    def stop(self, member: Member) -> None:
        """Freeze a worker."""
        member.stopped = True
        member.process.send_signal(signal.SIGSTOP)

    def resume(self, member: Member) -> None:
        """Let a frozen worker go on."""
        member.stopped = False
        member.process.send_signal(signal.SIGCONT)

    # -- the end ------------------------------------------------------------------------

    def poll(self) -> list[Member]:
        """Collect the workers that have ended; note those that did not end as they should."""
        ended = [member for member in self.alive if member.process.poll() is not None]
        for member in ended:
            self.alive.remove(member)
            member.dead = boot_time()
            if member.process.returncode == -signal.SIGKILL and member.doomed is None:
                member.doomed, member.killed = 0.0, True  # by a mishap of its own
            self._judge(member)
        return ended

    def _judge(self, member: Member) -> None:
        code, log = member.process.returncode, self.log(member)
        if "Traceback" in log:
            self.faults.append(f"worker {member.name} crashed: {log[-2000:]}")
        elif member.killed:
            pass
        elif code not in (0, 4) and not (code == -signal.SIGTERM and member.terms):
            # (By the signal itself if it came before the interpreter was up.)
            self.faults.append(f"worker {member.name} exited with {code}: {log[-1000:]}")
        elif code == 4 and not any(words in log for words in NO_START):
            self.faults.append(f"worker {member.name} could not work: {log[-1000:]}")

    def end_all(self) -> None:
        """SIGKILL whatever is left; for the end of a test."""
        for member in self.alive:
            send(member.pid, signal.SIGCONT)
            member.process.kill()
            member.process.wait()
        self.alive.clear()


def send(pid: int, number: signal.Signals) -> bool:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def state_of(pid: int) -> str:
    """The letter of a process's state (proc(5)); `X` if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"

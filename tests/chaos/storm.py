"""A seeded storm on one queue: workers die, freeze and leave, clients die, disks fill up.

The seed decides which blows fall in which order; to whom and when depends on the machine, too.
What was done is in the run's acts and in the fleet's members, for the checker.
"""

from __future__ import annotations

import heapq
import itertools
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.chaos import kinds
from tests.chaos.clients import Client
from tests.chaos.fleet import Member, send
from tests.chaos.run import Run

PACE_S = 0.07
"""Mean time between two blows."""

LOOK_S = 0.02
"""How often to look after workers, clients and events."""

RUNS = ("claimed",)
WAITS = ("reaped", "failed", "timed_out", "released", "retried")
ENDED = ("dead", "canceled", "failed_final")
"""A job's latest event, and what it tells of the job's state."""

STEPS_S = (0.0, 5.0, -5.0, 3600.0, -3600.0, 365.25 * 86400, -365.25 * 86400)
CEILING = 2
NARROW: dict[str, Any] = {"lanes": ["narrow"], "slots": CEILING}


class Storm:
    """Raises a storm until `over` says so; then lets it calm down and settles the queue.

    `workers` at a time; `backlog` jobs wait or run at least.
    """

    def __init__(self, run: Run, seed: int, *, workers: int, backlog: int) -> None:
        self.run = run
        # The order of the blows must not depend on how often the rest asks for a number.
        self._blows = random.Random(f"{seed} blows")
        self.rng = rng = random.Random(seed)
        self.workers = workers
        self.backlog = backlog
        self.did: Counter[str] = Counter()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = itertools.count()
        self._clients: list[Client] = []
        self._holders: list[subprocess.Popen[bytes]] = []
        self._next = 0.0
        self._next_fill = 0.0
        self._keys = 0
        run.ceilings = {"narrow": CEILING}
        for clock in ("early", "late"):
            run.fleet.set_clock(clock, rng.choice(STEPS_S))

    def rage(self, over: Callable[[], bool]) -> None:
        """Strike until it is over."""
        looked = 0.0
        while not over():
            now = time.monotonic()
            if now - looked > LOOK_S:
                looked = now
                self._keep_up()
            while self._later and self._later[0][0] <= now:
                heapq.heappop(self._later)[2]()
            if now >= self._next:
                self._next = now + self.rng.expovariate(1 / PACE_S)
                self._strike()
            time.sleep(0.005)

    def calm(self, *, timeout_s: float = 120.0) -> None:
        """Undo what can be undone, let all workers finish, then settle what is left."""
        while self._later:
            heapq.heappop(self._later)[2]()
        for client in self._clients:
            client.finish(self.run)
        for holder in self._holders:
            holder.kill()
            holder.wait()
        fleet = self.run.fleet
        for member in fleet.alive:
            fleet.resume(member)
            fleet.terminate(member)
        until = time.monotonic() + 60
        while fleet.alive and time.monotonic() < until:
            fleet.poll()
            self.run.watch()
            time.sleep(0.01)
        for member in fleet.alive:
            self.run.faults.append(f"worker {member.name} does not end on SIGTERM")
            fleet.kill(member)
        time.sleep(0.6)  # for the dead to be silent: longer than the threshold of recovery
        self.run.drain([{"lanes": ["default"]}, NARROW], timeout_s=timeout_s)

    def _keep_up(self) -> None:
        """Replace the dead, add jobs, look at the events, hear what clients say."""
        fleet = self.run.fleet
        fleet.poll()
        while len(fleet.alive) < self.workers:
            self._start_worker()
        self.run.watch()
        self._clients = [one for one in self._clients if not one.heard(self.run)]
        if self.run.unsettled() < self.backlog:
            self._add()

    def _start_worker(self) -> None:
        rng = self.rng
        options = dict(rng.choice(({"lanes": ["default"]}, {"lanes": ["default"]}, NARROW)))
        if rng.random() < 0.1:
            options["max_jobs"] = rng.randint(1, 20)
        if rng.random() < 0.1:
            options["inline_bytes"] = 1000
        clock = rng.choice(("true", "early", "late"))
        member = self.run.fleet.start(clock=clock, jobs=rng.randint(1, 4), **options)
        if "max_jobs" in options:
            member.doomed = 0.0  # ends by itself at any time

    # -- blows --------------------------------------------------------------------------

    def _strike(self) -> None:
        blow = self._blows.choices(list(BLOWS), [weight for weight, _ in BLOWS.values()])[0]
        self.did[blow] += 1
        BLOWS[blow][1](self)

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._turn), call))

    def _victim(self) -> Member | None:
        return self.rng.choice(self.run.fleet.alive) if self.run.fleet.alive else None

    def _kill(self) -> None:
        if victim := self._victim():
            self.run.fleet.kill(victim)

    def _kill_group(self) -> None:
        if victim := self._victim():
            self.run.fleet.kill(victim, group=True)

    def _kill_both(self) -> None:
        if victim := self._victim():
            self.run.fleet.kill(victim, guardian=True)

    def _kill_guardian(self) -> None:
        if victim := self._victim():
            self.run.fleet.harm_guardian(victim, signal.SIGKILL)

    def _freeze_guardian(self) -> None:
        """A guardian that wakes up long after its worker's death must not hurt newer attempts."""
        victim = self._victim()
        guardian = self.run.fleet.harm_guardian(victim, signal.SIGSTOP) if victim else None
        if victim and guardian:
            self.run.fleet.kill(victim)
            self._after(self.rng.uniform(0.2, 3), lambda: _wake(guardian))

    def _kill_command(self) -> None:
        victim = self._victim()
        commands = self.run.fleet.commands_of(victim) if victim else []
        if commands:
            send(self.rng.choice(commands), signal.SIGKILL)

    def _freeze(self) -> None:
        victim = self._victim()
        if victim is None or victim.stopped:
            return
        fleet = self.run.fleet
        fleet.stop(victim)
        wake = fleet.kill if self.rng.random() < 0.3 else fleet.resume
        self._after(
            self.rng.uniform(0.1, 2.5), lambda: wake(victim) if victim in fleet.alive else None
        )

    def _terminate(self) -> None:
        if victim := self._victim():
            self.run.fleet.terminate(victim)

    def _terminate_twice(self) -> None:
        victim = self._victim()
        if victim is None:
            return
        fleet = self.run.fleet
        fleet.terminate(victim)
        again = self.rng.uniform(0, 0.3)
        self._after(again, lambda: fleet.terminate(victim) if victim in fleet.alive else None)

    def _step_clock(self) -> None:
        self.run.fleet.set_clock(self.rng.choice(("early", "late")), self.rng.choice(STEPS_S))

    def _add(self) -> None:
        kind, words, options = kinds.draw(self.rng)
        if self.rng.random() < 0.15:
            options["key"] = self._key()
        self.run.add(self.run.command(wrap=kind.wrap, **words), **options)

    def _key(self) -> str:
        """A new one, or the latest again."""
        self._keys += self.rng.random() < 0.5
        return f"key-{self._keys}"

    def _job(self, *latest: str) -> int | None:
        """A job by its latest event, rather a recent one."""
        known = self.run.latest
        found = [job for job in reversed(known) if known[job].event in latest][:30]
        return self.rng.choice(found) if found else None

    def _cancel(self) -> None:
        if job_id := self._job("added", *RUNS, *WAITS):
            self.run.cancel(job_id)

    def _retry(self) -> None:
        if job_id := self._job(*ENDED):
            self.run.retry(job_id)

    def _force(self) -> None:
        if job_id := self._job(*RUNS):
            self.run.retry(job_id, force=True)

    def _cancel_and_retry(self) -> None:
        job_id = self._job(*RUNS)
        if job_id and self.run.cancel(job_id):
            self.run.retry(job_id)

    def _prune(self) -> None:
        self.run.prune(self.rng.choice((0.0, 1.0, 5.0)))

    def _client(self) -> None:
        """A verb on the command line, killed at some moment or left alone."""
        verb = self.rng.choice(("add", "cancel", "cancel", "retry"))
        job_id = self._job(*(ENDED if verb == "retry" else RUNS))
        if verb == "add":
            _, words, options = kinds.draw(self.rng)
            command, key = self.run.command(**words), self._key()
            client = Client.add(self.run, command, queue=options["queue"], key=key)
        elif job_id is None:
            return
        else:
            client = Client.change(self.run, verb, job_id)
        if self.rng.random() < 0.7:
            self._after(self.rng.uniform(0.05, 0.4), client.kill)
        self._clients.append(client)

    def _hold_lock(self) -> None:
        """Another program keeps the database locked for a while."""
        self._holders = [one for one in self._holders if one.poll() is None]
        if not self._holders:
            seconds = str(self.rng.uniform(0.1, 1.0))
            words = [sys.executable, "-I", "-c", HOLD, str(self.run.db), seconds]
            self._holders.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))

    def _fill_disk(self) -> None:
        """Take all the room on the queue's file system for a moment."""
        disk = self.run.disk
        if disk is None or time.monotonic() < self._next_fill:
            self.did["fill disk"] -= 1
            return
        self._next_fill = time.monotonic() + 5
        disk.fill()
        self._after(self.rng.uniform(0.2, 1.5), disk.free)


def _wake(pid: int) -> None:
    send(pid, signal.SIGCONT)


HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=5)
connection.execute("BEGIN IMMEDIATE")
time.sleep(float(sys.argv[2]))
connection.execute("ROLLBACK")
"""

BLOWS: dict[str, tuple[int, Callable[[Storm], None]]] = {
    "kill worker": (30, Storm._kill),
    "kill worker's group": (6, Storm._kill_group),
    "kill worker and guardian": (10, Storm._kill_both),
    "kill guardian": (6, Storm._kill_guardian),
    "freeze guardian, kill worker": (3, Storm._freeze_guardian),
    "kill command": (3, Storm._kill_command),
    "freeze worker": (8, Storm._freeze),
    "terminate": (3, Storm._terminate),
    "terminate twice": (3, Storm._terminate_twice),
    "step clock": (5, Storm._step_clock),
    "add": (5, Storm._add),
    "cancel": (6, Storm._cancel),
    "retry": (6, Storm._retry),
    "retry --force": (5, Storm._force),
    "cancel and retry": (5, Storm._cancel_and_retry),
    "prune": (2, Storm._prune),
    "client": (8, Storm._client),
    "hold lock": (2, Storm._hold_lock),
    "fill disk": (2, Storm._fill_disk),
}

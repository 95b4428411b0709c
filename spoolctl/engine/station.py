"""A worker's place in the support folder: lock, roster, doorbells, guardian.

What stands here outlives nothing: it is made when a worker starts and removed when it ends
in good order; what a killed worker leaves is swept by others.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from spoolctl.core.paths import waiters_dir, worker_lock, workers_dir
from spoolctl.core.records import Identity
from spoolctl.engine.attempt import Slot
from spoolctl.engine.children import Children
from spoolctl.folders import make_folder
from spoolctl.process import locks
from spoolctl.process.bell import Bell, Ringer
from spoolctl.process.guardian import Guardian
from spoolctl.process.identity import self_identity
from spoolctl.process.roster import Roster

# A guardian that ends at once, again and again, must not turn its worker into a fork bomb.
_RESTART_PAUSE_S = 1.0


class Station:
    """What one worker keeps open beside the database."""

    def __init__(
        self, db_path: str, slots: int, *, grace_s: float, waits: bool, frees_slots: bool = False
    ) -> None:
        """Make the files. `waits`: ring this worker when anything settles too (drain).

        `frees_slots`: other workers wait for what it frees. Raises OSError.
        """
        self.token = os.urandom(16).hex()
        self._db_path = db_path
        self._grace_s = grace_s
        self._folder = workers_dir(db_path)
        # Folders first: whatever comes after the roster cannot fail, and leave it locked.
        make_folder(self._folder)
        if waits:
            make_folder(waiters_dir(db_path))
        self._roster_path = worker_lock(db_path, self.token)
        self.roster = Roster.create(self._roster_path, slots)
        self.bells = [Bell.create(self._folder, self.token)]
        if waits:
            self.bells.append(Bell.create(waiters_dir(db_path), self.token))
        self._workers = Ringer(self._folder, self.token)
        self._ringers = [Ringer(waiters_dir(db_path), self.token)]
        if frees_slots:
            self._ringers.append(self._workers)
        self.slots = [Slot(db_path, self.token, index) for index in range(slots)]
        self._guardian: Guardian | None = None
        self._guardian_at = 0.0

    @property
    def identity(self) -> Identity:
        """Who this worker is, its lock file included."""
        return self_identity(self.roster.dev, self.roster.ino)

    @property
    def guarded(self) -> bool:
        """Whether the guardian runs, as far as is known."""
        return self._guardian is not None

    def bell_fds(self) -> list[int]:
        """Descriptors that become readable when somebody rings."""
        return [bell.fd for bell in self.bells if bell.fd is not None]

    def ring(self) -> None:
        """Wake those who wait for the end of jobs, and workers that wait for a slot."""
        for ringer in self._ringers:
            ringer.ring()

    def offer(self) -> None:
        """Wake other workers: what was ours stands in the queue again."""
        self._workers.ring()

    def hush(self) -> None:
        """Take note of all rings so far."""
        for bell in self.bells:
            bell.drain()

    def missing_bells(self) -> bool:
        """Whether a doorbell's file has disappeared (polling goes on without it)."""
        path = os.path.join(self._folder, f"{self.token}.bell")
        return self.bells[0].fd is not None and not os.path.exists(path)

    def renew_bells(self) -> None:
        """Put the doorbell up again after somebody removed the support folder. May fail."""
        with suppress(OSError):
            make_folder(self._folder)
            self.bells[0].close()
            self.bells[0] = Bell.create(self._folder, self.token)

    def ensure_guardian(self, mono: float) -> int | None:
        """Start the guardian, unless it runs, or ended a moment ago: the pid of a new one.

        Raises OSError.
        """
        if self._guardian is not None or mono < self._guardian_at:
            return None
        self._guardian_at = mono + _RESTART_PAUSE_S
        path = os.path.join(self._folder, f"{self.token}.guard")
        guard_fd = locks.take(path)
        if guard_fd is None:
            raise OSError(errno.EWOULDBLOCK, "its lock is held by a stranger", path)
        try:
            self._guardian = Guardian.start(
                self._roster_path, guard_fd, roster_fd=self.roster.fd, grace_s=self._grace_s
            )
        finally:
            os.close(guard_fd)
        return self._guardian.pid

    def guardian_ended(self) -> None:
        """It was collected, and is due for replacement."""
        if self._guardian is not None:
            self._guardian.let_go()
            self._guardian = None

    def relieve_guardian(self, children: Children) -> None:
        """The worker starts nothing any more: end the guardian if nothing is announced."""
        if self._guardian is not None:
            children.release(self._guardian.pid)
            if self.roster.is_empty and not self._guardian.collected():
                self._guardian.kill()

    def close(self, children: Children, *, unlink: bool = True) -> None:
        """Take everything down. The guardian ends what is still announced, if anything is.

        Without `unlink` the roster stays, for a reaper, and the guardian's lock.
        """
        self.relieve_guardian(children)
        if self._guardian is not None:
            self._guardian.close(timeout_s=1.0)
        for slot in self.slots:
            slot.close()
        for bell in self.bells:
            bell.close()
        self.roster.close(unlink=unlink)
        if not unlink:
            return
        with suppress(OSError):
            os.unlink(os.path.join(self._folder, f"{self.token}.guard"))

"""A worker for one job: when to claim it, and whether there is anything left to do."""

from __future__ import annotations

from collections.abc import Callable

from spoolctl.core.records import Identity, Instant
from spoolctl.core.states import SETTLED, State
from spoolctl.core.words import Enum
from spoolctl.engine.serving import unserved
from spoolctl.process.identity import Judgement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.protocol import Store

TELL_SERVED_S = 2.0


class Turn(Enum):
    """Whose turn it is."""

    OURS = "ours"
    SERVED = "served"
    """A worker is there that serves the job's lane, and has not taken it yet."""
    OTHERS = "others"
    """Somebody runs it, or nobody has to any more."""


class Errand:
    """The one job of a worker, which it leaves to whoever else serves the lane.

    That is a courtesy and no guard: several may claim at the same time, and one gets it. So
    it need not wait for proof that a worker is dead which has been silent for too long.
    `threshold_s`: see `WorkerRow.is_silent`.
    """

    def __init__(
        self,
        store: Store,
        job_id: int,
        lanes: tuple[str, ...],
        *,
        threshold_s: float | None,
        judge: Callable[[Identity, str], Judgement],
        log: Callable[[str], None],
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._lanes = lanes
        self._threshold_s = threshold_s
        self._judge = judge
        self._log = log
        self._served_mono: float | None = None  # since when another may take it
        self._told = False

    def turn(self, now: Instant, *, reporting: bool) -> Turn:
        """Whose turn it is now. `reporting`: our own attempt of the job has ended, and is
        recorded in the transaction that would claim it again.

        Raises StoreBusy and the like: ask again.
        """
        if not reporting:
            job = self._store.states((self._job_id,)).get(self._job_id)
            if job is None or job.state is not State.QUEUED:
                return Turn.OTHERS
        free = unserved(
            self._store,
            self._lanes,
            self._judge,
            counts=lambda worker: not worker.is_silent(self._threshold_s, now),
        )
        if len(free) == len(self._lanes):
            self._served_mono = None
            return Turn.OURS
        self._tell_served(now.mono)
        return Turn.SERVED

    def is_settled(self) -> bool:
        """Whether the job is settled, or gone. Raises StoreBusy and the like."""
        job = self._store.states((self._job_id,)).get(self._job_id)
        return job is None or job.state in SETTLED

    def _tell_served(self, mono: float) -> None:
        """Say once, after a while, for whom the job waits."""
        if self._served_mono is None:
            self._served_mono = mono
        if not self._told and mono - self._served_mono >= TELL_SERVED_S:
            self._told = True
            self._log(f"spoolctl: job {self._job_id} waits for a worker that serves its queue")

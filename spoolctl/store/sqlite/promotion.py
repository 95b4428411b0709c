"""Promotion: jobs whose time has come are marked ready, each once, in bounded steps."""

from __future__ import annotations

from collections.abc import Sequence

from spoolctl.core.records import Instant
from spoolctl.store.sqlite import sql
from spoolctl.store.sqlite.base import Base

STEP = 250
"""Rows marked in one transaction; about 4 ms of work while holding the lock."""

HOPS = 200
"""Priorities looked at in one step, when more than a step's worth of jobs is due."""

WALL = 0
"""The number of the wall clock among the clocks."""

_ABOVE_ALL = 1 << 31  # greater than any priority (at most 2^31 - 1)


class Promotion(Base):
    """How time turns into the `ready` mark."""

    def _promote(self, waiting: Sequence[str | None], now: Instant) -> bool:
        """Mark what is due in the lanes; returns whether more is due than one step marks.

        `waiting`: the lanes in which jobs wait, by `_waiting` in this very transaction.

        Few due jobs are all marked, so that claims see them in their exact order. Of many
        (after a long pause, 100,000 scheduled for one moment) those with the highest
        priority come first, so that the next claim is right, and the rest in further steps.
        """
        if not waiting:
            return False
        boot = self._boot(now)
        more = self._leave_other_boots(boot)
        for lane in waiting:
            ids = self._due(lane, boot, now)
            if len(ids) > STEP:
                more = True
                ids = self._due_by_priority(lane, boot, now) or ids[:STEP]
            self._c.executemany(sql.PROMOTE, [(job_id,) for job_id in ids])
        return more

    def _waiting(self, lanes: Sequence[str] | None) -> list[str | None]:
        """Those of the lanes in which jobs wait for their time; None stands for all queues."""
        if lanes is None:
            return [None] if self._c.execute(sql.ANY_WAITING).fetchone() is not None else []
        rows = [(lane, self._c.execute(sql.LANE, (lane,)).fetchone()) for lane in lanes]
        return [lane for lane, row in rows if row is not None and row[1] > 0]

    def _leave_other_boots(self, boot: int) -> bool:
        """After a reboot, delays that the old boot's clock measured follow the wall clock."""
        found = self._c.execute(sql.OTHER_BOOTS, (boot, boot, STEP + 1)).fetchall()
        self._c.executemany(sql.RULE_BY_WALL, found[:STEP])
        return len(found) > STEP

    def _clocks(self, boot: int, now: Instant) -> tuple[tuple[int, float], ...]:
        """The clocks that jobs may wait by, with their readings."""
        return ((WALL, now.at), (boot, now.boot)) if boot > 0 else ((WALL, now.at),)

    def _due(self, lane: str | None, boot: int, now: Instant) -> list[int]:
        """Due jobs, up to one more than a step marks."""
        ids: list[int] = []
        for clock, reading in self._clocks(boot, now):
            if lane is None:
                found = self._c.execute(sql.DUE_ANYWHERE, (clock, reading, STEP + 1))
            else:
                found = self._c.execute(sql.DUE_IN_LANE, (lane, clock, reading, STEP + 1))
            ids += [row[0] for row in found]
        return ids

    def _due_by_priority(self, lane: str | None, boot: int, now: Instant) -> list[int]:
        """About a step's worth of the due jobs with the highest priorities."""
        ids: list[int] = []
        for clock, reading in self._clocks(boot, now):
            priority, found = _ABOVE_ALL, 0
            for _hop in range(HOPS):
                row = self._lower_priority(lane, clock, priority)
                if row is None or found >= STEP:
                    break
                priority = row[0]
                due = self._due_of_priority(lane, clock, priority, reading, STEP - found)
                found += len(due)
                ids += due
        return ids

    def _lower_priority(self, lane: str | None, clock: int, priority: int) -> tuple[int] | None:
        row: tuple[int] | None
        if lane is None:
            row = self._c.execute(sql.PRIORITY_ANYWHERE, (clock, priority)).fetchone()
        else:
            row = self._c.execute(sql.PRIORITY_IN_LANE, (lane, clock, priority)).fetchone()
        return row

    def _due_of_priority(
        self, lane: str | None, clock: int, priority: int, reading: float, limit: int
    ) -> list[int]:
        if lane is None:
            found = self._c.execute(sql.DUE_OF_PRIORITY_ANYWHERE, (clock, priority, reading, limit))
        else:
            found = self._c.execute(
                sql.DUE_OF_PRIORITY_IN_LANE, (lane, clock, priority, reading, limit)
            )
        return [row[0] for row in found]

    def _next_due_s(self, waiting: Sequence[str | None], now: Instant) -> float | None:
        """Seconds until the next job of the lanes is due; 0 if one is; None if none waits.

        `waiting`: as in `_promote`; jobs that wait no more do not matter.
        """
        if not waiting:
            return None
        boot = self._boot(now)
        if self._c.execute(sql.OTHER_BOOTS, (boot, boot, 1)).fetchone() is not None:
            return 0.0
        waits = []
        for lane in waiting:
            for clock, reading in self._clocks(boot, now):
                if lane is None:
                    due = self._c.execute(sql.NEXT_DUE_ANYWHERE, (clock,)).fetchone()[0]
                else:
                    due = self._c.execute(sql.NEXT_DUE_IN_LANE, (lane, clock)).fetchone()[0]
                if due is not None:
                    waits.append(max(0.0, due - reading))
        return min(waits, default=None)

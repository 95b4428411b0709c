"""The search and the end of an attempt on made-up tables of processes: the rare cases."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from spoolctl.process import ending, locks, table
from spoolctl.process.ending import Ending, Signals
from spoolctl.process.search import Snapshot, Target
from spoolctl.process.table import Proc

ME = 100
TARGET = Target("tok", 500, "5000", None)


def proc(pid: int, start: int, ppid: int = 1, sid: int = 0, **more: Any) -> Proc:
    """A process that sleeps; by default in a session and group of its own."""
    sid = sid or pid
    made = Proc(pid, str(start), ppid, more.pop("pgid", sid), sid, "S", 1, False, f"p{pid}")
    return made._replace(**more)


SELF = [proc(1, 1, ppid=0), proc(50, 40), proc(ME, 90, ppid=50)]


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Pid -> its marks, or an exception to raise."""
    made: dict[int, Any] = {}

    def read(one: Proc) -> tuple[str, ...] | None:
        value = made.get(one.pid, ())
        if isinstance(value, Exception):
            raise value
        return value  # type: ignore[no-any-return]

    monkeypatch.setattr(table, "read_marks", read)
    return made


def look(*procs: Proc, **kwargs: Any) -> Snapshot:
    return Snapshot({one.pid: one for one in (*SELF, *procs)}, me=ME, **kwargs)


def found(*procs: Proc, target: Target = TARGET, **kwargs: Any) -> list[int]:
    return [one.pid for one in look(*procs).members(target, **kwargs)]


pytestmark = pytest.mark.usefixtures("marks")


def test_leader_session_and_descendants() -> None:
    assert found(
        proc(500, 5000, ppid=ME),
        proc(501, 5001, ppid=500, sid=500),
        proc(502, 5001, ppid=501),  # its own session
        proc(503, 5002, ppid=1, sid=500),  # orphaned
        proc(504, 5002, ppid=1),  # a stranger
    ) == [500, 501, 502, 503]


def test_the_number_of_another_process_is_not_the_command() -> None:
    assert found(proc(500, 5001, ppid=1), proc(501, 5002, ppid=500, sid=500)) == []


def test_a_zombie_leader_still_vouches_for_its_session() -> None:
    leader = proc(500, 5000, ppid=ME, state="Z")
    assert found(leader, proc(501, 5001, sid=500)) == [501]


def test_a_leader_without_its_first_thread_is_alive() -> None:
    assert found(proc(500, 5000, state="Z", threads=2)) == [500]


def test_a_leaderless_session_is_unsure_unless_somebody_in_it_is_sure(
    marks: dict[int, Any],
) -> None:
    one, two = proc(501, 5001, sid=500), proc(502, 5002, sid=500)
    search = look(one, two).search(TARGET)
    assert (search.members, search.unsure) == ([], [one, two])
    marks[501] = ("tok",)
    search = look(one, two).search(TARGET)
    assert (search.members, search.unsure) == ([one, two], [])
    marks[501] = ("other",)  # that of another attempt
    search = look(one, two).search(TARGET)
    assert (search.members, search.unsure) == ([], [two])


def test_a_session_member_older_than_the_command_is_a_stranger() -> None:
    search = look(proc(501, 4999, sid=500)).search(TARGET)
    assert (search.members, search.unsure) == ([], [])


def test_the_mark_is_found_in_any_place_of_the_path(marks: dict[int, Any]) -> None:
    marks.update({601: ("tok",), 602: ("a", "tok"), 603: ("tok", "b"), 604: ("token",), 605: ()})
    strangers = [proc(pid, 6000) for pid in range(601, 606)]
    assert found(*strangers) == [601, 602, 603]


def test_older_processes_are_not_even_looked_at(marks: dict[int, Any]) -> None:
    marks[400] = AssertionError("looked at")
    assert found(proc(400, 4999)) == []
    # Unless it is unknown how old the attempt is.
    marks[400] = ("tok",)
    assert found(proc(400, 4999), target=Target("tok", None, None, None)) == [400]


def test_kernel_threads_and_zombies_are_left_out(marks: dict[int, Any]) -> None:
    marks.update({700: ("tok",), 701: ("tok",)})
    assert found(proc(700, 7000, kernel=True), proc(701, 7000, state="Z")) == []


def test_a_child_older_than_its_parent_is_not_its_child() -> None:
    # Read when its parent's number was still another process's.
    assert found(proc(500, 5000), proc(501, 5005, ppid=500), proc(502, 5001, ppid=501)) == [
        500,
        501,
    ]


def test_sessions_led_by_members_are_the_attempts(marks: dict[int, Any]) -> None:
    marks[600] = ("tok",)
    leader, orphan = proc(600, 6000), proc(601, 6001, sid=600)
    assert found(leader, orphan) == [600, 601]
    # The leader has gone since, but another member is still in its session.
    other = proc(602, 6001, sid=600)
    assert found(orphan, other, known={(600, "6000"), (602, "6001")}) == [601, 602]
    assert found(orphan, other, known={(600, "6000")}) == []


def test_a_marked_process_does_not_make_a_strangers_session_the_attempts(
    marks: dict[int, Any],
) -> None:
    marks[601] = ("tok",)
    assert found(proc(600, 5500), proc(601, 6000, sid=600), proc(602, 6000, sid=600)) == [601]


def test_known_ones_are_compared_by_start() -> None:
    assert found(proc(600, 6000), known={(600, "5999")}) == []
    assert found(proc(600, 6000), known={(600, "6000")}) == [600]


@pytest.mark.parametrize("where", [ME, 50])
def test_inside(marks: dict[int, Any], where: int) -> None:
    marks[where] = ("tok",)
    search = look(proc(600, 9000)).search(Target("tok", None, None, None))
    assert search.inside is True
    assert search.members == []


def test_adopted_children_are_those_of_this_attempt_alone() -> None:
    snapshot = look(
        proc(500, 5000, ppid=ME),
        proc(300, 3000, ppid=ME),  # left by an earlier attempt
        proc(301, 6000, ppid=300),
        proc(600, 6000, ppid=ME),
        proc(601, 6001, ppid=600),
        proc(602, 6001, ppid=ME, state="Z"),
    )
    assert [one.pid for one in snapshot.adopted({500}, TARGET)] == [600, 601]
    mine = snapshot.procs[ME].sid
    beside = look(proc(500, 5000, ppid=ME), proc(600, 6000, ppid=ME, sid=mine))
    assert beside.adopted({500}, TARGET) == []  # the program's own: no way leads into its session
    as_init = Snapshot({**snapshot.procs, 600: proc(600, 6000)}, me=1)
    assert as_init.adopted({500}, TARGET) == []


def test_only_whole_groups_are_signaled_as_groups() -> None:
    mine = [proc(500, 5000), proc(501, 5001, pgid=500), proc(502, 5001, pgid=502)]
    snapshot = look(*mine, proc(503, 5001, pgid=502), proc(504, 5001, pgid=500, state="Z"))
    assert {one.pgid for one in snapshot.whole_groups(mine)} == {500}


# -- the end of an attempt ------------------------------------------------------------------


class Noted(Signals):
    """Notes what would be sent."""

    def __init__(self, answer: str = "sent") -> None:
        self.sent: list[tuple[int, int]] = []
        self.groups: list[int] = []
        self.answer = answer

    def one(self, proc: Proc, number: int) -> str:
        self.sent.append((proc.pid, number))
        return self.answer

    def group(self, member: Proc, number: int) -> None:
        self.groups.append(member.pgid)

    def child_group(self, pid: int, number: int) -> bool:
        self.sent.append((-pid, number))
        return self.answer == "sent"


def stuck_after(
    table_of: Callable[[], Snapshot], signals: Signals, *, target: Target = TARGET
) -> tuple[Ending, list[float]]:
    """Step an ending through 100 s without a grace; the pauses that it asked for."""
    one = Ending(target, grace_s=0, now_mono=0.0, signals=signals)
    now, pauses = 0.0, []
    while now < 100 and (pause := one.step(table_of(), now)) is not None:
        pauses.append(pause)
        now += max(pause, 0.001)
    return one, pauses


@pytest.mark.parametrize(
    ("state", "answer", "why"),
    [
        ("D", "sent", "is in uninterruptible sleep"),
        ("S", "denied", "may not be signaled by this user"),
        ("S", "sent", "does not die"),
    ],
)
def test_what_cannot_be_ended_is_said_and_tried_again_at_a_slower_pace(
    state: str, answer: str, why: str
) -> None:
    signals = Noted(answer)
    one, pauses = stuck_after(lambda: look(proc(500, 5000, state=state)), signals)
    assert one.stuck == f"process 500 (p500) {why}"
    assert not one.gone
    assert max(pauses[:40]) <= 0.05
    assert pauses[-1] == 10.0
    assert len(signals.sent) == len(pauses) < 80
    # And when it is gone at last, that is seen.
    assert one.step(look(), 200.0) is not None
    assert one.stuck is None
    assert one.step(look(), 200.1) is None
    assert one.gone


def test_many_are_named_in_short() -> None:
    five = [proc(500 + n, 5000 + n, ppid=1, sid=500) for n in range(5)]
    one, _ = stuck_after(lambda: look(*five), Noted())
    assert one.stuck is not None
    assert one.stuck.count("process") == 3
    assert one.stuck.endswith(", and 2 more")


def test_new_members_make_it_quick_again() -> None:
    one, _ = stuck_after(lambda: look(proc(500, 5000)), Noted())
    assert one.stuck is not None
    pause = one.step(look(proc(500, 5000), proc(501, 9000, sid=500)), 100.0)
    assert pause is not None
    assert pause < 0.05
    assert one.stuck is None or "501" in one.stuck


def test_groups_are_killed_only_when_single_kills_did_not_do() -> None:
    signals = Noted()
    one = Ending(TARGET, grace_s=0, now_mono=0.0, signals=signals)
    one.step(look(proc(500, 5000)), 0.0)
    assert signals.groups == []
    one.step(look(proc(500, 5000)), 0.01)
    assert signals.groups == [500]


def test_a_look_that_missed_somebody_proves_nothing() -> None:
    one, _ = stuck_after(lambda: look(complete=False), Noted())
    assert not one.gone
    assert one.stuck is not None
    assert "descriptors" in one.stuck
    one.step(look(), 101.0)
    assert one.step(look(), 101.1) is None


def test_marks_that_cannot_be_read_for_want_of_descriptors_prove_nothing(
    marks: dict[int, Any],
) -> None:
    marks[600] = OSError(24, "Too many open files")
    one, _ = stuck_after(lambda: look(proc(600, 6000)), Noted())
    assert not one.gone


def test_an_execve_at_the_moment_of_the_look_is_waited_for_but_not_for_ever(
    marks: dict[int, Any],
) -> None:
    marks[600] = table.Unsettled("between two programs")
    one, pauses = stuck_after(lambda: look(proc(600, 6000)), Noted())
    assert one.gone
    assert sum(pauses) >= ending._QUIET_S
    settled, pauses = stuck_after(lambda: look(), Noted())
    assert settled.gone
    assert sum(pauses) < 0.01


def test_nothing_known_but_the_mark_takes_a_longer_quiet() -> None:
    one, pauses = stuck_after(look, Noted(), target=Target("tok", None, None, "/no/such/lock"))
    assert one.gone
    assert sum(pauses) >= ending._QUIET_S


def test_a_lock_that_cannot_be_looked_at_is_not_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    path = tmp_path / "lock"
    path.touch()
    monkeypatch.setattr(locks, "is_held", lambda *_: None)
    one, _ = stuck_after(look, Noted(), target=TARGET._replace(lock_path=str(path)))
    assert not one.gone
    path.unlink()
    one, _ = stuck_after(look, Noted(), target=TARGET._replace(lock_path=str(path)))
    assert one.gone


def test_blind_it_ends_its_own_childs_group_and_believes_the_lock(tmp_path: Any) -> None:
    path = tmp_path / "lock"
    target = TARGET._replace(lock_path=str(path))
    held = locks.take(str(path))
    assert held is not None

    def blind() -> Snapshot:
        return Snapshot({}, me=ME, blind=True)

    signals = Noted()
    one, _ = stuck_after(blind, signals, target=target)
    assert set(signals.sent) == {(-500, 9)}
    assert one.stuck == "the processes of this PID namespace cannot be seen in /proc"
    signals.answer = "gone"
    assert one.step(blind(), 101.0) is not None
    os.close(held)
    now = 102.0
    while one.step(blind(), now) is not None:
        now += 0.05
        assert now < 103
    assert one.gone


def test_a_stopped_one_is_continued_in_the_grace_and_asked_once() -> None:
    signals = Noted()
    one = Ending(TARGET, grace_s=5, now_mono=0.0, signals=signals)
    for now in (0.0, 0.1, 0.2):
        one.step(look(proc(500, 5000, state="T")), now)
    assert signals.sent == [(500, 15), (500, 18), (500, 18), (500, 18)]

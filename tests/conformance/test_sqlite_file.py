"""The SQLite file itself: how it is made, and what is refused and left as it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spoolctl.core.records import JobFilter, Want
from spoolctl.core.states import State
from spoolctl.errors import NotFound, SpoolError, StoreGone, StoreUnusable
from spoolctl.store import open_store
from spoolctl.store.sqlite.probe import APPLICATION_ID, probe
from spoolctl.store.sqlite.schema.migrations import SCHEMA_VERSION
from spoolctl.store.sqlite.store import SqliteStore
from tests.conformance.kit import Clock, Desk, failure, job, success
from tests.helpers import ROOT, clean_env, spoolctl


def opened(path: Path, *, create: bool = True) -> SqliteStore:
    store = open_store(str(path), create=create, wait_s=1.0)
    assert isinstance(store, SqliteStore)
    return store


def contents(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Every file with its inode and bytes."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_ino,
            path.read_bytes() if path.is_file() else None,
        )
        for path in folder.rglob("*")
    }


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- a new file -------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
def test_everything_new_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "new" / "folders" / "queue.db"
    old = os.umask(umask)
    try:
        store = opened(path)
        Desk(store, Clock()).add()
    finally:
        os.umask(old)
    assert {mode_of(path.with_name(path.name + end)) for end in ("", "-wal", "-shm")} == {0o600}
    assert mode_of(path.parent) == mode_of(path.parent.parent) == 0o700
    store.close()
    assert os.listdir(path.parent) == ["queue.db"]
    assert mode_of(path) == 0o600


def test_nothing_is_open_to_others_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(_path: str, _mode: int) -> None:
        raise AssertionError("made first, and closed to others afterwards")

    monkeypatch.setattr(os, "chmod", late)
    old = os.umask(0)
    try:
        opened(tmp_path / "new" / "queue.db").close()
    finally:
        os.umask(old)
    assert mode_of(tmp_path / "new" / "queue.db") == 0o600


def test_the_header_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    store = opened(path)
    # Already in the file, not only in its log: a probe looks there.
    seen = probe(str(path))
    assert (seen.kind, seen.version) == ("queue", SCHEMA_VERSION)
    store.close()
    db = sqlite3.connect(path)

    def ask(pragma: str) -> object:
        return db.execute(f"PRAGMA {pragma}").fetchone()[0]

    assert ask("application_id") == APPLICATION_ID
    assert ask("user_version") == SCHEMA_VERSION
    assert ask("journal_mode") == "wal"
    assert ask("auto_vacuum") == 2
    assert ask("integrity_check") == "ok"
    db.close()


def test_only_create_creates(tmp_path: Path) -> None:
    path = tmp_path / "no" / "queue.db"
    with pytest.raises(NotFound) as caught:
        opened(path, create=False)
    assert caught.value.where == str(path)
    assert os.listdir(tmp_path) == []


def test_an_empty_file_is_a_new_queue(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    path.touch()
    with pytest.raises(NotFound):
        opened(path, create=False)
    assert path.stat().st_size == 0
    assert os.listdir(tmp_path) == ["queue.db"]
    Desk(opened(path), Clock()).add()


def test_two_spellings_are_one_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    first = opened(tmp_path / "real" / "queue.db")
    monkeypatch.chdir(tmp_path)
    second = open_store("link/../real/queue.db", create=False, wait_s=1.0)
    third = open_store("link/queue.db", create=False, wait_s=1.0)
    assert first.path == second.path == third.path == str(tmp_path / "real" / "queue.db")


@pytest.mark.parametrize("name", ["a b", "q?mode=memory", "100%25#x", "päth", "-", "\n", b"\xff"])
def test_any_name_will_do(tmp_path: Path, name: str | bytes) -> None:
    folder = os.path.join(os.fsencode(tmp_path), name if isinstance(name, bytes) else name.encode())
    path = os.fsdecode(os.path.join(folder, b"queue ?.db"))
    store = open_store(path, create=True, wait_s=1.0)
    Desk(store, Clock()).add()
    store.close()
    assert os.path.getsize(path) > 0
    again = open_store(path, create=False, wait_s=1.0)
    assert len(again.find(JobFilter(), limit=9)) == 1
    again.close()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("part_first", [False, True])
def test_no_queue_is_taken_for_the_log_of_another(
    tmp_path: Path, suffix: str, part_first: bool
) -> None:
    """SQLite would remove it."""
    whole, part = tmp_path / "queue.db", tmp_path / f"queue.db{suffix}"
    first, second = (part, whole) if part_first else (whole, part)
    with closing(opened(first)) as store:
        Desk(store, Clock()).add()
    before = contents(tmp_path)
    with pytest.raises(StoreUnusable, match="a part of") as caught:
        opened(second)
    assert caught.value.kind == "path"
    assert contents(tmp_path) == before


def test_closing_twice_is_fine_and_using_it_then_is_an_error(tmp_path: Path) -> None:
    store = opened(tmp_path / "queue.db")
    store.close()
    store.close()
    with pytest.raises(SpoolError):
        store.get(1)
    with pytest.raises(SpoolError):
        Desk(store, Clock())


@pytest.mark.parametrize("create", [True, False])
def test_a_name_that_cannot_be(create: bool) -> None:
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(StoreUnusable) as caught:
            open_store(name, create=create, wait_s=0.0)
        assert caught.value.kind == "path"


SYNC = {1: "NORMAL", 2: "FULL"}


def test_what_tells_or_decides_something_is_synced(tmp_path: Path) -> None:
    desk = Desk(opened(tmp_path / "queue.db"), Clock())
    store = desk.store
    assert isinstance(store, SqliteStore)
    now = desk.clock.now

    def sync_of(action: Callable[[], object]) -> str:
        # The other kind first: it must be chosen before the transaction begins.
        other = store._c._full_sync
        store._c._choose_sync(not other)
        action()
        return SYNC[store._c.execute("PRAGMA synchronous").fetchone()[0]]

    for _ in range(6):
        assert sync_of(lambda: desk.add(max_retries=0)) == "FULL"
        assert sync_of(lambda: desk.add(max_retries=0)) == "FULL"
    assert sync_of(lambda: desk.claim(3)) == "FULL"
    one, two, three = desk.claim(3)
    assert sync_of(lambda: desk.report(success(one))) == "FULL"
    want = Want(1, None)
    assert sync_of(lambda: store.cycle(desk.me, [failure(two)], want, now=now())) == "FULL"
    assert sync_of(lambda: desk.cancel(three.job_id)) == "FULL"
    assert sync_of(lambda: desk.retry(two.job_id)) == "FULL"
    assert sync_of(lambda: store.heartbeat(desk.me, now=now())) == "NORMAL"
    ids = [three.attempt_id]
    note = {"verdict": "unclear", "reason": "x", "now": now()}
    assert sync_of(lambda: store.note_recovery(ids, **note)) == "NORMAL"  # type: ignore[arg-type]
    desk.let_owner_die()
    assert sync_of(lambda: desk.reap(desk.suspects()[0])) == "FULL"
    rest = {"states": [State.DONE], "dry_run": False, "limit": 9}
    assert sync_of(lambda: store.prune(before=now().at, now=now(), **rest)) == "FULL"  # type: ignore[arg-type]
    desk.add(delay_s=1.0)
    desk.clock.advance(1.0)
    assert sync_of(lambda: store.cycle(desk.me, [], None, now=now())) == "NORMAL"
    store.close()


# -- what is not a queue ----------------------------------------------------------------


def foreign(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE precious (x)")
    db.commit()
    db.close()


def foreign_with_hot_log(path: Path) -> None:
    """Left by a program that died: what it committed last is in the log alone."""
    source = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1])\n"
        "db.execute('PRAGMA journal_mode = WAL')\n"
        "db.execute('CREATE TABLE precious (x)')\n"
        "db.commit()\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    subprocess.run([sys.executable, "-c", source, str(path)], check=False, timeout=60)
    assert path.with_name(path.name + "-wal").stat().st_size > 0


def foreign_with_log_and_no_index(path: Path) -> None:
    foreign_with_hot_log(path)
    path.with_name(path.name + "-shm").unlink()


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database, " * 1000)


def short_garbage(path: Path) -> None:
    path.write_bytes(b"x")


def truncated(path: Path) -> None:
    store = opened(path)
    Desk(store, Clock()).add()
    store.close()
    os.truncate(path, path.stat().st_size // 2)


def cut_inside_the_header(path: Path) -> None:
    truncated(path)
    os.truncate(path, 50)


def newer(path: Path) -> None:
    opened(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()


def folder(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def two_names(path: Path) -> None:
    """As `cp -al` leaves it; by each name it would have a log of its own."""
    opened(path).close()
    os.link(path, path.with_name("copy.db"))


def below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("a file")


BAD = [
    (foreign, "foreign"),
    (foreign_with_hot_log, "foreign"),
    (foreign_with_log_and_no_index, "foreign"),
    (garbage, "foreign"),
    (short_garbage, "foreign"),
    (truncated, "damaged"),
    (cut_inside_the_header, "foreign"),
    (newer, "newer"),
    (folder, "path"),
    (fifo, "path"),
    (two_names, "path"),
    (below_a_file, "path"),
]


@pytest.mark.parametrize(("make", "kind"), BAD, ids=[make.__name__ for make, _ in BAD])
@pytest.mark.parametrize("create", [True, False])
def test_what_is_not_a_queue_is_refused_and_left_as_it_is(
    tmp_path: Path, make: object, kind: str, create: bool
) -> None:
    path = tmp_path / "folder" / "queue.db"
    path.parent.mkdir()
    make(path)  # type: ignore[operator]
    before = contents(tmp_path)
    with pytest.raises(StoreUnusable) as caught:
        opened(path, create=create)
    assert caught.value.kind == kind
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    assert contents(tmp_path) == before


def test_a_second_name_that_is_gone_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    two_names(path)
    os.unlink(path.with_name("copy.db"))
    opened(path, create=False).close()


def test_bits_that_flipped_are_reported_and_nothing_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    store = opened(path)
    store.add([job("x" * 500) for _ in range(500)], now=Clock().now())
    store.close()
    size = path.stat().st_size
    with open(path, "r+b") as file:
        for page in range(3, size // 4096, 2):
            file.seek(page * 4096)
            file.write(os.urandom(300))
    with pytest.raises(StoreUnusable) as caught, closing(opened(path, create=False)) as store:
        store.find(JobFilter(), limit=-1)
    assert caught.value.kind == "damaged"
    assert path.stat().st_size == size


def test_a_file_that_is_whole_only_with_its_log_is_opened(tmp_path: Path) -> None:
    """As after a crash in the middle of a checkpoint: the header promises more pages than
    there are, and the log has them."""
    path = tmp_path / "queue.db"
    source = (
        "import os, sys\n"
        "from spoolctl.store import open_store\n"
        "from tests.conformance.kit import Clock, job\n"
        "store = open_store(sys.argv[1], create=True, wait_s=1.0)\n"
        "store.add([job('x' * 500) for _ in range(300)], now=Clock().now())\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    subprocess.run(
        [sys.executable, "-c", source, str(path)],
        env=clean_env(),
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    log = path.with_name(path.name + "-wal")
    saved = log.read_bytes()
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pages = path.stat().st_size // 4096
    db.close()
    os.truncate(path, (pages - 40) * 4096)
    log.write_bytes(saved)
    store = opened(path, create=False)
    assert len(store.find(JobFilter(), limit=-1)) == 300
    store.close()


# -- read-only --------------------------------------------------------------------------

READER = """
import json, os, sys
import spoolctl.store.sqlite.store
from spoolctl.store import open_store
from spoolctl.core.records import JobFilter, Want
from spoolctl.core.states import State
from tests.conformance.kit import Clock, job
os.setgid(65534)
os.setuid(65534)
store = open_store(sys.argv[1], create=sys.argv[2] == "create", wait_s=1.0)
print([one.id for one in store.find(JobFilter(), limit=9)], store.changed() >= 0)
try:
    store.add([job()], now=Clock().now())
except Exception as error:
    print(type(error).__name__, getattr(error, "kind", ""))
else:
    print("written")
store.close()
"""


def read_as_another_user(path: Path, create: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", READER, str(path), create],
        cwd=ROOT,
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can get to; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_an_older_layout_that_cannot_be_written_says_what_to_do(public: Path) -> None:
    path = public / "queue.db"
    shutil.copy(Path(__file__).parent / "data/layout-1.db", path)
    path.chmod(0o444)
    public.chmod(0o555)
    before = path.read_bytes()
    done = read_as_another_user(path, "look")
    assert "made by an earlier spoolctl" in done.stderr.splitlines()[-1]
    assert path.read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("create", ["create", "look"])
@pytest.mark.parametrize(
    ("file_mode", "folder_mode"), [(0o444, 0o555), (0o444, 0o777), (0o666, 0o555)]
)
def test_what_cannot_be_written_can_be_read(
    public: Path, file_mode: int, folder_mode: int, create: str
) -> None:
    home = public / "q"
    path = home / "queue.db"
    store = opened(path)
    Desk(store, Clock()).add()
    store.close()
    path.chmod(file_mode)
    home.chmod(folder_mode)
    before = path.read_bytes()
    done = read_as_another_user(path, create)
    assert done.stdout.splitlines() == ["[1] True", "StoreUnusable read_only"], done.stderr
    assert path.read_bytes() == before


# -- gone or replaced -------------------------------------------------------------------


WAYS_TO_GO = (
    "removed",
    "replaced",
    "log removed",
    "log replaced",
    "index removed",
    "index replaced",
    "folder",
)


@pytest.mark.parametrize("what", WAYS_TO_GO)
def test_a_file_that_is_gone_or_replaced_is_noticed(tmp_path: Path, what: str) -> None:
    path = tmp_path / "folder" / "queue.db"
    store = opened(path)
    desk = Desk(store, Clock())
    desk.add()
    claimed = desk.claim_one()
    store.check_file()
    end = {"log": "-wal", "index": "-shm"}.get(what.split()[0], "")
    victim = path.with_name(path.name + end)
    if what == "folder":
        path.parent.rename(tmp_path / "elsewhere")
    else:
        victim.rename(tmp_path / "aside")
        if what == "replaced":
            opened(path).close()
        elif "replaced" in what:
            victim.write_bytes(b"")
    now = desk.clock.now()
    before = contents(tmp_path)
    for use in (
        store.check_file,
        lambda: store.heartbeat(desk.me, now=now),
        lambda: desk.report(success(claimed)),
        lambda: desk.add(),
        lambda: desk.claim(),
        store.changed,
    ):
        with pytest.raises(StoreGone) as caught:
            use()
        assert caught.value.path == str(path)
    assert contents(tmp_path) == before, "it must never be made again"
    store.close()


def test_what_others_commit_after_the_index_was_removed_is_kept(tmp_path: Path) -> None:
    """They make a new one, by which the log goes on; whoever has the old one open must not."""
    path = tmp_path / "queue.db"
    store = opened(path)
    desk = Desk(store, Clock())
    desk.add()
    path.with_name(path.name + "-shm").unlink()
    for number in ("2", "3"):
        assert spoolctl("add", "--db", str(path), "--", "echo", number).returncode == 0
        with pytest.raises(StoreGone):
            desk.add()
    store.close()
    # Another process: within one, SQLite shares what it has open.
    listed = json.loads(spoolctl("list", "--db", str(path), "--json").stdout)["data"]["jobs"]
    assert [each["id"] for each in listed] == [3, 2, 1]


def test_a_path_that_sqlite_cannot_take_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    folder = tmp_path
    while 504 - len(os.fsencode(str(folder))) > 200:  # a single name has its limit, too
        folder /= "d" * 100
    longest = folder / ("q" * (503 - len(os.fsencode(str(folder)))))
    with pytest.raises(StoreUnusable) as caught:
        open_store(f"{longest}q", create=True, wait_s=1)
    assert caught.value.kind == "path"
    assert list(tmp_path.iterdir()) == []
    open_store(str(longest), create=True, wait_s=1).close()


def test_a_name_that_leaves_no_room_for_the_log_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    for length in range(248, 256):
        with pytest.raises(StoreUnusable) as caught:
            open_store(str(tmp_path / ("q" * length)), create=True, wait_s=1)
        assert caught.value.kind == "path"
    assert list(tmp_path.iterdir()) == []
    open_store(str(tmp_path / ("q" * 247)), create=True, wait_s=1).close()

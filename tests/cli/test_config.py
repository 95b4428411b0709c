"""Where the queue is: flag, variable, config file, default; looked for upwards."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spoolctl import config
from spoolctl.config import ConfigBroken, Location, find_config, locate, read_config
from spoolctl.errors import InvalidInput
from tests.cli.conftest import Call


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a project in it, in which we are."""
    home = tmp_path.resolve() / "home"
    (home / "project" / "deep").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SPOOLCTL_DB", raising=False)
    monkeypatch.chdir(home / "project" / "deep")
    return home


def write(folder: Path, content: object) -> Path:
    (folder / ".spoolctl").mkdir(exist_ok=True)
    path = folder / ".spoolctl" / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_default_is_here(home: Path) -> None:
    here = home / "project" / "deep" / ".spoolctl"
    assert locate() == Location(
        path=str(here / "queue.db"),
        source="default",
        config_path=str(here / "config.json"),
        config_exists=False,
        config_valid=True,
        settings={},
        remarks=(),
    )
    assert not here.exists()


@pytest.mark.parametrize("where", ["", "project", "project/deep"])
def test_the_folder_is_looked_for_upwards(home: Path, where: str) -> None:
    (home / where / ".spoolctl").mkdir()
    assert locate().path == str(home / where / ".spoolctl" / "queue.db")
    assert locate().source == "default"


def test_the_nearest_folder_wins(home: Path) -> None:
    for folder in (home, home / "project"):
        (folder / ".spoolctl").mkdir()
    assert find_config() == str(home / "project" / ".spoolctl" / "config.json")


def test_the_search_ends_at_home(home: Path) -> None:
    (home.parent / ".spoolctl").mkdir()
    assert locate().path == str(home / "project" / "deep" / ".spoolctl" / "queue.db")


def test_a_file_of_that_name_does_not_count(home: Path) -> None:
    (home / ".spoolctl").mkdir()
    (home / "project" / ".spoolctl").write_text("")
    assert locate().path == str(home / ".spoolctl" / "queue.db")


class Stat(NamedTuple):
    """As much of a stat result as is looked at."""

    st_mode: int
    st_uid: int
    st_dev: int


class OtherOs:
    """The module `os`, in which one folder has another owner, or lies on another disk."""

    def __init__(self, folder: Path, changes: dict[str, int]) -> None:
        self._folder = str(folder)
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def stat(self, path: str) -> Stat:
        found = os.stat(path)
        same = Stat(found.st_mode, found.st_uid, found.st_dev)
        return same._replace(**self._changes) if os.fspath(path) == self._folder else same


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: int) -> None:
    """Let a folder look to `config` as if it were another's, or on another disk."""
    monkeypatch.setattr(config, "os", OtherOs(folder, changes))


def test_a_folder_of_somebody_else_does_not_count(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (home, home / "project"):
        write(folder, {"db_path": "/elsewhere.db"})
    pretend(monkeypatch, home / "project" / ".spoolctl", st_uid=12345)
    assert find_config() == str(home / ".spoolctl" / "config.json")


def test_the_default_is_never_in_somebody_elses_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = home / "project" / "deep" / ".spoolctl"
    foreign.mkdir()
    pretend(monkeypatch, foreign, st_uid=12345)
    with pytest.raises(InvalidInput, match="not a folder of yours"):
        locate()
    assert locate("x.db").source == "flag"


def test_a_config_file_of_somebody_else_names_no_queue_and_sets_no_default(
    home: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared folder, that is: a colleague's queue would get our jobs and our variables."""
    foreign = Path(".spoolctl").resolve()
    write(foreign.parent, {"db_path": "theirs.db", "capture_env": "all", "unknown": 1})
    pretend(monkeypatch, foreign, st_uid=12345)
    assert call("add", "--json", "true").error["message"] == (
        f"{foreign} is not a folder of yours: name a queue with --db or SPOOLCTL_DB"
    )
    shown = call("config-show", "--json", "--db", "ours.db")
    assert (shown.data["config_exists"], shown.warnings) == (False, [])
    assert set(shown.data["sources"].values()) == {"flag", "default"}
    assert call("config-validate", "--json").data["exists"] is False
    assert call("config-validate", "--json", f"{foreign}/config.json").status == 1


def test_a_locked_folder_of_somebody_else_is_no_broken_config_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As spoolctl makes them, 0700, and so its config file cannot even be looked for."""
    foreign = home / "project" / "deep" / ".spoolctl"
    write(foreign.parent, "no JSON")
    pretend(monkeypatch, foreign, st_uid=12345)
    with pytest.raises(InvalidInput, match="not a folder of yours"):
        locate()
    assert locate("x.db").remarks == ()


def test_a_file_where_the_default_would_lie_is_an_unusable_path(home: Path, call: Call) -> None:
    blocked = Path(".spoolctl").resolve()
    blocked.write_text("mine")
    assert call("config-show", "--json").data["values"]["db_path"] == str(blocked / "queue.db")
    for words in (("status",), ("add", "true"), ("work", "--once")):
        assert call(words[0], "--json", *words[1:]).error["code"] == "INVALID_INPUT"
    done = call("doctor", "--json")
    assert done.status == 3
    check = done.data["checks"][2]
    assert (check["id"], check["status"]) == ("spool_directory_writable", "fail")
    assert check["message"] == f"{blocked} is in the way: it is no folder"
    assert blocked.read_text() == "mine"


def test_the_search_ends_at_a_file_system_boundary(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".spoolctl").mkdir()
    pretend(monkeypatch, home, st_dev=-1)
    assert locate().path == str(home / "project" / "deep" / ".spoolctl" / "queue.db")


def test_precedence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "project", {"version": 1, "db_path": "sub/c.db", "z": 1, "a": 2})
    found = locate()
    assert (found.path, found.source) == (
        str(home / "project" / ".spoolctl" / "sub" / "c.db"),
        "project_config",
    )
    assert (found.config_exists, found.settings) == (True, {"z": 1, "a": 2})
    monkeypatch.setenv("SPOOLCTL_DB", "e.db")
    assert locate()[:2] == (str(home / "project" / "deep" / "e.db"), "environment")
    assert locate("../f.db")[:2] == (str(home / "project" / "f.db"), "flag")


def test_an_absolute_path_in_the_config(home: Path) -> None:
    write(home, {"db_path": str(home / "x.db")})
    assert locate().path == str(home / "x.db")


def test_two_spellings_are_one_queue(home: Path) -> None:
    os.symlink(home / "project", home / "link")
    assert locate(str(home / "link" / "q.db")).path == str(home / "project" / "q.db")
    os.symlink(home / "real.db", home / "alias.db")
    assert locate(str(home / "alias.db")).path == str(home / "real.db")


@pytest.mark.parametrize("value", ["", "x" * 4097, "a\0b", "\udcff"])
def test_bad_paths(home: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    with pytest.raises(InvalidInput):
        locate(value)
    if "\0" not in value:
        monkeypatch.setenv("SPOOLCTL_DB", value)
        with pytest.raises(InvalidInput, match="SPOOLCTL_DB"):
            locate()
        assert locate("ok.db").source == "flag"


BROKEN = [
    "",
    "{",
    "[]",
    "null",
    '"x"',
    '{"version": true}',
    '{"version": "1"}',
    '{"version": 2}',
    '{"version": 1.0}',
    '{"version": null}',
    '{"db_path": ""}',
    '{"db_path": 5}',
    '{"db_path": null}',
    '{"db_path": "a\\u0000b"}',
    '{"db_path": "\\ud800"}',
    json.dumps({"db_path": "x" * 4097}),
    "[" * 100_000,
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_is_told(home: Path, content: str) -> None:
    path = write(home, content)
    with pytest.raises(ConfigBroken) as caught:
        locate()
    assert caught.value.path == str(path)
    # Where it is not needed to find the queue it is no obstacle.
    found = locate("x.db")
    assert (found.source, found.config_valid) == ("flag", False)
    assert str(path) in found.remarks[0]


def test_bytes_folders_and_pipes_are_no_config(home: Path) -> None:
    path = write(home, "")
    path.write_bytes(b'{"db_path": "\xff"}')
    with pytest.raises(ConfigBroken, match="UTF-8"):
        read_config(str(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigBroken, match="not a regular file"):
        read_config(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigBroken):
        read_config(str(path))
    path.rmdir()
    path.write_bytes(b" " * (1 << 21))
    with pytest.raises(ConfigBroken, match="larger"):
        read_config(str(path))


def test_a_file_that_is_not_there_is_no_fault(home: Path) -> None:
    assert read_config(str(home / "no" / "config.json")) is None
    assert read_config(__file__ + "/config.json") is None


def test_verbs_use_it(call: Call) -> None:
    os.mkdir(".spoolctl")
    Path(".spoolctl/config.json").write_text('{"db_path": "mine.db"}')
    assert call("add", "true").status == 0
    assert os.path.exists(".spoolctl/mine.db")
    os.makedirs("a/b")
    os.chdir("a/b")
    assert call("status", "--json").data["counts"]["queued"] == 1
    Path("../../.spoolctl/config.json").write_text("{")
    broken = call("status", "--json")
    assert (broken.status, broken.error["code"]) == (1, "INVALID_INPUT")
    named = call("status", "--json", "--db", "../../.spoolctl/mine.db")
    assert named.warnings == ["CONFIG_IGNORED"]
    assert named.data["counts"]["queued"] == 1

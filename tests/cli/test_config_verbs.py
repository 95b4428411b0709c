"""`config-show` and `config-validate`: where the queue is, why, and what a config file may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spoolctl.config import SOURCES
from tests.cli.contract import call, check


def configure(folder: Path, content: object) -> Path:
    path = folder / ".spoolctl" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def show(folder: Path, *words: str, **env: str) -> dict[str, Any]:
    result = call("config-show", "--json", *words, cwd=folder, env=env)
    check(result)
    data: dict[str, Any] = result.json()["data"]
    return data


def error(folder: Path, *words: str, **env: str) -> dict[str, Any]:
    result = call(words[0], "--json", *words[1:], cwd=folder, env=env)
    check(result)
    assert result.status == 1
    found: dict[str, Any] = result.json()["errors"][0]
    return found


def test_each_source_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    path = configure(tmp_path, {"version": 1, "db_path": "c.db"})
    env = {"SPOOLCTL_DB": "e.db"}
    found = [
        show(tmp_path, "--db", "f.db", **env),
        show(tmp_path, **env),
        show(tmp_path),
    ]
    path.write_text("{}")
    found.append(show(tmp_path))
    assert [each["sources"]["db_path"] for each in found] == list(SOURCES)
    here = tmp_path.resolve()
    assert [each["values"]["db_path"] for each in found] == [
        *(str(here / name) for name in ("f.db", "e.db")),
        # Relative to the config file's own folder.
        str(here / ".spoolctl" / "c.db"),
        str(here / ".spoolctl" / "queue.db"),
    ]
    assert all(each["precedence"] == list(SOURCES) for each in found)


def test_nothing_is_opened_or_made(tmp_path: Path) -> None:
    data = show(tmp_path)
    assert (data["config_exists"], data["config_valid"]) == (False, True)
    (tmp_path / "file").touch()
    assert show(tmp_path, "--db", "file/below.db")["values"]["db_path"].endswith("file/below.db")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_two_spellings_of_one_file_are_one_queue(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    paths = {
        show(tmp_path, "--db", spelling)["values"]["db_path"]
        for spelling in ("real/q.db", "link/q.db", "./real/../link/q.db", f"{tmp_path}/real/q.db")
    }
    assert len(paths) == 1


def test_the_folder_is_looked_for_upwards(tmp_path: Path) -> None:
    configure(tmp_path, {})
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    data = show(below)
    assert data["config_exists"] is True
    assert data["values"]["db_path"] == str(tmp_path.resolve() / ".spoolctl" / "queue.db")


def test_unknown_keys_are_shown_as_ignored(tmp_path: Path) -> None:
    configure(tmp_path, {"zoo": 1, "colour": 2})
    assert show(tmp_path)["ignored_keys"] == ["colour", "zoo"]
    text = call("config-show", cwd=tmp_path).stdout.decode()
    assert "ignored_keys: colour, zoo" in text


def test_text_shows_path_and_source(tmp_path: Path) -> None:
    result = call("config-show", "--db", "x\x1b[2J.db", cwd=tmp_path)
    check(result)
    assert result.stdout.decode().splitlines()[:5] == [
        f"config_path: {tmp_path.resolve()}/.spoolctl/config.json",
        "config_exists: no",
        "config_valid: yes",
        f"db_path: {tmp_path.resolve()}/x\\e[2J.db",
        "db_source: flag",
    ]


BROKEN = [
    *("", "{", "[]", "null", '"x"', '{"version": 2}', '{"version": true}', '{"version": "1"}'),
    *('{"version": 1.0}', '{"db_path": ""}', '{"db_path": 1}', '{"db_path": "\\u0000"}'),
    '{"db_path": "' + "x" * 4097 + '"}',
]


@pytest.mark.parametrize("content", BROKEN, ids=lambda content: content[:24])
def test_a_broken_file_is_bad_input(content: str, tmp_path: Path) -> None:
    path = configure(tmp_path, content)
    for words in (["config-show"], ["config-validate"], ["config-validate", str(path)], ["status"]):
        found = error(tmp_path, *words)
        assert found["code"] == "INVALID_INPUT"
        assert str(path.resolve()) in found["message"] or path.name in found["message"]
    assert path.read_text() == content


def test_a_broken_file_is_no_obstacle_where_the_queue_is_named(tmp_path: Path) -> None:
    configure(tmp_path, "{")
    for words, env in ((("--db", "q.db"), {}), ((), {"SPOOLCTL_DB": "q.db"})):
        result = call("config-show", "--json", *words, cwd=tmp_path, env=env)
        check(result)
        assert result.status == 0
        assert [each["code"] for each in result.json()["warnings"]] == ["CONFIG_IGNORED"]
        assert result.json()["data"]["config_valid"] is False


# -- config-validate ------------------------------------------------------------------------


def test_an_absent_file_is_valid(tmp_path: Path) -> None:
    result = call("config-validate", "--json", "no/such.json", cwd=tmp_path)
    check(result)
    data = result.json()["data"]
    assert (data["exists"], data["valid"]) == (False, True)
    assert data["config_path"] == str(tmp_path.resolve() / "no" / "such.json")


def test_a_good_file_is_valid(tmp_path: Path) -> None:
    configure(tmp_path, {"version": 1, "db_path": "q.db"})
    result = call("config-validate", cwd=tmp_path)
    check(result)
    lines = result.stdout.decode().splitlines()
    assert lines[1:] == ["exists: yes", "valid: yes", "format: json", "schema_version: 1"]


def test_unknown_keys_are_named(tmp_path: Path) -> None:
    configure(tmp_path, {"zoo": 1, "col\x1bour": 2})
    found = error(tmp_path, "config-validate")
    assert "'col\\x1bour', 'zoo'" in found["message"]


def test_a_folder_is_no_config_file(tmp_path: Path) -> None:
    assert "is not a regular file" in error(tmp_path, "config-validate", ".")["message"]

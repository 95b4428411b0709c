"""Every verb in every mode, successes and failures, held against `schema --json`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from spoolctl.cli.codes import ERRORS, WARNINGS
from spoolctl.cli.spec import load
from spoolctl.cli.verbs import VERBS
from tests.cli import contract
from tests.cli.contract import Result, call, check
from tests.cli.scene import Scene
from tests.cli.test_contract_fuzz import bounded
from tests.helpers import clean_env, spoolctl

Calls = list[tuple[str, ...]]

READS: Calls = [
    ("status",),
    ("status", "--limit", "0"),
    ("list",),
    ("list", "--limit", "2"),
    ("list", "--limit", "0"),
    ("list", "--state", "dead, done"),
    ("list", "--tag", "a"),
    ("list", "--tag", "a=1", "--queue", "default", "--priority-min", "-1"),
    ("list", "--queue", "nobody"),
    ("list", "--before-id", "3"),
    ("events",),
    ("events", "--limit", "3"),
    ("events", "--since-cursor", "5", "--limit", "0"),
    ("events", "--job", "3"),
    ("events", "--job", "999999"),
    ("events", "--wait", "--since-id", "1"),
    ("events", "--wait", "--since-id", "999999", "--wait-timeout", "0.05"),
    ("events", "--follow", "--since-id", "0", "--max-events", "4"),
    ("events", "--follow", "--since-id", "0", "--idle-timeout", "0.05"),
    ("events", "--follow", "--idle-timeout", "0.05"),
    ("config-show",),
    ("doctor",),
    ("completion", "--values", "job"),
    ("completion", "--values", "queue"),
]
"""Reading calls that succeed in the scene; `--db` is added."""

READS_OF_JOB: Calls = [
    ("show",),
    ("show", "--reveal"),
    ("output",),
    ("output", "--stream", "stderr"),
    ("output", "--tail", "1"),
    ("output", "--raw", "--stream", "stdout"),
    ("output", "--raw", "--stream", "stderr"),
    ("feedback",),
    ("feedback", "--tail-bytes", "1"),
    ("feedback", "--tail-bytes", "65536", "--stream", "stderr"),
    ("events", "--job"),
]
"""Reading calls that succeed for every job; the id is added."""

WITHOUT_QUEUE: Calls = [
    ("brief",),
    ("robot-docs", "guide"),
    ("schema",),
    ("schema", "--verb", "wait"),
    ("capabilities",),
    ("capabilities", "--verb", "add"),
    ("config-validate",),
    ("completion", "bash"),
    ("completion", "fish"),
    ("completion", "zsh"),
]

WRONG: Calls = [
    (),
    ("--json",),
    ("--json", "status"),
    ("--db", "x", "status"),
    ("--nonsense",),
    ("--version=1",),
    ("--",),
    ("stauts",),
    ("show-me",),
    ("status", "--limt", "3"),
    ("status", "--limit"),
    ("status", "--limit", "--json"),
    ("status", "--limit", "many"),
    ("status", "surplus"),
    ("status", "--json=yes"),
    ("list", "--state", "ded"),
    ("list", "--state", "done,,dead"),
    ("show",),
    ("show", "0"),
    ("show", "-1"),
    ("show", "1_0"),
    ("show", "9" * 400),
    ("show", "424242"),
    ("show", "1", "2"),
    ("output", "1", "--attempt", "77"),
    ("output", "1", "--raw"),
    ("output", "1", "--raw", "--json", "--stream", "stdout"),
    ("output", "424242"),
    ("feedback", "424242"),
    ("wait", "1", "424242", "424243"),
    ("wait",),
    ("wait", "--timeout", "nan", "1"),
    ("add",),
    ("add", "--"),
    ("add", "-c", "  "),
    ("add", "--", ""),
    ("add", "echo hi && echo there"),
    ("add", "ls", "-l"),
    ("add", "--after", "1s", "--at", "5", "--", "true"),
    ("add", "--tag", "=x", "--", "true"),
    ("add", "--key", "k-done", "--env", "=x", "--", "true"),
    ("cancel", "424242"),
    ("cancel", "--running", "1"),
    ("retry", "424242"),
    ("prune",),
    ("prune", "--older-than", "0"),
    ("prune", "--older-than", "0", "--yes", "--dry-run"),
    ("prune", "--older-than", "0", "--state", "queued", "--yes"),
    ("events", "--wait", "--follow"),
    ("events", "--limit", "1", "--follow"),
    ("events", "--max-events", "1"),
    ("schema", "--verb", "ad"),
    ("capabilities", "--verb", "nonesuch"),
    ("robot-docs",),
    ("robot-docs", "giude"),
    ("completion",),
    ("completion", "csh"),
    ("completion", "bash", "--values", "job"),
    ("config-validate", "."),
    ("config-validate", "unknown.json"),
    ("config-validate", "broken.json"),
    ("backup",),
    ("backup", "queue.db"),
    ("backup", "no/such/folder/copy.db"),
    ("work", "--once", "--drain"),
    ("work", "--slots", "0"),
]
"""Calls that fail, or would if they were valid; `--db` is added where the verb takes it."""


def placed(words: tuple[str, ...], db: Path) -> tuple[str, ...]:
    """The words with `--db` put in right after the verb, where it takes that."""
    takes_db = any(
        flag["flag"] == "--db"
        for flag in contract.described()["verbs"]
        .get(words[0] if words else "", {})
        .get("flags", ())
    )
    return (words[0], "--db", str(db), *words[1:]) if takes_db else words


def in_json(words: tuple[str, ...]) -> tuple[str, ...]:
    """The same call with `--json` after the verb."""
    return (words[0], "--json", *words[1:]) if words else words


class Log:
    """Makes calls, checks each, and keeps what was printed by verb and mode."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.validated = 0
        self.seen: set[tuple[str, str, bool]] = set()
        self.codes: set[str] = set()
        self.payloads: list[tuple[str, Any]] = []

    def __call__(self, *words: str) -> Result:
        result = call(*words, cwd=self.cwd)
        mode = check(result)
        self.validated += 1
        self.seen.add((result.verb, mode, result.status == 0))
        if mode == "envelope":
            envelope = result.json()
            self.codes |= {each["code"] for each in envelope["errors"] + envelope["warnings"]}
            if envelope["ok"]:
                self.payloads.append((result.verb, envelope["data"]))
        return result

    def both(self, words: tuple[str, ...]) -> Result:
        """In text (or raw) and as an envelope (or frames); returns the latter."""
        text = self(*words)
        result = self(*in_json(words)) if "--raw" not in words else text
        if text.verb not in ("wait", "events") and "--raw" not in words:
            assert text.status == result.status, words
        return result


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[[Log], None]:
    """Adds what a log has validated to the count that is printed at the end."""

    def add(log: Log) -> None:
        record_property("validated outputs", log.validated)

    return add


def test_reads_conform(scene: Scene, count: Callable[[Log], None]) -> None:
    log = Log(scene.folder)
    for words in READS:
        log.both(placed(words, scene.db))
    for words in READS_OF_JOB:
        for job_id in scene.jobs.values():
            log.both((*placed(words, scene.db), str(job_id)))
    for words in WITHOUT_QUEUE:
        log.both(words)
    count(log)
    for verb in VERBS.keys() - {"add", "work", "wait", "retry", "cancel", "prune", "backup", "run"}:
        assert {(verb, "envelope", True), (verb, "text", True)} <= log.seen, verb
    assert ("output", "raw", True) in log.seen
    assert ("events", "frames", True) in log.seen
    assert {"NO_ATTEMPTS_YET"} <= log.codes


def test_waits_conform(scene: Scene, count: Callable[[Log], None]) -> None:
    log = Log(scene.folder)
    wait = placed(("wait",), scene.db)
    done, dead = scene.id("done"), scene.id("dead")
    assert log.both((*wait, done)).status == 0
    assert log.both((*wait, done, dead)).status == 6
    assert log.both((*wait, "--timeout", "0.05", scene.id("scheduled"))).status == 4
    count(log)


def test_failures_conform(own_scene: Scene, count: Callable[[Log], None]) -> None:
    (own_scene.folder / "unknown.json").write_text('{"db_path": "x", "colour": 1}')
    (own_scene.folder / "broken.json").write_text("{")
    log = Log(own_scene.folder)
    for words in WRONG:
        behind = () if "--" in words else ((*words, "--json"),)
        for each in (words, in_json(words), *behind):
            result = log(*placed(each, own_scene.db))
            assert result.status != 0, words
    count(log)
    assert log.codes >= {
        *("INVALID_INPUT", "MISSING_REQUIRED", "UNKNOWN_FLAG", "UNKNOWN_COMMAND", "NOT_FOUND"),
        *("SAFETY_BLOCK",),
    }


def test_changes_conform(own_scene: Scene, count: Callable[[Log], None]) -> None:
    log = Log(own_scene.folder)

    def both(*words: str) -> Result:
        return log.both(placed(words, own_scene.db))

    both("add", "--tag", "a=b", "--env", "A=b", "--key", "x", "--at", "1700000000", "--", "true")
    both("add", "--key", "x", "--tag", "a=c", "--env", "A=b", "--note", "other", "--", "true")
    assert both("add", "--key", "x", "--", "false").status == 5
    both("add", "-p", "-c", "exit 0")
    log(*placed(("cancel", own_scene.id("waiting")), own_scene.db))
    assert both("cancel", own_scene.id("waiting")).status == 5
    assert log.codes >= {"IDEMPOTENCY_METADATA_DIFFERS", "IDEMPOTENCY_CONFLICT", "CONFLICT"}
    log(*placed(("retry", own_scene.id("dead")), own_scene.db))
    both("retry", "--force", own_scene.id("done"))
    both("feedback", own_scene.id("dead"))
    for flags in (("--dry-run",), ("--yes",)):
        both("prune", "--older-than", "0", "--state", "done,dead,failed,canceled", *flags)
    for copy in ("one.db", "two.db"):
        log(*placed(("backup", copy), own_scene.db))
    log(*placed(("backup", "--json", "three.db"), own_scene.db))
    count(log)
    assert {(verb, "envelope", True) for verb in ("add", "prune", "backup")} <= log.seen


def test_changes_that_happen_once_conform(own_scene: Scene, count: Callable[[Log], None]) -> None:
    log = Log(own_scene.folder)
    db = ("--json", "--db", str(own_scene.db))
    assert log("cancel", *db, own_scene.id("scheduled")).status == 0
    assert log("retry", *db, own_scene.id("crashed")).status == 0
    os.unlink(next((own_scene.folder / "queue.db.d" / "attempts").rglob("*.stdout")))
    log("output", *db, own_scene.id("noisy"))
    log("feedback", *db, own_scene.id("noisy"))
    log("show", *db, own_scene.id("noisy"))
    assert "OUTPUT_MISSING" in log.codes
    count(log)


WORK: Calls = [
    ("work", "--once"),
    ("work", "--once", "--queue", "nobody"),
    pytest.param(("work", "--drain", "--queue", "later"), marks=pytest.mark.slow(seconds=14)),
    ("work", "--queue", "later", "--queue", "nobody", "--idle-timeout", "0.2"),
    ("work", "--queue", "nobody", "--max-jobs", "1", "--idle-timeout", "0.1"),
]


@pytest.mark.parametrize("words", WORK, ids=" ".join)
def test_work_conforms(
    own_scene: Scene, words: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    done = spoolctl(*in_json(placed(words, own_scene.db)), cwd=own_scene.folder)
    result = Result(words, done.returncode, done.stdout.encode(), done.stderr.encode())
    assert done.returncode == 0
    if "--once" in words or "--drain" in words or result.stdout:
        contract.check_envelope(result)
    for line in done.stderr.splitlines():
        assert line.startswith("spoolctl: ")
    record_property("validated outputs", 1)


RUN: list[tuple[int, tuple[str, ...]]] = [
    (0, ("run", "--tag", "a=b", "--env", "A=b", "--key", "x", "--at", "1700000000", "--", "true")),
    (0, ("run", "--priority", "5", "--stdin", "file", "--note", "n", "--trust", "-c", "cat")),
    (3, ("run", "--no-retry", "--no-timeout", "--shell", "sh", "-c", "echo out; exit 3")),
    (4, ("run", "--final-exit", "4", "--retry-delay", "1,2", "--jitter", "0.5", "-c", "exit 4")),
    (6, ("run", "--max-retries", "0", "--max-crashes", "1", "--", "/no/such/program")),
]


@pytest.mark.parametrize(
    ("status", "words"),
    RUN,
    ids=lambda each: " ".join(map(str, each[:3])) if isinstance(each, tuple) else str(each),
)
def test_run_conforms(
    own_scene: Scene,
    status: int,
    words: tuple[str, ...],
    record_property: Callable[[str, object], None],
) -> None:
    (own_scene.folder / "file").write_text("text\n")
    text = spoolctl(*placed(words, own_scene.db), cwd=own_scene.folder)
    assert text.returncode == status
    for line in text.stderr.splitlines():
        assert line.startswith(("spoolctl: job ", "warning: ")), line
    done = spoolctl(*in_json(placed(words, own_scene.db)), cwd=own_scene.folder)
    assert (done.returncode, done.stderr) == (status, "")
    result = Result(words, 0, done.stdout.encode(), b"")
    contract.check_envelope(result)
    assert result.json()["ok"]
    record_property("validated outputs", 2)


def test_places_without_a_queue_conform(tmp_path: Path, count: Callable[[Log], None]) -> None:
    log = Log(tmp_path)
    readers = [name for name in VERBS if name not in ("add", "run", "work", "backup", "completion")]
    for name in readers:
        example = contract.described()["verbs"][name]["examples"][0][1:]
        log.both(tuple(word for word in example if word not in ("--json", "--raw")))
    assert list(tmp_path.iterdir()) == [], "a reading verb has created something"
    assert {"NO_QUEUE", "NOT_FOUND"} <= log.codes
    count(log)


UNUSABLE: dict[str, Callable[[Path], None]] = {
    "a folder": lambda path: path.mkdir(),
    "an empty file": lambda path: path.touch(),
    "garbage": lambda path: path.write_bytes(b"garbage" * 1000),
    "a FIFO": lambda path: os.mkfifo(path),
    "below a file": lambda path: None,
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_files_conform(kind: str, tmp_path: Path, count: Callable[[Log], None]) -> None:
    db = tmp_path / "it.db"
    UNUSABLE[kind](db)
    before = (db.stat().st_mode, db.read_bytes() if db.is_file() else None) if db.exists() else None
    if kind == "below a file":
        (tmp_path / "file").touch()
        db = tmp_path / "file" / "queue.db"
    log = Log(tmp_path)
    for name, entry in contract.described()["verbs"].items():
        if kind == "an empty file" and name in ("add", "run"):
            continue  # becomes a queue
        if name in ("work", "completion"):
            continue
        example = tuple(word for word in entry["examples"][0][1:] if word != "--json")
        result = log.both(placed(example, db))
        opens = entry["probe_hints"]["opens_queue"] and name != "doctor"
        if opens and kind != "an empty file":
            assert result.status in (1, 3), (name, result)
    count(log)
    if before is not None:
        assert (db.stat().st_mode, db.read_bytes() if db.is_file() else None) == before


def test_a_newer_layout_conforms(own_scene: Scene, count: Callable[[Log], None]) -> None:
    import sqlite3

    with sqlite3.connect(own_scene.db) as db:
        db.execute("PRAGMA user_version = 9999")
    db.close()
    log = Log(own_scene.folder)
    for name in ("status", "list", "add", "run", "prune", "cancel", "wait", "events", "doctor"):
        example = contract.described()["verbs"][name]["examples"][0][1:]
        assert log.both(placed(tuple(example), own_scene.db)).status == 3, name
    count(log)


@pytest.mark.parametrize("verb", VERBS)
def test_each_flag_conforms(verb: str, own_scene: Scene, count: Callable[[Log], None]) -> None:
    """Whatever flags are added to a verb, what it prints with each of them is declared."""
    log = Log(own_scene.folder)
    (own_scene.folder / "file").write_text('{"argv": ["true"], "queue": "later"}\n')
    minimal = [word for word in load(verb).examples[0][1:] if word != "--json"]
    probes = contract.described()["probe_vocabularies"]
    for flag in load(verb).flags:
        given: tuple[str, ...] = (flag.name,)
        if flag.name == "--db":
            given += (str(own_scene.db),)
        elif flag.choices:
            given += (flag.choices[0],)
        elif flag.type != "boolean":
            given += ("file" if flag.type == "path" else probes[flag.type]["valid"],)
        limited = bounded((minimal[0], *given, *minimal[1:]), list(own_scene.jobs.values()))
        if limited is not None:
            log(*placed(limited, own_scene.db))
            if flag.name != "--json":
                log(*in_json(placed(limited, own_scene.db)))
    count(log)


def test_batches_and_waits_by_other_means_conform(
    own_scene: Scene, count: Callable[[Log], None]
) -> None:
    log = Log(own_scene.folder)
    jobs = [{"argv": ["true"], "key": "b1", "tags": {"t": "1"}}, {"argv": ["false"]}]
    (own_scene.folder / "jobs").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    (own_scene.folder / "lines").write_text("echo one\necho two\n")
    (own_scene.folder / "bad").write_text('{"argv": ["true"]}\n{"argv": []}\n')

    def both(*words: str) -> Result:
        return log.both(placed(words, own_scene.db))

    assert both("add", "--batch", "jobs").status == 0
    assert both("add", "--batch", "lines", "--lines").status == 0
    assert both("add", "--batch", "bad").status == 1
    assert both("add", "--batch", "missing").status != 0
    assert both("wait", "--all", "--timeout", "0.05").status == 4
    assert both("wait", "--tag", "a=1", "--timeout", "0.05").status == 0
    assert both("wait", "--any", own_scene.id("dead"), own_scene.id("done")).status in (0, 6)
    both("wait", "--queue", "later", "--timeout", "0.05")
    assert both("wait", "--tag", "nobody=1").status in (0, 1)
    late = both("wait", "--timeout", "2.5", own_scene.id("scheduled"))
    assert late.status == 4
    assert [each["code"] for each in late.json()["warnings"]] == ["NO_WORKER"]
    count(log)


# -- nothing undeclared ---------------------------------------------------------------------


def objects_of(schema: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of an object inside of a schema, with where it stands."""
    if isinstance(schema, dict):
        kind = schema.get("type")
        if kind == "object" or (isinstance(kind, list) and "object" in kind):
            yield place, schema
        for name, part in schema.items():
            yield from objects_of(part, f"{place}/{name}")
    elif isinstance(schema, list):
        for index, part in enumerate(schema):
            yield from objects_of(part, f"{place}/{index}")


def is_open_on_purpose(place: str) -> bool:
    """`data` of the envelope is described by the verb; a schema inside of a schema is one
    level deep, since it cannot refer to itself."""
    return place == "envelope_schema/properties/data" or any(
        f"{verb_place}" in place
        for verb_place in (
            "verbs/schema/properties/envelope_schema/",
            "verbs/schema/properties/verbs/additionalProperties/",
            "verbs/schema/properties/streams/properties/events_follow/",
            "/properties/output_schema/",
        )
    )


def test_every_object_is_closed() -> None:
    found = 0
    whole = {name: contract.published()[name] for name in ("envelope_schema", "verbs", "streams")}
    for top, schema in whole.items():
        for place, each in objects_of(schema, top):
            if is_open_on_purpose(place):
                continue
            found += 1
            more = each.get("additionalProperties")
            assert more is False or (isinstance(more, dict) and more), place
            if more is False:
                assert set(each["required"]) <= set(each["properties"]), place
    assert found > 100


def test_schemas_are_valid_and_stand_alone() -> None:
    for verb, schema in contract.published()["verbs"].items():
        Draft202012Validator.check_schema(schema)
        assert "$ref" not in json.dumps(schema), verb


def test_an_undeclared_member_anywhere_is_noticed(scene: Scene) -> None:
    log = Log(scene.folder)
    for words in READS:
        log(*in_json(placed(words, scene.db)))
    for name in ("show", "output", "feedback"):
        for job_id in scene.jobs.values():
            log(*in_json(placed((name,), scene.db)), str(job_id))
    tried = 0
    for verb, data in log.payloads:
        for place in list(_objects_in(data)):
            if place.keys() & {"tags"} or _is_mapping(place):
                continue
            place["undeclared"] = object_of_no_kind = {"x": [1]}
            assert not contract.validator("verbs", verb).is_valid(data), (verb, place)
            assert place.pop("undeclared") is object_of_no_kind
            tried += 1
    assert tried > 100


def _objects_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from _objects_in(part)


def _is_mapping(value: dict[str, Any]) -> bool:
    """Whether its names come from users (tags, environment, queues): texts to texts."""
    return bool(value) and all(isinstance(each, str) for each in value.values())


def test_a_missing_member_is_noticed(scene: Scene) -> None:
    data = call("show", "--json", "--db", str(scene.db), "1", cwd=scene.folder).json()["data"]
    for name in list(data["job"]):
        taken = data["job"].pop(name)
        assert not contract.validator("verbs", "show").is_valid(data), name
        data["job"][name] = taken


def test_every_code_in_the_source_is_declared() -> None:
    """Codes are words in capitals given to `warn` or raised: each has its row."""
    import ast

    import spoolctl.cli

    declared = {*ERRORS, *WARNINGS}
    found = set()
    for path in Path(spoolctl.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "warn":
                code = node.args[0]
                assert isinstance(code, ast.Constant), path
                found.add(code.value)
    assert found
    assert found <= declared


def test_identical_calls_give_identical_data(scene: Scene) -> None:
    for words in [*READS, *WITHOUT_QUEUE]:
        if "--wait" in words or "--follow" in words:
            continue
        one, two = (
            call(*in_json(placed(words, scene.db)), cwd=scene.folder).json() for _ in range(2)
        )
        assert one["data"] == two["data"], words
        assert one["meta"]["data_hash"] == two["meta"]["data_hash"]
        assert one["meta"]["request_id"] != two["meta"]["request_id"]


def test_the_real_program_prints_the_same_contract(tmp_path: Path) -> None:
    assert shutil.which("env")
    done = spoolctl("schema", "--json", cwd=tmp_path, env=clean_env())
    assert json.loads(done.stdout)["data"] == contract.published()
    done = spoolctl("capabilities", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["data"] == contract.described()

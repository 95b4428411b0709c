"""Totality: whatever words, config files and variables are thrown at it, the answer is one of
the mode asked for, the status is a declared one, and what only reads changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spoolctl.cli.parse import HelpAsked, UsageError, parse
from spoolctl.cli.spec import Flag, load
from spoolctl.cli.verbs import VERBS
from tests.cli import contract
from tests.cli.contract import Result, call, check, described
from tests.cli.scene import Scene
from tests.helpers import clean_env

CHANGING = ("add", "backup", "cancel", "prune", "retry", "run", "work")
READING = tuple(sorted(VERBS.keys() - set(CHANGING)))

RELAXED: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

Count = Callable[[str, object], None]

# -- what is thrown -------------------------------------------------------------------------

# No slash: a path must not lead out of the scratch folder.
JUNK = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), max_size=12
) | st.sampled_from(
    [
        *("", " ", "-", "--", "---", "-1", "--1", "0", "1", "2", "999", "9" * 30, "1.5", "-0.0"),
        *("nan", "inf", "-inf", "1e9", "0x10", "1_0", " 1", "true", "null", "[]", "=", "a=", "=b"),
        *("a=b", "a=b=c", "done", "dead,done", "done,,dead", "default", ".", "..", "~", "$HOME"),
        *(
            "--json",
            "--json=1",
            "--help",
            "-h",
            "--version",
            "-",
            "-c",
            "-y",
            "-x",
            "--db",
            "--db=",
        ),
        *("\x1b[31m", "\u202e", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")),
        *(
            "x" * 5000,
            "a b",
            "'",
            '"',
            "\\",
            "\n",
            "\t",
            "%s",
            "{}",
            "1h30m",
            "now",
            "tomorrow 9:00",
        ),
        *("\udcff", "caf\udce9"),
    ]
)


def flag_words(flag: Flag) -> st.SearchStrategy[list[str]]:
    """The flag with a value, often a valid one; attached, apart, or missing."""
    spelling = st.sampled_from(flag.spellings)
    if flag.type == "boolean":
        return spelling.map(lambda each: [each])
    samples = described()["probe_vocabularies"].get(flag.type, {"valid": "1", "invalid": []})
    texts = [samples["valid"], *samples["invalid"], *(flag.choices or ()), *flag.words]
    texts += [str(edge) for edge in (flag.minimum, flag.maximum) if edge is not None]
    value = st.sampled_from(texts) | JUNK
    return (
        st.tuples(spelling, value).map(list)
        | st.tuples(spelling, value).map(lambda pair: [f"{pair[0]}={pair[1]}"])
        | spelling.map(lambda each: [each])
    )


def vectors(verb: str) -> st.SearchStrategy[tuple[str, ...]]:
    """Calls of the verb: some of its flags, ids and commands, some of anybody's, some junk."""
    own = [flag_words(flag) for flag in load(verb).flags if flag.name != "--db"]
    positional = st.sampled_from(["1", "2", "3", "4", "9", "guide", "true", "bash"]).map(
        lambda word: [word]
    )
    part = st.one_of(*own, positional, positional, JUNK.map(lambda word: [word]))
    return st.tuples(
        st.lists(part, max_size=6), st.sampled_from([[], ["--json"], ["--json"], ["--", "true"]])
    ).map(lambda both: (verb, *[word for each in both[0] for word in each], *both[1]))


ANY_WORDS = st.lists(
    JUNK | st.sampled_from(sorted(VERBS)) | st.sampled_from(["--json", "--", "--limit", "1"]),
    max_size=6,
).map(tuple)


# -- how it is thrown -----------------------------------------------------------------------


def accepted(words: Sequence[str]) -> Any:
    """The arguments, if the parser takes the words; None otherwise."""
    if not words or words[0] not in VERBS:
        return None
    try:
        return parse(load(words[0]), words[1:])
    except (UsageError, HelpAsked):
        return None


def bounded(words: Sequence[str], unsettled: Sequence[int]) -> tuple[str, ...] | None:
    """The call so changed that it ends soon; None if it cannot be made here at all."""
    args = accepted(words)
    if args is None:
        return tuple(words)
    at = list(words).index("--") if "--" in words else len(words)
    own, rest = tuple(words[:at]), tuple(words[at:])
    if own[0] in ("run", "work") or (own[0] == "output" and args.follow and args.id in unsettled):
        return None
    if own[0] == "add" and (args.wait or args.follow):
        return None  # nobody runs the job
    if own[0] == "wait":
        own += ("--timeout=0.02",)
    elif own[0] == "events" and args.follow:
        own += ("--idle-timeout=0.02",)
    elif own[0] == "events" and args.wait:
        own += ("--wait-timeout=0.02",)
    return (*own, *rest)


def fingerprint(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below the folder but SQLite's own neighbours and doorbells."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.endswith(("-wal", "-shm")) or "waiters" in path.parts:
            continue
        status = path.lstat()
        digest = b""
        if stat.S_ISREG(status.st_mode):
            digest = hashlib.sha256(path.read_bytes()).digest()
        # A folder's time moves with the -wal that comes and goes.
        times = () if stat.S_ISDIR(status.st_mode) else (status.st_mtime_ns,)
        found[name] = (status.st_mode, status.st_ino, digest, *times)
    return found


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards (hypothesis runs many examples in one test)."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def place_db(words: tuple[str, ...], db: Path) -> tuple[str, ...]:
    """The words with `--db` after the verb, where it is one that takes it."""
    if words and words[0] in VERBS and any(each.name == "--db" for each in load(words[0]).flags):
        return (words[0], f"--db={db}", *words[1:])
    return words


def counted(run: Callable[[], None], cases: list[object], record_property: Count) -> None:
    run()
    record_property("fuzz cases", len(cases))


@pytest.fixture
def still(scene: Scene, tmp_path: Path) -> Scene:
    """The scene in a folder of its own, so that parallel tests do not see each other."""
    shutil.copytree(scene.folder, tmp_path / "still")
    return Scene(tmp_path / "still", tmp_path / "still" / scene.db.name, scene.jobs)


UNSETTLED = ("backoff", "scheduled", "waiting")


@pytest.mark.parametrize("verb", READING)
def test_reading_verbs_are_total_and_change_nothing(
    verb: str, still: Scene, record_property: Count
) -> None:
    cases: list[object] = []
    before = fingerprint(still.folder)
    unsettled = [still.jobs[name] for name in UNSETTLED]

    @settings(max_examples=150, **RELAXED)
    @given(vectors(verb))
    def run(words: tuple[str, ...]) -> None:
        limited = bounded(words, unsettled)
        if limited is not None:
            cases.append(words)
            check(call(*place_db(limited, still.db), cwd=still.folder))

    counted(run, cases, record_property)
    assert fingerprint(still.folder) == before


@pytest.mark.parametrize("verb", sorted({*CHANGING} - {"run", "work"}))
def test_changing_verbs_are_total(verb: str, still: Scene, record_property: Count) -> None:
    cases: list[object] = []
    before = fingerprint(still.folder)

    @settings(max_examples=120, **RELAXED)
    @given(vectors(verb))
    def run(words: tuple[str, ...]) -> None:
        with scratch() as folder:
            db = folder / "copy.db"
            shutil.copyfile(still.db, db)
            db.chmod(0o600)
            if bounded(words, ()) is None:
                return
            result = call(*place_db(words, db), cwd=folder)
            check(result)
            if result.status != 0:
                assert db.read_bytes() == still.db.read_bytes(), words
            cases.append(words)

    counted(run, cases, record_property)
    assert fingerprint(still.folder) == before


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_invalid_words_create_nothing(verb: str, record_property: Count) -> None:
    cases: list[object] = []

    @settings(max_examples=100, **RELAXED)
    @given(vectors(verb))
    def run(words: tuple[str, ...]) -> None:
        if accepted(words) is not None and verb not in READING:
            return
        limited = bounded(words, range(1000))
        if limited is None:
            return
        cases.append(words)
        with scratch() as folder:
            check(call(*limited, cwd=folder))
            assert list(folder.iterdir()) == [], words

    counted(run, cases, record_property)


def test_any_words_are_answered(still: Scene, record_property: Count) -> None:
    cases: list[object] = []

    @settings(max_examples=600, **RELAXED)
    @given(ANY_WORDS)
    def run(words: tuple[str, ...]) -> None:
        if accepted(words) is None:
            cases.append(words)
            with scratch() as folder:
                check(call(*words, cwd=folder))
                assert list(folder.iterdir()) == []

    counted(run, cases, record_property)


# -- environments ---------------------------------------------------------------------------

VALUE = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), max_size=10
) | st.sampled_from(
    ["", "0", "-1", "1", "nan", "1e400", "x" * 5000, ".", "queue.db", "q/below.db", "\udcff", "5.0"]
)
VARIABLES = st.dictionaries(
    st.sampled_from(
        [
            *("SPOOLCTL_DB", "SPOOLCTL_TEST_HEARTBEAT_INTERVAL", "SPOOLCTL_TEST_REAP_THRESHOLD"),
            *(
                "NO_COLOR",
                "TERM",
                "COLUMNS",
                "LINES",
                "LANG",
                "LC_ALL",
                "SOURCE_DATE_EPOCH",
                "HOME",
            ),
            *("PATH", "PWD", "TZ", "SPOOLCTL_JOB_ID", "SPOOLCTL_NONSENSE", "XDG_CONFIG_HOME"),
        ]
    ),
    VALUE,
    max_size=5,
)


@pytest.mark.slow(seconds=9)
def test_any_environment_is_answered(record_property: Count) -> None:
    cases: list[object] = []
    calls = [("add", "--", "true"), *((verb, *_example(verb)) for verb in READING)]

    @settings(max_examples=400, **RELAXED)
    @given(st.sampled_from(calls), st.booleans(), VARIABLES)
    def run(words: tuple[str, ...], as_json: bool, env: dict[str, str]) -> None:
        words = (words[0], "--json", *words[1:]) if as_json else words
        limited = bounded(words, range(1000))
        assert limited is not None
        with scratch() as folder:
            check(call(*limited, cwd=folder, env=env))
            assert words[0] == "add" or list(folder.iterdir()) == [], words
        cases.append(words)

    counted(run, cases, record_property)


def _example(verb: str) -> tuple[str, ...]:
    return tuple(word for word in load(verb).examples[0][2:] if word != "--json")


# -- config files ---------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = described()["config"]["defaults"]


def setting_values(key: str) -> st.SearchStrategy[object]:
    """Values that a default may have, many of them good."""
    setting = KEYS[key]
    samples = described()["probe_vocabularies"].get(setting["type"], {"valid": "x", "invalid": []})
    edges = [edge for edge in (setting["minimum"], setting["maximum"]) if edge is not None]
    good = [samples["valid"], setting["default"], *setting["words"], *(setting["choices"] or ())]
    odd = ["all", "none", "PATH,LC_*", ["PATH", "TZ"], [10, "1m"], [], None, 1, 0.5, 4096, "7"]
    return st.sampled_from([*good, *edges, *samples["invalid"], *odd]) | JSON_VALUES


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "version": st.just(1) | JSON_VALUES,
        "db_path": st.sampled_from(["q.db", "sub/q.db", "", "x" * 4096, "x" * 4097, "\0", "\ud800"])
        | JSON_VALUES.filter(lambda value: not (isinstance(value, str) and "/" in value)),
        "colour": JSON_VALUES,
        **{key: setting_values(key) for key in KEYS},
    },
)
# Few keys at a time: of a file with all of them one is always bad.
FEW = st.lists(st.sampled_from(sorted(KEYS)), max_size=2).flatmap(
    lambda keys: st.fixed_dictionaries({key: setting_values(key) for key in keys})
)
CONTENTS = (
    st.binary(max_size=60)
    | CONFIGS.map(lambda value: json.dumps(value).encode())
    | FEW.map(lambda value: json.dumps(value).encode())
    | JSON_VALUES.map(lambda value: json.dumps(value).encode())
    | st.sampled_from(
        [b"", b"{", b"[" * 100_000, b"{}", b"\xff\xfe{\x00", b"\xef\xbb\xbf{}", b"1" * 5000]
    )
)


class Validity(NamedTuple):
    """Whether a config file can be read, which of its defaults are bad, whether it has keys
    that mean nothing."""

    usable: bool
    bad: frozenset[str] = frozenset()
    strange: bool = False

    def serves(self, verb: str) -> bool:
        """Whether the verb can use it."""
        return self.usable and not any(
            user.partition(" ")[0] == verb for key in self.bad for user in KEYS[key]["used_by"]
        )


def is_good(key: str, value: object) -> bool:
    """Whether the command line accepts the value, as its text is written there."""
    verb, name = KEYS[key]["used_by"][0].split(" ")
    if value is None:
        return key == "timeout"
    if value == [] and key == "capture_env":
        return True  # no variable: the command line has the word `none` for that
    if isinstance(value, list):
        if key not in ("retry_delay", "capture_env"):
            return False
        words = value
    else:
        words = [value]
    if not words or not all(type(word) in (str, int, float) for word in words):
        return False
    text = ",".join(word if isinstance(word, str) else repr(word) for word in words)
    rest = ("true",) if verb in ("add", "run") else ()
    return accepted((verb, f"{name}={text}", *rest)) is not None


def validity(content: bytes) -> Validity:
    """What is to be expected of a config file."""
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return Validity(False)
    if not isinstance(value, dict):
        return Validity(False)
    version = value.get("version", 1)
    path = value.get("db_path", "x")
    usable = type(version) is int and version == 1 and isinstance(path, str)
    usable = usable and 1 <= len(path) <= 4096 and "\0" not in path and _is_unicode(path)
    bad = frozenset(key for key in KEYS if key in value and not is_good(key, value[key]))
    return Validity(usable, bad, not set(value) <= {"version", "db_path", *KEYS})


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.slow(seconds=14)
def test_any_config_file_is_answered(record_property: Count) -> None:
    cases: list[object] = []

    @settings(max_examples=250, **RELAXED)
    @given(CONTENTS, st.booleans())
    def run(content: bytes, as_json: bool) -> None:
        expected = validity(content)
        clean = expected.usable and not expected.bad
        strict = clean and not expected.strange
        flags = ("--json",) if as_json else ()
        with scratch() as folder:
            (folder / ".spoolctl").mkdir()
            path = folder / ".spoolctl" / "config.json"
            path.write_bytes(content)
            before = fingerprint(folder)

            def ask(verb: str, *words: str) -> Result:
                result = call(verb, *flags, *words, cwd=folder)
                check(result)
                cases.append(result.words)
                return result

            assert (ask("config-show").status == 0) == clean, content
            assert (ask("config-validate").status == 0) == strict, content
            assert (ask("config-validate", str(path)).status == 0) == strict, content
            for verb in ("status", "list", "events", "prune"):
                words = ("--older-than", "1", "--dry-run") if verb == "prune" else ()
                # A path that is long enough already is too long below the folder.
                if b"x" * 4096 not in content:
                    assert (ask(verb, *words).status == 0) == expected.usable, (verb, content)
            assert ask("doctor").status == 3
            # Named otherwise, the queue needs no config file.
            assert ask("status", "--db", "elsewhere.db").status == 0
            assert ask("config-show", "--db", "elsewhere.db").status == 0
            assert fingerprint(folder) == before
            if as_json and b"x" * 4096 not in content:
                added = ask("add", "--", "true")
                assert (added.status == 0) == expected.serves("add"), content
                named = ask("add", "--db", "elsewhere.db", "--", "true")
                said = {each["code"] for each in named.json()["warnings"]} - {"NO_WORKER"}
                assert (not said) == expected.serves("add"), content
                assert path.read_bytes() == content

    counted(run, cases, record_property)


# -- the real program -----------------------------------------------------------------------


def in_process_of_its_own(words: Sequence[str], folder: Path) -> Result:
    done = subprocess.run(
        [sys.executable, "-m", "spoolctl", *(os.fsencode(word) for word in words)],
        cwd=folder,
        env=clean_env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Result(tuple(words), done.returncode, done.stdout, done.stderr)


def test_the_real_program_is_total_too(record_property: Count) -> None:
    cases: list[object] = []

    @settings(max_examples=60, **RELAXED)
    @given(st.sampled_from(sorted(VERBS)).flatmap(vectors) | ANY_WORDS)
    def run(words: tuple[str, ...]) -> None:
        with scratch() as folder:
            limited = bounded(words, range(1000))
            if limited is None:
                if words[0] != "work":
                    return
                # There are no jobs, so a drain ends at once, and an idle worker soon.
                limited = ("work", "--idle-timeout=0.05", *words[1:])
                if accepted(limited) is None:
                    return
            cases.append(limited)
            result = in_process_of_its_own(limited, folder)
            check(result, mode="text" if _is_silent(result) else None)

    counted(run, cases, record_property)


RUN_FLAGS = [
    flag
    for flag in load("run").flags
    if flag.name not in ("--after", "--at", "--db", "--json", "--no-retry", "-c")
]


def test_run_is_total_too(record_property: Count) -> None:
    """Any flags, but a command of ours: junk is not executed."""
    cases: list[object] = []
    flags = st.lists(st.one_of(*map(flag_words, RUN_FLAGS)), max_size=3)

    @settings(max_examples=15, **RELAXED)
    @given(flags, st.sampled_from(("true", "false")), st.sampled_from(([], ["--json"])))
    def run(flags: list[list[str]], command: str, mode: list[str]) -> None:
        given = [word for each in flags for word in each]
        words = ("run", *mode, *given, "--no-retry", "--", command)
        with scratch() as folder:
            result = in_process_of_its_own(words, folder)
            args = accepted(words)
            if result.status in (1, 6) and args is not None and (folder / ".spoolctl").exists():
                assert (command == "false") == (result.status == 1) or args.cwd is not None
                if mode:
                    contract.conforms(result.json()["data"], "verbs", "run")
            else:
                check(result)
        cases.append(words)

    counted(run, cases, record_property)


def _is_silent(result: Result) -> bool:
    """An endless `work` prints nothing, also with --json."""
    return result.verb == "work" and result.status == 0 and result.stdout == b""


def test_the_oracle_notices_a_wrong_answer(tmp_path: Path) -> None:
    good = call("status", "--json", cwd=tmp_path)
    check(good)
    for broken in (
        good._replace(status=7),
        good._replace(status=3),
        good._replace(stdout=good.stdout + b"{}\n"),
        good._replace(stdout=good.stdout.replace(b'"queued": 0', b'"queued": -1')),
        good._replace(stdout=good.stdout.replace(b'"NO_QUEUE"', b'"ODD"')),
        good._replace(stderr=b"Traceback (most recent call last):\n"),
        good._replace(stderr=b"noise\n"),
    ):
        with pytest.raises(AssertionError):
            contract.check(broken)

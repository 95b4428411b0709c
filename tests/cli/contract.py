"""Calling verbs and holding their answers against the published contract."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator

from spoolctl.cli.contract import capabilities
from spoolctl.cli.main import main
from spoolctl.cli.render import Out
from spoolctl.cli.schema import schemas
from spoolctl.version import __version__
from tests.helpers import clean_env

Json = dict[str, Any]

OK_AND_NOT_ZERO = {"wait": 6, "doctor": 3}
"""Verbs that may exit so although the answer is ok."""

PAGED = ("events", "list")


class Result(NamedTuple):
    """One call and what came of it."""

    words: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes

    @property
    def verb(self) -> str:
        return self.words[0] if self.words else ""

    def json(self) -> Json:
        """The envelope."""
        envelope: Json = json.loads(self.stdout)
        return envelope


@contextmanager
def surroundings(cwd: Path, env: Mapping[str, str]) -> Iterator[None]:
    """In this folder, with this environment and nothing else of spoolctl's."""
    before_cwd, before_env = os.getcwd(), dict(os.environ)
    os.environ.clear()
    os.environ.update(clean_env(env))
    os.chdir(cwd)
    try:
        yield
    finally:
        os.chdir(before_cwd)
        os.environ.clear()
        os.environ.update(before_env)


def call(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> Result:
    """One call inside of this process, with its streams caught; fast enough for thousands."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with surroundings(cwd, env or {}):
            status = main(words, out=Out(out.fileno(), err.fileno()))
        out.seek(0)
        err.seek(0)
        return Result(words, status, out.read(), err.read())


# -- the contract ---------------------------------------------------------------------------


@functools.cache
def published() -> Json:
    """All schemas, as `schema --json` prints them."""
    whole: Json = json.loads(json.dumps(schemas()))
    return whole


@functools.cache
def described() -> Json:
    """The interface, as `capabilities --json` prints it."""
    whole: Json = json.loads(json.dumps(capabilities()))
    return whole


@functools.cache
def validator(*path: str) -> Draft202012Validator:
    """A validator for one of the published schemas."""
    schema = published()
    for each in path:
        schema = schema[each]
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def conforms(value: object, *path: str) -> None:
    """AssertionError if the value does not fit the published schema, with the place."""
    for error in validator(*path).iter_errors(value):
        raise AssertionError(f"{'/'.join(path)} at {error.json_path}: {error.message[:300]}")


def check(result: Result, *, mode: str | None = None) -> str:
    """Hold one answer against the contract; returns the mode in which it was given.

    `mode` None: the one that the words ask for.
    """
    assert str(result.status) in described()["exit_codes"], result
    assert b"Traceback" not in result.stdout + result.stderr, result
    # The last resort: every fault has to be known by its name.
    assert b"unexpected " not in result.stderr, result
    if asks_for_help(result):
        mode = "text"
    mode = mode or mode_of(result.words)
    checks = {"envelope": check_envelope, "frames": check_frames, "raw": check_raw}
    checks.get(mode, check_text)(result)
    return mode


def mode_of(words: Sequence[str]) -> str:
    """The output mode that words ask for, whether or not they are valid."""
    own = list(words)[: list(words).index("--")] if "--" in words else list(words)
    if any(word == "--json" or word.startswith("--json=") for word in own):
        return "frames" if own[:1] == ["events"] and "--follow" in own else "envelope"
    return "raw" if own[:1] == ["output"] and "--raw" in own else "text"


def asks_for_help(result: Result) -> bool:
    """Whether help or the version was given: these are text in every mode."""
    return result.status == 0 and result.stdout.startswith(
        (b"usage: spoolctl ", f"spoolctl {__version__}\n".encode())
    )


def check_text(result: Result) -> None:
    """Failure: stdout empty, a diagnosis on stderr."""
    if result.verb != "output":  # which prints what the command wrote
        result.stdout.decode("utf-8")
    if result.status != 0 and result.status != OK_AND_NOT_ZERO.get(result.verb):
        assert result.stdout == b"", result
        said = [line for line in result.stderr.splitlines() if not line.startswith(b"warning: ")]
        assert said[:1], result
        assert said[0].startswith(b"spoolctl: error: "), result


def check_raw(result: Result) -> None:
    """Captured bytes, or nothing and a remark."""
    if result.status != 0:
        assert result.stdout == b"", result
        assert result.stderr, result


def check_frames(result: Result) -> None:
    """Events and control frames, a line each; or, before the first of them, an envelope."""
    lines = result.stdout.splitlines()
    if lines and b'"ok"' in lines[0] and len(lines) == 1 and "errors" in json.loads(lines[0]):
        check_envelope(result)
        assert result.status != 0
        return
    frames = [json.loads(line) for line in lines]
    for frame in frames:
        conforms(frame, "streams", "events_follow")
        assert ("id" in frame) != ("control" in frame)
    assert all("id" in frame for frame in frames[:-1]), "a control frame comes last"


def check_envelope(result: Result) -> None:
    """Exactly one conforming object; its parts agree with each other and with the status."""
    assert result.stdout.endswith(b"\n"), result
    assert result.stdout.count(b"\n") == 1, result
    envelope = result.json()
    conforms(envelope, "envelope_schema")
    assert envelope["ok"] == (not envelope["errors"]), result
    if envelope["ok"]:
        _check_success(result, envelope)
    else:
        _check_failure(result, envelope)
    declared = described()["verbs"].get(result.verb, {}).get("warning_codes", [])
    for warning in envelope["warnings"]:
        assert warning["code"] in declared, (result.words, warning)
    meta = envelope["meta"]
    assert ("pagination" in meta) == (envelope["ok"] and result.verb in PAGED), result
    assert ("wait" in meta) == (envelope["ok"] and _waits_for_events(result)), result


def _waits_for_events(result: Result) -> bool:
    return result.verb == "events" and "--wait" in result.words


def _check_success(result: Result, envelope: Json) -> None:
    conforms(envelope["data"], "verbs", result.verb)
    assert result.status in (0, OK_AND_NOT_ZERO.get(result.verb, 0)), result
    if result.verb == "wait":
        assert (result.status == 0) == envelope["data"]["all_succeeded"], result
    if result.verb == "doctor":
        assert (result.status == 0) == envelope["data"]["ready"], result
    assert result.stderr == b"" or result.verb == "work", result


def _check_failure(result: Result, envelope: Json) -> None:
    error = envelope["errors"][0]
    assert envelope["data"] is None, result
    assert error["exit_code"] == result.status != 0, result
    assert described()["code_registry"][error["code"]]["exit_code"] == result.status, result
    message = error["message"].encode("utf-8", "backslashreplace")
    assert message in result.stderr or not error["message"].isprintable(), result

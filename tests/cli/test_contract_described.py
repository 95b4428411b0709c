"""What `capabilities`, `brief` and the guide claim is tried out on the real program."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spoolctl.cli import faults
from spoolctl.cli.brief import text as brief_text
from spoolctl.cli.codes import ERRORS, EXITS
from spoolctl.cli.parse import UsageError, parse
from spoolctl.cli.robot_docs import sections
from spoolctl.cli.spec import Flag, Positional, load
from spoolctl.cli.variables import VARIABLES
from spoolctl.cli.verbs import VERBS
from spoolctl.core.limits import LIMITS
from spoolctl.core.states import State
from tests.cli.contract import call, check, described
from tests.helpers import spoolctl

Json = dict[str, Any]

FLAGS = [(verb, flag) for verb in VERBS for flag in load(verb).flags]
VALUED = [(verb, flag) for verb, flag in FLAGS if flag.type != "boolean"]
POSITIONALS = [(verb, each) for verb in VERBS for each in load(verb).positionals]


MANDATORY = {
    "add": "job_id state deduplicated next_run_at priority queue cwd env_keys",
    "brief": "text approx_tokens budget_tokens",
    "cancel": "job_id state was_running",
    "config-show": "config_path config_exists config_valid values sources precedence ignored_keys",
    "config-validate": "config_path exists valid format schema_version recognized_keys "
    "unknown_keys",
    "doctor": "ready summary config checks versions",
    "events": "count events",
    "feedback": "job_id state terminal succeeded exit_code failure_reason last_error attempts "
    "attempts_total latest_attempt_no duration_seconds remediation streams",
    "list": "count jobs",
    "prune": "matched deleted_jobs deleted_attempts deleted_events freed_bytes dry_run actual",
    "retry": "job_id state",
    "run": "job_id state deduplicated next_run_at priority queue cwd env_keys outcome",
    "robot-docs": "text approx_tokens sections",
    "schema": "dialect envelope_schema verbs streams",
    "show": "job attempts events",
    "status": "counts scheduled queues recent_dead",
    "wait": "all_succeeded jobs",
}
"""The members that a payload has in every version; later ones are optional in the schema."""


def name_of(item: object) -> str:
    return item if isinstance(item, str) else getattr(item, "name", "")


def entry_of(verb: str, flag: Flag) -> Json:
    entries: list[Json] = described()["verbs"][verb]["flags"]
    return next(each for each in entries if each["flag"] == flag.name)


def minimal(verb: str, *, without: str | None = None) -> list[str]:
    """A valid call of the verb; `without` this flag and its value."""
    words = [word for word in load(verb).examples[0][1:] if word != "--json"]
    if without in words:
        at = words.index(without)
        del words[at : at + 2]
    return words


def expect_failure(words: list[str], expected: Json, folder: Path) -> None:
    """The call fails as published, in both modes, before it opens anything."""
    for each in (words, [words[0], "--json", *words[1:]]):
        result = call(*each, cwd=folder)
        check(result)
        assert result.status == expected["exit_code"], each
    assert result.json()["errors"][0]["code"] == expected["code"], words
    assert list(folder.iterdir()) == [], words


# -- malformed input ------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "flag"), VALUED, ids=name_of)
def test_malformed_values_of_flags_lead_to_what_is_published(
    verb: str, flag: Flag, tmp_path: Path
) -> None:
    published = entry_of(verb, flag)["malformed_expectations"]
    assert published
    rest = minimal(verb)[1:]
    texts = faults.samples(flag)
    for fault, expected in published.items():
        for spelling in flag.spellings:
            if fault == "missing_value":
                expect_failure([verb, spelling], expected, tmp_path)
                expect_failure([verb, spelling, "--json"], expected, tmp_path)
            elif fault == "missing":
                expect_failure(minimal(verb, without=flag.name), expected, tmp_path)
            elif fault == "blank":
                expect_failure([verb, spelling, " \t"], expected, tmp_path)
            else:
                expect_failure([verb, spelling, texts[fault], *rest], expected, tmp_path)
                if spelling.startswith("--"):
                    attached = f"{spelling}={texts[fault]}"
                    expect_failure([verb, attached, *rest], expected, tmp_path)


@pytest.mark.parametrize(("verb", "each"), POSITIONALS, ids=name_of)
def test_malformed_positionals_lead_to_what_is_published(
    verb: str, each: Positional, tmp_path: Path
) -> None:
    entries = described()["verbs"][verb]["positionals"]
    (entry,) = (entry for entry in entries if entry["name"] == each.name)
    texts = faults.samples(each)
    for fault, expected in entry["malformed_expectations"].items():
        words = [verb] if fault == "missing" else [verb, texts[fault]]
        expect_failure(words, expected, tmp_path)


@pytest.mark.parametrize(("verb", "flag"), FLAGS, ids=name_of)
def test_a_switch_takes_no_value(verb: str, flag: Flag, tmp_path: Path) -> None:
    if flag.type == "boolean" and flag.name.startswith("--"):
        invalid = {"code": "INVALID_INPUT", "exit_code": 1}
        expect_failure([verb, f"{flag.name}=true", *minimal(verb)[1:]], invalid, tmp_path)
        assert entry_of(verb, flag)["malformed_expectations"] == {}


@pytest.mark.parametrize("verb", VERBS)
def test_exclusive_flags_are_refused(verb: str, tmp_path: Path) -> None:
    flags = {each.name: each for each in load(verb).flags}
    for one, other in described()["verbs"][verb]["mutually_exclusive"]:
        words = [verb, *given(flags[one]), *given(flags[other]), *minimal(verb)[1:]]
        expect_failure(words, {"code": "INVALID_INPUT", "exit_code": 1}, tmp_path)


def given(flag: Flag) -> list[str]:
    """The flag with a valid value."""
    if flag.type == "boolean":
        return [flag.name]
    if flag.choices:
        return [flag.name, flag.choices[0]]
    return [flag.name, described()["probe_vocabularies"][flag.type]["valid"]]


@pytest.mark.parametrize("name", VARIABLES)
def test_malformed_variables_lead_to_what_is_published(name: str, tmp_path: Path) -> None:
    entry = described()["env_vars"][name]
    db = [] if name == "SPOOLCTL_DB" else ["--db", "queue.db"]
    for fault, expected in entry["malformed_expectations"].items():
        env = {name: VARIABLES[name].invalid[fault]}
        for verb in entry["consumed_by"]:
            if verb == "completion":
                continue  # has nothing to offer then, which is no error
            result = call(verb, "--json", *db, *minimal(verb)[1:], cwd=tmp_path, env=env)
            check(result)
            assert result.status == expected["exit_code"], (verb, fault)
            assert result.json()["errors"][0]["code"] == expected["code"]
        for verb in VERBS.keys() - set(entry["consumed_by"]):
            if verb != "add":
                words = (verb, *minimal(verb)[1:])
                assert (
                    call(*words, cwd=tmp_path, env=env).status == call(*words, cwd=tmp_path).status
                )
        assert list(tmp_path.iterdir()) == []


# -- samples, ranges, defaults --------------------------------------------------------------


def one_value(verb: str, flag: Flag, text: str) -> object:
    """What the parser makes of `--flag=text`."""
    value = getattr(parse(load(verb), [f"{flag.name}={text}", *minimal(verb)[1:]]), flag.dest)
    return value[0] if flag.repeatable else value


def is_refused(verb: str, flag: Flag, text: str) -> bool:
    try:
        one_value(verb, flag, text)
    except UsageError as error:
        return error.code == "INVALID_INPUT"
    return False


@pytest.mark.parametrize(("verb", "flag"), VALUED, ids=name_of)
def test_probe_vocabularies_are_true_of_every_flag(verb: str, flag: Flag) -> None:
    samples = described()["probe_vocabularies"][flag.type]
    if flag.choices:
        assert is_refused(verb, flag, "nonesuch")
        assert not any(is_refused(verb, flag, choice) for choice in flag.choices)
    elif flag.type == "integer":
        # One sample for all: in the range of most, at least.
        assert not is_refused(verb, flag, str(max(1, flag.minimum or 1)))
    else:
        assert not is_refused(verb, flag, samples["valid"])
    for text in samples["invalid"]:
        # A tag filter may be a bare key.
        if (flag.check, text) != ("tag_filter", "key"):
            assert is_refused(verb, flag, text), text


@pytest.mark.parametrize(("verb", "flag"), VALUED, ids=name_of)
def test_published_ranges_are_the_ones_enforced(verb: str, flag: Flag) -> None:
    entry = entry_of(verb, flag)
    low, high = entry["minimum"], entry["maximum"]
    if flag.type in ("integer", "size") and high is not None:
        for text, valid in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
            assert is_refused(verb, flag, str(text)) != valid, text
    elif flag.type == "float":
        assert low == 0
        assert is_refused(verb, flag, "0")
        assert not is_refused(verb, flag, str(high))
        assert is_refused(verb, flag, repr(math.nextafter(high, math.inf)))
    elif flag.type == "fraction":
        for text, valid in ((low, True), (high, True), (-0.1, False), (1.1, False)):
            assert is_refused(verb, flag, str(text)) != valid, text
    elif flag.type == "duration":
        assert not is_refused(verb, flag, str(high))
        assert is_refused(verb, flag, str(high + 1))
    elif flag.type in ("string", "path", "queue") and high is not None:
        assert not is_refused(verb, flag, "x" * high)
        assert is_refused(verb, flag, "x" * (high + 1))
    assert entry["unbounded"] == (
        (low, high) == (None, None) and not flag.choices and flag.type == "string"
    )


@pytest.mark.parametrize(("verb", "flag"), FLAGS, ids=name_of)
def test_published_defaults_are_what_holds_without_the_flag(verb: str, flag: Flag) -> None:
    published = entry_of(verb, flag)["default"]
    if flag.required or flag.name in minimal(verb):
        return
    value = getattr(parse(load(verb), minimal(verb)[1:]), flag.dest)
    if published is None:
        assert value is None
    elif published == []:
        assert value == ()
    elif flag.type == "boolean":
        assert value is published is False
    else:
        # As it is written, it means the same.
        written = getattr(
            parse(load(verb), [f"{flag.name}={published}", *minimal(verb)[1:]]), flag.dest
        )
        assert value == written or (value,) == written


# -- examples -------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, ...]]:
    """Every command that the program's own texts tell people and programs to run."""
    for verb in VERBS:
        yield from (tuple(words) for words in described()["verbs"][verb]["examples"])
        yield tuple(described()["verbs"][verb]["probe_hints"]["minimal_call"])
        yield tuple(shlex.split(described()["verbs"][verb]["schema_ref"]))
    for _, bullets in sections():
        yield from (tuple(shlex.split(each)) for each in bullets if each.startswith("spoolctl "))
    for line in brief_text().splitlines():
        if line.startswith(("spoolctl ", "More: ")):
            for part in line.removeprefix("More: ").rstrip(".").split(";"):
                yield tuple(shlex.split(part.replace("ID", "1").replace("NAME", "add")))
    yield tuple(shlex.split(described()["robot_docs_uri"]))
    yield tuple(shlex.split(described()["schemas_uri"]))


@pytest.mark.parametrize("words", sorted(set(commands())), ids=" ".join)
def test_commands_in_texts_are_accepted(words: tuple[str, ...]) -> None:
    assert words[0] == "spoolctl"
    if words[-1] != "--help" and not words[1].endswith(":"):
        parse(load(words[1]), words[2:])


def test_examples_of_errors_lead_to_them(tmp_path: Path) -> None:
    tried = set()
    for code, entry in described()["code_registry"].items():
        example = entry.get("example", "ID")
        if "ID" in example:
            continue
        tried.add(code)
        for line in example.split(";"):
            words = shlex.split(line)[1:]
            done = call(words[0], "--json", *words[1:], cwd=tmp_path)
        assert done.status == entry["exit_code"], code
        assert done.json()["errors"][0]["code"] == code
    assert len(tried) >= 7


# -- the document ---------------------------------------------------------------------------


def test_vocabularies_are_those_of_the_interface() -> None:
    whole = described()
    assert whole["tool_name"] == "spoolctl"
    assert whole["contract_version"] == "2"
    assert set(whole["job_states"]) == {
        *("queued", "running", "done", "dead", "canceled", "failed"),
    }
    assert set(whole["attempt_states"]) == {
        *("running", "succeeded", "failed", "timed_out", "abandoned", "canceled"),
    }
    assert whole["events"] == [
        *("added", "claimed", "succeeded", "failed", "timed_out", "reaped", "released"),
        *("dead", "failed_final", "retried", "canceled"),
    ]
    assert whole["failure_reasons"] == [
        *("process_exit", "timeout", "spawn_failed", "worker_crash", "canceled"),
        *("worker_shutdown", "output_limit", "dependency_failed", "unknown"),
    ]
    assert set(whole["error_codes"]) == {
        *("INVALID_INPUT", "MISSING_REQUIRED", "UNKNOWN_FLAG", "UNKNOWN_COMMAND", "NOT_FOUND"),
        *("CONFLICT", "IDEMPOTENCY_CONFLICT", "SAFETY_BLOCK", "LOCKED", "TIMEOUT", "INTERNAL"),
    }
    retryable = [whole["exit_codes"][str(code)]["retryable"] for code in range(7)]
    assert retryable == [None, False, False, None, True, False, False]
    assert "data.ready" in whole["exit_codes"]["3"]["note"]
    assert "data.all_succeeded" in whole["exit_codes"]["6"]["note"]


INTERFACE_DEFAULTS = {
    "add --max-crashes": 20,
    "add --max-retries": 3,
    "add --timeout": 300,
    "add --priority": 0,
    "add --queue": "default",
    "add --tag": [],
    "add --env": [],
    "add --after": None,
    "list --tag": [],
    "list --limit": 50,
    "list --state": None,
    "status --limit": 10,
    "events --limit": None,
    "events --wait-timeout": 30.0,
    "events --poll-interval": 0.5,
    "wait --poll-interval": 0.5,
    "wait --timeout": None,
    "work --poll-interval": None,
    "work --queue": "default",
    "work --slots": None,
    "feedback --tail-bytes": 2048,
    "feedback --stream": "both",
    "output --stream": "both",
    "output --attempt": None,
    "prune --state": "done",
    "prune --older-than": None,
}


@pytest.mark.parametrize("name", INTERFACE_DEFAULTS)
def test_defaults_are_those_of_the_interface(name: str) -> None:
    verb, flag = name.split()
    (entry,) = (each for each in described()["verbs"][verb]["flags"] if each["flag"] == flag)
    assert entry["default"] == INTERFACE_DEFAULTS[name]


def test_verbs_are_described_in_full() -> None:
    for verb, entry in described()["verbs"].items():
        names = [each["flag"] for each in entry["flags"]]
        assert names == sorted(names), verb
        assert "--help" not in names
        assert "--json" in names
        assert entry["args"] == entry["positionals"]
        assert entry["exit_codes"] == list(EXITS)
        assert entry["examples"], verb
        assert entry["summary"] == VERBS[verb].summary
    mutating = {verb for verb, entry in described()["verbs"].items() if entry["mutates"]}
    assert mutating == {"add", "cancel", "prune", "retry", "run", "work"}
    assert described()["verbs"]["prune"]["destructive"] is True
    for verb in ("cancel", "retry"):
        assert isinstance(described()["verbs"][verb]["destructive"], str)
    assert set(described()["verbs"]["events"]["output_modes"]) == {"envelope", "frames", "text"}
    assert set(described()["verbs"]["output"]["output_modes"]) == {"envelope", "raw", "text"}


def test_safety_and_frames_are_described() -> None:
    verbs = described()["verbs"]
    assert verbs["prune"]["safety"]["dry_run_flag"] == "--dry-run"
    assert verbs["cancel"]["safety"]["requires"] == ["--running", "--yes"]
    assert verbs["retry"]["safety"]["force_required_for"] == "running_job"
    assert verbs["retry"]["safety"]["also_requires_yes"] is False
    assert verbs["events"]["frames"]["record_schema"] == "#/streams/events_follow"
    assert verbs["events"]["frames"]["control_frames"] == ["end", "error"]


def test_limits_are_published_as_they_are() -> None:
    for name, limit in LIMITS.items():
        entry = described()["limits"][name]
        assert (entry["minimum"], entry["maximum"]) == (limit.minimum, limit.maximum)
        assert entry["unbounded"] is False


@pytest.mark.parametrize("verb", MANDATORY)
def test_mandatory_members_are_the_agreed_ones(verb: str) -> None:
    assert set(load(verb).schema()["required"]) == set(MANDATORY[verb].split())


def test_one_verb_alone() -> None:
    from spoolctl.cli.contract import capabilities

    for verb in VERBS:
        alone = capabilities(verb)
        assert list(alone["verbs"]) == [verb]
        assert alone["verbs"][verb]["flags"] == described()["verbs"][verb]["flags"]


def test_brief_stays_in_its_budget_and_names_everything() -> None:
    text = brief_text()
    assert math.ceil(len(text) / 4) <= 700
    for word in (*VERBS, *(state.value for state in State), "SPOOLCTL_DB", "--drain"):
        assert word in text, word
    assert "all_succeeded" in text


def test_the_guide_has_sections_and_names_every_code() -> None:
    found = sections()
    assert len(found) >= 4
    assert all(title and bullets and all(bullets) for title, bullets in found)
    everything = " ".join(bullet for _, bullets in found for bullet in bullets)
    for code in ERRORS:
        assert code in everything, code


def test_did_you_mean_is_given_at_distance_one(tmp_path: Path) -> None:
    for words, meant in (
        (("stat us",), "status"),
        (("lst",), "list"),
        (("list", "--limt", "1"), "--limit"),
        (("list", "--state", "ded"), "dead"),
        (("schema", "--verb", "ad"), "add"),
        (("capabilities", "--verb", "waits"), "wait"),
        (("listing",), None),
        (("list", "--state", "deed"), "dead"),
        (("list", "--state", "nothing"), None),
    ):
        result = call(words[0], "--json", *words[1:], cwd=tmp_path)
        check(result)
        assert result.json()["errors"][0].get("did_you_mean") == meant, words


def test_help_is_given_for_every_verb_and_touches_nothing(tmp_path: Path) -> None:
    for verb in VERBS:
        for flag in ("--help", "-h"):
            result = call(verb, flag, cwd=tmp_path)
            assert result.status == 0
            text = result.stdout.decode()
            for each in load(verb).flags:
                assert all(spelling in text for spelling in each.spellings), (verb, each.name)
    whole = call("--help", cwd=tmp_path).stdout.decode()
    assert all(verb in whole for verb in VERBS)
    assert list(tmp_path.iterdir()) == []


def test_capabilities_does_not_depend_on_the_surroundings(tmp_path: Path) -> None:
    import json

    env = {"SPOOLCTL_DB": "", "COLUMNS": "20", "LANG": "C", "TZ": "Asia/Kathmandu"}
    done = spoolctl("capabilities", "--json", cwd=tmp_path, env=env)
    assert json.loads(done.stdout)["data"] == described()

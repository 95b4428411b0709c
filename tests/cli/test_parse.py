"""Words into arguments, and what is said of words that make no sense."""

from __future__ import annotations

import pytest

from spoolctl.cli.parse import HelpAsked, UsageError, parse, wants_json
from spoolctl.cli.spec import load
from spoolctl.cli.values import closest
from spoolctl.cli.verbs import VERBS

ADD, WAIT, LIST, SHOW = load("add"), load("wait"), load("list"), load("show")


def fault(verb: str, *words: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(load(verb), words)
    return caught.value


def test_flags_may_stand_before_and_after_positionals() -> None:
    for words in (
        ["--timeout", "5", "1", "2"],
        ["1", "2", "--timeout=5"],
        ["1", "--timeout=5", "2"],
    ):
        args = parse(WAIT, words)
        assert (args.ids, args.timeout) == ((1, 2), 5.0)


def test_defaults_hold_where_nothing_was_given() -> None:
    args = parse(ADD, ["true"])
    assert (args.timeout, args.max_retries, args.max_crashes) == (300, 3, 20)
    assert (args.queue, args.tag, args.env, args.db, args.json) == ("default", (), (), None, False)
    assert args.given == frozenset()


def test_given_flags_are_known_by_their_names() -> None:
    assert parse(load("prune"), ["--older-than", "1d", "-y"]).given == {"--older-than", "--yes"}


def test_the_last_of_a_flag_wins_and_repeatable_ones_add_up() -> None:
    args = parse(LIST, ["--limit", "3", "--limit", "4", "--tag", "a", "--tag", "b=1"])
    assert (args.limit, args.tag) == (4, (("a", None), ("b", "1")))


def test_the_lane_of_a_worker_defaults_and_is_replaced() -> None:
    assert parse(load("work"), []).queue == ("default",)
    assert parse(load("work"), ["--queue", "b", "--queue", "a"]).queue == ("b", "a")


def test_everything_after_the_first_dashes_belongs_to_the_command() -> None:
    args = parse(ADD, ["--queue", "q", "--", "git", "checkout", "--", "--json", "-h"])
    assert args.argv == ("git", "checkout", "--", "--json", "-h")
    assert not args.json


def test_a_command_without_dashes_may_have_flags_around_it() -> None:
    args = parse(ADD, ["--queue", "q", "echo", "hi", "--priority", "5"])
    assert (args.argv, args.priority, args.queue) == (("echo", "hi"), 5, "q")


@pytest.mark.parametrize(
    "words",
    [
        ["ls", "-l"],
        ["echo", "--bogus"],
        ["echo", "--timeout", "5", "again"],
        ["git", "checkout", "--", "file"],
        ["grep", "-c"],
        ["cat", "-"],
        ["ls", "-1"],
        ["-5"],
    ],
)
def test_a_command_that_could_be_misread_is_refused(words: list[str]) -> None:
    assert fault("add", *words).code == "INVALID_INPUT"
    assert parse(ADD, ["--", *words]).argv == tuple(words)


@pytest.mark.parametrize("verb", ["add", "run"])
def test_where_the_dashes_go_is_shown_with_the_verb(verb: str) -> None:
    advice = fault(verb, "ls", "-1").remediation
    assert advice == f"put `--` before the command: spoolctl {verb} [flags] -- COMMAND ..."


@pytest.mark.parametrize("word", ["-5", "-1.5", "-.5", "-0"])
def test_negative_numbers_are_values(word: str) -> None:
    error = fault("show", word)
    assert error.code == "INVALID_INPUT"
    assert parse(ADD, ["--priority", "-5", "true"]).priority == -5


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("add", ["--note"]),
        ("add", ["--note", "--json"]),
        ("add", ["--note", "--", "true"]),
        ("add", ["-c"]),
        ("add", ["-c", "--json"]),
        ("show", ["--db"]),
        ("show", ["--db", "--bogus"]),
        ("prune", ["--older-than"]),
        ("show", ["--json=yes", "1"]),
        ("show", ["--json=", "1"]),
        ("cancel", ["-y=1", "1"]),
        ("cancel", ["--help=1"]),
    ],
)
def test_missing_and_surplus_values_come_before_everything_else(
    verb: str, words: list[str]
) -> None:
    assert fault(verb, *words).code == "INVALID_INPUT"


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["-c", "echo hi"], "echo hi"),
        (["-cecho hi"], "echo hi"),
        (["-c=-x"], "-x"),
        (["-c-x"], "-x"),
        (["-c", "-5"], "-5"),
    ],
)
def test_values_of_short_flags_may_be_attached(words: list[str], value: str) -> None:
    assert parse(ADD, words).c == value


def test_values_that_start_with_a_dash_are_attached() -> None:
    assert parse(ADD, ["--note=--json", "true"]).note == "--json"
    assert parse(ADD, ["--note=", "true"]).note == ""


@pytest.mark.parametrize(
    ("verb", "words", "code"),
    [
        ("add", [], "MISSING_REQUIRED"),
        ("add", ["--"], "MISSING_REQUIRED"),
        ("add", ["--queue", "q"], "MISSING_REQUIRED"),
        ("show", [], "MISSING_REQUIRED"),
        ("wait", ["--timeout", "5"], "MISSING_REQUIRED"),
        ("prune", ["--yes"], "MISSING_REQUIRED"),
        ("show", ["1", "2"], "INVALID_INPUT"),
        ("status", ["1"], "INVALID_INPUT"),
        ("status", ["--", "1"], "INVALID_INPUT"),
        ("show", ["--bogus"], "UNKNOWN_FLAG"),
        ("add", ["--bogus", "--", "true"], "UNKNOWN_FLAG"),
        ("add", ["--bogus=1", "true"], "UNKNOWN_FLAG"),
        ("add", ["-x", "true"], "UNKNOWN_FLAG"),
        ("add", ["--bogus", "1", "--", "true"], "UNKNOWN_FLAG"),
        ("run", ["--bogus", "1", "true"], "UNKNOWN_FLAG"),
        ("list", ["--limi", "5"], "UNKNOWN_FLAG"),
        ("show", ["one"], "INVALID_INPUT"),
        ("work", ["--once", "--drain"], "INVALID_INPUT"),
        ("add", ["--after", "1", "--at", "0", "true"], "INVALID_INPUT"),
    ],
)
def test_faults_have_their_codes(verb: str, words: list[str], code: str) -> None:
    assert fault(verb, *words).code == code


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_names_an_unknown_flag_as_such(verb: str) -> None:
    assert fault(verb, "--no-such-flag").code == "UNKNOWN_FLAG"


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_every_verb_knows_help(verb: str, word: str) -> None:
    with pytest.raises(HelpAsked):
        parse(load(verb), [word])
    with pytest.raises(HelpAsked):
        parse(load(verb), ["--no-such-flag", word])


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_example_is_accepted(verb: str) -> None:
    described = load(verb)
    assert described.examples
    for program, name, *words in described.examples:
        assert (program, name) == ("spoolctl", verb)
        parse(described, words)


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--limt", "--limit"),
        ("--limits", "--limit"),
        ("--limif", "--limit"),
        ("--jso", "--json"),
        ("--halp", "--help"),
        ("--lmit", "--limit"),
        ("--bogus", None),
        ("--liimtt", None),
    ],
)
def test_a_close_spelling_is_suggested(flag: str, meant: str | None) -> None:
    assert fault("list", flag).did_you_mean == meant


def test_a_close_state_is_suggested() -> None:
    assert fault("list", "--state", "dad").did_you_mean == "dead"
    assert fault("list", "--state", "done, faild").did_you_mean == "failed"
    assert fault("list", "--state", "nonesuch").did_you_mean is None


def test_the_distance_is_one_edit() -> None:
    assert [
        closest(word, ["list"]) for word in ("lis", "lisst", "lost", "xlist", "ilst", "list")
    ] == [
        "list",
        "list",
        "list",
        "list",
        None,
        None,
    ]


@pytest.mark.parametrize("word", ["\udcff", "a\udc80b"])
def test_what_is_not_utf8_is_refused(word: str) -> None:
    assert fault("add", "--note", word, "true").code == "INVALID_INPUT"
    assert fault("add", "--", word).code == "INVALID_INPUT"
    assert fault("show", word).code == "INVALID_INPUT"
    assert fault("status", "--db", word).code == "INVALID_INPUT"


def test_json_is_asked_for_before_the_dashes_only() -> None:
    assert wants_json(["bogus", "--json"])
    assert wants_json(["add", "--json=1"])
    assert not wants_json(["add", "--", "--json"])
    assert not wants_json(["add", "--jsonx"])

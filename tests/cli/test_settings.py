"""Defaults of the config file: taken by flags that are not given, by the flags' own rules."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from spoolctl import Queue
from spoolctl.cli import add, run, values
from spoolctl.cli.parse import parse
from spoolctl.cli.settings import UNSAID, default, plain, settings
from spoolctl.cli.spec import Flag, load
from spoolctl.cli.verbs import VERBS
from tests.cli.conftest import Call
from tests.helpers import spoolctl

ALL = {
    "backoff": "fixed",
    "capture_env": ["LC_*", "TZ"],
    "jitter": 0.25,
    "jobs": 3,
    "keep_for": "30d",
    "max_crashes": "unlimited",
    "max_output": "10M",
    "max_retries": 7,
    "poll_interval": 2.5,
    "queue": "builds",
    "retry_delay": [10],
    "retry_max_delay": "5m",
    "timeout": 60,
}
"""A value for each key that is not its default."""


def configure(**content: object) -> None:
    Path(".spoolctl").mkdir(exist_ok=True)
    Path(".spoolctl/config.json").write_text(json.dumps(content))


def submitted(call: Call, *words: str) -> Any:
    """The job that `add` makes of these words."""
    done = call("add", "--json", "--db", "q.db", *words, "--", "true")
    with Queue("q.db") as queue:
        return queue.detail(done.data["job_id"])


def policy(*words: str, **config: object) -> Any:
    """The retry policy of an `add` with these words and this config file."""
    flags = {flag.config: flag for flag in add.VERB.flags if flag.config}
    said = {flags[key].name: values.from_json(flags[key], value) for key, value in config.items()}

    def defaults(_args: object, wanted: Any) -> dict[str, Any]:
        return {flag.name: said[flag.name] for flag in wanted if flag.name in said}

    return add._policy(parse(add.VERB, [*words, "true"], defaults))


# -- the table ------------------------------------------------------------------------------


def test_every_key_has_one_rule_wherever_it_is_used() -> None:
    assert set(settings()) == set(ALL) > set(UNSAID)
    rules: dict[str, set[tuple[object, ...]]] = {}
    for name in VERBS:
        configurable = {flag.name for flag in load(name).flags if flag.config}
        for one, other in load(name).exclusive:
            # Two defaults must never exclude each other.
            assert not {one, other} <= configurable
        for flag in load(name).flags:
            if flag.config:
                rule = (flag.type, flag.limit, flag.choices, flag.words, flag.check, flag.default)
                rules.setdefault(flag.config, set()).add(rule)
    assert {key: len(each) for key, each in rules.items()} == dict.fromkeys(rules, 1)


@pytest.mark.parametrize("key", sorted(ALL))
def test_the_file_gives_way_to_the_flag_only(call: Call, key: str) -> None:
    setting = settings()[key]

    def shown() -> tuple[object, str]:
        data = call("config-show", "--json").data
        return data["values"][key], data["sources"][key]

    assert shown() == (plain(default(setting)), "default")
    configure(**{key: ALL[key]})
    value, source = shown()
    assert source == "project_config"
    assert value == plain(values.from_json(setting.flag, ALL[key])) != plain(default(setting))
    assert f"{key}: " in call("config-show").text
    assert call("config-validate", "--json").data["valid"] is True
    for user in setting.users:
        verb, name = user.split(" ")
        flag = next(each for each in load(verb).flags if each.name == name)
        check_precedence(verb, flag, ALL[key])


def check_precedence(verb: str, flag: Flag, configured: object) -> None:
    asked: list[str] = []

    def defaults(_args: object, wanted: Any) -> dict[str, Any]:
        asked.extend(each.name for each in wanted)
        return {flag.name: values.from_json(flag, configured)} if flag in wanted else {}

    rest = ["true"] if "argv" in {each.name for each in load(verb).positionals} else []
    without = parse(load(verb), rest, defaults)
    expected = values.from_json(flag, configured)
    assert getattr(without, flag.dest) == ((expected,) if flag.repeatable else expected)
    assert without.configured == {flag.name}
    sample = {"queue": "other", "keep_for": "1s"}.get(str(flag.config), "none")
    if flag.config not in ("queue", "keep_for", "capture_env"):
        sample = {"enum": "exponential", "size": "4096"}.get(flag.type, "1")
    asked.clear()
    given = parse(load(verb), [f"{flag.name}={sample}", *rest], defaults)
    own = values.convert(flag, sample)
    assert getattr(given, flag.dest) == ((own,) if flag.repeatable else own)
    assert flag.name not in asked


# -- what verbs do with them ----------------------------------------------------------------


def test_add_takes_them(call: Call) -> None:
    configure(**ALL)
    found = submitted(call)
    job = found.job
    assert (job.queue, job.max_retries, job.max_crashes, job.timeout_s) == ("builds", 7, None, 60)
    given = submitted(call, "--queue", "x", "--max-retries", "1", "--timeout", "5").job
    assert (given.queue, given.max_retries, given.max_crashes, given.timeout_s) == ("x", 1, None, 5)
    configure(timeout=None, capture_env="none")
    assert submitted(call).job.timeout_s is None
    assert submitted(call).context.env == ()
    assert call("config-show", "--json").data["values"]["timeout"] is None


def test_a_default_never_makes_flags_illegal(call: Call) -> None:
    configure(**ALL)
    assert submitted(call, "--no-timeout").job.timeout_s is None
    assert submitted(call, "--no-retry").job.max_retries == 0
    assert submitted(call, "--retry-for", "1h").job.max_retries == 3, "as without the file"
    for backoff, delays in itertools.product(("fixed", "exponential"), ([10], [10, 30])):
        configure(backoff=backoff, retry_delay=delays)
        for words in ((), ("--backoff", "fixed"), ("--retry-delay", "1,2")):
            assert submitted(call, *words).job.state.value == "queued"


def test_waits_between_tries() -> None:
    assert policy(retry_delay=[10, 30]).delays_s == (10.0, 30.0)
    assert policy(retry_delay="10").delays_s == (10.0,)
    both = policy(retry_delay=[10], backoff="exponential", retry_max_delay=99, jitter=0.5)
    assert (both.delays_s, both.base_s, both.max_delay_s, both.jitter) == ((), 10.0, 99.0, 0.5)
    # A list of waits leaves nothing for the backoff to do; a flag is stronger than either.
    assert policy(retry_delay=[10, 30], backoff="fixed").delays_s == (10.0, 30.0)
    assert policy("--retry-delay", "1,2", backoff="fixed").delays_s == (1.0, 2.0)
    assert policy("--backoff", "fixed", retry_delay=[10, 30]).delays_s == ()
    assert policy("--backoff", "fixed", retry_delay=[10]).base_s == 10.0


def test_no_variable_is_an_empty_list_too(call: Call) -> None:
    for none in ("none", []):
        configure(capture_env=none)
        assert call("config-show", "--json").data["values"]["capture_env"] == []
        assert submitted(call).context.env == ()


def test_lines_of_a_batch_take_them_too(call: Call) -> None:
    configure(max_retries=9, timeout=60, queue="builds")
    lines: list[dict[str, object]] = [
        {},
        {"max_retries": 1, "timeout": 5, "queue": "x"},
        {"timeout": None},
        {"no_timeout": True},
        {"no_timeout": False},
        {"no_retry": True},
        {"retry_for": "1h"},
    ]
    Path("batch").write_text("".join(json.dumps({"argv": ["true"], **one}) + "\n" for one in lines))
    ids = call("add", "--json", "--db", "q.db", "--batch", "batch").data["batch"]["job_ids"]
    with Queue("q.db") as queue:
        jobs = [queue.get(each) for each in ids]
    assert [(job.max_retries, job.timeout_s, job.queue) for job in jobs] == [
        (9, 60, "builds"),
        (1, 5, "x"),
        (9, None, "builds"),
        (9, None, "builds"),
        (9, 60, "builds"),
        (0, 60, "builds"),
        (3, 60, "builds"),
    ]


def test_work_serves_the_lane_that_add_fills(call: Call) -> None:
    configure(queue="builds")
    assert call("add", "--", "true").status == 0
    assert call("list", "--json").data["count"] == 1, "no filter is a default"
    assert call("list", "--json", "--queue", "default").data["count"] == 0
    assert call("work", "--drain", "--json").data == {"drained": True, "executed": 1}
    call("add", "--queue", "other", "--", "true")
    assert call("work", "--drain", "--all-queues", "--json").data["executed"] == 1


def test_run_takes_them(call: Call) -> None:
    configure(queue="builds", max_retries=0)
    done = spoolctl("run", "--json", "--", "false")
    assert json.loads(done.stdout)["data"]["queue"] == "builds"
    assert call("show", "--json", "1").data["job"]["state"] == "dead"
    limited = parse(run.VERB, ["true"], lambda _args, _flags: {"--max-output": 4096})
    assert run._options(limited).max_output_bytes == 4096


def test_prune_takes_the_age_and_says_so(call: Call) -> None:
    needed = call("prune", "--json", "--dry-run")
    assert needed.error["code"] == "MISSING_REQUIRED"
    configure(keep_for="2h")
    data = call("prune", "--json", "--dry-run").data
    assert (data["older_than_seconds"], data["older_than_source"]) == (7200, "project_config")
    assert "2h 0m ago (keep_for" in call("prune", "--dry-run").text
    data = call("prune", "--json", "--dry-run", "--older-than", "5").data
    assert (data["older_than_seconds"], data["older_than_source"]) == (5, "flag")
    assert "keep_for" not in call("prune", "--dry-run", "--older-than", "5").text
    assert call("prune", "--json").error["code"] == "SAFETY_BLOCK", "nothing goes by itself"


def test_python_takes_its_own_arguments_only(call: Call) -> None:
    configure(**ALL)
    with Queue() as queue:
        job = queue.add(["true"])
    assert (job.queue, job.max_retries, job.timeout_s) == ("default", 3, 300)


# -- bad values -----------------------------------------------------------------------------

BAD: dict[str, object] = {
    "backoff": "fixd",
    "capture_env": ["a=b"],
    "jitter": 2,
    "jobs": 0,
    "keep_for": None,
    "max_crashes": "lots",
    "max_output": "10X",
    "max_retries": True,
    "poll_interval": [5],
    "queue": ["a", "b"],
    "retry_delay": [],
    "retry_max_delay": -1,
    "timeout": "5m",
}


@pytest.mark.parametrize("key", sorted(ALL))
def test_a_bad_value_stops_those_who_need_it(call: Call, key: str) -> None:
    configure(**{key: BAD[key]})
    users = {user.split(" ")[0] for user in settings()[key].users}
    calls = {
        "add": ("add", "--json", "--", "true"),
        "work": ("work", "--json", "--once"),
        "prune": (
            "prune",
            "--json",
            "--dry-run",
            *(["--older-than=1"] if key != "keep_for" else []),
        ),
        "config-show": ("config-show", "--json"),
        "config-validate": ("config-validate", "--json"),
    }
    for verb, words in calls.items():
        done = call(*words)
        if verb in users or verb.startswith("config"):
            assert done.error["code"] == "INVALID_INPUT"
            assert f"`{key}`" in done.error["message"]
        else:
            assert done.status == 0
    assert call("status", "--json").status == 0
    assert call("doctor", "--json").data["checks"][0]["status"] == "fail"
    # A flag that is given makes it unimportant.
    if key == "timeout":
        assert call("add", "--json", "--timeout", "5", "--", "true").warnings == []


def test_a_broken_file_is_no_obstacle_and_gives_no_default(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(max_retries=9, timeout="soon")
    done = call("add", "--json", "--db", "q.db", "--", "true")
    assert done.warnings == ["CONFIG_IGNORED"]
    (message,) = [each["message"] for each in done.envelope["warnings"]]
    assert "`timeout`" in message
    assert "none of its defaults is used" in message
    with Queue("q.db") as queue:
        assert queue.get(1).max_retries == 3
    monkeypatch.setenv("SPOOLCTL_DB", "q.db")
    shown = call("config-show", "--json")
    assert shown.warnings == ["CONFIG_IGNORED"]
    assert shown.data["config_valid"] is False
    assert set(shown.data["sources"].values()) == {"environment", "default"}
    assert call("doctor", "--json").data["checks"][0]["status"] == "warn"
    text = call("add", "--", "true")
    assert (text.status, text.text) == (0, "Added job 2\n")
    assert text.err.count("warning: ") == 1


def test_what_is_wrong_with_the_words_comes_first(call: Call) -> None:
    configure(timeout="soon", keep_for="soon")
    assert call("add", "--json").error["code"] == "MISSING_REQUIRED"
    assert call("add", "--json", "--zzz").error["code"] == "UNKNOWN_FLAG"
    assert call("add", "--help").status == 0
    assert call("prune", "--json", "--state", "odd").error["message"].startswith("--state")


@pytest.mark.parametrize("key", ["max-retries", "timout", "Queue", "keepfor", "retry-delay"])
def test_a_misspelt_key_is_recognized(call: Call, key: str) -> None:
    configure(**{key: 1})
    refused = call("config-validate", "--json").error
    assert repr(key) in refused["message"]
    assert "may be meant to be" in refused["remediation"]
    assert call("config-show", "--json").data["ignored_keys"] == [key]
    assert call("add", "--json", "--", "true").warnings == []

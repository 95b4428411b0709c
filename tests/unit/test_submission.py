"""What is checked once for many jobs is checked as strictly as for one."""

from __future__ import annotations

from typing import Any

import pytest

from spoolctl.errors import InvalidInput
from spoolctl.submission import Captures, as_job, new_job


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"priority": 1}, {"priority": True}),
        ({"priority": 1}, {"priority": 1.0}),
        ({"timeout_s": 60}, {"timeout_s": 60.0}),
        ({"max_retries": 0}, {"max_retries": False}),
        ({"max_crashes": 1}, {"max_crashes": True}),
        ({"queue": "a"}, {"queue": ["a"]}),
        ({"queue": "a"}, {"queue": b"a"}),
        ({"max_retries": 1}, {"max_retries": {1: 1}}),
    ],
)
def test_an_equal_value_of_another_type_is_refused(
    right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    for _ in range(2):
        new_job(["true"], **right)
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            new_job(["true"], **wrong)


def test_a_refused_value_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(InvalidInput, match="queue"):
            new_job(["true"], queue="no name")


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(InvalidInput, match="'prio'"):
        as_job({"argv": ["true"], "prio": 3}, {}, Captures())


@pytest.mark.parametrize("names", [["HOME"], ("HOME",), "HOME*", [], None])
def test_what_is_captured_once_is_what_each_would_capture(
    names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "somewhere")
    captures = Captures()
    if isinstance(names, str):
        with pytest.raises(InvalidInput, match="capture_env"):
            captures.of(names, with_cwd=True)
        return
    alone = new_job(["true"], capture_env=names).context
    assert captures.of(names, with_cwd=True) == alone == captures.of(names, with_cwd=True)

"""Names are checked without `re`, by the same rules as the patterns that are published."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spoolctl.core import checks
from spoolctl.core.limits import QUEUE_PATTERN
from spoolctl.errors import InvalidInput

NEARLY = st.text(st.sampled_from("aZ09._-:/ \n\0é٣\u212a"), min_size=1, max_size=6)


def is_accepted(check: Callable[[object], str], name: str) -> bool:
    try:
        return check(name) == name
    except InvalidInput:
        return False


@given(NEARLY | st.text(min_size=1, max_size=64))
def test_queue_names(name: str) -> None:
    assert is_accepted(checks.queue_name, name) == bool(re.fullmatch(QUEUE_PATTERN, name))


@given(NEARLY | st.text(min_size=1, max_size=64))
def test_tag_names(name: str) -> None:
    assert is_accepted(checks.tag_name, name) == bool(re.fullmatch("[A-Za-z0-9_.:-]+", name))


@pytest.mark.parametrize("check", [checks.queue_name, checks.tag_name])
def test_an_empty_name_is_refused(check: Callable[[object], str]) -> None:
    with pytest.raises(InvalidInput):
        check("")


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_no_word_is_accepted_that_linux_does_not_start() -> None:
    longest = "x" * 131_071
    assert checks.argv(["true", longest]) == ("true", longest)
    subprocess.run(["true", longest], check=True)
    for word in (longest + "x", "é" * 65_536):
        with pytest.raises(OSError, match="too long"):
            subprocess.run(["true", word], check=True)
        with pytest.raises(InvalidInput, match="131071 bytes"):
            checks.argv(["true", word])

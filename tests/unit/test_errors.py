"""The error family."""

from __future__ import annotations

import copy
import pickle

import pytest

from spoolctl import errors
from spoolctl.core.states import Event, State

EXAMPLES = [
    errors.NotFound("x", job_ids=(1, 2), attempt_no=3, known_attempts=(1,), where="w"),
    errors.IllegalTransition(State.DEAD, Event.CANCELED, job_id=3),
    errors.KeyConflict("key", 1, State.DONE, ("argv",)),
    errors.SafetyBlock("x", action="cancel", job_id=1),
    errors.WaitTimeout("x", pending=(1,)),
    errors.StoreUnusable("x", kind="path", path="p"),
    errors.StoreGone("p"),
    errors.Untrusted("p", "r"),
]
FAMILY = [one for one in vars(errors).values() if isinstance(one, type)]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_whole_from_another_process(error: errors.SpoolError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args) == (str(error), error.args)
        assert vars(again) == vars(error)


def test_all_errors_with_facts_are_among_them() -> None:
    assert {type(one) for one in EXAMPLES} == {one for one in FAMILY if "__init__" in vars(one)}

"""The two variables that give workers short times, for trials."""

from __future__ import annotations

import os

from spoolctl.cli.parse import UsageError
from spoolctl.errors import InvalidInput

INTERVAL_VARIABLE = "SPOOLCTL_TEST_HEARTBEAT_INTERVAL"
THRESHOLD_VARIABLE = "SPOOLCTL_TEST_REAP_THRESHOLD"


def trial_times() -> tuple[float | None, float | None]:
    """Heartbeat interval and reap threshold in seconds, each None where it is not set.

    Raises:
        UsageError: one is set, and is no number of seconds.
    """
    return _seconds_of(INTERVAL_VARIABLE), _seconds_of(THRESHOLD_VARIABLE)


def _seconds_of(variable: str) -> float | None:
    """The value of a variable for trials.

    Raises:
        UsageError: it is set, and is no number of seconds.
    """
    from spoolctl.cli.spec import Positional
    from spoolctl.cli.values import convert

    text = os.environ.get(variable)
    if text is None:
        return None
    kind = Positional(variable, "1", "float", "", limit="wait_seconds")
    try:
        value: float = convert(kind, text)
    except InvalidInput as error:
        raise UsageError(f"{variable}: {error}", remediation=f"correct or unset {variable}") from (
            None
        )
    return value

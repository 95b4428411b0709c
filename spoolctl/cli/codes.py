"""Exit codes, error codes and warning codes: stated here once, as data.

The envelope, `capabilities`, `schema` and the docs pages read these tables. What to advise
in a particular case is decided where errors are turned into answers.
"""

from __future__ import annotations

from spoolctl.core.tuples import NamedTuple


class Exit(NamedTuple):
    """What an exit status means. `retryable` is None where it depends on the cause.

    `short`: in a few words, for lists in one line.
    """

    short: str
    meaning: str
    retryable: bool | None
    note: str | None = None


EXITS: dict[int, Exit] = {
    0: Exit("success", "success, empty results included", None),
    1: Exit("bad input", "bad user input", False),
    2: Exit("refused for safety", "refused for safety: nothing was changed", False),
    3: Exit(
        "trouble with the tool or its environment",
        "trouble with the tool or its environment; also `doctor`: not ready",
        None,
        "`doctor` exits 3 with ok:true when something is not ready: read data.ready and the "
        "failed entries of data.checks. Otherwise errors[0] tells the cause.",
    ),
    4: Exit("try again", "transient: the same call may succeed later", True),
    5: Exit("conflict", "conflict with the current state", False),
    6: Exit(
        "an awaited job did not succeed",
        "an awaited job did not succeed",
        False,
        "Comes with ok:true and no error: read data.all_succeeded and the states in data.jobs.",
    ),
}
"""Exit status -> meaning. No verb of the tool's own uses another one."""


class ErrorCode(NamedTuple):
    """A code that may stand in `errors`. `example`: a call that ends with it, as text."""

    summary: str
    exit_code: int
    example: str | None = None

    @property
    def retryable(self) -> bool | None:
        """Whether repeating the same call may help; None where it depends on the cause."""
        return {3: None, 4: True}.get(self.exit_code, False)


ERRORS: dict[str, ErrorCode] = {
    "INVALID_INPUT": ErrorCode(
        "a value has the wrong type, range, grammar or choice, or values exclude each other",
        1,
        "spoolctl show zero",
    ),
    "MISSING_REQUIRED": ErrorCode(
        "a verb, positional, command or required flag is missing", 1, "spoolctl show"
    ),
    "UNKNOWN_FLAG": ErrorCode("the verb does not accept this flag", 1, "spoolctl status --verbose"),
    "UNKNOWN_COMMAND": ErrorCode("there is no such verb", 1, "spoolctl stauts"),
    "NOT_FOUND": ErrorCode("no such job or attempt", 1, "spoolctl show 999999"),
    "CONFLICT": ErrorCode(
        "the job's state does not allow the change", 5, "spoolctl retry ID (of a queued job)"
    ),
    "IDEMPOTENCY_CONFLICT": ErrorCode(
        "the key is in use by a job with a different execution: an active one, or one that its "
        "--key-for still protects",
        5,
        "spoolctl add --key k -- true; spoolctl add --key k -- false",
    ),
    "SAFETY_BLOCK": ErrorCode(
        "a destructive or interrupting action was not confirmed; nothing was changed",
        2,
        "spoolctl prune --older-than 7d",
    ),
    "LOCKED": ErrorCode("the queue's write lock was not obtained within about 5 s", 4),
    "TIMEOUT": ErrorCode("the time given to a wait has passed", 4, "spoolctl wait --timeout 5 ID"),
    "INTERNAL": ErrorCode("anything else: the message names the cause", 3),
}
"""Error code -> what it says."""


class WarningCode(NamedTuple):
    """A code that may stand in `warnings`. `verbs`: which may give it; none: any with `--db`."""

    summary: str
    verbs: tuple[str, ...]


WARNINGS: dict[str, WarningCode] = {
    "NO_WORKER": WarningCode(
        "no live worker serves the queue that was named for a job, or for two seconds that of a "
        "job that is waited for",
        ("add", "wait"),
    ),
    "OWNER_GONE": WarningCode(
        "the workers of running jobs are dead, and nobody has taken the jobs back yet",
        ("status",),
    ),
    "NO_JOBS": WarningCode("the queue that is waited for holds no jobs at all", ("wait",)),
    "NO_ATTEMPTS_YET": WarningCode("the job has never been started", ("feedback", "output")),
    "KILL_ASYNC": WarningCode(
        "a running job was canceled; the end of its processes is not confirmed yet", ("cancel",)
    ),
    "IDEMPOTENCY_METADATA_DIFFERS": WarningCode(
        "an existing job was returned for the key although tags, note or schedule differ",
        ("add", "run"),
    ),
    "AT_IN_PAST": WarningCode(
        "--at names a moment that is over: the job is due now", ("add", "run")
    ),
    "TAG_FILTER_SCAN_CAPPED": WarningCode(
        "a tag filter did not look at all jobs (reserved: every job is looked at)", ("list",)
    ),
    "NO_QUEUE": WarningCode(
        "there is no queue at the resolved path", ("events", "list", "prune", "status")
    ),
    "CONFIG_IGNORED": WarningCode(
        "the config file is broken, and was not needed to find the queue: none of its defaults "
        "is used",
        (),
    ),
    "OUTPUT_MISSING": WarningCode("the file of a captured stream is gone", ("feedback", "output")),
    "OUTPUT_INCOMPLETE": WarningCode(
        "the attempt succeeded, but the disk was full when it ended", ("feedback", "output")
    ),
}
"""Warning code -> what it says."""

"""The first word chooses a verb; an error becomes an exit status, in one place."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from importlib import import_module

from spoolctl import errors
from spoolctl.cli import render
from spoolctl.cli.parse import HelpAsked, UsageError, parse, wants_json
from spoolctl.cli.render import Out, OutputClosed, OutputFailed
from spoolctl.cli.values import closest
from spoolctl.cli.verbs import VERBS
from spoolctl.core.tuples import NamedTuple
from spoolctl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.spec import Verb

GLOBAL_FLAGS = ("--help", "-h", "--version")


class Failure(NamedTuple):
    """An error as the caller gets to see it."""

    code: str
    message: str
    remediation: str | None = None
    did_you_mean: str | None = None


def main(words: Sequence[str], *, out: Out | None = None) -> int:
    """Run one call of the program; returns its exit status. Never raises for bad input."""
    out = out or Out()
    try:
        return _run(words, out)
    except (ImportError, OSError, MemoryError) as error:
        # Too little is left to tell of an error as it should be: no descriptor to import
        # that with, or the program has been removed in the meantime.
        out.note(f"spoolctl: error: {ascii(str(error))[1:-1] or 'out of memory'}")
        return 3


def _run(words: Sequence[str], out: Out) -> int:
    started_mono = time.monotonic()
    warnings: list[tuple[str, str]] = []
    try:
        return _dispatch(words, out, started_mono, warnings)
    except OutputClosed:
        return _die_by("SIGPIPE")
    except KeyboardInterrupt:
        return _die_by("SIGINT")
    except Exception as error:
        # The last resort of the process: everything else is named above or in `explain`.
        failure = explain(error)
        if isinstance(error, OutputFailed) and words[0] in REPORTS_A_CHANGE:
            failure = failure._replace(remediation=CHANGE_IS_MADE)
        return _fail(failure, words, out, started_mono, warnings)


def _dispatch(
    words: Sequence[str], out: Out, started_mono: float, warnings: list[tuple[str, str]]
) -> int:
    name = words[0] if words else ""
    if not words or name == "--":
        raise UsageError(
            "a verb is needed",
            "MISSING_REQUIRED",
            remediation="`spoolctl --help` names every verb",
        )
    if name not in VERBS:
        return _no_verb(name, out)
    module = import_module(VERBS[name].module)
    verb: Verb = module.VERB
    from spoolctl.cli.app import App, Place

    place = Place(warnings)
    try:
        args = parse(verb, words[1:], place.defaults)
    except HelpAsked:
        from spoolctl.cli.help import verb_help

        out.write(render.encode(verb_help(verb)))
        return 0
    app = App(verb, args, out, started_mono=started_mono, warnings=warnings, place=place)
    try:
        status: int = module.run(args, app)
    finally:
        app.close()
    return status


def _no_verb(name: str, out: Out) -> int:
    if name in ("--help", "-h"):
        from spoolctl.cli.help import program_help

        out.write(render.encode(program_help()))
        return 0
    if name == "--version":
        out.line(f"spoolctl {__version__}")
        return 0
    spelling, equals, _ = name.partition("=")
    if equals and spelling in GLOBAL_FLAGS:
        raise UsageError(f"{spelling} takes no value")
    if name.startswith("-"):
        raise UsageError(
            f"{spelling} is no flag of spoolctl itself",
            "UNKNOWN_FLAG",
            remediation="flags of a verb stand after it: spoolctl VERB --flag ...",
            did_you_mean=closest(spelling, GLOBAL_FLAGS),
        )
    raise UsageError(
        f"there is no verb {name!r}",
        "UNKNOWN_COMMAND",
        remediation="`spoolctl --help` names every verb",
        did_you_mean=closest(name, tuple(VERBS)),
    )


# -- failures -------------------------------------------------------------------------------


def explain(error: Exception) -> Failure:
    """What to tell the caller about an error, with the next thing to try."""
    if isinstance(error, UsageError):
        return Failure(error.code, str(error), error.remediation, error.did_you_mean)
    if isinstance(error, errors.NotFound):
        return Failure(error.code, str(error), _advise_not_found(error))
    if isinstance(error, errors.IllegalTransition):
        return Failure(error.code, str(error), _advise_conflict(error))
    if isinstance(error, errors.SafetyBlock):
        return Failure(error.code, str(error), SAFETY_ADVICE.get(error.action))
    if isinstance(error, errors.StoreUnusable):
        code = "INVALID_INPUT" if error.kind in ("path", "unsupported") else error.code
        return Failure(code, str(error), UNUSABLE_ADVICE.get(error.kind))
    if isinstance(error, errors.Untrusted):
        return Failure(error.code, str(error), "if you trust whoever can write it, give --trust")
    if isinstance(error, errors.StoreFailing):
        return Failure(error.code, str(error), FAILING_ADVICE)
    if isinstance(error, errors.StoreFull):
        return Failure(error.code, str(error), "free some disk space, then try again")
    if isinstance(error, errors.SpoolError):
        return Failure(error.code, str(error), getattr(error, "remediation", None))
    if isinstance(error, OutputFailed):
        return Failure("INTERNAL", f"cannot write to stdout: {error}", "give stdout some room")
    if isinstance(error, MemoryError):
        return Failure("INTERNAL", "out of memory")
    if isinstance(error, OSError):
        from spoolctl.folders import words_of

        return Failure("INTERNAL", words_of(error), OS_ADVICE.get(error.errno or 0))
    return Failure("INTERNAL", f"unexpected {type(error).__name__}: {error}")


REPORTS_A_CHANGE = frozenset({"add", "cancel", "prune", "retry"})
"""Verbs that write nothing to stdout before what they were to change is changed."""

CHANGE_IS_MADE = "the change is made, only its report is lost: `spoolctl list` shows the jobs"

ADVICE = {
    "INVALID_INPUT": "correct the value; `spoolctl VERB --help` shows what is accepted",
    "MISSING_REQUIRED": "`spoolctl VERB --help` shows what is needed",
    "UNKNOWN_FLAG": "`spoolctl VERB --help` names every flag; flags stand after the verb",
    "UNKNOWN_COMMAND": "`spoolctl --help` names every verb",
    "NOT_FOUND": "`spoolctl list` shows which jobs there are",
    "SAFETY_BLOCK": "repeat the call with the confirmation that the message names",
    "INTERNAL": "`spoolctl doctor` looks for the cause",
    "LOCKED": "another process holds the write lock: try again",
    "TIMEOUT": "wait again, or give more time",
    "CONFLICT": "`spoolctl show ID` shows the job's state",
    "IDEMPOTENCY_CONFLICT": "use another key, or submit the same execution",
}
"""Error code -> what to try next, where nothing more specific is known."""

SAFETY_ADVICE = {
    "cancel": "to stop a running job, give --running --yes",
    "retry": "to give up the running attempt and start again, give --force",
    "prune": "look first with --dry-run, or confirm with --yes",
}
"""What was to be done -> how it is confirmed."""

FAILING_ADVICE = (
    "look at the disk (room, inodes, the system's log) and at the limit of open files, then try"
    " again"
)

OS_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some disk space, then try again"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
    errno.EIO: "the disk reports errors: the system's log tells more",
    errno.EROFS: "make the file system writable, or give another path with --db",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or end some",
    errno.ENOMEM: "free some memory, then try again",
}
"""Number of an error of the system -> what to try."""

UNUSABLE_ADVICE = {
    "path": "give another path with --db or SPOOLCTL_DB",
    "foreign": "this file belongs to another program: give another path with --db",
    "damaged": "move it away, with its -wal and -shm, and restore a backup; it was not changed",
    "newer": "use the version of spoolctl that made it, or a newer one",
    "read_only": "make the file and its folder writable, or give another path with --db",
    "unsupported": "put the queue on a local disk, with --db or SPOOLCTL_DB",
}
"""Kind of an unusable file -> what to try."""


def _advise_not_found(error: errors.NotFound) -> str | None:
    if error.known_attempts:
        numbers = ", ".join(str(number) for number in error.known_attempts)
        return f"the job has the attempts {numbers}"
    if error.attempt_no is not None:
        return "the job has no attempts yet"
    if not error.job_ids:
        return "`spoolctl add` makes a queue; --db or SPOOLCTL_DB names another one"
    return None


def _advise_conflict(error: errors.IllegalTransition) -> str | None:
    """What to do instead; which state the job is in, the message says already."""
    if error.event == "canceled":
        return "it has settled: there is nothing to withdraw or to stop"
    if error.state == "done":
        return "to run it once more, submit it again with `spoolctl add`"
    if error.state == "queued":
        return f"it is in the queue already: `spoolctl show {error.job_id}` tells when it may start"
    if error.event == "forced":
        return f"--force is for a running job: `spoolctl retry {error.job_id}` is enough"
    return None


def _fail(
    failure: Failure,
    words: Sequence[str],
    out: Out,
    started_mono: float,
    warnings: Sequence[tuple[str, str]],
) -> int:
    from spoolctl.cli.codes import ERRORS

    exit_code = ERRORS[failure.code].exit_code
    message = " ".join(failure.message.split()) or failure.code
    remediation = failure.remediation or ADVICE[failure.code]
    if words and words[0] in VERBS:
        remediation = remediation.replace("spoolctl VERB ", f"spoolctl {words[0]} ")
    as_json = wants_json(words)
    for _, sentence in () if as_json else warnings:
        out.note(f"warning: {render.visible(sentence)}")
    out.note(f"spoolctl: error: {render.visible(message)}")
    hint = f" (did you mean {failure.did_you_mean}?)" if failure.did_you_mean else ""
    out.note(f"  {render.visible(remediation)}{hint}")
    # Nothing but frames may follow frames, and nothing may follow half an envelope.
    if as_json and not out.started:
        report = {
            "code": failure.code,
            "message": message,
            "remediation": remediation,
            "exit_code": exit_code,
        }
        if failure.did_you_mean:
            report["did_you_mean"] = failure.did_you_mean
        try:
            out.write(
                render.envelope(None, started_mono=started_mono, warnings=warnings, errors=[report])
            )
        except OutputClosed:
            return _die_by("SIGPIPE")
        except OutputFailed:
            return exit_code
    return exit_code


def _die_by(name: str) -> int:
    import signal

    from spoolctl.cli.signals import die_by

    return die_by(signal.Signals[name])

"""`spoolctl add`: submit a command."""

from __future__ import annotations

from spoolctl.cli.parse import UsageError
from spoolctl.cli.spec import COMMON, DB, Flag, JsonSchema, Positional, Verb
from spoolctl.core.records import Added, Context, NewJob
from spoolctl.core.retry import DEFAULT_POLICY, RetryPolicy
from spoolctl.core.states import State
from spoolctl.submission import CAPTURED, FOREVER_S, new_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args

PAST_S = 60.0
"""A time that lies further back than this was probably not meant: `--at $(date +%s)` was."""

SHELL_CHARACTERS = frozenset(" \t\n|&;<>()$`\\\"'*?[]#~{}!")


def schema() -> JsonSchema:
    """What `data` looks like."""
    from spoolctl.cli import shapes
    from spoolctl.core.states import SETTLED, State

    def differing(value: JsonSchema) -> JsonSchema:
        return shapes.closed(existing=value, submitted=value)

    return shapes.closed(
        job_id=shapes.ID,
        state=shapes.words(State),
        deduplicated=shapes.BOOLEAN,
        next_run_at=shapes.NUMBER,
        priority=shapes.INTEGER,
        queue=shapes.TEXT,
        cwd=shapes.nullable(shapes.STRING),
        env_keys=shapes.STRINGS,
        idempotency=shapes.closed(
            key=shapes.TEXT,
            metadata_differs=shapes.BOOLEAN,
            metadata_differences=shapes.closed(
                tags=differing(shapes.mapping(shapes.STRING)),
                note=differing(shapes.nullable(shapes.STRING)),
                next_run_at=differing(shapes.nullable(shapes.NUMBER)),
                optional=("tags", "note", "next_run_at"),
            ),
        ),
        outcome=shapes.closed(
            state=shapes.words(sorted(state.value for state in SETTLED)),
            exit_code=shapes.nullable(shapes.INTEGER),
            last_error=shapes.nullable(shapes.TEXT),
        ),
        batch=shapes.closed(
            count=shapes.ID,
            deduplicated=shapes.COUNT,
            job_ids=shapes.array(shapes.ID, minItems=1),
        ),
        optional=("idempotency", "outcome", "batch"),
    )


VERB = Verb(
    name="add",
    description=(
        "Submit a command. It is stored, synced to disk, with the current folder, the umask "
        "and the variables that say where programs are; a worker (`spoolctl work`) runs it. "
        "The command is executed as it is, without a shell: everything after `--` belongs to "
        "it. Its stdin is at end of file. Limits (ulimit) are those of the worker."
    ),
    data_schema="The job's id, state, earliest start, lane, folder and names of variables; with "
    "--batch those of the first job, and all ids in order; with --wait how it ended.",
    schema=schema,
    positionals=(
        Positional("argv", "remainder", "string", "the command and its arguments", "COMMAND"),
    ),
    replaces_positional=("-c", "--batch"),
    flags=(
        Flag("-c", "string", "run STRING with `sh -c` instead of a command", metavar="STRING"),
        Flag(
            "--after",
            "duration",
            "start no sooner than so long from now (90, 1.5h, 1h30m)",
            limit="duration_seconds",
        ),
        Flag(
            "--at",
            "timestamp",
            "start no sooner than this time (epoch seconds, 2026-12-24T18:00, 23:59, "
            "'tomorrow 9:00')",
            metavar="TIME",
            limit="timestamp_epoch_seconds",
        ),
        Flag(
            "--backoff",
            "enum",
            "how waits between tries grow: doubling from --retry-delay (2), or not at all",
            metavar="HOW",
            choices=("exponential", "fixed"),
            default="exponential",
            config="backoff",
        ),
        Flag(
            "--batch",
            "path",
            "submit many, all or none: one JSON object a line with `argv` or `c` and members "
            "named like the flags (`tags`, `env`: objects); - for stdin",
            metavar="FILE",
        ),
        Flag(
            "--capture-env",
            "string",
            "which variables to keep: all, none, or names (NAME,LC_*)",
            metavar="NAMES",
            check="capture_env",
            config="capture_env",
        ),
        Flag(
            "--cwd",
            "string",
            "run in this folder (default: the current one)",
            metavar="PATH",
            check="path",
        ),
        Flag(
            "--env",
            "key_value",
            "set a variable for the command",
            metavar="KEY=VALUE",
            repeatable=True,
            default=(),
            check="env",
        ),
        Flag(
            "--final-exit",
            "exit_codes",
            "exit codes after which there is no further try (2,64-78): the job is failed",
            metavar="CODES",
        ),
        Flag(
            "--follow",
            "boolean",
            "print what the command writes until the job has settled; exit with its code",
            default=False,
        ),
        Flag("--force", "boolean", "accept a command that looks like a shell line", default=False),
        Flag(
            "--jitter",
            "fraction",
            "spread waits by up to this fraction of them, either way (0: not at all)",
            metavar="FRACTION",
            limit="fraction",
            config="jitter",
        ),
        Flag(
            "--key",
            "string",
            "while a job with this key is active, return it instead of adding another",
            metavar="KEY",
            check="key",
        ),
        Flag(
            "--key-for",
            "duration",
            "let the key protect for so long after the job's end, too; or `ever`",
            limit="duration_seconds",
            words=("ever",),
        ),
        Flag(
            "--lines",
            "boolean",
            "with --batch: one line for the shell each, instead of JSON",
            default=False,
        ),
        Flag("-0", "boolean", "with --batch: like --lines, ended by NUL characters", default=False),
        Flag(
            "--max-crashes",
            "integer",
            "how often the job is run again after its worker died",
            default=20,
            limit="budget",
            words=("unlimited",),
            config="max_crashes",
        ),
        Flag(
            "--max-retries",
            "integer",
            "how often the job is run again after it failed",
            default=3,
            limit="budget",
            config="max_retries",
        ),
        Flag("--no-retry", "boolean", "the same as --max-retries 0", default=False),
        Flag("--no-timeout", "boolean", "let the command run as long as it takes", default=False),
        Flag("--note", "string", "a text to keep with the job", metavar="TEXT", check="note"),
        Flag("-p", "boolean", "the same as --print id", default=False),
        Flag(
            "--print",
            "enum",
            "what to print in text mode; id: digits and a newline, for scripts",
            metavar="WHAT",
            choices=("id", "text"),
            default="text",
        ),
        Flag(
            "--priority",
            "integer",
            "the highest goes first; equal ones in order of time, then of ids",
            default=0,
            limit="priority",
        ),
        Flag(
            "--queue",
            "queue",
            "the lane to put it in",
            default="default",
            metavar="NAME",
            config="queue",
        ),
        Flag(
            "--retry-delay",
            "duration_csv",
            "wait so long before the next try (0: not at all); of several (10,30,60) the last "
            "repeats",
            metavar="DURATIONS",
            config="retry_delay",
        ),
        Flag(
            "--retry-for",
            "duration",
            "try again for so long after the submission, however often",
            limit="duration_seconds",
        ),
        Flag(
            "--retry-max-delay",
            "duration",
            "the longest wait between tries (60s)",
            limit="duration_seconds",
            config="retry_max_delay",
        ),
        Flag(
            "--shell",
            "string",
            "the shell for -c and --lines",
            metavar="PROGRAM",
            default="sh",
            check="program",
        ),
        Flag(
            "--stdin",
            "path",
            "what the command reads from its stdin (kept with the job); - for ours",
            metavar="FILE",
        ),
        Flag(
            "--tag",
            "key_value",
            "a label, by which `list` finds the job",
            metavar="KEY=VALUE",
            repeatable=True,
            default=(),
            check="tag",
        ),
        Flag(
            "--timeout",
            "integer",
            "end the command after so many seconds",
            metavar="SECONDS",
            default=300,
            limit="timeout_seconds",
            config="timeout",
            config_null=True,
        ),
        Flag(
            "--wait",
            "boolean",
            "return when the job has settled; exit with the command's code",
            default=False,
        ),
        DB,
        *COMMON,
    ),
    exclusive=(
        ("--after", "--at"),
        ("--timeout", "--no-timeout"),
        ("--max-retries", "--no-retry"),
        ("--max-retries", "--retry-for"),
        ("--no-retry", "--retry-for"),
        ("--wait", "--follow"),
        ("--follow", "--json"),
        ("--follow", "--print"),
        ("--follow", "-p"),
        *(("--batch", each) for each in ("-c", "--key", "--stdin", "--wait", "--follow")),
    ),
    examples=(
        ("spoolctl", "add", "--", "make", "test"),
        ("spoolctl", "add", "--key", "build-7", "--timeout", "3600", "--", "make", "-j4"),
        ("spoolctl", "add", "--after", "10m", "-c", "date >> log"),
        ("spoolctl", "add", "--retry-delay", "10,30,60", "--final-exit", "2", "--", "sync-all"),
        ("spoolctl", "add", "--batch", "commands.txt", "--lines", "--tag", "batch=7"),
    ),
    mutates=True,
    idempotent="with --key, while a job with that key is queued or running; else not",
    epilog=(
        "What only your shell knows is no program: `-- bash -lc '...'` runs a line in a login "
        "shell, with what its profile sets up, `-- bash -ic '...'` in one that knows the aliases "
        "of ~/.bashrc.",
        "A job that fails is tried again after 2, 4, 8, ... up to 60 seconds; when its budget "
        "is spent it is dead, and `spoolctl retry` gives it a fresh one.",
        "With --wait and --follow the exit status is the command's own; 6 where it has none "
        "(it timed out, could not be started, or was canceled). A signal S counts as 128+S.",
        'A line of a batch has members like {"argv": [...], "max_retries": 5, "retry_delay": '
        '[10, 60], "timeout": null}: - becomes _, null is no timeout. Flags of the call hold for '
        "all lines; what a line says goes before them, tags and variables are put together.",
    ),
)


def run(args: Args, app: App) -> int:
    """Check everything, then store the job."""
    if args.batch is not None:
        from spoolctl.cli.batch import add_batch

        return add_batch(args, app)
    for name in ("--lines", "-0"):
        if name in args.given:
            raise UsageError(f"{name} goes with --batch")
    request = build(args)
    warn_if_past(args.at, app)
    added = app.queue.submit([request])[0]
    warn_of_differences(added, app)
    if not app.json and app.out.errors_are_seen():
        tell_start(added, app)
    if args.wait or args.follow:
        if _wants_id(args) and not app.json:
            app.out.line(str(added.job.id))  # now: it is of use while the job runs
        from spoolctl.cli.attend import attend

        return attend(app, added, data(added, request), follow=args.follow)
    warn_if_unserved([added], app)
    return app.show(data(added, request), lambda: _text(added, args))


def build(args: Args, context: Context | None = None) -> NewJob:
    """The job that the arguments ask for; captures its context unless one is given.

    Raises:
        InvalidInput: something is wrong with them.
    """
    if args.key_for is not None and args.key is None:
        raise UsageError("--key-for goes with --key")
    request = new_job(
        _command(args),
        queue=args.queue,
        priority=args.priority,
        delay_s=args.after,
        run_at=args.at,
        timeout_s=None if args.no_timeout else args.timeout,
        max_retries=0 if args.no_retry else args.max_retries,
        max_crashes=None if args.max_crashes == "unlimited" else args.max_crashes,
        cwd=args.cwd,
        env=args.env,
        key=args.key,
        key_for_s=FOREVER_S if args.key_for == "ever" else args.key_for,
        tags=args.tag,
        note=args.note,
        policy=_policy(args),
        stdin=_input(args.stdin),
        capture_env=captured_names(args),
        context=context,
    )
    refuse_shell_line(args, request)
    return request


def _command(args: Args) -> tuple[str, ...]:
    if args.c is None:
        if "--shell" in args.given:
            raise UsageError("--shell goes with -c or --lines")
        words: tuple[str, ...] = args.argv
        return words
    if args.argv:
        raise UsageError("-c and a command exclude each other")
    if not args.c.strip():
        raise UsageError("-c needs a command that is not blank", "MISSING_REQUIRED")
    return (args.shell, "-c", args.c)


RETRY_FLAGS = frozenset(
    {
        "--backoff",
        "--final-exit",
        "--jitter",
        "--retry-delay",
        "--retry-for",
        "--retry-max-delay",
    }
)


def _policy(args: Args) -> RetryPolicy:
    chosen = args.given | args.configured
    if not RETRY_FLAGS & chosen:
        return DEFAULT_POLICY
    delays: tuple[float, ...] = args.retry_delay or ()
    base_s = DEFAULT_POLICY.base_s
    if len(delays) > 1 and "--backoff" in args.given:
        if "--retry-delay" in args.given:
            raise UsageError("--backoff grows from one --retry-delay, not from a list")
        delays = ()  # a list of the config file has to give way
    elif len(delays) == 1 and "--backoff" in chosen:
        base_s, delays = delays[0], ()
    longest_s = args.retry_max_delay
    return RetryPolicy(
        delays_s=delays,
        backoff=args.backoff,
        base_s=base_s,
        max_delay_s=max(DEFAULT_POLICY.max_delay_s, base_s) if longest_s is None else longest_s,
        jitter=args.jitter or 0.0,
        final_exits=args.final_exit or (),
        retry_for_s=args.retry_for,
    )


def captured_names(args: Args) -> tuple[str, ...] | None:
    """Which variables to capture; None: all."""
    names = args.capture_env
    if names == "all":
        return None
    return names if isinstance(names, tuple) else CAPTURED


def _input(source: str | bytes | None) -> bytes | None:
    """What the command will read: of a file, or (in a batch) given as it is."""
    if source is None or isinstance(source, bytes):
        return source
    from spoolctl.cli.batch import read_input
    from spoolctl.core.limits import LIMITS

    return read_input("--stdin", source, LIMITS["stdin_bytes"].maximum)


def refuse_shell_line(args: Args, request: NewJob) -> None:
    """`add 'echo hi && echo there'` was meant for a shell; as a program's name it can only
    fail, and only when a worker gets to it. Raises UsageError, without --force."""
    word = request.argv[0]
    if args.force or args.c is not None or len(request.argv) > 1:
        return
    if not SHELL_CHARACTERS.intersection(word):
        return
    import os
    from shutil import which

    folder = request.cwd or request.context.cwd or "/"
    if which(word, path=dict(request.context.env).get("PATH")):
        return
    if "/" in word and os.path.lexists(os.path.join(folder, word)):
        return
    from shlex import quote

    raise UsageError(
        f"there is no program {word!r}; it looks like a line for a shell",
        remediation=f"for a shell: -c {quote(word)}; for a program with arguments: "
        "-- PROGRAM ARGUMENT ...; as it is: --force",
    )


def warn_if_past(run_at: float | None, app: App) -> None:
    """A time in the past is accepted, but said."""
    if run_at is not None and is_past(run_at):
        import time

        from spoolctl.cli.render import duration, local_time

        ago = duration(time.time() - run_at)
        app.warn("AT_IN_PAST", f"{local_time(run_at)} was {ago} ago: the job is due now")


def warn_if_unserved(added: list[Added], app: App) -> None:
    """A queue that was named for a job that waits, and that no worker serves, is said.

    The usual one is left out: it is filled before there is a worker as often as not.
    """
    lanes = {each.job.queue for each in added if each.job.state is State.QUEUED} - {"default"}
    if lanes:
        from spoolctl.cli.unserved import warn

        warn(lanes, app)


def is_past(run_at: float | None) -> bool:
    """Whether a time lies so far back that it was probably not meant."""
    if run_at is None:
        return False
    import time

    return time.time() - run_at > PAST_S


def warn_of_differences(added: Added, app: App) -> None:
    """An existing job stays as it is, also where the request differs from it."""
    if added.deduplicated and added.differences:
        fields = ", ".join(field for field, _, _ in added.differences)
        app.warn(
            "IDEMPOTENCY_METADATA_DIFFERS",
            f"job {added.job.id} was left as it is; the request differs in: {fields}",
        )


def tell_start(added: Added, app: App) -> None:
    """When a delayed job will start, for people who watch."""
    import time

    from spoolctl.cli.render import duration, local_time

    wait = added.job.next_run_at - time.time()
    if not added.deduplicated and wait > 1:
        app.out.note(f"starts at {local_time(added.job.next_run_at)}, in {duration(wait)}")


def data(added: Added, request: NewJob) -> dict[str, Any]:
    """The answer to one submission."""
    job = added.job
    answer: dict[str, Any] = {
        "job_id": job.id,
        "state": job.state.value,
        "deduplicated": added.deduplicated,
        "next_run_at": job.next_run_at,
        "priority": job.priority,
        "queue": job.queue,
        "cwd": job.cwd,
        "env_keys": sorted(name for name, _ in request.env),
    }
    if added.deduplicated:
        answer["idempotency"] = {
            "key": request.key,
            "metadata_differs": bool(added.differences),
            "metadata_differences": {
                field: {"existing": _plain(existing), "submitted": _plain(submitted)}
                for field, existing, submitted in added.differences
            },
        }
    return answer


def _plain(value: object) -> object:
    """Tags are pairs inside and an object outside."""
    return dict(value) if isinstance(value, tuple) else value


def _wants_id(args: Args) -> bool:
    return bool(args.p or args.print == "id")


def _text(added: Added, args: Args) -> str:
    from spoolctl.cli.render import visible

    job = added.job
    if _wants_id(args):
        return str(job.id)
    if not added.deduplicated:
        return f"Added job {job.id}"
    how = "already active" if job.state.value in ("queued", "running") else "has ended already"
    return visible(f"Job {job.id} {how} under key {job.key!r} ({job.state.value})")

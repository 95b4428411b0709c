"""`spoolctl run`: submit a command and stay until it has ended, working for it if need be."""

from __future__ import annotations

import os

from spoolctl.cli import add
from spoolctl.cli.spec import DB, MAX_OUTPUT, TRUST, Flag, JsonSchema, Verb
from spoolctl.core.records import Added, Job
from spoolctl.core.states import SETTLED, State
from spoolctl.errors import SpoolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args
    from spoolctl.cli.relay import Relay
    from spoolctl.engine.options import WorkOptions, WorkResult

LAST_WORDS_S = 2.0
"""After a signal, how long a reader may take for what is written already."""

NOT_HERE = frozenset({"--batch", "--lines", "-0", "--print", "-p", "--wait", "--follow"})
"""Flags of `add` that make no sense for one job that is waited for anyway."""


def schema() -> JsonSchema:
    """What `data` looks like."""
    of_add = add.schema()
    members = {name: each for name, each in of_add["properties"].items() if name != "batch"}
    return {**of_add, "properties": members, "required": [*of_add["required"], "outcome"]}


def _flags() -> tuple[Flag, ...]:
    """Those of `add`, as far as they fit, and those of `work` that matter for one job."""
    flags = [flag for flag in add.VERB.flags if flag.name not in NOT_HERE]
    shell = next(at for at, flag in enumerate(flags) if flag.name == "--shell")
    flags[shell] = flags[shell]._replace(help="the shell for -c")
    output = MAX_OUTPUT._replace(help=f"{MAX_OUTPUT.help}; where no worker takes the job")
    at = flags.index(DB)
    return (*flags[:at], output, TRUST, *flags[at:])


FLAGS = _flags()
_NAMES = frozenset(flag.name for flag in FLAGS)

VERB = Verb(
    name="run",
    description=(
        "Submit a command, print what it writes as it comes, and exit with its own code. Needs "
        "no worker: where no live one serves the queue, this call runs the job itself, as a "
        "worker for that one job. The job is stored, with all that `add` stores, before it is "
        "started: whatever becomes of this call, the job is in the queue, and whoever works next "
        "finishes it."
    ),
    data_schema="Like that of `add --wait`: the job, and how it ended.",
    schema=schema,
    positionals=add.VERB.positionals,
    replaces_positional=("-c",),
    flags=FLAGS,
    exclusive=tuple(pair for pair in add.VERB.exclusive if _NAMES.issuperset(pair)),
    examples=(
        ("spoolctl", "run", "--", "make", "test"),
        ("spoolctl", "run", "--no-retry", "--timeout", "3600", "-c", "make lint && make test"),
        ("spoolctl", "run", "--key", "build-7", "--json", "--", "make", "-j4"),
    ),
    mutates=True,
    idempotent=add.VERB.idempotent,
    epilog=(
        "stdout and stderr of the command go to ours byte for byte (with --json only the final "
        "answer is printed); its stdin is at end of file unless --stdin is given. What spoolctl "
        "itself has to say goes to stderr.",
        "A command that fails is tried again, as every job is, and this call stays until the job "
        "has settled: give --no-retry for one try. The exit status is the command's own; 6 where "
        "it has none (it timed out, could not be started, or was canceled). A signal S counts as "
        "128+S.",
        "A live worker that serves the queue is given the job; should it die or leave, this call "
        "takes over. Ctrl-C, SIGTERM and SIGHUP end the command and put the job back, at no cost "
        "to its budget; `spoolctl work --drain` then runs it, `spoolctl cancel` withdraws it.",
    ),
)


class Stay:
    """One call: what is known of it by whoever has to clear up after it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.job_id: int | None = None
        self.relay: Relay | None = None

    def close(self) -> None:
        """Release what writes the output."""
        if self.relay is not None:
            self.relay.close()

    def tell_left(self) -> None:
        """Say what becomes of the job, if there is one that has not settled."""
        if self.job_id is None:
            return
        try:
            job = self.app.queue.get(self.job_id)
        except SpoolError:
            return
        if job.state is State.QUEUED:
            self.app.out.note(_in_queue(job))
        elif job.state is State.RUNNING:
            from spoolctl.cli.attend import goes_on

            self.app.out.note(goes_on(job.id))


def _in_queue(job: Job) -> str:
    from shlex import quote

    lane = "" if job.queue == "default" else f" --queue {quote(job.queue)}"
    again = "" if job.key is None else "the same call goes on with it, "
    return (
        f"spoolctl: job {job.id} is in the queue: {again}`spoolctl work --drain{lane}` runs it, "
        f"`spoolctl cancel {job.id}` withdraws it"
    )


def run(args: Args, app: App) -> int:
    """Check everything, store the job, then see it through."""
    from spoolctl.cli.signals import Interrupted, die_by, interrupted

    stay = Stay(app)
    try:
        with interrupted():
            return _run(args, stay)
    except Interrupted as signal:
        stay.tell_left()
        app.close()
        return die_by(signal.number)
    finally:
        stay.close()


def _run(args: Args, stay: Stay) -> int:
    from spoolctl.cli.attend import conclude
    from spoolctl.engine.trust import check_trust

    app = stay.app
    request = add.build(args)
    add.warn_if_past(args.at, app)
    options = _options(args)
    path = os.path.realpath(app.location.path)
    if not args.trust:  # before there is a job that would not be run
        check_trust(path)
    if not app.json:
        from spoolctl.cli.relay import Relay

        stay.relay = Relay(app.out, path)
    added = app.queue.submit([request])[0]
    stay.job_id = added.job.id
    try:
        _announce(added, stay)
        job = _see_through(added.job, options, stay)
        if stay.relay is not None:
            stay.relay.finish()
    except (SpoolError, OSError):
        stay.tell_left()
        raise
    return conclude(app, job, add.data(added, request))


def _options(args: Args) -> WorkOptions:
    from spoolctl.cli.trials import trial_times
    from spoolctl.engine.options import HEARTBEAT_INTERVAL_S, WorkOptions

    interval_s, threshold_s = trial_times()
    chosen = WorkOptions(
        shutdown_timeout_s=0.0,
        heartbeat_interval_s=interval_s or HEARTBEAT_INTERVAL_S,
        reap_after_s=threshold_s,
        trust=args.trust,
    )
    if args.max_output is not None:
        chosen = chosen._replace(max_output_bytes=args.max_output)
    return chosen


def _announce(added: Added, stay: Stay) -> None:
    app = stay.app
    add.warn_of_differences(added, app)
    if not app.json:
        app.show_warnings()
        if app.out.errors_are_seen():
            add.tell_start(added, app)
        app.out.note(f"spoolctl: job {added.job.id}")
    if stay.relay is not None:
        stay.relay.begin(added.job.id, _first_attempt(added, app))


def _first_attempt(added: Added, app: App) -> int:
    """Which attempt's output comes first: of a job that is there already, its latest."""
    latest = app.queue.attempt(added.job.id) if added.deduplicated else None
    return 1 if latest is None else latest.attempt_no


def _see_through(job: Job, options: WorkOptions, stay: Stay) -> Job:
    """Work until the job has settled; returns it as it then is.

    Raises:
        Interrupted: a signal came first. The command has been ended.
        OutputClosed, OutputFailed: nobody takes the output any more; the same.
    """
    from spoolctl.engine.log import LineLog

    app = stay.app
    options = options._replace(lanes=(job.queue,), job_id=job.id)
    helper = stay.relay.helper if stay.relay is not None else None
    while job.state not in SETTLED:
        result = app.queue.work(options, log=LineLog(app.out.stderr), helper=helper)
        if result.failure is not None:
            raise result.failure
        job = app.queue.get(job.id)
        if result.stopped and job.state not in SETTLED:
            _give_up(result, stay)
    return job


def _give_up(result: WorkResult, stay: Stay) -> None:
    """The command was ended early: hand out its last words, and say why by an exception."""
    from spoolctl.cli.render import OutputFailed
    from spoolctl.cli.signals import Interrupted

    try:
        if stay.relay is not None:
            stay.relay.finish(LAST_WORDS_S)
    except OutputFailed:
        stay.tell_left()
        raise
    if result.stop_signal is not None:
        raise Interrupted(result.stop_signal)
    raise SpoolError("the output cannot be followed any more")

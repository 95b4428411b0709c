"""`spoolctl robot-docs guide`: how an automated caller works with a queue, step by step."""

from __future__ import annotations

from collections.abc import Iterator

from spoolctl.cli import shapes
from spoolctl.cli.brief import first_waits, tokens
from spoolctl.cli.codes import ERRORS, EXITS
from spoolctl.cli.spec import COMMON, JsonSchema, Positional, Verb, load
from spoolctl.cli.variables import GIVEN_TO_JOBS
from spoolctl.core.states import SETTLED, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args

Section = tuple[str, tuple[str, ...]]

BEFORE: tuple[Section, ...] = (
    (
        "What it is",
        (
            "A durable local queue of shell commands in one SQLite file. No daemon, no server: "
            "any process adds jobs, any number of `work` processes run them, whoever comes later "
            "reads what happened.",
            "An answer means that it is on disk: what `add`, `cancel` and `retry` acknowledged "
            "survives SIGKILL of everything and a power cut.",
            "A job is what was asked for; an attempt is one execution of it. A job may run more "
            "than once, but never twice at the same time.",
        ),
    ),
    (
        "Which queue",
        (
            "--db PATH, else SPOOLCTL_DB, else `db_path` in .spoolctl/config.json, else "
            ".spoolctl/queue.db; the .spoolctl folder is looked for upwards. Set SPOOLCTL_DB once "
            "and every call means the same file.",
            "spoolctl config-show --json",
            "config-show also lists the defaults that hold here (timeout, max_retries, queue, ...) "
            "with their sources: .spoolctl/config.json may set them; a flag is stronger.",
            "spoolctl doctor --json",
            "doctor changes nothing; it exits 3 with ok:true when something is not ready: read "
            "data.ready and the checks that failed. A queue that does not exist yet is made by "
            "the first `add`.",
        ),
    ),
    (
        "Submit",
        (
            "spoolctl add --json --key build-7 --timeout 900 --tag kind=build -- make test",
            "Always give --key where you may be killed between the call and the answer: the same "
            "call again returns the same job (`deduplicated`) while that is queued or running. A "
            "different execution under the same key is refused (IDEMPOTENCY_CONFLICT). With "
            "--key-for 1d the key also protects that long after the job's end.",
            "Everything after `--` is the command, word by word and without a shell. For pipes, "
            "`&&` and variables use -c:",
            "spoolctl add --json -c 'make lint && make test'",
            "Many at once, all or none: one JSON object per line, with `argv` and the fields of "
            "add; data.batch.job_ids has the ids in order.",
            "spoolctl add --json --batch jobs.jsonl",
            "The folder of the call becomes the folder of the job. stdin is empty.",
            "Later: --after 90s, --at 2031-01-02T03:04:05Z. First: --priority 10 (higher runs "
            "earlier). Apart: --queue gpu, which is served by `work --queue gpu` only.",
        ),
    ),
    (
        "Run",
        (
            "spoolctl work --drain",
            "Runs what is due, waits out retries and the jobs of other workers, then ends. "
            "-j N runs N commands side by side. Start it in the background, or again after it "
            "was killed: nothing is lost, and no command runs twice at the same time.",
            "Of a worker that was killed, the commands are ended at once; its jobs are taken back "
            "by another worker about 30 s later, when its death is proven.",
            "SIGTERM: finishes what runs, takes nothing more, exits 0. A second one ends the "
            "commands and puts their jobs back, without spending their budget.",
            "spoolctl run --key build-7 -- make test",
            "All in one: submits, runs the job itself where no live worker serves the queue, "
            "streams its output and exits with the command's own code. Killed at any moment, the "
            "job is in the queue; the same call goes on with it. With --json: one answer, with "
            "data.outcome.",
        ),
    ),
    (
        "Wait",
        (
            "spoolctl wait --json --timeout 600 1 2 3",
            "Exit 0: all are done. 6: all have settled, not all are done (data.all_succeeded is "
            "false, data.jobs has the states). 4: the time is up, ask again.",
            "spoolctl wait --json --all --timeout 600",
            "The warning NO_WORKER means that nobody is there to run what is waited for.",
            "spoolctl events --json --wait --since-id 0",
            "Keep meta.pagination.cursor and hand it to the next call as --since-id: no event is "
            "missed or seen twice.",
        ),
    ),
    (
        "Verdict",
        (
            "spoolctl feedback --json 1",
            "One call tells it all: terminal, succeeded, exit_code, failure_reason, the ends of "
            "both streams, and in `remediation` the next command to run.",
            "spoolctl output --raw --stream stdout 1",
            "spoolctl show --json 1",
            "`output` has every byte of every attempt; `show` has all attempts, events and why a "
            "silent worker's job has not been taken back.",
        ),
    ),
    (
        "Put right",
        (
            "spoolctl retry --json 1",
            "A fresh budget for a job that is dead, failed or canceled.",
            "spoolctl cancel --json 1",
            "A running job needs two words more, since it interrupts work:",
            "spoolctl cancel --json --running --yes 1",
        ),
    ),
    (
        "Hand over",
        (
            "A successor needs the folder (or SPOOLCTL_DB) and nothing else. It asks what there "
            "is, submits everything again with the same keys (given with --key-for), works, waits "
            "and reads the verdicts.",
            "spoolctl status --json",
            "spoolctl list --json --state queued,running",
            "spoolctl prune --older-than 7d --state done --dry-run",
        ),
    ),
)

AFTER: tuple[Section, ...] = (
    (
        "Learn more",
        (
            "spoolctl capabilities --json --verb add",
            "spoolctl schema --json --verb feedback",
            "spoolctl add --help",
            "capabilities names every flag with type, range and default; schema describes every "
            "payload; neither opens a queue.",
        ),
    ),
)


def sections() -> list[Section]:
    """Title and bullets of every section. Bullets that start with `spoolctl ` are commands."""
    return [*BEFORE, ("States", tuple(_states())), ("Answers", tuple(_answers())), *AFTER]


def _states() -> Iterator[str]:
    meaning = {
        State.QUEUED: "waits: to be taken, for its time (`next_run_at`), or between attempts",
        State.RUNNING: "a worker has it",
        State.DONE: "the last attempt exited 0",
        State.FAILED: "ended for good by an exit code that the submitter declared final",
        State.DEAD: "its tries are used up",
        State.CANCELED: "withdrawn",
    }
    for state in State:
        settled = "settled" if state in SETTLED else "open"
        yield f"{state.value} ({settled}): {meaning[state]}."
    defaults = {flag.name: flag.default for flag in load("add").flags}
    yield (
        f"Failures of the command's own are retried (--max-retries, {defaults['--max-retries']} by "
        f"default, after {first_waits()} s); deaths of workers count apart (--max-crashes, "
        f"{defaults['--max-crashes']})."
    )


def _answers() -> Iterator[str]:
    yield (
        "With --json stdout is one object: ok, data, warnings, errors, meta, tool_version, "
        "commands. Branch on errors[0].code and do what errors[0].remediation says."
    )
    for code, each in EXITS.items():
        codes = [name for name, error in ERRORS.items() if error.exit_code == code]
        yield f"Exit {code}: {each.meaning}" + (f" ({', '.join(codes)})." if codes else ".")
    given = ", ".join(GIVEN_TO_JOBS)
    yield f"Commands find in their environment: {given}."
    yield (
        "At least once: when a worker dies after a command ended and before that was recorded, "
        "it runs again. Make commands idempotent; --max-crashes 0 forbids the second run."
    )


def text() -> str:
    """The guide as Markdown, without a newline at its end."""
    parts = ["# spoolctl: guide for automated callers"]
    for title, bullets in sections():
        parts.append(f"## {title}")
        parts.append("\n".join(f"- {_marked(bullet)}" for bullet in bullets))
    return "\n\n".join(parts)


def _marked(bullet: str) -> str:
    return f"`{bullet}`" if bullet.startswith("spoolctl ") else bullet


def schema() -> JsonSchema:
    """What `data` looks like."""
    section = shapes.closed(
        title=shapes.TEXT, bullets={"type": "array", "minItems": 1, "items": shapes.TEXT}
    )
    return shapes.closed(
        text=shapes.TEXT,
        approx_tokens={"type": "integer", "minimum": 1},
        sections={"type": "array", "minItems": 4, "items": section},
    )


VERB = Verb(
    name="robot-docs",
    description="A guide for automated callers: find the queue, submit, run, wait, get the "
    "verdict, hand over. Deterministic; opens nothing. `spoolctl brief` is shorter.",
    data_schema="The text, about how many tokens it takes, and the same as sections with bullets.",
    schema=schema,
    flags=COMMON,
    positionals=(
        Positional(
            "robot_docs_command",
            "1",
            "enum",
            "what to print: guide",
            metavar="guide",
            choices=("guide",),
        ),
    ),
    examples=(
        ("spoolctl", "robot-docs", "guide"),
        ("spoolctl", "robot-docs", "guide", "--json"),
    ),
)


def run(args: Args, app: App) -> int:
    """Print the guide."""
    guide = text()
    data: dict[str, Any] = {
        "text": guide,
        "approx_tokens": tokens(guide),
        "sections": [{"title": title, "bullets": list(bullets)} for title, bullets in sections()],
    }
    return app.show(data, guide)

"""`spoolctl brief`: what an automated caller has to know, in at most 700 tokens."""

from __future__ import annotations

from spoolctl.cli import shapes
from spoolctl.cli.codes import EXITS
from spoolctl.cli.spec import COMMON, JsonSchema, Verb, load
from spoolctl.cli.verbs import VERBS
from spoolctl.core.retry import backoff_s
from spoolctl.core.states import SETTLED, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App
    from spoolctl.cli.parse import Args

BUDGET_TOKENS = 700

TEXT = """\
spoolctl: a durable local queue of shell commands in one SQLite file. No daemon: any process \
adds jobs, any number of workers run them, whoever comes later reads what happened.

Queue: --db PATH, else SPOOLCTL_DB, else .spoolctl/config.json, else .spoolctl/queue.db.

spoolctl add --json --key build-7 -- make test
  data.job_id; on disk once acknowledged. Same key while it is active: same job, no second run
  (--key-for 1d: also that long after its end). Many at once: add --batch FILE.
spoolctl work --drain
  runs what is due, waits out retries, ends. If killed, start it again: nothing is lost.
spoolctl run -- make test
  all in one: add, run it here if no worker does, stream its output, exit with its code.
spoolctl wait --json --timeout 600 ID
  exit 0 all done; 6 settled, not all done (data.all_succeeded); 4 time is up: wait again.
spoolctl feedback --json ID
  verdict: succeeded, exit_code, failure_reason, ends of the output, next command.

States: {open} (open); {settled} (settled).
Defaults: {timeout} s per attempt, {retries} retries after {waits} s, at most {crashes} worker \
crashes.
--json: one object {{ok, data, warnings, errors, ...}}: branch on errors[0].code, do \
errors[0].remediation.
Exit: {exits}.
Flags follow the verb. Words after -- are the command, run without a shell (or -c STRING).
After a crash a command runs again: make it idempotent (SPOOLCTL_JOB_ID is set).

Verbs:
{verbs}

More: spoolctl robot-docs guide; spoolctl capabilities --json; spoolctl schema --json."""
"""What is in braces comes from the tables of states, exit codes and verbs."""


def text() -> str:
    """The whole text, without a newline at its end."""
    defaults = {flag.name: flag.default for flag in load("add").flags}
    return TEXT.format(
        timeout=defaults["--timeout"],
        retries=defaults["--max-retries"],
        crashes=defaults["--max-crashes"],
        waits=first_waits(),
        open=", ".join(state.value for state in State if state not in SETTLED),
        settled=", ".join(state.value for state in State if state in SETTLED),
        exits=", ".join(f"{code} {each.short}" for code, each in EXITS.items()),
        verbs="\n".join(f"{name}: {row.summary}" for name, row in VERBS.items()),
    )


def first_waits() -> str:
    """The first three waits between attempts, in seconds."""
    return ", ".join(f"{backoff_s(failures):g}" for failures in (1, 2, 3))


def tokens(of: str) -> int:
    """About how many tokens a text has: a quarter of its characters, rounded up."""
    return -(-len(of) // 4)


def schema() -> JsonSchema:
    """What `data` looks like."""
    return shapes.closed(
        text=shapes.TEXT,
        approx_tokens={"type": "integer", "minimum": 1, "maximum": BUDGET_TOKENS},
        budget_tokens={"const": BUDGET_TOKENS},
    )


VERB = Verb(
    name="brief",
    description="What an automated caller has to know to use spoolctl, in at most "
    f"{BUDGET_TOKENS} tokens. Deterministic; opens nothing.",
    data_schema="The text, and how many tokens it takes.",
    schema=schema,
    flags=COMMON,
    examples=(("spoolctl", "brief"), ("spoolctl", "brief", "--json")),
)


def run(args: Args, app: App) -> int:
    """Print the text."""
    brief = text()
    data: dict[str, Any] = {
        "text": brief,
        "approx_tokens": tokens(brief),
        "budget_tokens": BUDGET_TOKENS,
    }
    return app.show(data, brief)

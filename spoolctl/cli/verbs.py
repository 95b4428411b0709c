"""Which verbs there are. Imports none of them: only the verb that is called is loaded."""

from __future__ import annotations

from spoolctl.core.tuples import NamedTuple

GROUPS = ("Run jobs", "Look", "Put right", "Keep house", "For programs")
"""Headings of `spoolctl --help`, in order."""


class Row(NamedTuple):
    """Where a verb lives, under which heading it is listed, and one line on it."""

    module: str
    group: str
    summary: str


VERBS: dict[str, Row] = {
    "add": Row("spoolctl.cli.add", "Run jobs", "submit a command"),
    "run": Row("spoolctl.cli.run", "Run jobs", "submit a command and see it through"),
    "work": Row("spoolctl.cli.work", "Run jobs", "run jobs"),
    "wait": Row("spoolctl.cli.wait", "Run jobs", "block until jobs have settled"),
    "status": Row("spoolctl.cli.status", "Look", "counts, and the latest dead jobs"),
    "list": Row("spoolctl.cli.list", "Look", "enumerate jobs"),
    "show": Row("spoolctl.cli.show", "Look", "one job in full"),
    "output": Row("spoolctl.cli.output", "Look", "what a job wrote to stdout and stderr"),
    "feedback": Row("spoolctl.cli.feedback", "Look", "the verdict on one job, in one call"),
    "events": Row("spoolctl.cli.events", "Look", "read, await or follow the event ledger"),
    "retry": Row("spoolctl.cli.retry", "Put right", "put a job that ended badly back"),
    "cancel": Row("spoolctl.cli.cancel", "Put right", "withdraw or stop a job"),
    "prune": Row("spoolctl.cli.prune", "Keep house", "delete old settled jobs"),
    "backup": Row("spoolctl.cli.backup", "Keep house", "copy the queue while it is in use"),
    "doctor": Row("spoolctl.cli.doctor", "Keep house", "is everything ready?"),
    "config-show": Row(
        "spoolctl.cli.config_show", "Keep house", "which queue is used, and why that one"
    ),
    "config-validate": Row(
        "spoolctl.cli.config_validate", "Keep house", "check the project's config file"
    ),
    "completion": Row(
        "spoolctl.cli.completion", "For programs", "words for the tab key of bash, zsh or fish"
    ),
    "brief": Row("spoolctl.cli.brief", "For programs", "short usage text for automated callers"),
    "robot-docs": Row(
        "spoolctl.cli.robot_docs", "For programs", "longer guide for automated callers"
    ),
    "capabilities": Row(
        "spoolctl.cli.capabilities", "For programs", "this interface, machine-readable"
    ),
    "schema": Row("spoolctl.cli.schema", "For programs", "JSON Schemas of all output"),
}

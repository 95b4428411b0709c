"""What `capabilities` says in words and no table knows."""

from __future__ import annotations

from spoolctl.core.limits import QUEUE_PATTERN

CONTRACT_POLICY = (
    "The contract version changes when something is removed or redefined: a verb, flag, member, "
    "code, state or event. Additions do not change it; they are declared here and in the schemas."
)

FEATURES = (
    "backup",
    "batches",
    "bounded_output",
    "captured_environment",
    "completion",
    "crash_recovery",
    "delayed_jobs",
    "event_ledger",
    "event_stream",
    "final_exit_codes",
    "idempotency_keys",
    "json_envelopes",
    "notes",
    "output_per_attempt",
    "parallel_workers",
    "priorities",
    "process_tree_containment",
    "queues",
    "retries_with_backoff",
    "retry_schedules",
    "slots",
    "stored_stdin",
    "submit_and_run",
    "tags",
    "timeouts",
)

DB_SCOPE = (
    "--db belongs to the verbs that use a queue and stands after the verb; there is no global "
    "form. SPOOLCTL_DB is the way to name a queue once for all of them."
)

TOTALITY = {
    "envelope": (
        "one envelope on stdout with ok:false and one entry in errors, whose message is also on "
        "stderr; the exit status is errors[0].exit_code"
    ),
    "frames": (
        "before the first frame as in mode envelope; afterwards a control frame of type error on "
        "stdout"
    ),
    "raw": "stdout empty (or the bytes so far), the message on stderr, a non-zero exit status",
    "text": "stdout empty, the message and what to try next on stderr, a non-zero exit status",
}

DURATION_GRAMMAR = (
    "a non-negative decimal number (90, 1.5, .5, 2.) with an optional unit s, m, h or d; no unit "
    "means seconds; several units, the larger first: 1h30m; no sign, exponent or blank"
)
AT_TIMESTAMP = (
    "epoch seconds as a signed decimal number (not of exactly 4 or 8 digits, which look like a "
    "date: 20261224.0 is taken as seconds), or ISO 8601 with Z, with an offset, or without zone "
    "(then the local zone of the caller; 2026-12-24 18:00, too), or 23:59 (the next one), or "
    "'tomorrow 9:00' (also today, yesterday); a moment in the past means now, with the warning "
    "AT_IN_PAST"
)
ORDERING = "higher numbers run earlier; then the earlier next_run_at, then the lower id"
QUEUE_GRAMMAR = f"^{QUEUE_PATTERN}$, 1 to 64 characters, case sensitive"

SLOTS_SCOPE = (
    "work --slots N claims nothing while N attempts of the served queue live, over all workers, "
    "processes of dead workers' attempts included; each served queue by itself"
)
CLAIMED_FALSE = "work --once answers {claimed:false} when all slots are taken, too"
SCHEDULED = {
    "predicate": "state is queued and next_run_at is in the future",
    "includes": "jobs added with --after or --at, and jobs in backoff",
    "counts_included_in": "status counts them in counts.queued, and apart in scheduled",
}
DRAIN_HOLDS_FOR = (
    "jobs that run under any worker",
    "jobs that are queued and due",
    "jobs in backoff: queued for the future with attempts > 0",
)
DRAIN_SKIPS = "jobs for the future that were never tried (attempts is 0)"
DRAIN_SCOPE = "the queues that the worker serves"

CWD_RESOLUTION = (
    "made absolute against the caller's directory when the job is added, without . and .., "
    "symbolic links kept; without --cwd the caller's directory itself"
)
CWD_FAILURE = "a directory that is missing when the job starts: a failed attempt, spawn_failed"
ENV_GRAMMAR = "KEY=VALUE, split at the first =; the last of repeated keys wins"
ENV_SEMANTICS = (
    "laid over the worker's environment and over what was captured at submission; the SPOOLCTL_* "
    "variables of the job are laid over it in turn"
)
ATTEMPTS = (
    "counts recorded unsuccessful executions since submission or the last manual retry; failures "
    "= attempts - crashes"
)
JOB_OWNED_FAILURES = (
    "a non-zero exit, death by a signal, a timeout, or a command that cannot be started"
)
WORKER_CRASHES = "the worker died; counted apart in crashes, and spends none of max_retries"
MAX_RETRIES = "so many failures of its own are tolerated; one more and the job is dead"
MAX_CRASHES = (
    "so many deaths of workers are tolerated; one more and the job is dead; `unlimited` for all"
)
MAX_CRASHES_ZERO = "the first crash ends the job as dead: it never runs a second time after one"
MAX_CRASHES_ONE = "one crash is tolerated, the second ends the job as dead"
BACKOFF = "min({cap}, {base} * 2^(n-1)) seconds after the n-th unsuccessful execution"
WAIT_DRAIN = "wait and work --drain wait out backoffs: a job in backoff has not settled"

CHOICE_PROBES = {
    "enum": ("both", ("", "nonesuch")),
    "enum_csv": ("done", ("", "nonesuch", "done,,dead")),
    "string": ("text", ()),
}
"""Type -> a valid sample (of choices: of `output --stream` and `list --state`), invalid ones."""

"""The JSON Schema of what `spoolctl capabilities --json` prints."""

from __future__ import annotations

from spoolctl.cli import settings, shapes
from spoolctl.cli.codes import ERRORS, EXITS, WARNINGS
from spoolctl.cli.shapes import BOOLEAN, INTEGER, NULL, STRINGS, TEXT, closed, nullable
from spoolctl.cli.spec import TYPES, JsonSchema
from spoolctl.cli.variables import GIVEN_TO_JOBS, VARIABLES
from spoolctl.cli.verbs import GROUPS, VERBS
from spoolctl.core.limits import LIMITS
from spoolctl.core.states import AttemptState, Event, Ledger, Reason, State
from spoolctl.version import CONTRACT_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INT_OR_NULL = nullable(INTEGER)
EXPECTATIONS = shapes.mapping(
    closed(code=shapes.words(ERRORS), exit_code={"type": "integer", "enum": list(EXITS)})
)


def capabilities() -> JsonSchema:
    """The whole payload."""
    return closed(
        tool_name={"const": "spoolctl"},
        tool_version=TEXT,
        contract_version={"const": CONTRACT_VERSION},
        contract_policy=TEXT,
        robot_docs_uri=TEXT,
        schemas_uri=TEXT,
        features=STRINGS,
        output_modes=STRINGS,
        job_states=_all(State),
        attempt_states=_all(AttemptState),
        events=_all(Ledger),
        failure_reasons=_all(Reason),
        transitions=shapes.array(_transition()),
        error_codes=_all(ERRORS),
        warning_codes=_all(WARNINGS),
        exit_codes=shapes.keyed([str(code) for code in EXITS], _exit()),
        code_registry=_code_registry(),
        env=shapes.table(VARIABLES, TEXT),
        env_vars=shapes.keyed(VARIABLES, _variable()),
        env_given_to_jobs=shapes.table(GIVEN_TO_JOBS, TEXT),
        config=_config(),
        limits=shapes.keyed(LIMITS, _limit()),
        global_flags=closed(flags=shapes.array(_flag()), db_scope=TEXT),
        scheduling=_scheduling(),
        execution=_execution(),
        totality=shapes.table(("envelope", "frames", "raw", "text"), TEXT),
        probe_vocabularies=shapes.keyed(TYPES, closed(valid=TEXT, invalid=STRINGS), complete=False),
        verb_groups={"const": list(GROUPS)},
        verbs=shapes.keyed(sorted(VERBS), _verb(), complete=False),
    )


def _all(of: Any) -> JsonSchema:
    """A list of words out of a vocabulary."""
    return shapes.array(shapes.words(of))


def _transition() -> JsonSchema:
    return closed(
        **{"from": shapes.words(State)},
        cause=shapes.words(Event),
        to=shapes.words(State),
        writes=_all(Ledger),
    )


def _exit() -> JsonSchema:
    return closed(meaning=TEXT, retryable=nullable(BOOLEAN), note=TEXT, optional=("note",))


def _code_registry() -> JsonSchema:
    error = closed(
        appears_in={"const": ["errors"]},
        summary=TEXT,
        exit_code=INTEGER,
        retryable=nullable(BOOLEAN),
        example=TEXT,
        optional=("example",),
    )
    warning = closed(appears_in={"const": ["warnings"]}, summary=TEXT, retryable=NULL)
    return closed(**dict.fromkeys(ERRORS, error), **dict.fromkeys(WARNINGS, warning))


def _variable() -> JsonSchema:
    return closed(
        consumed_by=STRINGS,
        default={"type": ["string", "number"]},
        description=TEXT,
        malformed_expectations=EXPECTATIONS,
        required=BOOLEAN,
        shadowed_by=nullable(TEXT),
        type=shapes.words(("path", "float")),
        unbounded=BOOLEAN,
        minimum=shapes.NUMBER,
        maximum=shapes.NUMBER,
        grammar=TEXT,
    )


def _config() -> JsonSchema:
    return closed(
        supported={"const": True},
        path=TEXT,
        format={"const": "json"},
        schema_version=INTEGER,
        precedence=STRINGS,
        keys=STRINGS,
        defaults=shapes.keyed(settings.settings(), _setting()),
    )


def _setting() -> JsonSchema:
    return closed(
        type=shapes.words(TYPES),
        default={"type": ["string", "number", "array", "null"], "items": shapes.STRING},
        used_by=STRINGS,
        choices=nullable(STRINGS),
        words=STRINGS,
        null_allowed=BOOLEAN,
        minimum=INT_OR_NULL,
        maximum=INT_OR_NULL,
    )


def _limit() -> JsonSchema:
    return closed(
        type=TEXT,
        minimum=INTEGER,
        maximum=INTEGER,
        exclusive_minimum=BOOLEAN,
        unbounded={"const": False},
    )


def _flag() -> JsonSchema:
    return closed(
        flag=TEXT,
        name=TEXT,
        aliases=STRINGS,
        type=shapes.words(TYPES),
        description=TEXT,
        default={"type": ["string", "number", "boolean", "array", "null"], "items": shapes.STRING},
        required=BOOLEAN,
        repeatable=BOOLEAN,
        value_required=BOOLEAN,
        choices=nullable(STRINGS),
        words=STRINGS,
        unbounded=BOOLEAN,
        minimum=INT_OR_NULL,
        maximum=INT_OR_NULL,
        config_key=nullable(TEXT),
        malformed_expectations=EXPECTATIONS,
    )


def _positional() -> JsonSchema:
    return closed(
        name=TEXT,
        nargs=shapes.words(("1", "+", "?", "remainder")),
        required=BOOLEAN,
        repeatable=BOOLEAN,
        type=shapes.words(TYPES),
        description=TEXT,
        choices=nullable(STRINGS),
        unbounded=BOOLEAN,
        minimum=INTEGER,
        maximum=INTEGER,
        malformed_expectations=EXPECTATIONS,
        optional=("minimum", "maximum"),
    )


def _verb() -> JsonSchema:
    truth_or_text: JsonSchema = {"type": ["boolean", "string"]}
    positionals = shapes.array(_positional())
    return closed(
        summary=TEXT,
        description=TEXT,
        group=shapes.words(GROUPS),
        data_schema=TEXT,
        schema_ref=TEXT,
        output_schema=shapes.SCHEMA,
        flags=shapes.array(_flag()),
        positionals=positionals,
        args=positionals,
        output_modes=shapes.array(shapes.words(("envelope", "frames", "raw", "text"))),
        mutually_exclusive=shapes.array(shapes.array(TEXT, minItems=2, maxItems=2)),
        exit_codes={"const": list(EXITS)},
        warning_codes=_all(WARNINGS),
        mutates=BOOLEAN,
        destructive=truth_or_text,
        idempotent=truth_or_text,
        stdin=TEXT,
        examples=shapes.array(STRINGS),
        probe_hints=_probe_hints(),
        json=closed(select_with=TEXT, data_members=STRINGS),
        text=closed(default=BOOLEAN, empty_on_failure=BOOLEAN),
        safety=_safety(),
        frames=_frames(),
        optional=("safety", "frames"),
    )


def _probe_hints() -> JsonSchema:
    return closed(
        opens_queue=BOOLEAN,
        needs_job=BOOLEAN,
        needs_worker=BOOLEAN,
        minimal_call=STRINGS,
        note=TEXT,
        optional=("note",),
    )


def _safety() -> JsonSchema:
    """What `prune`, `cancel` and `retry` ask for before they act."""
    return closed(
        refusal_code=shapes.words(ERRORS),
        refusal_exit_code=INTEGER,
        confirmation_flag=TEXT,
        dry_run_flag=TEXT,
        requires=STRINGS,
        force_flag=TEXT,
        force_required_for=TEXT,
        also_requires_yes=BOOLEAN,
        optional=(
            "confirmation_flag",
            "dry_run_flag",
            "requires",
            "force_flag",
            "force_required_for",
            "also_requires_yes",
        ),
    )


def _frames() -> JsonSchema:
    """How `events` streams."""
    return closed(
        enter_with=STRINGS,
        control_frames=STRINGS,
        record_schema=TEXT,
        cursor=closed(field=TEXT, flag=TEXT, aliases=STRINGS),
        starts_at=TEXT,
        ends_with=TEXT,
        optional=("starts_at", "ends_with"),
    )


def _scheduling() -> JsonSchema:
    return closed(
        duration_grammar=TEXT,
        at_timestamp=TEXT,
        finite_numeric_inputs=STRINGS,
        priority=closed(default=INTEGER, min=INTEGER, max=INTEGER, ordering=TEXT),
        queue=closed(default=TEXT, grammar=TEXT, single_lane_worker={"const": False}),
        slots=closed(
            opt_in=BOOLEAN,
            fleet_global=BOOLEAN,
            default_ceiling=NULL,
            scope=TEXT,
            claimed_false=TEXT,
        ),
        scheduled=closed(predicate=TEXT, includes=TEXT, counts_included_in=TEXT),
        drain=closed(holds_for=shapes.array(TEXT, minItems=3, maxItems=3), skips=TEXT, scope=TEXT),
    )


def _execution() -> JsonSchema:
    return closed(
        cwd=closed(flag=TEXT, default=NULL, resolution=TEXT, runtime_failure=TEXT),
        env_overrides=closed(
            flag=TEXT,
            repeatable=BOOLEAN,
            grammar=TEXT,
            semantics=TEXT,
            values_stored_plaintext={"const": True},
            values_in_add_or_list={"const": False},
            values_in_show={"const": True},
        ),
        retry_model=closed(
            attempts=TEXT,
            job_owned_failures=TEXT,
            worker_crashes=TEXT,
            max_retries=closed(default=INTEGER, meaning=TEXT),
            max_crashes=closed(default=INTEGER, meaning=TEXT, zero=TEXT, one=TEXT),
            backoff=TEXT,
            wait_drain=TEXT,
        ),
    )

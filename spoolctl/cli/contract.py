"""The whole interface as one value: what `spoolctl capabilities --json` prints.

Computed from the verbs' own descriptions and from the tables of states, codes, limits and
variables; what is said here in words alone stands in `contract_texts`.
"""

from __future__ import annotations

from spoolctl.cli import contract_texts as texts
from spoolctl.cli import faults, settings
from spoolctl.cli.codes import ERRORS, EXITS, WARNINGS
from spoolctl.cli.spec import DB, TYPES, Flag, Positional, Verb, load
from spoolctl.cli.values import PROBES
from spoolctl.cli.variables import GIVEN_TO_JOBS, VARIABLES
from spoolctl.cli.verbs import GROUPS, VERBS
from spoolctl.config import SOURCES
from spoolctl.core.limits import LIMITS
from spoolctl.core.retry import BASE_S, CAP_S
from spoolctl.core.states import TRANSITIONS, AttemptState, Ledger, Reason, State
from spoolctl.version import CONTRACT_VERSION, __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

Json: TypeAlias = "dict[str, Any]"

GLOBAL_FLAGS = (
    Flag("--help", "boolean", "name every verb, or every flag of a verb", aliases=("-h",)),
    Flag("--version", "boolean", "print the version in one line"),
)
MODES = ("envelope", "frames", "raw", "text")


def capabilities(only: str | None = None) -> Json:
    """The description of the interface; `only`: with just that verb's entry under `verbs`."""
    verbs = {name: load(name) for name in sorted(VERBS)}
    shown = {only: verbs[only]} if only is not None else verbs
    return {
        "tool_name": "spoolctl",
        "tool_version": __version__,
        "contract_version": CONTRACT_VERSION,
        "contract_policy": texts.CONTRACT_POLICY,
        "robot_docs_uri": "spoolctl robot-docs guide",
        "schemas_uri": "spoolctl schema --json",
        "features": list(texts.FEATURES),
        "output_modes": list(MODES),
        "job_states": sorted(state.value for state in State),
        "attempt_states": sorted(state.value for state in AttemptState),
        "events": [each.value for each in Ledger],
        "failure_reasons": [reason.value for reason in Reason],
        "transitions": _transitions(),
        "error_codes": list(ERRORS),
        "warning_codes": list(WARNINGS),
        "exit_codes": _exit_codes(),
        "code_registry": _code_registry(),
        "env": {name: each.description for name, each in VARIABLES.items()},
        "env_vars": _env_vars(verbs),
        "env_given_to_jobs": dict(GIVEN_TO_JOBS),
        "config": _config(),
        "limits": _limits(),
        "global_flags": {
            "flags": [flag_entry(flag) for flag in GLOBAL_FLAGS],
            "db_scope": texts.DB_SCOPE,
        },
        "scheduling": _scheduling(verbs),
        "execution": _execution(verbs),
        "totality": dict(texts.TOTALITY),
        "probe_vocabularies": _probe_vocabularies(),
        "verb_groups": list(GROUPS),
        "verbs": {name: verb_entry(verb) for name, verb in shown.items()},
    }


# -- verbs ----------------------------------------------------------------------------------


def verb_entry(verb: Verb) -> Json:
    """What there is to know of one verb."""
    positionals = [_positional_entry(verb, each) for each in verb.positionals]
    schema = verb.schema()
    return {
        "summary": verb.summary,
        "description": verb.description,
        "group": verb.group,
        "data_schema": verb.data_schema,
        "schema_ref": f"spoolctl schema --json --verb {verb.name}",
        "output_schema": schema,
        "flags": [
            flag_entry(flag, verb) for flag in sorted(verb.flags, key=lambda flag: flag.name)
        ],
        "positionals": positionals,
        "args": positionals,
        "output_modes": sorted(verb.output_modes),
        "mutually_exclusive": [list(pair) for pair in verb.exclusive],
        "exit_codes": list(EXITS),
        "warning_codes": _warning_codes(verb),
        "mutates": verb.mutates,
        "destructive": verb.destructive,
        "idempotent": verb.idempotent,
        "stdin": "none",
        "examples": [list(words) for words in verb.examples],
        "probe_hints": _probe_hints(verb),
        "json": {"select_with": "--json", "data_members": _members(schema)},
        "text": {"default": True, "empty_on_failure": True},
        **{name: value for name, value in verb.extra.items() if name != "probe_hints"},
    }


def flag_entry(flag: Flag, verb: Verb | None = None) -> Json:
    """What there is to know of one flag. `verb`: the verb to which it belongs."""
    minimum, maximum = _range(flag)
    return {
        "flag": flag.name,
        "name": flag.name,
        "aliases": list(flag.spellings),
        "type": flag.type,
        "description": flag.help,
        "default": _default(flag),
        "required": flag.required,
        "repeatable": flag.repeatable,
        "value_required": flag.type != "boolean",
        "choices": list(flag.choices) if flag.choices else None,
        "words": list(flag.words),
        "unbounded": _unbounded(flag),
        "minimum": minimum,
        "maximum": maximum,
        "config_key": flag.config,
        "malformed_expectations": faults.expectations(flag, verb),
    }


def _positional_entry(verb: Verb, each: Positional) -> Json:
    entry = {
        "name": each.name,
        "nargs": each.nargs,
        "required": each.required,
        "repeatable": each.repeatable,
        "type": each.type,
        "description": each.help,
        "choices": list(each.choices) if each.choices else None,
        "unbounded": _unbounded(each),
        "malformed_expectations": faults.expectations(each, verb),
    }
    minimum, maximum = _range(each)
    if minimum is not None:
        entry |= {"minimum": minimum, "maximum": maximum}
    return entry


COMPOUND = ("key_value", "exit_codes", "duration_csv")
"""Types whose parts have ranges of their own, named in `limits`."""


def _range(each: Flag | Positional) -> tuple[int | None, int | None]:
    name = faults.limit_of(each)
    if name is None or each.choices or each.type in ("boolean", *COMPOUND):
        return None, None
    return LIMITS[name].minimum, LIMITS[name].maximum


def _unbounded(each: Flag | Positional) -> bool:
    if each.type == "boolean" or each.choices or each.type in COMPOUND:
        return False
    return _range(each) == (None, None)


def _default(flag: Flag) -> object:
    """The default as it is written on the command line."""
    if flag.type == "boolean":
        return False
    if flag.type == "key_value" or (flag.repeatable and flag.default in (None, ())):
        return []
    if isinstance(flag.default, tuple):
        return ",".join(str(each) for each in flag.default)
    return flag.default


def _warning_codes(verb: Verb) -> list[str]:
    takes_db = DB in verb.flags
    return [
        code
        for code, each in WARNINGS.items()
        if verb.name in each.verbs or (takes_db and not each.verbs)
    ]


def _probe_hints(verb: Verb) -> Json:
    needs_job = any(each.limit == "id" for each in verb.positionals)
    return {
        "opens_queue": DB in verb.flags and verb.name not in ("config-show", "completion"),
        "needs_job": needs_job,
        "needs_worker": False,
        "minimal_call": list(verb.examples[0]) if verb.examples else ["spoolctl", verb.name],
        **verb.extra.get("probe_hints", {}),
    }


def _members(schema: Json) -> list[str]:
    """Members of `data` that are always there, in one of its shapes."""
    shapes = schema.get("oneOf", [schema])
    return list(dict.fromkeys(name for each in shapes for name in each.get("required", ())))


# -- tables ---------------------------------------------------------------------------------


def _transitions() -> list[Json]:
    return [
        {
            "from": state.value,
            "cause": event.value,
            "to": move.to.value,
            "writes": [each.value for each in move.writes],
        }
        for (state, event), move in TRANSITIONS.items()
    ]


def _exit_codes() -> Json:
    table: Json = {}
    for code, each in EXITS.items():
        entry: Json = {"meaning": each.meaning, "retryable": each.retryable}
        if each.note is not None:
            entry["note"] = each.note
        table[str(code)] = entry
    return table


def _code_registry() -> Json:
    registry: Json = {}
    for code, error in ERRORS.items():
        registry[code] = {
            "appears_in": ["errors"],
            "summary": error.summary,
            "exit_code": error.exit_code,
            "retryable": error.retryable,
        }
        if error.example is not None:
            registry[code]["example"] = error.example
    for code, warning in WARNINGS.items():
        registry[code] = {
            "appears_in": ["warnings"],
            "summary": warning.summary,
            "retryable": None,
        }
    return registry


def _env_vars(verbs: dict[str, Verb]) -> Json:
    with_db = [name for name, verb in verbs.items() if DB in verb.flags]
    return {
        name: {
            "consumed_by": with_db if each.consumed_by is None else list(each.consumed_by),
            "default": each.default,
            "description": each.description,
            "malformed_expectations": dict.fromkeys(each.invalid, faults.INVALID),
            "required": False,
            "shadowed_by": each.shadowed_by,
            "type": each.type,
            "unbounded": False,
            "minimum": LIMITS[each.limit].minimum,
            "maximum": LIMITS[each.limit].maximum,
            "grammar": each.grammar,
        }
        for name, each in VARIABLES.items()
    }


def _config() -> Json:
    return {
        "supported": True,
        "path": ".spoolctl/config.json",
        "format": "json",
        "schema_version": 1,
        "precedence": list(SOURCES),
        "keys": list(settings.recognized_keys()),
        "defaults": {key: _setting(each) for key, each in settings.settings().items()},
    }


def _setting(each: settings.Setting) -> Json:
    flag = each.flag
    minimum, maximum = _range(flag)
    return {
        "type": flag.type,
        "default": settings.plain(settings.default(each)),
        "used_by": list(each.users),
        "choices": list(flag.choices) if flag.choices else None,
        "words": list(flag.words),
        "null_allowed": flag.config_null,
        "minimum": minimum,
        "maximum": maximum,
    }


def _limits() -> Json:
    return {
        name: {
            "type": limit.type,
            "minimum": limit.minimum,
            "maximum": limit.maximum,
            "exclusive_minimum": limit.exclusive,
            "unbounded": False,
        }
        for name, limit in sorted(LIMITS.items())
    }


def _scheduling(verbs: dict[str, Verb]) -> Json:
    priority = LIMITS["priority"]
    finite = [
        f"{name} {flag.name}"
        for name, verb in verbs.items()
        for flag in verb.flags
        if flag.type in ("float", "fraction", "duration", "timestamp", "moment")
    ]
    return {
        "duration_grammar": texts.DURATION_GRAMMAR,
        "at_timestamp": texts.AT_TIMESTAMP,
        "finite_numeric_inputs": finite,
        "priority": {
            "default": 0,
            "min": priority.minimum,
            "max": priority.maximum,
            "ordering": texts.ORDERING,
        },
        "queue": {
            "default": "default",
            "grammar": texts.QUEUE_GRAMMAR,
            "single_lane_worker": False,
        },
        "slots": {
            "opt_in": True,
            "fleet_global": True,
            "default_ceiling": None,
            "scope": texts.SLOTS_SCOPE,
            "claimed_false": texts.CLAIMED_FALSE,
        },
        "scheduled": dict(texts.SCHEDULED),
        "drain": {
            "holds_for": list(texts.DRAIN_HOLDS_FOR),
            "skips": texts.DRAIN_SKIPS,
            "scope": texts.DRAIN_SCOPE,
        },
    }


def _execution(verbs: dict[str, Verb]) -> Json:
    add = {flag.name: flag for flag in verbs["add"].flags}
    return {
        "cwd": {
            "flag": "--cwd",
            "default": None,
            "resolution": texts.CWD_RESOLUTION,
            "runtime_failure": texts.CWD_FAILURE,
        },
        "env_overrides": {
            "flag": "--env",
            "repeatable": add["--env"].repeatable,
            "grammar": texts.ENV_GRAMMAR,
            "semantics": texts.ENV_SEMANTICS,
            "values_stored_plaintext": True,
            "values_in_add_or_list": False,
            "values_in_show": True,
        },
        "retry_model": {
            "attempts": texts.ATTEMPTS,
            "job_owned_failures": texts.JOB_OWNED_FAILURES,
            "worker_crashes": texts.WORKER_CRASHES,
            "max_retries": {"default": add["--max-retries"].default, "meaning": texts.MAX_RETRIES},
            "max_crashes": {
                "default": add["--max-crashes"].default,
                "meaning": texts.MAX_CRASHES,
                "zero": texts.MAX_CRASHES_ZERO,
                "one": texts.MAX_CRASHES_ONE,
            },
            "backoff": texts.BACKOFF.format(base=f"{BASE_S:g}", cap=f"{CAP_S:g}"),
            "wait_drain": texts.WAIT_DRAIN,
        },
    }


def _probe_vocabularies() -> Json:
    """Samples by type of value; for choices, those of one flag."""
    table: Json = {
        name: {"valid": PROBES[name].valid, "invalid": list(PROBES[name].invalid)}
        for name in TYPES
        if name in PROBES
    }
    for name, sample in texts.CHOICE_PROBES.items():
        table[name] = {"valid": sample[0], "invalid": list(sample[1])}
    return table

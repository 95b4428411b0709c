"""Building blocks of the JSON Schemas of all output (Draft 2020-12).

Every object is closed: what is not declared is never printed. Schemas are plain values
without references, so that each can be used alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from spoolctl.core.words import Enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

JsonSchema: TypeAlias = "dict[str, Any]"

STRING: JsonSchema = {"type": "string"}
TEXT: JsonSchema = {"type": "string", "minLength": 1}
BOOLEAN: JsonSchema = {"type": "boolean"}
INTEGER: JsonSchema = {"type": "integer"}
COUNT: JsonSchema = {"type": "integer", "minimum": 0}
ID: JsonSchema = {"type": "integer", "minimum": 1}
NUMBER: JsonSchema = {"type": "number"}
NULL: JsonSchema = {"type": "null"}
STRINGS: JsonSchema = {"type": "array", "items": STRING}


def closed(*, optional: Iterable[str] = (), **properties: JsonSchema) -> JsonSchema:
    """An object with these members and no others; all but `optional` are mandatory."""
    left_out = frozenset(optional)
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in left_out],
        "additionalProperties": False,
    }


def table(names: Iterable[str], each: JsonSchema, *, complete: bool = True) -> JsonSchema:
    """An object whose members all look alike; `complete`: every name has to be there."""
    names = tuple(names)
    return closed(optional=() if complete else names, **dict.fromkeys(names, each))


def keyed(names: Iterable[str], each: JsonSchema, *, complete: bool = True) -> JsonSchema:
    """Like `table`, but with `each` written down once: for large members under many names."""
    names = list(names)
    return {
        "type": "object",
        "propertyNames": {"enum": names},
        "additionalProperties": each,
        "required": names if complete else [],
    }


def mapping(each: JsonSchema) -> JsonSchema:
    """An object with names that come from users."""
    return {"type": "object", "additionalProperties": each}


def array(items: JsonSchema, **bounds: int) -> JsonSchema:
    """A list of alike elements."""
    return {"type": "array", "items": items, **bounds}


def nullable(schema: JsonSchema) -> JsonSchema:
    """The same, or null."""
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema and "const" not in schema:
        return {**schema, "type": [kind, "null"]}
    if "enum" in schema:
        widened = {**schema, "enum": [*schema["enum"], None]}
        return {**widened, "type": [kind, "null"]} if isinstance(kind, str) else widened
    return {"anyOf": [schema, NULL]}


def one_of(*shapes: JsonSchema) -> JsonSchema:
    """Exactly one of these shapes."""
    return {"oneOf": list(shapes)}


def words(of: Iterable[str] | type[Enum]) -> JsonSchema:
    """A string out of a vocabulary."""
    return {"type": "string", "enum": [getattr(each, "value", each) for each in of]}


KEYWORDS: dict[str, JsonSchema] = {
    "type": {"type": ["string", "array"], "items": STRING},
    "enum": {"type": "array", "minItems": 1},
    "const": {},
    "properties": mapping({"type": "object"}),
    "required": STRINGS,
    "additionalProperties": {"type": ["boolean", "object"]},
    "propertyNames": {"type": "object"},
    "items": {"type": "object"},
    "minItems": COUNT,
    "maxItems": COUNT,
    "minimum": NUMBER,
    "maximum": NUMBER,
    "minLength": COUNT,
    "maxLength": COUNT,
    "pattern": STRING,
    "oneOf": array({"type": "object"}, minItems=1),
    "anyOf": array({"type": "object"}, minItems=1),
}
"""The keywords of JSON Schema that are used here."""

SCHEMA: JsonSchema = closed(optional=KEYWORDS, **KEYWORDS)
"""A schema, one level deep: a complete description would have to refer to itself."""

"""Results as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.base import Result


class Section(NamedTuple):
    """What one benchmark found; `error` if it could not be measured."""

    name: str
    results: Sequence[Result]
    took_s: float
    error: str | None


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) >= 1 else 4
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def table(section: Section) -> str:
    """A Markdown table: median, lowest to highest, how many, goal."""
    lines = [
        f"### {section.name} ({section.took_s:.0f} s)",
        "",
        "| figure | median | lowest - highest | n | goal | met |",
        "|---|---:|---:|---:|---|---|",
    ]
    for one in section.results:
        spread = f"{number(min(one.values))} - {number(max(one.values))}"
        met = "" if one.met is None else ("yes" if one.met else "**no**")
        name = f"{one.name} ({one.note})" if one.note else one.name
        middle = f"{number(one.median)} {one.unit}".strip()
        lines.append(f"| {name} | {middle} | {spread} | {len(one.values)} | {one.goal} | {met} |")
    if section.error:
        lines.append(f"\ncould not be measured: {section.error}")
    return "\n".join(lines) + "\n"


def machine_table(machine: Mapping[str, str]) -> str:
    """The machine as a Markdown table."""
    return "\n".join(
        ["| machine | |", "|---|---|", *(f"| {k} | {v} |" for k, v in machine.items())]
    )


def as_json(
    machine: Mapping[str, str], args: Mapping[str, Any], sections: Sequence[Section]
) -> str:
    """Everything, for programs."""
    data = {
        "format": 1,
        "machine": dict(machine),
        "runs": args["runs"],
        "scale": args["scale"],
        "benchmarks": [
            {
                "name": section.name,
                "took_s": round(section.took_s, 2),
                "error": section.error,
                "results": [
                    {**one._asdict(), "median": one.median, "values": list(one.values)}
                    for one in section.results
                ],
            }
            for section in sections
        ],
    }
    return json.dumps(data, indent=1) + "\n"

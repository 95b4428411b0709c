"""Lays the two given texts out as Markdown: marks, fences and links are added, no word changed."""

from __future__ import annotations

import re

COMMAND = ("QS=", "python3 ", "kill ", "rm ")
OUTPUT = ("Added job ", "canceled ", "spoolctl: ", "=== ")
LINKS = {
    "Concepts": "concepts.md",
    "Guarantees": "guarantees.md",
    "Agent Guide": "agent-guide.md",
}
COMPARISON_HEADINGS = (
    "Conclusion",
    "Scope and architecture",
    "Capability comparison",
    "What RQ does well",
    "What spoolctl does differently",
    "Composition",
    "Limits and claims not to make",
)
FACT = re.compile(r"(Research date|\w+ source baseline): ")
TABLE_BARS = 4  # in each row of the comparison's table, of three columns


def linked(line: str) -> str:
    """The line with the names of pages made links."""
    for words, target in LINKS.items():
        line = re.sub(rf"\b{words}\b", f"[{words}]({target})", line)
    return line


def quickstart(text: str) -> str:
    """The quickstart: blocks of commands and of output become fences, lone titles headings."""
    blocks = text.split("\n\n")
    page = [f"# {blocks[0]}"]
    for block in blocks[1:]:
        block = block.strip("\n")
        if block.startswith(COMMAND):
            page.append(f"```sh\n{block}\n```")
        elif block.startswith(OUTPUT):
            page.append(f"```text\n{block}\n```")
        elif "\n" in block:
            page.append("\n".join(f"- {linked(line)}" for line in block.split("\n")))
        elif block.endswith((".", ":")):
            page.append(linked(block.replace("--db $QS/queue.db", "`--db $QS/queue.db`")))
        else:
            page.append(f"## {block}")
    return "\n\n".join(page) + "\n"


def _whole_lines(lines: list[str]) -> list[str]:
    """Puts rows, items and sentences that were broken over several lines together again."""
    whole: list[str] = []
    for line in lines:
        last = whole[-1] if whole else ""
        if last.startswith("|") and last.count("|") < TABLE_BARS:
            whole[-1] += f" {line}"
        elif last.startswith("|") or last in COMPARISON_HEADINGS or FACT.match(last):
            whole.append(line)
        elif last and not last.endswith("."):
            whole[-1] += f"\n  {line}" if last.startswith("- ") else f"\n{line}"
        else:
            whole.append(line)
    return whole


def _kind(line: str) -> str:
    """Lines of one kind in a row make one block; those of kind "" stand alone."""
    if line.startswith(("|", "- ")):
        return line[0]
    return "fact" if FACT.match(line) else ""


def comparison(text: str) -> str:
    """The comparison with RQ: titles become headings, paragraphs are set apart."""
    # An item of a list begins in the middle of a line there.
    title, *lines = text.rstrip("\n").replace(". - ", ".\n- ").split("\n")
    page = [f"# {title}"]
    before = ""
    for line in _whole_lines(lines):
        kind = _kind(line)
        if line in COMPARISON_HEADINGS:
            page.append(f"## {line}")
        elif kind and kind == before:
            page[-1] += f"\n- {line}" if kind == "fact" else f"\n{linked(line)}"
        else:
            page.append(f"- {line}" if kind == "fact" else linked(line))
        before = kind
    return "\n\n".join(page) + "\n"

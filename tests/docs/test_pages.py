"""Pages say what is so: generated ones are fresh, links lead somewhere, given texts are kept."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spoolctl.cli.variables import GIVEN_TO_JOBS
from spoolctl.cli.verbs import VERBS
from spoolctl.core.records import Claimed
from spoolctl.core.states import TRANSITIONS
from spoolctl.engine.attempt import environment
from tests.helpers import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
FENCES = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

# The two texts were given and are never edited: a page may only lay them out.
GIVEN = {
    "quickstart": "9e6b11f6a5125edf6566cfa7fc21a8de4648875edf82411c5db92c1f04e4b3a7",
    "comparison-rq": "f1de4902487a6980121f843d3781e9945d3cc5df182323dddb61843ae6cdb9c4",
}


def prose(page: Path) -> str:
    """The page without its fenced blocks, where brackets mean something else."""
    return FENCES.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as hosting sites make them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    words = [re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", word).replace(" ", "-") for word in words}


def words_of(markdown: str) -> list[str]:
    """The words without the marks of Markdown."""
    text = re.sub(r"\[([^\]]+)\]\([^)\s]+\.md\)", r"\1", markdown)
    text = re.sub(r"^```\w*$|^#+ |^- ", "", text, flags=re.MULTILINE).replace("`", "")
    return [word for word in text.split() if word != "-"]


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", GIVEN)
def test_the_given_texts_are_unchanged(name: str) -> None:
    text = (DOCS / f"{name}.txt").read_bytes()
    assert hashlib.sha256(text).hexdigest() == GIVEN[name]


@pytest.mark.parametrize("name", GIVEN)
def test_laying_a_given_text_out_changes_no_word(name: str) -> None:
    text = (DOCS / f"{name}.txt").read_text("utf-8")
    page = (DOCS / f"{name}.md").read_text("utf-8")
    assert words_of(page) == words_of(text)


def test_commands_and_outputs_of_the_quickstart_stand_in_fences_line_by_line() -> None:
    text = (DOCS / "quickstart.txt").read_text("utf-8")
    page = (DOCS / "quickstart.md").read_text("utf-8")
    fenced = [fence.split("\n")[1:-1] for fence in FENCES.findall(page)]
    for lines in fenced:
        assert "\n\n" + "\n".join(lines) + "\n" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{target} in {page.name}"
        assert path.is_relative_to(ROOT), f"{target} leads out of the project"
        if anchor:
            assert anchor in anchors(path), f"no heading {anchor} in {path.name}"


def test_every_move_of_the_table_is_on_the_page_of_states() -> None:
    page = (DOCS / "states.md").read_text("utf-8")
    moves = re.findall(r"^\| `(\w+)` \| .+ \| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    assert [
        (before, after, set(re.findall(r"`(\w+)`", ledger))) for before, after, ledger in moves
    ] == [
        (before.value, move.to.value, {entry.value for entry in move.writes})
        for (before, _), move in TRANSITIONS.items()
    ]
    for (before, event), move in TRANSITIONS.items():
        arrow = rf"^    {before.value} --> {move.to.value}: .*\b{event.value}\b"
        assert re.search(arrow, page, re.MULTILINE)


def test_concepts_list_the_variables_that_commands_get() -> None:
    page = (DOCS / "concepts.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `(SPOOLCTL_\w+)` \|", page, re.MULTILINE))
    claimed = Claimed(1, "t", 1, 1, ("true",), "default", "key", None, None, (), None, None)
    given = environment(claimed, 0, "queue.db", {})
    assert listed == set(given)
    assert listed == set(GIVEN_TO_JOBS)


def test_there_is_one_page_per_verb() -> None:
    assert {page.stem for page in (DOCS / "verbs").glob("*.md")} == {*VERBS, "README"}


def test_the_guarantees_name_tests_that_exist() -> None:
    page = (DOCS / "guarantees.md").read_text("utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page))
    assert named
    for path, test in named:
        assert (ROOT / path).is_file(), path
        if test:
            assert f"def {test}(" in (ROOT / path).read_text("utf-8"), f"{path}::{test}"


def test_all_ten_guarantees_have_claim_mechanism_test_and_limit() -> None:
    page = (DOCS / "guarantees.md").read_text("utf-8")
    sections = re.split(r"^## (?=G\d+ )", page, flags=re.MULTILINE)[1:]
    assert [section.split()[0] for section in sections] == [f"G{n}" for n in range(1, 11)]
    for section in sections:
        for part in ("**Claim.**", "**Mechanism.**", "**Tests.**", "**Limit.**"):
            assert part in section, f"{section[:30]} lacks {part}"

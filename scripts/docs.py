#!/usr/bin/env python3
"""Write the generated pages of docs/, or check that they are up to date.

    python3 scripts/docs.py            writes them
    python3 scripts/docs.py --check    writes nothing; exit 1 and names if one is out of date

Sources: `spoolctl.core.states.TRANSITIONS` for states.md, the verb specifications of the
command line for verbs/*.md and configuration.md, and the two texts quickstart.txt and
comparison-rq.txt, which are never edited: quickstart.md and comparison-rq.md only lay them out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

import docs_configuration  # noqa: E402
import docs_seeds  # noqa: E402
import docs_states  # noqa: E402
import docs_verbs  # noqa: E402

PAGES: dict[str, Callable[[], str]] = {
    "states.md": docs_states.page,
    "configuration.md": docs_configuration.page,
    "quickstart.md": lambda: docs_seeds.quickstart((DOCS / "quickstart.txt").read_text("utf-8")),
    "comparison-rq.md": lambda: docs_seeds.comparison(
        (DOCS / "comparison-rq.txt").read_text("utf-8")
    ),
    **docs_verbs.pages(),
}


def outdated() -> dict[str, str | None]:
    """Pages that differ from what they should be: name -> right text, None if it should go."""
    wrong: dict[str, str | None] = {}
    for name, page in PAGES.items():
        path = DOCS / name
        text = page()
        if not path.is_file() or path.read_text("utf-8") != text:
            wrong[name] = text
    for path in (DOCS / "verbs").glob("*.md"):
        name = f"verbs/{path.name}"
        if name not in PAGES:
            wrong[name] = None
    return wrong


def main(words: list[str]) -> int:
    if words not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    wrong = outdated()
    for name, text in sorted(wrong.items()):
        if words:
            print(f"docs/{name} is out of date: run python3 scripts/docs.py", file=sys.stderr)
        elif text is None:
            (DOCS / name).unlink()
            print(f"removed docs/{name}")
        else:
            (DOCS / name).parent.mkdir(exist_ok=True)
            (DOCS / name).write_text(text, "utf-8")
            print(f"wrote docs/{name}")
    return 1 if words and wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Reads docs/quickstart.md into steps, and compares what a shell printed with what it says."""

from __future__ import annotations

import re
from typing import NamedTuple

FENCE = re.compile(r"^```(sh|text)\n(.*?)\n```$", re.DOTALL)
# What an interactive and a plain bash say of their jobs on their own account.
SHELL_NOISE = re.compile(r"^\[\d+\]|^\S+: line \d+: +\d+ Killed|^\^C")


class Step(NamedTuple):
    """Commands that stand together, the output shown for them, the sentences that follow."""

    commands: tuple[str, ...]
    expected: tuple[str, ...]
    prose: str

    @property
    def is_worker(self) -> bool:
        """Whether the step starts a worker (whose lines come when they come)."""
        return " work " in self.commands[-1]

    @property
    def in_background(self) -> bool:
        """Whether the shell goes on while it runs."""
        return self.commands[-1].endswith("&")


def read_steps(page: str) -> list[Step]:
    """The steps of the page, in order."""
    steps: list[Step] = []
    for block in re.split(r"\n\n+", page.strip()):
        fence = FENCE.match(block)
        if fence and fence[1] == "sh":
            steps.append(Step(tuple(fence[2].split("\n")), (), ""))
        elif fence:
            expected = tuple(fence[2].split("\n"))
            steps[-1] = steps[-1]._replace(expected=steps[-1].expected + expected)
        elif steps:
            steps[-1] = steps[-1]._replace(prose=f"{steps[-1].prose}\n{block}")
    return steps


def pattern_of(line: str) -> str:
    """A regular expression for a line of output, whatever pid and elapsed time it names."""
    pattern = re.escape(line).replace("<PID>", r"\d+")
    return re.sub(r"\\\(\d+\\\.\ds\\\)", r"\\(\\d+\\.\\ds\\)", pattern)


def printed_lines(output: str, *, workers: bool) -> list[str]:
    """The lines that commands printed; `workers` False leaves out those of workers."""
    lines = [line.rstrip("\r") for line in output.replace("\r\n", "\n").split("\n")]
    lines = [line for line in lines if line and not SHELL_NOISE.match(line)]
    return [line for line in lines if workers or not line.startswith("spoolctl: ")]


def check(step: Step, output: str) -> None:
    """Fails unless the output is what the page shows for this step.

    Of a worker all lines shown must be there, in order; of other commands these and no others.
    """
    lines = printed_lines(output, workers=step.is_worker)
    if step.is_worker:
        rest = iter(lines)
        for wanted in step.expected:
            assert any(re.fullmatch(pattern_of(wanted), line) for line in rest), (wanted, lines)
        return
    assert len(lines) == len(step.expected), (step, lines)
    for wanted, line in zip(step.expected, lines, strict=True):
        assert re.fullmatch(pattern_of(wanted), line), (wanted, line)

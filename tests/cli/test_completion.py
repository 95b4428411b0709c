"""`completion`: each shell loads its script without a word and offers what the specs say."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from spoolctl.cli.completion import SHELLS
from spoolctl.cli.completion_scripts import script
from spoolctl.cli.spec import load
from spoolctl.cli.verbs import VERBS
from tests.cli.contract import call
from tests.helpers import clean_env, spoolctl


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"needs {shell}")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a queue of two lanes, and a `spoolctl` on PATH."""
    for words in (("--queue", "gpu"), ("--queue", "mail"), ()):
        spoolctl("add", "--db", "queue.db", *words, "--", "true", cwd=tmp_path)
    program = tmp_path / "bin" / "spoolctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spoolctl "$@"\n')
    program.chmod(0o755)
    return tmp_path


def env_of(place: Path) -> dict[str, str]:
    return clean_env(
        {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "HOME": str(place), "TERM": "dumb"}
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_flag_is_in_the_script(shell: str) -> None:
    text = script(shell)
    for name in VERBS:
        assert name in text
        for flag in load(name).flags:
            for spelling in flag.spellings:
                assert spelling in text or f" -l {spelling[2:]}" in text or shell == "fish"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_loads_without_a_word(shell: str, place: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    load_it = {
        "bash": 'set -u; eval "$(spoolctl completion bash)"; complete -p spoolctl >/dev/null',
        "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(spoolctl completion zsh)"; '
        "[[ $_comps[spoolctl] == _spoolctl ]]",
        "fish": "spoolctl completion fish | source; complete -c spoolctl | string length -q",
    }
    clean = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}
    done = subprocess.run(
        [shell, *clean[shell], "-c", load_it[shell]],
        cwd=place,
        env=env_of(place),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# What is typed, and what has to be among the offers, and what must not.
OFFERS: list[tuple[str, set[str], set[str]]] = [
    ("sta", {"status"}, {"add"}),
    ("confi", {"config-show", "config-validate"}, {"status"}),
    ("list --st", {"--state"}, {"--queue"}),
    ("list --state d", {"dead", "done"}, {"queued", "--state"}),
    ("output --stream std", {"stderr", "stdout"}, {"both"}),
    ("robot-docs ", {"guide"}, {"add"}),
    ("completion ", {"bash", "fish", "zsh"}, {"csh"}),
    ("schema --verb wa", {"wait"}, {"work"}),
    ("add --db queue.db --queue ", {"gpu", "mail", "default"}, set()),
    ("show --db queue.db ", {"1", "2", "3"}, {"4"}),
    ("wait --db queue.db 1 ", {"2", "3"}, set()),
    ("status --db qu", {"queue.db"}, set()),
]


def offers_of_bash(typed: str, place: Path) -> set[str]:
    """What the function that the script defines would offer."""
    words = ["spoolctl", *typed.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    program = (
        'eval "$(spoolctl completion bash)"; '
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _spoolctl; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        cwd=place,
        env=env_of(place),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


@needs("bash")
@pytest.mark.parametrize(
    ("typed", "there", "absent"), OFFERS, ids=[typed for typed, _, _ in OFFERS]
)
def test_bash_offers(typed: str, there: set[str], absent: set[str], place: Path) -> None:
    offers = offers_of_bash(typed, place)
    assert there <= offers
    assert not absent & offers


@needs("bash")
def test_bash_takes_attached_values_for_what_they_are(place: Path) -> None:
    # readline hands `--state=d` over as three words.
    assert offers_of_bash("list --state = d", place) == {"dead", "done"}
    assert offers_of_bash("list --state =", place) >= {"dead", "queued"}


@needs("bash")
def test_bash_leaves_the_jobs_own_words_alone(place: Path) -> None:
    assert "--queue" not in offers_of_bash("add -- ls --qu", place)
    assert "env" in offers_of_bash("add -- env", place)


@needs("fish")
@pytest.mark.parametrize(
    ("typed", "there", "absent"), OFFERS, ids=[typed for typed, _, _ in OFFERS]
)
def test_fish_offers(typed: str, there: set[str], absent: set[str], place: Path) -> None:
    program = f"spoolctl completion fish | source; complete -C 'spoolctl {typed}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", program],
        cwd=place,
        env=env_of(place),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    offers = {line.split("\t")[0] for line in done.stdout.splitlines()}
    assert there <= offers
    assert not absent & offers


@needs("zsh")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("spoolctl stat\t", "status"),
        ("spoolctl list --prio\t", "--priority-min="),
        ("spoolctl output --stream stdo\t", "stdout"),
        ("spoolctl robot-docs g\t", "guide"),
        ("spoolctl add --db queue.db --queue gp\t", "gpu"),
        ("spoolctl config-v\t", "config-validate"),
    ],
)
def test_zsh_completes_at_the_prompt(typed: str, completed: str, place: Path) -> None:
    shell = pexpect.spawn(
        "zsh",
        ["-f", "-i"],
        cwd=str(place),
        env={**env_of(place), "PS1": "> ", "TERM": "dumb"},
        encoding="utf-8",
        timeout=30,
        dimensions=(40, 200),
    )
    try:
        shell.sendline("autoload -Uz compinit; compinit -u -D; unsetopt zle_bracketed_paste")
        shell.sendline('eval "$(spoolctl completion zsh)"; print re""ady')
        shell.expect("ready\r\n")
        shell.send(typed)
        shell.expect_exact(typed.split()[-1] if not typed.endswith("\t") else completed)
        # Not run: the line is given up.
        shell.sendcontrol("c")
    finally:
        # Not close(force=True): that gives up after some tenths of a second.
        shell.kill(signal.SIGKILL)
        shell.wait()
        shell.close()


def test_nothing_to_offer_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage" * 100)
    for words in (("--db", "none.db"), ("--db", "garbage"), ("--db", "garbage/below")):
        for kind in ("job", "queue"):
            result = call("completion", "--values", kind, *words, cwd=tmp_path)
            assert (result.status, result.stdout, result.stderr) == (0, b"", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["garbage"]


def test_the_newest_job_is_offered_first(place: Path) -> None:
    result = call("completion", "--values", "job", "--db", "queue.db", cwd=place)
    assert result.stdout == b"3\n2\n1\n"

"""Completion scripts for bash, zsh and fish, generated from the specs of the verbs."""

from __future__ import annotations

from collections.abc import Iterator

from spoolctl.cli.spec import Flag, Positional, Verb, load
from spoolctl.cli.verbs import VERBS
from spoolctl.core.tuples import NamedTuple

PATH_FLAGS = ("--cwd", "--stdin", "--batch")
"""Flags of strings that name files, besides the type `path`."""


class Value(NamedTuple):
    """What may stand in one place: `words` (a fixed list), or what `kind` says.

    Kinds: `words`, `job`, `queue` (asked of the queue), `path`, `any` (nothing to offer).
    """

    kind: str
    words: tuple[str, ...] = ()


def script(shell: str) -> str:
    """The script for `bash`, `zsh` or `fish`."""
    verbs = [load(name) for name in VERBS]
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return "\n".join(makers[shell](verbs)) + "\n"


def value_of(each: Flag | Positional) -> Value:
    """What may stand for the value of a flag, or as a positional."""
    if each.choices:
        return Value("words", each.choices)
    if each.limit == "id":
        return Value("job")
    if each.type == "queue":
        return Value("queue")
    if each.type == "path" or each.name in PATH_FLAGS:
        return Value("path")
    return Value("any")


def _words(verb: Verb) -> list[str]:
    return [*sorted(each for flag in verb.flags for each in flag.spellings), "--help"]


def _valued(verb: Verb) -> Iterator[tuple[Flag, Value]]:
    for flag in verb.flags:
        if flag.type != "boolean":
            yield flag, value_of(flag)


def _positional(verb: Verb) -> Value | None:
    """What the first positional may be; None for none, and for a command."""
    for each in verb.positionals:
        return None if each.nargs == "remainder" else value_of(each)
    return None


# -- bash -----------------------------------------------------------------------------------

_BASH_HEAD = """\
# bash completion of spoolctl. Load it with: eval "$(spoolctl completion bash)"
# Written for bash 3.2 and later; needs no other package.

_spoolctl_offer() {  # KIND CURRENT-WORD [WORDS]
    local IFS=$'\\n'
    case $1 in
        words) IFS=$' \\n'; COMPREPLY=( $(compgen -W "$3" -- "$2") ) ;;
        job|queue) COMPREPLY=( $(compgen -W "$(_spoolctl_ask "$1")" -- "$2") ) ;;
        path) COMPREPLY=( $(compgen -f -- "$2") ) ;;
    esac
}

_spoolctl_ask() {  # KIND
    local i
    local -a where=()
    for (( i = 2; i + 1 < ${#COMP_WORDS[@]}; i++ )); do
        if [[ ${COMP_WORDS[i]} == --db ]]; then
            if [[ ${COMP_WORDS[i+1]} == = ]]; then i=$(( i + 1 )); fi
            where=( --db "${COMP_WORDS[i+1]}" )
        fi
    done
    "${COMP_WORDS[0]}" completion --values "$1" ${where[@]+"${where[@]}"} 2>/dev/null
}

_spoolctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local verb=${COMP_WORDS[1]} i
    COMPREPLY=()
    # readline takes `--flag=value` for three words.
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi"""

_BASH_TAIL = """\
    esac
}

complete -F _spoolctl spoolctl"""


def _bash(verbs: list[Verb]) -> Iterator[str]:
    yield _BASH_HEAD
    yield "    if (( COMP_CWORD == 1 )); then"
    names = " ".join([*(verb.name for verb in verbs), "--help", "--version"])
    yield f'        _spoolctl_offer words "$cur" "{names}"'
    yield "        return"
    yield "    fi"
    yield "    for (( i = 2; i < COMP_CWORD; i++ )); do"
    yield "        if [[ ${COMP_WORDS[i]} == -- ]]; then"
    yield "            # The words of the job's command."
    yield "            local IFS=$'\\n'"
    yield "            if (( i + 1 == COMP_CWORD )); then"
    yield '                COMPREPLY=( $(compgen -c -- "$cur") )'
    yield "            else"
    yield '                COMPREPLY=( $(compgen -f -- "$cur") )'
    yield "            fi"
    yield "            return"
    yield "        fi"
    yield "    done"
    yield '    case "$verb $prev" in'
    for verb in verbs:
        for flag, value in _valued(verb):
            patterns = "|".join(f'"{verb.name} {each}"' for each in flag.spellings)
            yield f"        {patterns}) {_bash_offer(value)}; return ;;"
    yield "    esac"
    yield "    case $verb in"
    for verb in verbs:
        first = _positional(verb)
        yield f"        {verb.name})"
        yield "            if [[ $cur == -* ]]; then"
        yield f'                _spoolctl_offer words "$cur" "{" ".join(_words(verb))}"'
        if first is not None and first.kind != "any":
            yield "            else"
            yield f"                {_bash_offer(first)}"
        yield "            fi ;;"
    yield _BASH_TAIL


def _bash_offer(value: Value) -> str:
    if value.kind == "any":
        return ":"
    words = f' "{" ".join(value.words)}"' if value.words else ""
    return f'_spoolctl_offer {value.kind} "$cur"{words}'


# -- zsh ------------------------------------------------------------------------------------

_ZSH_HEAD = """\
#compdef spoolctl
# zsh completion of spoolctl. Load it with: eval "$(spoolctl completion zsh)" (after compinit),
# or put it into a folder of $fpath as _spoolctl.

_spoolctl_ask() {  # KIND
    local -a where found
    local at=${words[(I)--db]}
    (( at )) && where=(--db "${(Q)words[at+1]}")
    found=(${(f)"$(spoolctl completion --values $1 $where 2>/dev/null)"})
    compadd -a found
}

_spoolctl() {
    local curcontext=$curcontext
    if (( CURRENT == 2 )); then
        local -a verbs=("""

_ZSH_TAIL = """\
    esac
}

if [[ $funcstack[1] == _spoolctl ]]; then
    _spoolctl "$@"
else
    compdef _spoolctl spoolctl
fi"""


def _zsh(verbs: list[Verb]) -> Iterator[str]:
    yield _ZSH_HEAD
    for verb in verbs:
        yield f"            {_quoted(f'{verb.name}:{_zsh_text(verb.summary)}')}"
    yield "            '--help:show help' '--version:show the version'"
    yield "        )"
    yield "        _describe verb verbs"
    yield "        return"
    yield "    fi"
    yield "    local verb=${words[2]}"
    yield "    shift words; (( CURRENT-- ))"
    yield "    case $verb in"
    for verb in verbs:
        yield f"        {verb.name})"
        arguments = [*_zsh_flags(verb), *_zsh_positionals(verb)]
        yield "            _arguments -S " + " \\\n                ".join(arguments) + " ;;"
    yield _ZSH_TAIL


def _zsh_flags(verb: Verb) -> Iterator[str]:
    yield "'(- *)'{-h,--help}'[show help]'"
    for flag in verb.flags:
        help_text = _zsh_text(flag.help)
        for spelling in flag.spellings:
            # `*`: may be repeated; otherwise one spelling takes the others off the list.
            lead = "*" if flag.repeatable else f"({' '.join(flag.spellings)})"
            if flag.type == "boolean":
                yield _quoted(f"{lead}{spelling}[{help_text}]")
            else:
                sign = "=" if spelling.startswith("--") else "+"
                value = f"{flag.metavar or 'value'}:{_zsh_action(value_of(flag))}"
                yield _quoted(f"{lead}{spelling}{sign}[{help_text}]:{value}")


def _zsh_positionals(verb: Verb) -> Iterator[str]:
    for each in verb.positionals:
        name = (each.metavar or each.name).lower()
        if each.nargs == "remainder":
            yield "'*::command:_normal'"
        else:
            where = {"1": "1:", "?": "1::", "+": "*:"}[each.nargs]
            yield _quoted(f"{where}{name}:{_zsh_action(value_of(each))}")


def _zsh_action(value: Value) -> str:
    if value.kind == "words":
        return f"({' '.join(value.words)})"
    # The blank keeps _arguments from putting words of its own before ours.
    asked = f" _spoolctl_ask {value.kind}"
    return {"job": asked, "queue": asked, "path": "_files"}.get(value.kind, "")


def _zsh_text(text: str) -> str:
    """For a description inside brackets or before a colon."""
    for char in "\\[]:":
        text = text.replace(char, "\\" + char)
    return text


def _quoted(text: str) -> str:
    """As one word of a POSIX shell, always in quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish -----------------------------------------------------------------------------------

_FISH_HEAD = """\
# fish completion of spoolctl. Load it with: spoolctl completion fish | source

function __spoolctl_ask
    set -l words (commandline -opc)
    set -l where
    if set -l at (contains -i -- --db $words)
        set -l value $words[(math $at + 1)]
        test -n "$value"; and set where --db $value
    end
    spoolctl completion --values $argv[1] $where 2>/dev/null
end

function __spoolctl_verb
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test "$words[2]" = $argv[1]
    and not contains -- -- $words
end

complete -c spoolctl -f
complete -c spoolctl -n __fish_is_first_token -l help -s h -d 'show help'
complete -c spoolctl -n __fish_is_first_token -l version -d 'show the version'
complete -c spoolctl -n 'contains -- -- (commandline -opc)' \
-a '(__fish_complete_subcommand --commandline (commandline -opc | string split -m1 -- --)[2..])'"""


def _fish(verbs: list[Verb]) -> Iterator[str]:
    yield _FISH_HEAD
    for verb in verbs:
        first = f"complete -c spoolctl -n __fish_is_first_token -a {verb.name}"
        yield f"{first} -d {_fish_text(verb.summary)}"
        here = f"complete -c spoolctl -n '__spoolctl_verb {verb.name}'"
        yield f"{here} -l help -s h -d 'show help'"
        for flag in verb.flags:
            yield f"{here} {_fish_flag(flag)}"
        offered = _positional(verb)
        if offered is not None and offered.kind != "any":
            yield f"{here} {_fish_values(offered)}"


def _fish_flag(flag: Flag) -> str:
    names = [
        f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}" for each in flag.spellings
    ]
    if flag.type != "boolean":
        value = value_of(flag)
        names.append("-r -F" if value.kind == "path" else f"-x {_fish_values(value)}".rstrip())
    return f"{' '.join(names)} -d {_fish_text(flag.help)}"


def _fish_values(value: Value) -> str:
    if value.kind == "words":
        return f"-a '{' '.join(value.words)}'"
    if value.kind in ("job", "queue"):
        # -k: in the order given, the newest job first.
        return f"-k -a '(__spoolctl_ask {value.kind})'"
    return "-F" if value.kind == "path" else ""


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

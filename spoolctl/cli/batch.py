"""Many jobs at once: `add --batch`, all or none."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import suppress
from json import JSONDecoder

from spoolctl.cli import add, values
from spoolctl.cli.parse import Args, UsageError, set_aside
from spoolctl.cli.spec import Flag
from spoolctl.core import checks
from spoolctl.core.records import Added, NewJob
from spoolctl.errors import InvalidInput, KeyConflict
from spoolctl.submission import Captures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.cli.app import App

MAX_BYTES = 1 << 30
HINT = "correct the line and submit the whole batch again: none of its jobs was added"

NOT_PER_JOB = frozenset(
    {"0", "batch", "color", "db", "follow", "json", "lines", "p", "print", "wait", "tag"}
)
"""Flags that a line of a batch cannot set; tags are the member `tags`."""

MEMBERS: dict[str, Flag] = {
    flag.dest: flag for flag in add.VERB.flags if flag.dest not in NOT_PER_JOB
}


_BY_NAME = {flag.name: flag for flag in MEMBERS.values()}
EXCLUSIVE = tuple(pair for pair in add.VERB.exclusive if _BY_NAME.keys() >= set(pair))
_decode = JSONDecoder().decode
_OWN = ("argv", "c", "key")
"""Members in which nearly all lines differ."""

NAMED_LINES = 5
"""How many lines a warning names."""


def add_batch(args: Args, app: App) -> int:
    """Read and check all lines, then store all jobs in one transaction."""
    if args.argv:
        raise UsageError("--batch and a command exclude each other")
    past: list[int] = []
    numbered = list(read_lines(args, past))
    if not numbered:
        raise UsageError("the batch has no jobs", "MISSING_REQUIRED")
    if past:
        app.warn("AT_IN_PAST", f"{_lines(past)}: the time is past, the job is due now")
    requests = [request for _, request in numbered]
    try:
        added = app.queue.submit(requests)
    except KeyConflict as conflict:
        line = numbered[getattr(conflict, "index", 0)][0]
        raise UsageError(f"line {line}: {conflict}", conflict.code, remediation=HINT) from None
    again = sum(each.deduplicated for each in added)
    differing = [line for (line, _), each in zip(numbered, added, strict=True) if each.differences]
    if differing:
        app.warn(
            "IDEMPOTENCY_METADATA_DIFFERS",
            f"{_lines(differing)}: the job that is there already was left as it is; the request "
            "differs in tags, note or time",
        )
    add.warn_if_unserved(added, app)
    batch = {
        "count": len(added),
        "deduplicated": again,
        "job_ids": [each.job.id for each in added],
    }
    data = {**add.data(added[0], requests[0]), "batch": batch}
    return app.show(data, lambda: _text(args, added, again))


def _text(args: Args, added: list[Added], again: int) -> str:
    if args.p or args.print == "id":
        return "\n".join(str(each.job.id) for each in added)
    new = [each.job.id for each in added if not each.deduplicated]
    span = f": {new[0]}-{new[-1]}" if len(new) > 1 else "".join(f": {each}" for each in new)
    rest = f"; {again} already there" if again else ""
    return f"Added {len(new)} job(s){span}{rest}"


def _lines(numbers: list[int]) -> str:
    """The lines that a warning is about; of many the first few."""
    named = ", ".join(map(str, numbers[:NAMED_LINES]))
    more = len(numbers) - NAMED_LINES
    return f"line{'s' * (len(numbers) > 1)} {named}{f' and {more} more' if more > 0 else ''}"


def read_lines(args: Args, past: list[int]) -> Iterator[tuple[int, NewJob]]:
    """The jobs, each with the number of its line; `past` gets those whose time is over."""
    data = read_input("--batch", args.batch, MAX_BYTES)
    ends_with_nul = getattr(args, "0")
    if not ends_with_nul:
        data = data.removeprefix(BOM_UTF8)  # as some editors write it
    reader = Lines(args) if args.lines or ends_with_nul else Objects(args)
    for number, line in _split(data, b"\0" if ends_with_nul else b"\n"):
        try:
            job = reader.job(line.decode("utf-8"))
            if reader.is_past:
                past.append(number)
            yield number, job
        except UnicodeDecodeError:
            raise UsageError(f"line {number}: is not UTF-8", remediation=HINT) from None
        except InvalidInput as error:
            raise UsageError(
                f"line {number}: {error}",
                remediation=getattr(error, "remediation", None) or HINT,
                did_you_mean=getattr(error, "did_you_mean", None),
            ) from None


class Reader:
    """Makes jobs of lines; `is_past` tells whether the time of the last one is over.

    Most lines of a batch differ in nothing but the command: what they have in common is checked
    once, with the first of them.
    """

    def __init__(self, args: Args) -> None:
        self.is_past = False
        self._args = args
        self._captures = Captures()
        self._last = args
        self._like: NewJob | None = None

    def job(self, line: str) -> NewJob:
        """The job of this line. Raises InvalidInput."""
        raise NotImplementedError

    def _build(self, one: Args) -> NewJob:
        names = add.captured_names(one)
        self._like = add.build(one, self._captures.of(names, with_cwd=one.cwd is None))
        self._last, self.is_past = one, add.is_past(one.at)
        return self._like

    def _alike(self, like: NewJob, words: object, key: str | None = None) -> NewJob:
        """One that differs from the last in the command, and in the key if it has one."""
        job = like._replace(argv=checks.argv(words), key=key)
        add.refuse_shell_line(self._last, job)
        return job


class Lines(Reader):
    """Of lines for a shell."""

    def job(self, line: str) -> NewJob:
        """See `Reader.job`."""
        if self._like is None or not line.strip():
            self._like = None
            return self._build(_with(self._args, c=line))
        return self._alike(self._like, (self._last.shell, "-c", line))


class Objects(Reader):
    """Of JSON objects."""

    def __init__(self, args: Args) -> None:
        super().__init__(args)
        self._rest: dict[str, Any] = {}

    def job(self, line: str) -> NewJob:
        """See `Reader.job`."""
        content = _object(line)
        rest = {name: value for name, value in content.items() if name not in _OWN}
        if self._like is not None and _are_same(rest, self._rest):
            with suppress(InvalidInput):  # what is wrong is said below
                job = self._quickly(self._like, content)
                if job is not None:
                    return job
        self._like, self._rest = None, rest
        return self._build(_from_members(self._args, content))

    def _quickly(self, like: NewJob, content: dict[str, Any]) -> NewJob | None:
        """The job, if it has a command and a key of its own where the last one had."""
        if ("key" in content) != (like.key is not None):
            return None
        key = _value(MEMBERS["key"], content["key"]) if "key" in content else None
        if "c" not in content and self._last.c is None:
            if "argv" not in content:
                return None
            return self._alike(like, _words(content["argv"])["argv"], key)
        if "c" in content and "argv" not in content and self._last.c is not None:
            line = _value(MEMBERS["c"], content["c"])
            return self._alike(like, (self._last.shell, "-c", line), key) if line.strip() else None
        return None


def _are_same(one: object, other: object) -> bool:
    """Whether two values of JSON say the same (where True is not 1)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _are_same(value, other[name]) for name, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_are_same, one, other))
    return one == other


def _split(data: bytes, end: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    for number, line in enumerate(data.split(end), 1):
        if line.strip():
            yield number, line.removesuffix(b"\r") if end == b"\n" else line


def _with(args: Args, **members: Any) -> Args:
    """The arguments of the call, with those of one line over them."""
    one = Args()
    one.__dict__.update(args.__dict__)
    one.__dict__.update(members)
    return one


def _object(line: str) -> dict[str, Any]:
    try:
        content = _decode(line)
    except (ValueError, RecursionError) as error:
        raise values.BadValue(
            f"is not JSON: {error}",
            remediation=f"{HINT}; lines for the shell are read with --lines",
        ) from None
    if not isinstance(content, dict):
        raise InvalidInput("is not a JSON object")
    return content


def _from_members(args: Args, content: dict[str, Any]) -> Args:
    members: dict[str, Any] = {}
    given = set()
    for name, value in content.items():
        special = SPECIAL.get(name)
        if special is not None:
            members.update(special(value))
            if name == "timeout":
                given.add("--no-timeout" if value is None else "--timeout")
        elif name in MEMBERS:
            members[name] = _value(MEMBERS[name], value)
            if value is not False:
                given.add(MEMBERS[name].name)
        else:
            raise values.BadValue(
                f"has an unknown member {name!r}",
                did_you_mean=values.closest(name, [*MEMBERS, *SPECIAL]),
            )
    if not ("argv" in members or "c" in members):
        raise InvalidInput("has neither `argv` nor `c`")
    if "tag" in members and args.tag:
        # Those of the call hold for all; a line may replace one.
        members["tag"] = tuple({**dict(args.tag), **dict(members["tag"])}.items())
    if "env" in members:
        members["env"] = (*args.env, *members["env"])
    _check_exclusive(given)
    return _over_others(_with(args, **members), frozenset(given))


def _check_exclusive(given: set[str]) -> None:
    """The same pairs as on a command line."""
    for one, other in EXCLUSIVE if len(given) > 1 else ():
        if one in given and other in given:
            names = [flag.dest for flag in MEMBERS.values() if flag.name in (one, other)]
            raise InvalidInput(f"{' and '.join(names)} exclude each other")


def _over_others(one: Args, given: frozenset[str]) -> Args:
    """What a line says leaves no room for what goes against it: flags of the call, and defaults
    of the config file."""
    others = ((one.given | one.configured) & _BY_NAME.keys()) - given
    against = {name for name in others if set_aside(add.VERB, _BY_NAME[name], given)}
    for name in against:
        setattr(one, _BY_NAME[name].dest, _BY_NAME[name].default)
    one.given = (one.given - against) | given
    one.configured -= against | given
    return one


def _value(flag: Flag, value: object) -> Any:
    """One member by the rules of the flag of that name."""
    try:
        if flag.type == "boolean":
            if not isinstance(value, bool):
                raise InvalidInput("must be true or false")
            return value
        return values.from_json(flag, value)
    except InvalidInput as error:
        raise values.BadValue(
            f"{flag.dest}: {error}", did_you_mean=getattr(error, "did_you_mean", None)
        ) from None


def _words(value: object) -> dict[str, Any]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise InvalidInput("argv: must be a list of texts")
    return {"argv": tuple(value)}


def _pairs(name: str, member: str) -> Callable[[object], dict[str, Any]]:
    def check(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidInput(f"{name}: must be an object of texts")
        return {member: tuple(value.items())}

    return check


def _input(value: object) -> dict[str, Any]:
    if not isinstance(value, str):
        raise InvalidInput("stdin: must be text")
    return {"stdin": value.encode("utf-8", "surrogatepass")}


def _timeout(value: object) -> dict[str, Any]:
    if value is None:
        return {"no_timeout": True}
    return {"timeout": _value(MEMBERS["timeout"], value)}


SPECIAL: dict[str, Callable[[object], dict[str, Any]]] = {
    "argv": _words,
    "env": _pairs("env", "env"),
    "tags": _pairs("tags", "tag"),
    "stdin": _input,
    "timeout": _timeout,
}
"""Members that look different from their flag: objects, lists, null for no timeout."""


def read_input(flag: str, path: str, limit: int) -> bytes:
    """The content of a file, or of our stdin for `-`.

    Raises:
        UsageError: it cannot be read, or has more than `limit` bytes.
    """
    try:
        # The path of our own descriptor would not do: it may be a socket.
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UsageError(f"{flag}: cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise UsageError(f"{flag}: {path} has more than {limit} bytes")
    return data

"""Where the queue is: `--db`, `SPOOLCTL_DB`, the project's config file, or the default.

The `.spoolctl` folder is looked for upwards from the current folder, as git does with its
own, but only folders of the caller count: in a shared place anybody could lay one out.
Nothing here creates, opens or changes a queue.
"""

from __future__ import annotations

import os
import stat

from spoolctl.core import checks
from spoolctl.core.tuples import NamedTuple
from spoolctl.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FOLDER = ".spoolctl"
CONFIG_NAME = "config.json"
QUEUE_NAME = "queue.db"
VARIABLE = "SPOOLCTL_DB"
SOURCES = ("flag", "environment", "project_config", "default")
"""Names of the places that may name the queue, the strongest first."""

MAX_BYTES = 1 << 20
"""A config file that is larger is no config file."""


NOT_USED = "it was not needed to find the queue, and none of its defaults is used"
"""What is said of a broken file where the queue was named by a flag or variable."""


class ConfigBroken(InvalidInput):
    """The config file at `path` cannot be understood; `fault` tells why."""

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(f"the config file {path} {fault}")
        self.path = path
        self.fault = fault
        self.remediation = "repair or remove the config file, or name the queue with --db"


class Config(NamedTuple):
    """The content of a config file. `db_path` is as written, `settings` is all the rest,
    which means nothing here: defaults for the flags of verbs, not checked."""

    db_path: str | None
    settings: Mapping[str, Any]


class Location(NamedTuple):
    """Which file is the queue (resolved, absolute), and why that one.

    `config_path`: the config file that was looked for, whether or not it exists.
    `settings`: what the file says besides. `remarks`: sentences on what was overlooked: a
    broken config file that was not needed.
    """

    path: str
    source: str
    config_path: str
    config_exists: bool
    config_valid: bool
    settings: Mapping[str, Any]
    remarks: tuple[str, ...]


def locate(flag: str | None = None) -> Location:
    """Find the queue; `flag` is the value of `--db`.

    Raises:
        ConfigBroken: the config file is needed to find the queue, and is broken.
        InvalidInput: a path is empty, too long or no text; the current folder is gone; or
            the default would lie in another user's folder.
    """
    named = _named(flag)
    config_path = find_config()
    config: Config | None = None
    remarks: tuple[str, ...] = ()
    try:
        config = read_found(config_path)
    except ConfigBroken as broken:
        if named is None:
            raise
        remarks = (f"{broken}; {NOT_USED}",)
    if named is not None:
        path, source = named
    elif config is not None and config.db_path is not None:
        path = os.path.join(os.path.dirname(config_path), config.db_path)
        source = "project_config"
    else:
        path, source = _default(config_path), "default"
    return Location(
        path=resolve(path),
        source=source,
        config_path=config_path,
        config_exists=config is not None or bool(remarks),
        config_valid=not remarks,
        settings=config.settings if config else {},
        remarks=remarks,
    )


def without_config(found: Location, broken: ConfigBroken) -> Location:
    """The same place where a value of the config file proved to be bad.

    Raises:
        ConfigBroken: this one, if the queue was not named in another way.
    """
    if found.source not in ("flag", "environment"):
        raise broken
    return found._replace(config_valid=False, settings={}, remarks=(f"{broken}; {NOT_USED}",))


def find_config() -> str:
    """The path of the config file of this place; it need not exist.

    In the nearest `.spoolctl` folder of the caller, from the current folder upwards, up to
    the home folder (included) or a file-system boundary; else in the current folder.
    """
    here = _current_folder()
    if here is None:
        return os.path.join(FOLDER, CONFIG_NAME)
    folder = _nearest(here) or os.path.join(here, FOLDER)
    return os.path.join(folder, CONFIG_NAME)


def read_found(path: str) -> Config | None:
    """Read what `find_config` has found; None too in a folder that is not the caller's.

    In a shared folder another user could name the queue that gets our jobs and their
    environment, and set the defaults of our flags.

    Raises:
        ConfigBroken: as `read_config`.
    """
    return None if _is_foreign(os.path.dirname(path)) else read_config(path)


def read_config(path: str) -> Config | None:
    """Read and check a config file; None if there is none.

    Raises:
        ConfigBroken: it is not a file, not UTF-8 JSON, no object, or has a bad value.
    """
    data = _read(path)
    if data is None:
        return None
    import json

    try:
        content = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigBroken(path, "is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ConfigBroken(path, f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigBroken(path, "is not a JSON object")
    return Config(
        db_path=_checked(path, content),
        settings={
            key: value for key, value in content.items() if key not in ("version", "db_path")
        },
    )


def _checked(path: str, content: dict[str, Any]) -> str | None:
    version = content.get("version", 1)
    if type(version) is not int or version != 1:
        raise ConfigBroken(path, "has a `version` that is not the integer 1")
    if "db_path" not in content:
        return None
    try:
        return checks.path(content["db_path"])
    except InvalidInput as error:
        raise ConfigBroken(path, f"has a bad `db_path`: it {error}") from None


def _read(path: str) -> bytes | None:
    try:
        # Not blocking: a FIFO of that name must not hang every verb.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigBroken(path, f"cannot be read: {_reason(error)}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigBroken(path, "is not a regular file")
        data = b""
        while len(data) <= MAX_BYTES and (part := os.read(fd, MAX_BYTES + 1)):
            data += part
    except OSError as error:
        raise ConfigBroken(path, f"cannot be read: {_reason(error)}") from None
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise ConfigBroken(path, f"is larger than {MAX_BYTES} bytes")
    return data


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _named(flag: str | None) -> tuple[str, str] | None:
    """The path that the caller named, and where."""
    if flag is not None:
        try:
            return checks.path(flag), "flag"
        except InvalidInput as error:  # of a folder's name: a flag's own text was checked before
            short = repr(flag if len(flag) <= 60 else f"{flag[:57]}...")
            raise InvalidInput(
                f"the path {short} {error}: name another queue with --db or {VARIABLE}"
            ) from None
    value = os.environ.get(VARIABLE)
    return None if value is None else (checks.named(VARIABLE, checks.path, value), "environment")


def _default(config_path: str) -> str:
    folder = os.path.dirname(config_path)
    if _is_foreign(folder):
        raise InvalidInput(
            f"{folder} is not a folder of yours: name a queue with --db or {VARIABLE}"
        )
    return os.path.join(folder, QUEUE_NAME)


def resolve(path: str, wanted: str = "an absolute path with --db") -> str:
    """The path without links, absolute. `wanted`: what to give where that cannot be told.

    Raises:
        InvalidInput: it is relative, and the current folder has been deleted.
    """
    if not os.path.isabs(path) and _current_folder() is None:
        raise InvalidInput(f"the current folder no longer exists: give {wanted}")
    return os.path.realpath(path)


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _nearest(start: str) -> str | None:
    home = os.path.realpath(os.path.expanduser("~"))
    here, status = start, _status(start)
    while status is not None:
        folder = os.path.join(here, FOLDER)
        if _is_own(folder):
            return folder
        above = os.path.dirname(here)
        if here in (home, above):
            return None
        device, here, status = status.st_dev, above, _status(above)
        if status is not None and status.st_dev != device:
            return None
    return None


def _is_own(folder: str) -> bool:
    """Whether it is a folder of the caller; a link to one must be the caller's, too."""
    try:
        found, link = os.stat(folder), os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and {found.st_uid, link.st_uid} == {os.geteuid()}


def _is_foreign(folder: str) -> bool:
    """Whether it is a folder, and not the caller's.

    Something that is no folder is just a path that cannot be used: nobody's queue is there.
    """
    found = _status(folder)
    return found is not None and stat.S_ISDIR(found.st_mode) and not _is_own(folder)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None

"""The page on the config file: its table of keys is made from the flags that take them."""

from __future__ import annotations

from spoolctl.cli.settings import Setting, default, settings, text
from spoolctl.core.limits import LIMITS

BEFORE = """\
# Configuration

A project may keep a file `.spoolctl/config.json` beside its queue. It is optional, and a JSON
object:

```json
{
  "version": 1,
  "db_path": "queue.db",
  "timeout": 3600,
  "max_retries": 1,
  "retry_delay": [10, 30, 60],
  "keep_for": "30d"
}
```

`version` is 1 and may be left out. `db_path` names the queue's file, relative to the folder of
the config file. All other keys are defaults for flags. spoolctl reads the file and never writes
it.

## Which file, and which value

The `.spoolctl` folder is looked for in the current folder and then upwards, up to a file-system
boundary or your home folder; only one that belongs to you counts. Its file gives the defaults
whatever names the queue: with `--db` elsewhere the project's defaults still hold.

The strongest first: a flag, an environment variable (there is one for the path alone:
`SPOOLCTL_DB`), the config file, the built-in default. `spoolctl config-show` prints each value
with its source:

```sh
spoolctl config-show
spoolctl config-show --json
spoolctl config-validate
```

A value of the file gives way to every flag that excludes it, too: with `max_retries` in the file,
`--no-retry` and `--retry-for` work as ever, and so does `--no-timeout` with `timeout`. Of a list
of waits (`retry_delay`) and `backoff`, one as a flag and one in the file, the flag holds; both in
the file, the list.

## Keys

"""

AFTER = """\

A value is checked by the same rules as the flag, and may be a text as on the command line or a
number; where the flag takes several with commas, also a list of these. `null` for `timeout` means
no limit.

- `queue` is where `add` and `run` put a job and what `work` serves. It is no filter: `list
  --queue` and the like show all queues unless they are told otherwise.
- `keep_for` is the age for `prune`, which says when it has taken it from here. By itself it
  deletes nothing.
- Lines of `add --batch` have the same defaults as a single `add`.
- A job keeps the values that held when it was added. With `--key` a changed default is a changed
  request: the same call then ends with `IDEMPOTENCY_CONFLICT` while the earlier job is active.
- The Python API takes its arguments and nothing else: a program says what it wants, and does not
  change its ways with the folder that it is started in. (`Queue()` without a path does find the
  queue by `db_path`.)

## Mistakes in the file

| what is wrong | where the file is needed to find the queue | with `--db` or `SPOOLCTL_DB` |
|---|---|---|
| no JSON object, a bad `version` or `db_path` | `INVALID_INPUT`, exit 1 \
| the warning `CONFIG_IGNORED`; no default of the file is used |
| a bad value of another key | the same, for verbs that would use that value; others go on \
| the same warning, and no default of the file |
| a key that means nothing | ignored | ignored |

`config-show` lists the latter as `ignored_keys`, `config-validate` (and so a check in CI) refuses
them, and `doctor` warns of them. These three look at all values, whoever uses them.
"""


def page() -> str:
    """The whole page."""
    rows = [
        "| key | default | values | taken by |",
        "|---|---|---|---|",
        *(_row(each) for each in settings().values()),
    ]
    return BEFORE + "\n".join(rows) + "\n" + AFTER


def _row(setting: Setting) -> str:
    value = text(default(setting))
    users = ", ".join(f"`{each}`" for each in setting.users)
    return f"| `{setting.key}` | {value} | {_values(setting)} | {users} |"


UNITS = {
    "duration": "a duration (`90`, `1.5h`, `30d`)",
    "duration_csv": "a list of durations",
    "float": "a number above 0",
    "fraction": "a number from 0",
    "integer": "an integer",
    "queue": "a queue's name",
    "size": "bytes (`65536`, `64K`, `10M`, `1G`)",
}


def _values(setting: Setting) -> str:
    flag = setting.flag
    shown = UNITS.get(flag.type, "")
    if flag.choices:
        shown = " or ".join(f"`{each}`" for each in flag.choices)
    if flag.check == "capture_env":
        shown = "`all`, `none`, or a list of names"
    if flag.limit in ("fraction", "worker_jobs"):
        shown += f" up to {LIMITS[flag.limit].maximum}"
    shown += "".join(f", or `{word}`" for word in flag.words)
    return shown + (", or `null`" if flag.config_null else "")

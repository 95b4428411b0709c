"""Every layout that a released spoolctl has written, as steps from one to the next.

A step is a tuple of statements; step N leads from `user_version` N-1 to N. Steps that were
released never change: what is new is a new step. No STRICT, RETURNING or DROP COLUMN, so
that every SQLite from 3.31 on opens the same file; types are enforced by CHECK.

How a queued job is marked (partial indices hang on these three cases, and a claim looks at
the first only):

    ready = 1                  a worker may take it now
    ready = 0, due is set      waits until `due` on the clock `due_clock` (0: the wall clock,
                               else a row of `boots`: seconds on the clock of that boot)
    ready = 0, due is null     held: processes of an earlier attempt may still live
"""

from __future__ import annotations

# Checks that cost little, in the tables of every move (docs/adr/0012-checks-without-functions.md).
# A list of words (`IN`) is a little table that SQLite makes for each statement and throws away;
# and a function (`typeof`) could fail, so a statement that calls one and fires a trigger copies
# every page before changing it. Of a type is what equals itself as one: 1.5, 'x' and x'00' are
# no integers; null passes, as it passes every check. `length` of a token has no such other form.
_JOBS = """
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  state TEXT NOT NULL
    CHECK (state = 'queued' OR state = 'running'
      OR state = 'done' OR state = 'failed' OR state = 'dead' OR state = 'canceled'),
  ready INTEGER NOT NULL CHECK (ready IN (0, 1)),
  queue TEXT NOT NULL CHECK (queue = CAST(queue AS TEXT)),
  priority INTEGER NOT NULL CHECK (priority = CAST(priority AS INTEGER)),
  run_at REAL NOT NULL CHECK (run_at = CAST(run_at AS REAL)),
  due_clock INTEGER CHECK (due_clock = CAST(due_clock AS INTEGER)),
  due REAL CHECK (due = CAST(due AS REAL)),
  attempts INTEGER NOT NULL CHECK (attempts = CAST(attempts AS INTEGER) AND attempts >= 0),
  crashes INTEGER NOT NULL CHECK (crashes = CAST(crashes AS INTEGER) AND crashes >= 0),
  max_retries INTEGER NOT NULL CHECK (max_retries = CAST(max_retries AS INTEGER)),
  max_crashes INTEGER CHECK (max_crashes = CAST(max_crashes AS INTEGER)),
  timeout_s INTEGER CHECK (timeout_s = CAST(timeout_s AS INTEGER)),
  created_at REAL NOT NULL CHECK (created_at = CAST(created_at AS REAL)),
  started_at REAL CHECK (started_at = CAST(started_at AS REAL)),
  finished_at REAL CHECK (finished_at = CAST(finished_at AS REAL)),
  last_exit_code INTEGER CHECK (last_exit_code = CAST(last_exit_code AS INTEGER)),
  last_error TEXT CHECK (last_error = CAST(last_error AS TEXT)),
  last_reason TEXT CHECK (last_reason = CAST(last_reason AS TEXT)),
  context INTEGER NOT NULL CHECK (context = CAST(context AS INTEGER)),
  argv TEXT NOT NULL CHECK (argv = CAST(argv AS TEXT)),
  key TEXT CHECK (key = CAST(key AS TEXT)),
  tags TEXT CHECK (tags = CAST(tags AS TEXT)),
  note TEXT CHECK (note = CAST(note AS TEXT)),
  asked TEXT CHECK (asked = CAST(asked AS TEXT)),
  CHECK (ready = 0 OR state = 'queued'),
  CHECK (due IS NULL OR (state = 'queued' AND ready = 0)),
  CHECK ((due IS NULL) = (due_clock IS NULL))
)
"""

_WORKERS = """
CREATE TABLE workers (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  token TEXT NOT NULL,
  name TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  pid_ns TEXT NOT NULL,
  pid INTEGER NOT NULL,
  start TEXT NOT NULL,
  lock_dev INTEGER NOT NULL,
  lock_ino INTEGER NOT NULL,
  lanes TEXT,
  slots INTEGER NOT NULL,
  interval_s REAL NOT NULL,
  started_at REAL NOT NULL,
  heartbeat_at REAL NOT NULL,
  heartbeat_boot REAL NOT NULL,
  used INTEGER NOT NULL DEFAULT 0,
  ended_at REAL,
  last_event INTEGER
)
"""

_ATTEMPTS = """
CREATE TABLE attempts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER NOT NULL CHECK (job = CAST(job AS INTEGER)),
  no INTEGER NOT NULL CHECK (no = CAST(no AS INTEGER)),
  token BLOB NOT NULL CHECK (token = CAST(token AS BLOB) AND length(token) = 16),
  state TEXT NOT NULL CHECK
    (state = 'running' OR state = 'succeeded' OR state = 'failed'
      OR state = 'timed_out' OR state = 'abandoned' OR state = 'canceled'),
  worker INTEGER CHECK (worker = CAST(worker AS INTEGER)),
  started_at REAL NOT NULL CHECK (started_at = CAST(started_at AS REAL)),
  finished_at REAL CHECK (finished_at = CAST(finished_at AS REAL)),
  duration_s REAL CHECK (duration_s = CAST(duration_s AS REAL)),
  gone_at REAL CHECK (gone_at = CAST(gone_at AS REAL)),
  exit_code INTEGER CHECK (exit_code = CAST(exit_code AS INTEGER)),
  error TEXT CHECK (error = CAST(error AS TEXT)),
  reason TEXT CHECK (reason = CAST(reason AS TEXT)),
  survivors INTEGER CHECK (survivors = CAST(survivors AS INTEGER)),
  stdout_bytes INTEGER NOT NULL DEFAULT 0,
  stderr_bytes INTEGER NOT NULL DEFAULT 0,
  in_files INTEGER NOT NULL DEFAULT 0,
  capture TEXT
)
"""

# One row per queue, kept by triggers, so that nothing ever has to count jobs. `waiting`:
# queued for a later time; `retrying`: the part of it that has failed before; `living`:
# attempts whose processes are not confirmed gone, whatever became of their job.
_LANES = """
CREATE TABLE lanes (
  queue TEXT PRIMARY KEY NOT NULL,
  queued INTEGER NOT NULL DEFAULT 0,
  running INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  dead INTEGER NOT NULL DEFAULT 0,
  canceled INTEGER NOT NULL DEFAULT 0,
  ready INTEGER NOT NULL DEFAULT 0,
  waiting INTEGER NOT NULL DEFAULT 0,
  retrying INTEGER NOT NULL DEFAULT 0,
  living INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID
"""

# What one row of jobs, NEW or OLD, adds to the counters of its queue.
_COUNTED = {
    "queued": "({row}.state = 'queued')",
    "running": "({row}.state = 'running')",
    "done": "({row}.state = 'done')",
    "failed": "({row}.state = 'failed')",
    "dead": "({row}.state = 'dead')",
    "canceled": "({row}.state = 'canceled')",
    "ready": "{row}.ready",
    "waiting": "({row}.due IS NOT NULL)",
    "retrying": "({row}.due IS NOT NULL AND {row}.attempts > 0)",
}


def _tally(*signed: tuple[str, str]) -> str:
    """A SET clause that adds (`+`) or takes away (`-`) rows: pairs of sign and row."""
    return ",\n    ".join(
        f"{counter} = {counter}"
        + "".join(f" {sign} {what.format(row=row)}" for sign, row in signed)
        for counter, what in _COUNTED.items()
    )


# No OR IGNORE: inside a trigger the policy of the statement that fires it would replace it.
_ADD_TO_LANE = f"""
  INSERT INTO lanes (queue, {", ".join(_COUNTED)})
  VALUES (NEW.queue, {", ".join(what.format(row="NEW") for what in _COUNTED.values())})
  ON CONFLICT (queue) DO UPDATE SET
    {", ".join(f"{counter} = {counter} + excluded.{counter}" for counter in _COUNTED)};
"""

_JOB_ADDED = f"""
CREATE TRIGGER job_added AFTER INSERT ON jobs BEGIN
{_ADD_TO_LANE}
  UPDATE contexts SET uses = uses + 1 WHERE id = NEW.context;
END
"""

_JOB_MOVED = f"""
CREATE TRIGGER job_moved AFTER UPDATE OF state, ready, due, attempts ON jobs
WHEN OLD.queue = NEW.queue BEGIN
  UPDATE lanes SET
    {_tally(("+", "NEW"), ("-", "OLD"))}
  WHERE queue = NEW.queue;
END
"""

_JOB_CHANGED_QUEUE = f"""
CREATE TRIGGER job_changed_queue AFTER UPDATE OF queue ON jobs
WHEN OLD.queue <> NEW.queue BEGIN
{_ADD_TO_LANE}
  UPDATE lanes SET
    {_tally(("-", "OLD"))},
    living = living
      - (SELECT COUNT(*) FROM attempts WHERE job = OLD.id AND gone_at IS NULL)
  WHERE queue = OLD.queue;
  UPDATE lanes SET living = living
      + (SELECT COUNT(*) FROM attempts WHERE job = NEW.id AND gone_at IS NULL)
  WHERE queue = NEW.queue;
END
"""

_JOB_DELETED = f"""
CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN
  UPDATE lanes SET
    {_tally(("-", "OLD"))}
  WHERE queue = OLD.queue;
  UPDATE contexts SET uses = uses - 1 WHERE id = OLD.context;
END
"""

_ATTEMPT_STARTED = """
CREATE TRIGGER attempt_started AFTER INSERT ON attempts WHEN NEW.gone_at IS NULL BEGIN
  UPDATE lanes SET living = living + 1
  WHERE queue = (SELECT queue FROM jobs WHERE id = NEW.job);
END
"""

_ATTEMPT_GONE = """
CREATE TRIGGER attempt_gone AFTER UPDATE OF gone_at ON attempts
WHEN (OLD.gone_at IS NULL) <> (NEW.gone_at IS NULL) BEGIN
  UPDATE lanes SET living = living + (NEW.gone_at IS NULL) - (OLD.gone_at IS NULL)
  WHERE queue = (SELECT queue FROM jobs WHERE id = NEW.job);
  DELETE FROM recoveries WHERE attempt = NEW.id;
END
"""

# A prune deletes a job's attempts before the job, so its queue is still known here.
_ATTEMPT_DELETED = """
CREATE TRIGGER attempt_deleted AFTER DELETE ON attempts BEGIN
  UPDATE lanes SET living = living - (OLD.gone_at IS NULL)
  WHERE OLD.gone_at IS NULL AND queue = (SELECT queue FROM jobs WHERE id = OLD.job);
  DELETE FROM recoveries WHERE attempt = OLD.id;
END
"""

_FIRST = (
    _JOBS,
    _WORKERS,
    _ATTEMPTS,
    _LANES,
    # What was captured at `add` without being asked for: [cwd, umask, [[name, value], ...]].
    # `sum` finds an equal one quickly; `uses` counts jobs, so that a prune can delete it.
    "CREATE TABLE contexts (id INTEGER PRIMARY KEY AUTOINCREMENT, sum INTEGER NOT NULL,"
    " body TEXT NOT NULL, uses INTEGER NOT NULL DEFAULT 0)",
    "CREATE INDEX contexts_by_sum ON contexts (sum)",
    "CREATE INDEX contexts_unused ON contexts (id) WHERE uses <= 0",
    "CREATE TABLE boots (id INTEGER PRIMARY KEY AUTOINCREMENT, boot_id TEXT NOT NULL UNIQUE)",
    "CREATE TABLE inputs (job INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    "CREATE TABLE tags (key TEXT NOT NULL, value TEXT NOT NULL, job INTEGER NOT NULL,"
    " PRIMARY KEY (key, value, job)) WITHOUT ROWID",
    "CREATE INDEX tags_by_key ON tags (key, job)",
    "CREATE INDEX tags_by_job ON tags (job)",
    "CREATE TABLE outputs (attempt INTEGER NOT NULL, stream TEXT NOT NULL, data BLOB NOT NULL,"
    " PRIMARY KEY (attempt, stream))",
    "CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL,"
    " at REAL NOT NULL, event TEXT NOT NULL, worker INTEGER, detail TEXT)",
    "CREATE INDEX events_by_job ON events (job)",
    "CREATE TABLE recoveries (attempt INTEGER PRIMARY KEY, verdict TEXT NOT NULL,"
    " reason TEXT NOT NULL, at REAL NOT NULL, heartbeat_boot REAL)",
    # Claims: one lane, and all lanes.
    "CREATE INDEX ready_in_lane ON jobs (queue, priority DESC, run_at) WHERE ready = 1",
    "CREATE INDEX ready_anywhere ON jobs (priority DESC, run_at) WHERE ready = 1",
    # Promotion: who is due next, and who is due with the highest priority.
    "CREATE INDEX due_in_lane ON jobs (queue, due_clock, due) WHERE due IS NOT NULL",
    "CREATE INDEX due_anywhere ON jobs (due_clock, due, queue) WHERE due IS NOT NULL",
    "CREATE INDEX due_in_lane_by_priority ON jobs (queue, due_clock, priority DESC, due)"
    " WHERE due IS NOT NULL",
    "CREATE INDEX due_anywhere_by_priority ON jobs (due_clock, priority DESC, due)"
    " WHERE due IS NOT NULL",
    "CREATE INDEX held ON jobs (id) WHERE state = 'queued' AND ready = 0 AND due IS NULL",
    # Lists, retention, keys. Every index ends with the id; a list by state merges its lanes:
    # an index of states alone would be written three times in the life of every job.
    "CREATE INDEX jobs_by_lane ON jobs (queue, state)",
    "CREATE INDEX jobs_by_priority ON jobs (priority)",
    "CREATE INDEX jobs_by_end ON jobs (state, finished_at) WHERE finished_at IS NOT NULL",
    "CREATE INDEX jobs_by_key ON jobs (key, state) WHERE key IS NOT NULL",
    "CREATE UNIQUE INDEX attempts_by_job ON attempts (job, no)",
    "CREATE INDEX attempts_living ON attempts (job, worker) WHERE gone_at IS NULL",
    "CREATE INDEX attempts_in_files ON attempts (token) WHERE in_files > 0",
    "CREATE INDEX workers_here ON workers (id) WHERE ended_at IS NULL",
    _JOB_ADDED,
    _JOB_MOVED,
    _JOB_CHANGED_QUEUE,
    _JOB_DELETED,
    _ATTEMPT_STARTED,
    _ATTEMPT_GONE,
    _ATTEMPT_DELETED,
)

# For sorted lists (docs/adr/0015-starts-told-from-ends.md): neither costs a
# job anything that is not scheduled and takes less than a tenth of a second.
_SORTED_LISTS = (
    "CREATE INDEX due_in_lane_by_run ON jobs (queue, run_at) WHERE due IS NOT NULL",
    "CREATE INDEX started_apart ON jobs (state, started_at)"
    " WHERE started_at IS NOT NULL AND state <> 'running' AND (finished_at IS NULL"
    " OR started_at > finished_at OR started_at < finished_at - 0.1)",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _SORTED_LISTS)
"""MIGRATIONS[n] leads from version n to n + 1."""

SCHEMA_VERSION = len(MIGRATIONS)
"""The layout that this program reads and writes."""

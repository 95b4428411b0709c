"""Every statement of the store, by name. A comment says what its WHERE clause guards.

`{job}`, `{attempt}`, ... stand for the column lists of `rows.py`.
"""

from __future__ import annotations

from spoolctl.core.states import State
from spoolctl.store.sqlite.rows import (
    ATTEMPT_COLUMNS,
    EVENT_COLUMNS,
    JOB_COLUMNS,
    READY_COLUMNS,
    WORKER_COLUMNS,
)

PIECES = (1, 2, 4, 8, 16, 32)
"""For how many rows there are statements that take several: each has to be prepared once."""


def _listed(statement: str) -> dict[int, str]:
    """The statement with so many parameters in its list, by their number."""
    return {places: statement.format(", ".join("?" * places)) for places in PIECES}


def _several(statement: str, most: int) -> tuple[str, ...]:
    """An INSERT for none, one, and up to so many rows: these open the table and its indices, and
    look up its last number, only once. (SQLite before 3.32 binds no more than 999 values.)"""
    values = statement[statement.index("(?") :]
    return tuple(statement + f", {values}" * (count - 1) for count in range(most + 1))


# -- jobs -------------------------------------------------------------------------------

JOB = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"
IS_KEY_KNOWN = "SELECT 1 FROM jobs WHERE key = ? LIMIT 1"
JOB_OF_KEY = f"SELECT {JOB_COLUMNS} FROM jobs WHERE key = ? AND state = ? ORDER BY id DESC LIMIT 1"
ADD_JOB = (
    "INSERT INTO jobs (id, state, ready, queue, priority, run_at, due_clock, due, attempts,"
    " crashes, max_retries, max_crashes, timeout_s, created_at, context, argv, key, tags,"
    " note, asked)"
    " VALUES (?, 'queued', ?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
ADD_JOBS = _several(ADD_JOB, 16)
# What a move writes beside the state, by where it leads. SQLite looks after every index that
# hangs on a column of SET, whether its value changes or not, so the two moves that each job
# makes name only what they change: `ready` and `due` of a running job are 0 and null already.
_SETTLING = ("finished_at", "last_exit_code", "last_error", "last_reason")
_ANYWHERE = (
    *("ready", "due_clock", "due", "run_at", "attempts", "crashes", "started_at"),
    *_SETTLING,
)
MOVES = {
    state: {
        State.RUNNING: ("ready", "started_at"),
        State.DONE: _SETTLING,
    }.get(state, _ANYWHERE)
    for state in State
}
# The only statements that change jobs.state. The state in the WHERE clause is the one that
# the transition table was asked about. OR ROLLBACK: an error here ends the transaction anyway;
# to undo the statement alone, SQLite would have to copy each page before it changes it.
MOVE_JOB = {
    state: "UPDATE OR ROLLBACK jobs SET "
    + ", ".join(f"{column} = ?" for column in ("state", *columns))
    + " WHERE id = ? AND state = ?"
    for state, columns in MOVES.items()
}
LAST_JOB_ID = "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'"
FIRST_JOB_ID = "SELECT min(id) FROM jobs"
# Two questions: one that asks for both ends reads the whole table.
FIRST_AND_LAST_JOB_ID = "SELECT (SELECT min(id) FROM jobs), (SELECT max(id) FROM jobs)"
JOB_TIME_FROM = "SELECT id, created_at FROM jobs WHERE id >= ? ORDER BY id LIMIT 1"
SINCE_JUST_BELOW = (
    "SELECT min(id) FROM (SELECT id, created_at FROM jobs WHERE id < ? ORDER BY id DESC LIMIT ?)"
    " WHERE created_at >= ?"
)
SET_ASKED = "UPDATE jobs SET asked = ? WHERE id = ?"
# Only a held job, and only when no attempt of it may still have processes.
LET_GO = (
    "UPDATE jobs SET ready = 1 WHERE id = ? AND state = 'queued' AND ready = 0 AND due IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM attempts WHERE job = jobs.id AND gone_at IS NULL)"
)
HOLD = "UPDATE jobs SET ready = 0, due = NULL, due_clock = NULL WHERE id = ? AND state = 'queued'"
ADD_TAG = "INSERT INTO tags (key, value, job) VALUES (?, ?, ?)"
ADD_INPUT = "INSERT INTO inputs (job, data) VALUES (?, ?)"
INPUT = "SELECT data FROM inputs WHERE job = ?"

# For lists by priority: where do the jobs of a lane lie, and which priorities are there at all?
_END_OF_STATE = (
    "SELECT {0}((SELECT {0}(id) FROM jobs INDEXED BY jobs_by_lane"
    " WHERE queue = lanes.queue AND state = ?)) FROM lanes"
)
END_OF_STATE = (_END_OF_STATE.format("max"), _END_OF_STATE.format("min"))
NEWEST_IN_LANE = "SELECT max(id) FROM jobs INDEXED BY jobs_by_lane WHERE queue = ? AND state = ?"
# The clocks by which anybody waits: one step each, whatever the number of jobs.
CLOCKS_IN_USE = (
    "WITH RECURSIVE clocks (clock) AS"
    " (SELECT (SELECT min(due_clock) FROM jobs WHERE due IS NOT NULL)"
    " UNION ALL SELECT (SELECT min(due_clock) FROM jobs WHERE due IS NOT NULL"
    " AND due_clock > clock) FROM clocks WHERE clock IS NOT NULL)"
    " SELECT clock FROM clocks WHERE clock IS NOT NULL"
)
# The next priority among a lane's queued jobs: the next lower one, and the next higher.
_READY_PRIORITY = (
    "SELECT {}(priority) FROM jobs INDEXED BY ready_in_lane"
    " WHERE queue = ? AND ready = 1 AND priority {} ?"
)
READY_PRIORITY = (_READY_PRIORITY.format("max", "<"), _READY_PRIORITY.format("min", ">"))
_DUE_PRIORITY = (
    "SELECT {}(priority) FROM jobs INDEXED BY due_in_lane_by_priority"
    " WHERE queue = ? AND due_clock = ? AND due IS NOT NULL AND priority {} ?"
)
DUE_PRIORITY = (_DUE_PRIORITY.format("max", "<"), _DUE_PRIORITY.format("min", ">"))
HELD_PRIORITIES = (
    "SELECT DISTINCT priority FROM jobs INDEXED BY held"
    " WHERE state = 'queued' AND ready = 0 AND due IS NULL AND queue = ?"
)
NEXT_PRIORITY = "SELECT max(priority) FROM jobs WHERE priority >= ? AND priority < ?"

# -- contexts and boots -----------------------------------------------------------------

CONTEXT = "SELECT body FROM contexts WHERE id = ?"
CONTEXT_ID = "SELECT id FROM contexts WHERE sum = ? AND body = ?"
ADD_CONTEXT = "INSERT INTO contexts (sum, body) VALUES (?, ?)"
DELETE_UNUSED_CONTEXTS = "DELETE FROM contexts WHERE uses <= 0"
BOOT_ID = "SELECT id FROM boots WHERE boot_id = ?"
ADD_BOOT = "INSERT INTO boots (boot_id) VALUES (?)"

# -- ledger -----------------------------------------------------------------------------

ADD_EVENT = "INSERT INTO events (job, at, event, worker, detail) VALUES (?, ?, ?, ?, ?)"
ADD_EVENTS = _several(ADD_EVENT, 64)

LAST_EVENT_ID = "SELECT seq FROM sqlite_sequence WHERE name = 'events'"
FIRST_EVENT_ID = "SELECT min(id) FROM events"
FIRST_EVENT_ID_OF_JOB = "SELECT min(id) FROM events WHERE job = ?"
_EVENTS = f"SELECT {EVENT_COLUMNS} FROM events LEFT JOIN workers ON workers.id = events.worker"
EVENTS = f"{_EVENTS} WHERE events.id > ? ORDER BY events.id LIMIT ?"
EVENTS_OF_JOB = f"{_EVENTS} WHERE events.job = ? AND events.id > ? ORDER BY events.id LIMIT ?"

# -- attempts ---------------------------------------------------------------------------

ADD_ATTEMPT = (
    "INSERT INTO attempts (job, no, token, state, worker, started_at)"
    " VALUES (?, ?, ?, 'running', ?, ?)"
)
ADD_ATTEMPTS = _several(ADD_ATTEMPT, 32)
HAS_ATTEMPT = "SELECT 1 FROM attempts WHERE job = ? LIMIT 1"
# An attempt that runs, whoever owns it; its worker's facts for the ledger.
RUNNING_ATTEMPT = (
    "SELECT id FROM attempts WHERE job = ? AND state = 'running' ORDER BY no DESC LIMIT 1"
)
IS_LIVING = "SELECT 1 FROM attempts WHERE job = ? AND gone_at IS NULL LIMIT 1"
ATTEMPT_STATUS = "SELECT job, no, state, worker, gone_at FROM attempts WHERE id = ?"
ATTEMPT_WITH_JOB = (
    "SELECT attempts.job, attempts.state, attempts.worker, attempts.gone_at,"
    f" {JOB_COLUMNS} FROM attempts LEFT JOIN jobs ON jobs.id = attempts.job"
    " WHERE attempts.id = ?"
)
# Attempts that run, and are their worker's, of jobs that run. (`+`: by their ids.)
RUNNING_WITH_JOB = _listed(
    "SELECT attempts.id, attempts.job FROM attempts CROSS JOIN jobs"
    " ON jobs.id = attempts.job AND jobs.state = 'running'"
    " WHERE +attempts.worker = ? AND attempts.state = 'running' AND attempts.id IN ({})"
)
# Ends an attempt that still runs; one that was ended by a cancel keeps that end.
END_ATTEMPT = (
    "UPDATE OR ROLLBACK attempts SET state = ?, finished_at = ?, duration_s = ?, gone_at = ?,"
    " exit_code = ?, error = ?, reason = ?, survivors = ?, stdout_bytes = ?, stderr_bytes = ?,"
    " in_files = ?, capture = ? WHERE id = ? AND state = 'running'"
)
# Of an attempt whose command was never started.
DELETE_ATTEMPT = "DELETE FROM attempts WHERE id = ?"
LAST_START = "SELECT started_at FROM attempts WHERE job = ? ORDER BY no DESC LIMIT 1"
# Takes an attempt away from its owner; its processes may live on.
STOP_ATTEMPT = (
    "UPDATE attempts SET state = ?, finished_at = ?, error = ?, reason = ?"
    " WHERE id = ? AND state = 'running'"
)
# Confirms that the processes of an attempt are gone; once.
ATTEMPT_IS_GONE = (
    "UPDATE attempts SET gone_at = ?, duration_s = ?, survivors = ?, stdout_bytes = ?,"
    " stderr_bytes = ?, in_files = ?, capture = ? WHERE id = ? AND gone_at IS NULL"
)
ADD_OUTPUT = "INSERT INTO outputs (attempt, stream, data) VALUES (?, ?, ?)"
OUTPUT = "SELECT data FROM outputs WHERE attempt = ? AND stream = ?"
_ATTEMPTS = (
    f"SELECT {ATTEMPT_COLUMNS} FROM attempts LEFT JOIN workers ON workers.id = attempts.worker"
)
ATTEMPTS_OF_JOB = f"{_ATTEMPTS} WHERE attempts.job = ? ORDER BY attempts.no"
LATEST_ATTEMPT = f"{_ATTEMPTS} WHERE attempts.job = ? ORDER BY attempts.no DESC LIMIT 1"
ATTEMPT_OF_NO = f"{_ATTEMPTS} WHERE attempts.job = ? AND attempts.no = ?"
ATTEMPT_NOS = "SELECT no FROM attempts WHERE job = ? ORDER BY no"
LIVING_TOKENS = "SELECT token FROM attempts INDEXED BY attempts_living WHERE gone_at IS NULL"
STREAMS_IN_FILES = (
    "SELECT token, in_files FROM attempts INDEXED BY attempts_in_files"
    " WHERE in_files > 0 AND gone_at IS NOT NULL"
)
# Canceled or forced, and not yet reported gone by this owner.
LOST = (
    "SELECT id FROM attempts INDEXED BY attempts_living"
    " WHERE gone_at IS NULL AND worker = ? AND state <> 'running'"
)

# -- claims -----------------------------------------------------------------------------

_CLAIMABLE = (
    f"SELECT {READY_COLUMNS},"
    " (SELECT coalesce(max(no), 0) + 1 FROM attempts WHERE job = jobs.id),"
    " (SELECT data FROM inputs WHERE job = jobs.id) FROM jobs WHERE ready = 1"
)
CLAIMABLE_IN_LANE = f"{_CLAIMABLE} AND queue = ? ORDER BY priority DESC, run_at, id LIMIT ?"
# One job by its number, whoever stands before it in its lane.
CLAIMABLE_JOB = f"{_CLAIMABLE} AND id = ?"
CLAIMABLE_ANYWHERE = f"{_CLAIMABLE} ORDER BY priority DESC, run_at, id LIMIT ?"
LANE = "SELECT ready, waiting, running, retrying, living FROM lanes WHERE queue = ?"
LANES_READY = "SELECT queue, living FROM lanes WHERE ready > 0"
ANY_READY = "SELECT 1 FROM jobs INDEXED BY ready_anywhere WHERE ready = 1 LIMIT 1"
IS_READY = "SELECT 1 FROM jobs WHERE id = ? AND ready = 1"
ANY_WAITING = "SELECT 1 FROM jobs INDEXED BY due_anywhere WHERE due IS NOT NULL LIMIT 1"

# -- promotion --------------------------------------------------------------------------
# The clock is 0 (wall) or a boot's number; `due` is compared with that clock alone.

DUE_IN_LANE = (
    "SELECT id FROM jobs WHERE queue = ? AND due_clock = ? AND due <= ? ORDER BY due LIMIT ?"
)
DUE_ANYWHERE = "SELECT id FROM jobs WHERE due_clock = ? AND due <= ? ORDER BY due LIMIT ?"
NEXT_DUE_IN_LANE = "SELECT min(due) FROM jobs WHERE queue = ? AND due_clock = ? AND due IS NOT NULL"
NEXT_DUE_ANYWHERE = "SELECT min(due) FROM jobs WHERE due_clock = ? AND due IS NOT NULL"
# Hops from one priority that occurs to the next lower one.
PRIORITY_IN_LANE = (
    "SELECT priority FROM jobs WHERE queue = ? AND due_clock = ? AND priority < ?"
    " AND due IS NOT NULL ORDER BY priority DESC LIMIT 1"
)
PRIORITY_ANYWHERE = (
    "SELECT priority FROM jobs WHERE due_clock = ? AND priority < ?"
    " AND due IS NOT NULL ORDER BY priority DESC LIMIT 1"
)
DUE_OF_PRIORITY_IN_LANE = (
    "SELECT id FROM jobs WHERE queue = ? AND due_clock = ? AND priority = ? AND due <= ?"
    " ORDER BY due LIMIT ?"
)
DUE_OF_PRIORITY_ANYWHERE = (
    "SELECT id FROM jobs WHERE due_clock = ? AND priority = ? AND due <= ? ORDER BY due LIMIT ?"
)
PROMOTE = "UPDATE jobs SET ready = 1, due = NULL, due_clock = NULL WHERE id = ? AND due IS NOT NULL"
# Delays that were measured by the clock of another boot: the wall clock rules from now on.
OTHER_BOOTS = (
    "SELECT id FROM jobs WHERE due_clock > 0 AND due_clock < ? AND due IS NOT NULL"
    " UNION ALL SELECT id FROM jobs WHERE due_clock > ? AND due IS NOT NULL LIMIT ?"
)
RULE_BY_WALL = "UPDATE jobs SET due_clock = 0, due = run_at WHERE id = ? AND due IS NOT NULL"

# -- workers ----------------------------------------------------------------------------

ADD_WORKER = (
    "INSERT INTO workers (token, name, boot_id, pid_ns, pid, start, lock_dev, lock_ino, lanes,"
    " slots, interval_s, started_at, heartbeat_at, heartbeat_boot)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
HEARTBEAT = (
    "UPDATE workers SET heartbeat_at = ?, heartbeat_boot = ? WHERE id = ? AND ended_at IS NULL"
)
WORKER_HERE = "SELECT pid, boot_id, heartbeat_boot FROM workers WHERE id = ? AND ended_at IS NULL"
ANOTHER_WORKER = "SELECT 1 FROM workers WHERE ended_at IS NULL AND id <> ? LIMIT 1"
DESERT = "UPDATE workers SET start = ?, lanes = '[]' WHERE id = ? AND ended_at IS NULL"
MARK_USED = "UPDATE workers SET used = 1 WHERE id = ? AND used = 0"
WORKERS = f"SELECT {WORKER_COLUMNS} FROM workers WHERE ended_at IS NULL ORDER BY id"
LIVING = "SELECT id FROM attempts INDEXED BY attempts_living WHERE gone_at IS NULL AND worker = ?"
OWNS_LIVING = (
    "SELECT 1 FROM attempts INDEXED BY attempts_living WHERE gone_at IS NULL AND worker = ? LIMIT 1"
)
_OWNERS = (
    "SELECT worker FROM attempts INDEXED BY attempts_living"
    " WHERE gone_at IS NULL AND worker IS NOT NULL"
)
# Never its row while attempts of it may live: the row is the evidence about their owner.
DELETE_UNUSED_WORKER = f"DELETE FROM workers WHERE id = ? AND used = 0 AND id NOT IN ({_OWNERS})"
END_WORKER = (
    "UPDATE workers SET ended_at = ?, last_event ="
    " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)"
    f" WHERE id = ? AND ended_at IS NULL AND id NOT IN ({_OWNERS})"
)
# Nothing that is left in the ledger was written while they were here; and an attempt's
# events go with it.
DELETE_OLD_WORKERS = (
    "DELETE FROM workers WHERE ended_at IS NOT NULL"
    " AND last_event < coalesce((SELECT min(id) FROM events), 9223372036854775807)"
)
SERVING = "SELECT token, lanes FROM workers WHERE ended_at IS NULL"
OWNER_TOKEN = (
    "SELECT workers.token FROM attempts INDEXED BY attempts_living"
    " CROSS JOIN workers ON workers.id = attempts.worker"
    " WHERE attempts.job = ? AND attempts.gone_at IS NULL ORDER BY attempts.no DESC LIMIT 1"
)
OWNER = (
    "SELECT workers.name, workers.pid, attempts.started_at, workers.heartbeat_at"
    " FROM attempts INDEXED BY attempts_living"
    " CROSS JOIN workers ON workers.id = attempts.worker"
    " WHERE attempts.job = ? AND attempts.gone_at IS NULL AND attempts.state = 'running'"
    " ORDER BY attempts.no DESC LIMIT 1"
)

# -- recovery ---------------------------------------------------------------------------

# A worker that ended counts as missing: it cannot own anything any more.
LIVING_ATTEMPTS = (
    "SELECT attempts.id, attempts.token, attempts.job, attempts.no, attempts.state,"
    f" {WORKER_COLUMNS} FROM attempts INDEXED BY attempts_living"
    " LEFT JOIN workers ON workers.id = attempts.worker AND workers.ended_at IS NULL"
    " WHERE attempts.gone_at IS NULL ORDER BY attempts.id"
)
IDLE_WORKERS = (
    f"SELECT {WORKER_COLUMNS} FROM workers WHERE ended_at IS NULL AND id NOT IN ({_OWNERS})"
    " ORDER BY id"
)
HEARTBEAT_OF_ATTEMPT = (
    "SELECT workers.heartbeat_boot FROM attempts JOIN workers ON workers.id = attempts.worker"
    " WHERE attempts.id = ? AND attempts.gone_at IS NULL"
)
NOTE_RECOVERY = (
    "UPDATE recoveries SET verdict = ?, reason = ?, at = ?, heartbeat_boot = ? WHERE attempt = ?"
)
# Only of an attempt whose end is not confirmed: that end deletes the note.
ADD_RECOVERY = (
    "INSERT INTO recoveries (attempt, verdict, reason, at, heartbeat_boot)"
    " SELECT id, ?, ?, ?, ? FROM attempts WHERE id = ? AND gone_at IS NULL"
)
# A note is out of date as soon as its worker has beaten again.
RECOVERY = (
    "SELECT recoveries.verdict, recoveries.reason"
    " FROM attempts INDEXED BY attempts_living"
    " CROSS JOIN recoveries ON recoveries.attempt = attempts.id"
    " LEFT JOIN workers ON workers.id = attempts.worker"
    " WHERE attempts.job = ? AND attempts.gone_at IS NULL"
    " AND recoveries.heartbeat_boot IS workers.heartbeat_boot"
    " ORDER BY attempts.no DESC LIMIT 1"
)

# -- healing ----------------------------------------------------------------------------

RUNNING_WITHOUT_ATTEMPT = (
    f"SELECT {JOB_COLUMNS} FROM lanes CROSS JOIN jobs INDEXED BY jobs_by_lane"
    " WHERE jobs.queue = lanes.queue AND jobs.state = 'running' AND NOT EXISTS"
    " (SELECT 1 FROM attempts WHERE job = jobs.id AND gone_at IS NULL AND state = 'running')"
)
# Attempts that run for a job that does not, or that a later attempt has replaced.
RUNNING_FOR_NOTHING = (
    "SELECT a.id, a.job, a.no FROM attempts AS a LEFT JOIN jobs ON jobs.id = a.job"
    " WHERE a.gone_at IS NULL AND a.state = 'running' AND (jobs.state IS NOT 'running'"
    " OR EXISTS (SELECT 1 FROM attempts WHERE job = a.job AND no > a.no AND gone_at IS NULL"
    " AND state = 'running'))"
)
READY_BUT_LIVING = (
    "SELECT DISTINCT jobs.id FROM attempts INDEXED BY attempts_living"
    " CROSS JOIN jobs ON jobs.id = attempts.job"
    " WHERE attempts.gone_at IS NULL AND jobs.state = 'queued'"
    " AND (jobs.ready = 1 OR jobs.due IS NOT NULL)"
)
HELD_FOR_NOTHING = (
    "SELECT id FROM jobs INDEXED BY held"
    " WHERE state = 'queued' AND ready = 0 AND due IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM attempts WHERE job = jobs.id AND gone_at IS NULL)"
)
WITHOUT_JOB = (
    "SELECT attempts.id, attempts.no, attempts.job FROM attempts"
    " LEFT JOIN jobs ON jobs.id = attempts.job"
    " WHERE attempts.gone_at IS NULL AND jobs.id IS NULL"
)

# -- retention --------------------------------------------------------------------------

# Never a job of which processes may still live.
OLD_JOBS = (
    "SELECT id FROM jobs WHERE state = ? AND finished_at < ? AND NOT EXISTS"
    " (SELECT 1 FROM attempts WHERE job = jobs.id AND gone_at IS NULL)"
    " ORDER BY finished_at LIMIT ?"
)
ATTEMPTS_TO_PRUNE = _listed("SELECT id, token, in_files FROM attempts WHERE job IN ({})")
OUTPUT_BYTES = _listed("SELECT coalesce(sum(length(data)), 0) FROM outputs WHERE attempt IN ({})")
EVENTS_TO_PRUNE = _listed("SELECT COUNT(*) FROM events WHERE job IN ({})")
DELETE_OUTPUTS = "DELETE FROM outputs WHERE attempt = ?"
DELETE_ATTEMPTS = "DELETE FROM attempts WHERE job = ?"
DELETE_EVENTS = "DELETE FROM events WHERE job = ?"
DELETE_TAGS = "DELETE FROM tags WHERE job = ?"
DELETE_INPUT = "DELETE FROM inputs WHERE job = ?"
DELETE_JOB = "DELETE FROM jobs WHERE id = ?"

# -- counts -----------------------------------------------------------------------------

LANE_COUNTS = (
    "SELECT queue, queued, running, done, failed, dead, canceled, waiting FROM lanes ORDER BY queue"
)
# For lists: the states in the order of `State`.
_LANES = "SELECT queue, ready, waiting, queued, running, done, failed, dead, canceled FROM lanes"
LANES = f"{_LANES} ORDER BY queue"
LANE_BY_NAME = f"{_LANES} WHERE queue = ?"
READY = "SELECT coalesce(sum(ready), 0) FROM lanes"
READY_IN = f"{READY} WHERE queue = ?"
# Fallen due, but not promoted yet: still counted in `waiting`.
DUE_BY_LANE = "SELECT queue, sum(1) FROM jobs WHERE due_clock = ? AND due <= ? GROUP BY queue"
DUE_BY_LANE_ON_OTHER_BOOTS = (
    "SELECT queue, sum(1) FROM jobs INDEXED BY due_anywhere"
    " WHERE due_clock > 0 AND due_clock <> ? AND due IS NOT NULL"
    " AND run_at <= ? GROUP BY queue"
)
RECENTLY_ENDED = (
    f"SELECT {JOB_COLUMNS} FROM jobs WHERE state = ? AND finished_at IS NOT NULL"
    " ORDER BY finished_at DESC, id DESC LIMIT ?"
)
BUSY_LANE = (
    "SELECT 1 FROM lanes WHERE running > 0 OR ready > 0 OR retrying > 0 OR living > 0 LIMIT 1"
)

# -- a look without a trace ---------------------------------------------------------------

# What workers run, or are to run.
UNSETTLED = (
    f"SELECT {JOB_COLUMNS} FROM lanes CROSS JOIN jobs INDEXED BY jobs_by_lane"
    " ON jobs.queue = lanes.queue AND jobs.state IN ('queued', 'running') LIMIT ?"
)

# How many jobs of each lane could start now, and since when the first of them could: those
# that are marked, and those whose time has come without a worker to mark them.
READY_SINCE = "SELECT queue, sum(1), min(run_at) FROM jobs WHERE ready = 1 GROUP BY queue"
DUE_SINCE = (
    "SELECT queue, sum(1), min(run_at) FROM jobs WHERE due_clock = ? AND due <= ? GROUP BY queue"
)
DUE_SINCE_ON_OTHER_BOOTS = (
    "SELECT queue, sum(1), min(run_at) FROM jobs WHERE due_clock > 0 AND due_clock <> ?"
    " AND due IS NOT NULL AND run_at <= ? GROUP BY queue"
)
LIVING_BY_WORKER = "SELECT worker, sum(1) FROM attempts WHERE gone_at IS NULL GROUP BY worker"

"""A process that owns a lock, as a worker does: owner.py LOCK.

Prints its identity and lives until its standard input ends. `owner.py --judge FOLDER` judges
itself and a made-up dead one instead, and prints the verdicts.
"""

import json
import os
import sys

from spoolctl.process import locks, table
from spoolctl.process.identity import Evidence, judge, self_identity
from spoolctl.process.search import Snapshot


def own(path):
    fd = locks.take(path)
    found = os.fstat(fd)
    return fd, self_identity(found.st_dev, found.st_ino)


if sys.argv[1] == "--judge":
    path = os.path.join(sys.argv[2], "lock")
    fd, me = own(path)
    evidence = Evidence(os.path.join(sys.argv[2], "queue.db"))
    answers = {"table_is_ours": table.is_ours()}
    answers["alive_with_lock"] = judge(me, path, evidence=evidence).verdict.value
    os.close(fd)
    answers["dead_without_lock"] = judge(
        me._replace(pid=4000), path, evidence=evidence
    ).verdict.value
    answers["blind"] = Snapshot.take().blind
    print(json.dumps(answers))
else:
    fd, me = own(sys.argv[1])
    print(json.dumps(me), flush=True)
    sys.stdin.read()

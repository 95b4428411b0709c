"""`python3 -m tests.chaos`: a storm, then the checker's verdict. Exit 1 if a promise was broken."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.ablation import ABLATIONS
from tests.chaos.checker import check
from tests.chaos.history import History
from tests.chaos.run import Run, SmallDisk
from tests.chaos.storm import Storm


def main() -> int:
    """Run it as the command line says."""
    args = _arguments()
    seed = args.seed if args.seed is not None else random.SystemRandom().getrandbits(32)
    folder = Path(tempfile.mkdtemp(prefix="chaos."))
    print(
        f"seed {seed}, {args.workers} workers, {args.jobs} jobs in the queue, in {folder}",
        flush=True,
    )
    try:
        disk = SmallDisk(folder / "disk")
    except OSError as error:
        disk = None
        print(f"no full disk: {error}")
    run = Run(folder, disk=disk, without=args.without)
    storm = Storm(run, seed, workers=args.workers, backlog=args.jobs)
    began = time.monotonic()
    try:
        storm.rage(lambda: _is_over(args, run, time.monotonic() - began))
        raged = time.monotonic() - began
        storm.calm()
        history = run.history()
        violations = check(history)
        if violations and disk:  # it goes with the run
            shutil.copytree(disk.folder, folder / "kept", copy_function=_copy)
    finally:
        run.close()
    print(f"raged for {raged:.0f} s, settled after {time.monotonic() - began - raged:.0f} s more")
    _report(storm, history)
    for violation in violations:
        print(f"VIOLATION {violation.rule}: {violation.text}")
    print(f"{len(violations)} violations" + (f", see {folder}" if violations else ""))
    if not violations and not args.keep:
        shutil.rmtree(folder)
    return 1 if violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=None, help="rage for so long (1)")
    parser.add_argument("--kills", type=int, help="rage until so many workers were SIGKILLed")
    parser.add_argument("--seed", type=int, help="decides what is done in which order (random)")
    parser.add_argument("--workers", type=int, default=6, help="at a time (6)")
    parser.add_argument("--jobs", type=int, default=30, help="waiting or running, at least (30)")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=sorted(ABLATIONS),
        help="switch this mechanism off in all workers, to see what it is good for",
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    args = parser.parse_args()
    if args.minutes is None and args.kills is None:
        args.minutes = 1.0
    return args


def _is_over(args: argparse.Namespace, run: Run, seconds: float) -> bool:
    if args.kills is not None and run.fleet.kills >= args.kills:
        return True
    return args.minutes is not None and seconds >= 60 * args.minutes


def _copy(source: str, target: str) -> None:
    if os.path.isfile(source):  # a doorbell is none
        shutil.copy2(source, target)


def _report(storm: Storm, history: History) -> None:
    fleet = storm.run.fleet
    print(f"workers: {len(fleet.all)} started, {fleet.kills} killed, {fleet.pairs} with guardian")
    print("blows: " + _listing(storm.did))
    print(f"acknowledged: {_listing(Counter(act.kind for act in history.acts if act.sure))}")
    print("jobs: " + _listing(Counter(job.state for job in history.jobs)))
    tries = [one for job in history.jobs for one in job.tries]
    print("attempts: " + _listing(Counter(f"{one.state}/{one.reason or '-'}" for one in tries)))
    bytes_ = sum(one.stdout.size + one.stderr.size for one in tries)
    starts = sum(record.kind == "start" for record in history.records)
    print(f"events: {len(history.entries)}; processes in the ledger: {starts}; output: {bytes_} B")


def _listing(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"


if __name__ == "__main__":
    sys.exit(main())

"""Run the benchmarks.

    python3 -m benchmarks [NAME ...] [--runs N] [--scale X] [--peers FOLDER] [--out FILE]

Without names all of them. `--scale 0.05` is for trying out; figures for the record are made
with the default 1 on a quiet machine. `--peers`: what `python3 -m benchmarks.peers FOLDER`
has installed. `--out`: the results as JSON; the table goes to stdout.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import registry, report
from benchmarks.base import Bench
from benchmarks.machine import facts


def main() -> int:
    """Run what was asked for; 0 if everything could be measured, whatever the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *registry.ALL], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="the names, one a line")
    parser.add_argument("--runs", type=int, default=5, help="rounds behind a median")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full sizes")
    parser.add_argument("--scratch", type=Path, help="where queues are made (a local disk)")
    parser.add_argument("--peers", type=Path, help="folder with other queues")
    parser.add_argument("--out", type=Path, help="write JSON here")
    args = parser.parse_args()
    if args.list:
        print("\n".join(registry.ALL))
        return 0
    failed = False
    with tempfile.TemporaryDirectory(prefix="benchmarks.", dir=args.scratch) as scratch:
        place = Path(scratch).resolve()
        peers = args.peers.resolve() if args.peers else None
        bench = Bench(place, runs=args.runs, scale=args.scale, peers=peers)
        machine = facts(place)
        sections = []
        for name in args.names or registry.ALL:
            began = time.perf_counter()
            try:
                results = registry.load(name)(bench)
                error = None
            except RuntimeError as failure:
                results, error, failed = [], str(failure), True
            took = time.perf_counter() - began
            sections.append(report.Section(name, results, took, error))
            if args.out:
                # After each one: what was measured is kept, whatever happens to the next.
                args.out.write_text(report.as_json(machine, vars(args), sections))
            print(report.table(sections[-1]), flush=True)
    print(report.machine_table(machine))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

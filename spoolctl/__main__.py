"""`python3 -m spoolctl`, and the `spoolctl` command."""

from __future__ import annotations

import os
import signal
import sys

# First of all: a Ctrl-C at any point from here on ends the program as it ends any other, by
# the signal and without a traceback. One that is ignored (nohup, a background job) stays so.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Run the program with the words of this process; returns its exit status."""
    _fill_standard_descriptors()
    from spoolctl.cli.main import main as run

    return run(sys.argv[1:])


def _fill_standard_descriptors() -> None:
    """Put /dev/null where stdin, stdout or stderr were closed.

    Otherwise the next file that is opened would get the number, and what is meant for
    people would be written into it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(main())

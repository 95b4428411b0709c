"""`python3 -m spoolctl`, and the `spoolctl` command."""

from __future__ import annotations

# `signal` wraps it in enums, which take half a millisecond to make.
import _signal  # type: ignore[import-not-found]
import gc
import os
import sys

# First of all: a Ctrl-C at any point from here on ends the program as it ends any other, by
# the signal and without a traceback. One that is ignored (nohup, a background job) stays so.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

LONG_RUNNING = frozenset({"work", "run", "wait", "events", "output"})
"""Verbs that may live for long, and so want their cycles collected."""

COLLECT_AFTER = 20_000
"""Objects more than at the last collection. What is imported at the start is fewer, and none
of it garbage: to look through it again and again takes as long as three commands."""


def main() -> None:
    """Run the program with the words of this process, and end it with the exit status.

    Start and end take as long as everything between them for a verb like `add`: nothing is
    collected that the end of the process gives back anyway, and the interpreter is not taken
    down piece by piece when all is closed.
    """
    _take_words_as_utf8()
    if LONG_RUNNING.intersection(sys.argv[1:2]):
        gc.set_threshold(COLLECT_AFTER)
    else:
        gc.disable()
    _fill_standard_descriptors()
    from spoolctl.cli.main import main as run

    os._exit(run(sys.argv[1:]))


def _take_words_as_utf8() -> None:
    """Start over in Python's UTF-8 mode where the locale has another encoding.

    Words and paths are stored as text, and read again under other locales: decoded as, say,
    Latin-1 they would come out as other bytes. A flag and not PYTHONUTF8, which the commands
    would inherit. (Under C and POSIX the mode is on anyway, from Python 3.15 on everywhere.)
    """
    if sys.flags.utf8_mode or sys.getfilesystemencoding() == "utf-8" or "utf8" in sys._xoptions:
        return
    if sys.argv[0] == "-":  # read from stdin, which is used up: nothing would be done, with exit 0
        return
    try:
        os.execv(sys.executable or "", [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    except (OSError, ValueError):
        return  # no interpreter at the place where it was: go on with what there is


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


def _forget_the_current_folder() -> None:
    """Take away what `python -m` puts first on the path: the current folder.

    A project that has a `signal.py` or a `select.py` would be imported instead of the standard
    library. Our own modules are found by where their package is.
    """
    if not sys.flags.isolated and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]


if __name__ == "__main__":
    _forget_the_current_folder()
    main()

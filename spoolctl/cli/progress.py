"""The live line of `work --drain` on a terminal."""

from __future__ import annotations

import time

from spoolctl.cli.render import Out, duration, fit
from spoolctl.engine.log import FINISH_S, LineLog, writable

MIN_INTERVAL_S = 0.1
ERASE_LINE = "\r\x1b[K"


class DrainLine:
    """Called by the worker with what is done, failed, running and left; shows it in one line
    below the log, which goes on to scroll above it."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._log = LineLog(out.stderr)
        self._started_mono = time.monotonic()
        self._drawn_mono = 0.0
        self._line = ""
        self._counts = (0, 0, 0, 0)

    def __call__(self, done: int, failed: int, running: int, left: int) -> None:
        """Draw the line anew, not more often than can be seen."""
        now = time.monotonic()
        self._counts = (done, failed, running, left)
        if now - self._drawn_mono >= MIN_INTERVAL_S:
            self._drawn_mono = now
            self._line = self.text(now - self._started_mono)
            self._write(ERASE_LINE + self._line)

    def text(self, elapsed_s: float) -> str:
        """The line after so much time."""
        done, failed, running, left = self._counts
        ended = done + failed
        parts = [f"{done} done", f"{failed} failed", f"{running} running", f"{left} left"]
        if ended and elapsed_s > 0:
            rate = ended / elapsed_s
            parts.append(f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min")
            parts.append(f"{duration((left + running) / rate)} to go")
        return fit("  ".join(parts), self._out.error_columns() - 1)

    def log(self, line: str) -> None:
        """One line of the worker's log, above the live one."""
        self._write(ERASE_LINE)
        self._log(line)
        self._write(self._line)

    def finish(self, *, executed: int, drained: bool) -> None:
        """Replace the live line by a summary, after all of the log."""
        done, failed, _, left = self._counts
        took = duration(time.monotonic() - self._started_mono)
        self._log.finish()
        rest = "" if drained else f", {left} left"
        self._line = ""
        # The last of the log may have filled the terminal just now. One that has not taken all of
        # that in all the time that it had is waited for no longer.
        self._write(
            f"{ERASE_LINE}{executed} attempts in {took}: {done} done, {failed} failed{rest}\n",
            0.0 if self._log.behind else FINISH_S,
        )

    def _write(self, text: str, wait_s: float = 0.0) -> None:
        # Not waiting before the end: a terminal that was stopped (Ctrl-S) must not stop the worker.
        if text and writable(self._out.stderr, wait_s):
            self._out.error_text(text)

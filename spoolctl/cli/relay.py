"""A disposable process that writes a job's output to ours.

A reader that is slow, stopped or gone may hold up this process, and never the worker. It is
forked before the caller opens its queue, since an open SQLite file must not be taken along
into another process (sqlite.org/howtocorrupt.html), and ends with the caller, however that
ends.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from spoolctl.cli.render import Out, OutputClosed, OutputFailed, encode
from spoolctl.cli.signals import STOP_SIGNALS
from spoolctl.core.records import Attempt, Job
from spoolctl.engine.options import Helper
from spoolctl.errors import NotFound, SpoolError
from spoolctl.queue import Queue

CLOSED, FAILED, BROKEN, DONE = b"closed ", b"failed ", b"broken ", b"done "
"""How a report begins: nobody reads stdout, it cannot be written, we cannot go on, all is
written."""

NOW = b"."
"""Said by the caller: write what there is, and end."""


class Relay:
    """The process, as its caller sees it. Made before anything of the queue is opened.

    `helper` is for the worker: it ends early only where going on makes no sense.
    """

    def __init__(self, out: Out, path: str) -> None:
        """Start the process. Raises OSError."""
        leash_read, self._leash = os.pipe()
        report, report_write = os.pipe()
        # Until it ignores them itself, no signal may reach the new process.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
        try:
            pid = os.fork()
            if pid == 0:
                _be_relay(out, path, leash_read, report_write, (self._leash, report), blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(leash_read)
            os.close(report_write)
        self.helper = Helper(pid, report)

    def begin(self, job_id: int, attempt_no: int) -> None:
        """Write the output of this job, from the first byte of this attempt, which need not
        have begun, until the job has settled."""
        with suppress(BrokenPipeError):  # it has ended: `finish` tells why
            os.write(self._leash, b"%d %d\n" % (job_id, attempt_no))

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait until everything is written. With `timeout_s`: what there is now, if the
        reader takes it in time.

        Raises:
            OutputClosed: nobody reads stdout any more.
            OutputFailed: stdout cannot be written.
            SpoolError: the output cannot be followed; the job has nothing to do with it.
        """
        if timeout_s is not None:
            with suppress(BrokenPipeError):
                os.write(self._leash, NOW)
        report = self._read_report(timeout_s)
        self.close()
        if report is None or report.startswith(DONE):
            return
        if report.startswith(CLOSED):
            raise OutputClosed
        text = report[len(FAILED) :].decode("utf-8", "replace")
        if report.startswith(FAILED):
            raise OutputFailed(text)
        raise SpoolError(text or "the process that writes the output was killed")

    def _read_report(self, timeout_s: float | None) -> bytes | None:
        """What it says at its end; None if it does not end in time."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self.helper.fd, select.POLLIN)
        report = b""
        while True:
            left = None if until is None else max(0.0, until - time.monotonic()) * 1000
            if not poll.poll(left):
                return None
            part = os.read(self.helper.fd, 4096)
            if not part:
                return report
            report += part

    def close(self) -> None:
        """Let go: it ends now, whatever is not written. May be called twice."""
        if self._leash >= 0:
            os.close(self._leash)
            os.close(self.helper.fd)
            self._leash = -1


# -- the process itself ---------------------------------------------------------------------

_IGNORED = frozenset(STOP_SIGNALS)
"""They reach the whole foreground group of a terminal; when to end is the caller's to say."""


def _be_relay(
    out: Out,
    path: str,
    leash: int,
    report: int,
    others: tuple[int, ...],
    mask: set[int | signal.Signals],
) -> None:
    """The life of the new process. Does not return."""
    said = BROKEN
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for fd in others:
            os.close(fd)
        said = _Mouth(out, path, leash).speak()
    except OutputClosed:
        said = CLOSED
    except OutputFailed as error:
        said = FAILED + encode(str(error))
    except (SpoolError, OSError) as error:
        said = BROKEN + encode(str(error))
    finally:
        # No clean-up of the caller's may run in this copy of it.
        with suppress(OSError):
            os.write(report, said)
        os._exit(0)


class _Finished(Exception):
    """The caller wants no more than has been written."""


class _Mouth:
    """Follows the job and writes what comes."""

    def __init__(self, out: Out, path: str, leash: int) -> None:
        self._out = out
        self._path = path
        self._leash = leash
        self._last_turn = False
        self._leaving = False

    def speak(self) -> bytes:
        """Everything, from the order to begin until the job has settled. Raises OutputClosed,
        OutputFailed, SpoolError and OSError."""
        order = b""
        while not order.endswith(b"\n"):
            part = os.read(self._leash, 64)
            if not part:
                return DONE  # there is no job
            order += part
        job_id, attempt_no = map(int, order.split())
        with suppress(_Finished, NotFound), Queue(self._path, create=False, brief=True) as queue:
            # Named: we may look only when it has failed already, and the next one runs.
            for piece in queue.follow(
                job_id,
                attempt_no=attempt_no,
                waits=True,
                retries=True,
                on_idle=self._look_around,
                on_retry=self._tell_retry,
            ):
                if piece.stream == "stdout":
                    self._write_out(piece.data)
                else:
                    self._write_err(piece.data)
        return DONE

    def _write_out(self, data: bytes) -> None:
        try:
            self._write(self._out.stdout, data)
        except BrokenPipeError:
            raise OutputClosed from None
        except OSError as error:
            raise OutputFailed(os.strerror(error.errno or 0)) from None

    def _write_err(self, data: bytes) -> None:
        with suppress(OSError):  # as everywhere: a lost stderr ends nothing
            self._write(self._out.stderr, data)

    def _write(self, fd: int, data: bytes) -> None:
        """Write all, ready to end at any moment in which the reader does not read."""
        left = memoryview(data)
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        poll.register(self._leash, select.POLLIN)
        while left:
            ready = {number for number, _ in poll.poll()}
            if self._leash in ready:
                self._listen()
            if fd in ready:
                with suppress(BlockingIOError):
                    # So much a pipe takes that poll(2) calls writable.
                    left = left[os.write(fd, left[: select.PIPE_BUF]) :]

    def _listen(self) -> None:
        """What the caller says; ends the process if it is gone."""
        if not os.read(self._leash, 64):
            os._exit(0)
        self._leaving = True

    def _look_around(self) -> None:
        """Called while nothing comes."""
        if self._last_turn:
            raise _Finished
        poll = select.poll()
        poll.register(self._leash, select.POLLIN)
        if poll.poll(0):
            self._listen()
        # What was committed before we were told is still looked at once.
        self._last_turn = self._leaving
        self._out.check_reader()

    def _tell_retry(self, job: Job, attempt: Attempt) -> None:
        from spoolctl.cli.attend import next_try

        if not self._leaving:
            self._write_err(encode(next_try(job, attempt) + "\n"))

"""For all tests: signals as a program on a terminal has them."""

from __future__ import annotations

import signal

# A shell without job control lets what it starts in the background ignore SIGINT, nohup lets
# it ignore SIGHUP; every program under test would inherit that, and rightly keep it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)

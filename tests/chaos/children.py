"""Processes that are killed: which one is it, and is it there yet?"""

from __future__ import annotations

import os
import signal
import time

from headrace.embedded.process import GuardedProcess

START_S = 180.0  # for a guard, and the process that it starts
STOP_S = 180.0


def read_pid(child: GuardedProcess) -> int:
    """Return the pid of a child as soon as its guard has written the pid file."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return child.pid
        except (FileNotFoundError, ValueError):  # not written yet
            if time.monotonic() > deadline or child.exit_code() is not None:
                raise
            time.sleep(0.01)


def kill(child: GuardedProcess) -> None:
    os.kill(read_pid(child), signal.SIGKILL)
    child.stop()  # its guard leaves too


def stop_all(children: list[GuardedProcess]) -> None:
    for child in children:
        child.request_stop()
    for child in children:
        child.stop(STOP_S)

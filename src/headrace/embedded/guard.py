"""Runs one command and ends it when the process that asked for it is gone.

Started as a script with the standard library alone, so that it is small and quick:

    python guard.py PIDFILE STOP_SIGNAL LOCK COMMAND...

Standard input is a pipe that only the parent can write to. One byte on it asks for an orderly
stop; end of file means the parent closed it or died, kill -9 included. This works on every POSIX
system and for every binary, which a death signal (Linux only, lost when credentials change) does
not. The guard exits with the command's own code.

LOCK is the number of an open file that the command inherits: whoever waits for its lock knows that the command is gone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

ORPHAN_GRACE_S = 3.0


def end(child: "subprocess.Popen[bytes]", stop_signal: int) -> None:
    """Ask the command to stop; kill its whole group if it has not within the grace."""
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(stop_signal)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(ORPHAN_GRACE_S)
    kill_group(child.pid)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def leave_with(child: "subprocess.Popen[bytes]", pidfile: str) -> None:
    """Wait for the command, clear up what it left, and exit as it did."""
    code = child.wait()
    kill_group(child.pid)
    with contextlib.suppress(OSError):
        os.unlink(pidfile)
    os._exit(code if code >= 0 else 128 - code)


def main(pidfile: str, stop_signal: int, lock: int, command: list[str]) -> None:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[lock])
    with open(pidfile, "w") as file:
        file.write(str(child.pid))
    threading.Thread(target=leave_with, args=(child, pidfile), daemon=True).start()
    if os.read(0, 1):
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(stop_signal)
        os.read(0, 1)  # the parent decides how long an orderly stop may take
    end(child, stop_signal)
    threading.Event().wait()  # leave_with ends this process


def survive(*_: object) -> None:
    """A handler that does nothing. SIG_IGN would be inherited by the command, which then could not be stopped
    until it has installed handlers of its own."""


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, survive)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])

"""Runs a command, and stops it when the parent process exits.

Runs as a script that imports only the standard library, so that it starts fast:

    python guard.py PIDFILE STOP_SIGNAL LOCK COMMAND...

Standard input is a pipe that only the parent can write to. One byte requests an orderly stop; end
of file means that the parent closed the pipe or exited, for example by kill -9. This works on every
POSIX system and for every binary, unlike a parent-death signal, which exists only on Linux and is lost
when credentials change. The guard exits with the exit code of the command.

LOCK is the file descriptor of a lock that the command inherits: it is released when the command has exited.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

ORPHAN_GRACE_S = 3.0


def stop_or_kill(child: "subprocess.Popen[bytes]", stop_signal: int) -> None:
    """Send the stop signal to the command, and kill its process group after the grace period."""
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(stop_signal)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(ORPHAN_GRACE_S)
    kill_group(child.pid)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def exit_with_child(child: "subprocess.Popen[bytes]", pidfile: str) -> None:
    """Wait for the command, kill the rest of its process group, and exit with its exit code."""
    code = child.wait()
    kill_group(child.pid)
    with contextlib.suppress(OSError):
        os.unlink(pidfile)
    os._exit(code if code >= 0 else 128 - code)


def main(pidfile: str, stop_signal: int, lock: int, command: list[str]) -> None:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[lock])
    with open(pidfile, "w") as file:
        file.write(str(child.pid))
    threading.Thread(target=exit_with_child, args=(child, pidfile), daemon=True).start()
    if os.read(0, 1):
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(stop_signal)
        os.read(0, 1)  # the parent closes the pipe when the orderly stop takes too long
    stop_or_kill(child, stop_signal)
    threading.Event().wait()  # exit_with_child ends this process


def ignore_signal(*_: object) -> None:
    """Handle a signal by doing nothing.

    SIG_IGN would be inherited by the command, which could not be stopped until it has installed its own handlers.
    """


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ignore_signal)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])

"""A child process that cannot outlive its parent, and the base class of the embedded servers."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.embedded import guard
from headrace.errors import EmbeddedError, PortTaken

LOOPBACK = "127.0.0.1"
STOP_GRACE_S = 20.0
POLL_S = 0.02
LOWEST_PORT, HIGHEST_PORT = 15_000, 65_535  # lower ports are used by well-known servers
PORT_TRIES = 100
PREVIOUS_RUN_TIMEOUT_S = 15.0  # longer than a guard's grace period for the process of a killed run


class GuardedProcess:
    """A command that runs under a guard (see guard.py) and writes its output to a log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        stop_signal: signal.Signals = signal.SIGTERM,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_file = log_file
        self.stop_signal = stop_signal
        self.env = dict(env or {})
        self.cwd = cwd
        self._pid_file = log_file.absolute().with_suffix(".pid")
        self._guard: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self) -> None:
        lock = acquire_process_lock(self.name, self.log_file)
        self._pid_file.unlink(missing_ok=True)
        guarded = [sys.executable, "-ISE", guard.__file__, str(self._pid_file), str(int(self.stop_signal)), str(lock)]
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            try:
                self._guard = subprocess.Popen(
                    guarded + self.command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.env},
                    cwd=self.cwd,
                    pass_fds=[lock],
                    # In its own session: Ctrl-C reaches only the parent, which stops its children in order.
                    start_new_session=True,
                )
            finally:
                os.close(lock)

    @property
    def pid(self) -> int:
        """Return the process id of the command, not of its guard."""
        return int(self._pid_file.read_text())

    def exit_code(self) -> int | None:
        """Return the exit code, or None if the process is running or was not started."""
        return None if self._guard is None else self._guard.poll()

    def restart(self) -> None:
        self.start()

    def describe_log(self, lines: int = 4) -> str:
        return f"Last lines of {self.log_file}:\n{self.log_tail(lines)}"

    def log_tail(self, lines: int = 12) -> str:
        """Return the last lines of the log since the last start."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def request_stop(self) -> None:
        """Request an orderly stop without waiting, so that several processes can stop at the same time."""
        if self._guard is not None and self._guard.stdin is not None and not self._guard.stdin.closed:
            with suppress(BrokenPipeError):  # the guard has already exited
                self._guard.stdin.write(b"s")
                self._guard.stdin.flush()

    def stop(self, grace_s: float = STOP_GRACE_S) -> int | None:
        """Stop the command and return its exit code. After the grace period, the guard kills it."""
        if self._guard is None:
            return None
        self.request_stop()
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(grace_s)
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.close()
        return self._guard.wait()


class EmbeddedServer(ABC):
    """A server with its own data directory: start, wait_ready, stop, url."""

    name: str
    stop_signal = signal.SIGTERM

    def __init__(self, data_dir: Path, log_dir: Path, port: int = 0, preferred_port: int = 0) -> None:
        self.data_dir = data_dir
        self.log_file = log_dir / f"{self.name}.log"
        self._configured_port = port
        self._preferred_port = preferred_port
        self._child: GuardedProcess | None = None
        self.port = port

    @property
    @abstractmethod
    def url(self) -> str:
        """Return the URL for clients."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command line of the server, for `self.port` and `self.data_dir`."""

    @abstractmethod
    def ping(self) -> str | None:
        """Return the version of the server if it responds, otherwise None."""

    def prepare(self) -> None:
        """Create the files that the command needs."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data_dir.chmod(0o700)  # older releases left it open to all users

    def working_dir(self) -> Path | None:
        """Return the working directory of the command; None = that of this process."""
        return None

    def choose_port(self) -> int:
        return choose_port(self.name, self._configured_port, self._preferred_port)

    @property
    def child(self) -> GuardedProcess:
        if self._child is None:
            raise EmbeddedError(f"{self.name} was not started.")
        return self._child

    def start(self) -> None:
        os.close(
            acquire_process_lock(self.name, self.log_file)
        )  # before a port is chosen, because the server of an earlier run may still use it
        self.port = self.choose_port()
        self.prepare()
        self._child = GuardedProcess(
            self.name,
            self.command(),
            log_file=self.log_file,
            stop_signal=self.stop_signal,
            cwd=self.working_dir(),
        )
        self._child.start()

    def wait_ready(self, timeout_s: float) -> str:
        """Wait until the server responds, and return its version. Raises EmbeddedError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (code := self.child.exit_code()) is not None:
                raise EmbeddedError(self._describe_failure(f"exited during start-up (exit code {code})"))
            if (version := self.ping()) is not None:
                return version
            time.sleep(POLL_S)
        raise EmbeddedError(self._describe_failure(f"did not respond within {timeout_s:g} s (embedded.start_timeout)"))

    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.exit_code()

    def restart(self) -> None:
        """Start the server again after it exited, at the same address and with its data."""
        self._configured_port = self.port
        self.start()

    def describe_log(self, lines: int = 4) -> str:
        return f"Its data was kept in {self.data_dir}. {self.child.describe_log(lines)}"

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _describe_failure(self, how: str) -> str:
        return f"The embedded {self.name} server {how}. {self.describe_log(12)}"


def acquire_process_lock(name: str, log_file: Path) -> int:
    """Wait for the same process of an earlier run to exit, and return a lock file descriptor for the new process.

    Two servers must never write to the same files. The new process inherits the lock, which is released when it exits.
    """
    log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(log_file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + PREVIOUS_RUN_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(lock)
                raise EmbeddedError(
                    f"The {name} process of an earlier run is still running after {PREVIOUS_RUN_TIMEOUT_S:g} s (its "
                    f"process id is in {log_file.with_suffix('.pid')}). Nothing was started. Stop that process and try "
                    "again."
                ) from error
        time.sleep(POLL_S)


def choose_port(name: str, wanted: int, preferred: int = 0) -> int:
    """Return the wanted port if it is not 0, otherwise the preferred one if it is free, otherwise any free port.

    Raises PortTaken if the wanted port is in use.
    """
    if wanted:
        if not is_port_free(wanted):
            raise PortTaken(
                f"Port {wanted} for {name} is in use by another process. Nothing was started. "
                "Stop that process, or choose another port in the settings (0 = any free port)."
            )
        return wanted
    if preferred and is_port_free(preferred):
        return preferred
    return find_free_port()


def find_free_port(also_free: int = 0) -> int:
    """Return a free port such that the port `also_free` above it is free too.

    Both are below the ephemeral ports, so that no outgoing connection can take them before the server binds them or
    while it restarts. If there are too few such ports, any free port is returned.
    """
    last = find_first_ephemeral_port() - also_free
    for _ in range(PORT_TRIES if last > LOWEST_PORT else 0):
        port = LOWEST_PORT + secrets.randbelow(
            last - LOWEST_PORT
        )  # not `random`: other processes may use the same seed
        if is_port_free(port) and is_port_free(port + also_free):
            return port
    while True:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port = int(probe.getsockname()[1])
        if port + also_free <= HIGHEST_PORT:
            return port


def find_first_ephemeral_port() -> int:
    """Return the lowest ephemeral port, which the kernel may assign to outgoing connections."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    except (OSError, ValueError):  # not Linux: use IANA's range
        return 49_152


def is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def find_wheel_files(package: str, pattern: str) -> list[Path]:
    """Return the files of an installed wheel that match a pattern, without importing it; empty if not installed."""
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return sorted(path for folder in folders for path in Path(folder).glob(pattern))

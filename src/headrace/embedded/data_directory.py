"""The data directory of a stack: its lock, its format version and the addresses of its servers.

.headrace/
  lock         held (flock) by the running `headrace up`; released by the kernel when the process exits
  version.json the format of the directory, and the release that wrote it
  stack.json   addresses of the servers; valid while the lock is held, used as a hint for ports otherwise
  valkey/ postgres/ clickhouse/ pipeline/ log/
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, cast

from headrace.errors import DataDirectoryError

FORMAT = 1


class DataDirectory:
    """A data directory, used by one process at a time."""

    def __init__(self, path: Path, min_free_bytes: int) -> None:
        self.path = path.absolute()
        self.log_dir = self.path / "log"
        self._min_free_bytes = min_free_bytes
        self._lock: IO[str] | None = None

    def acquire(self) -> None:
        """Lock the directory and check its format. Raises DataDirectoryError and changes nothing if it is unusable."""
        self._create()
        self._check_free_space()
        self._acquire_lock()
        try:
            self._check_format()
        except DataDirectoryError:
            self.release()
            raise

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_last_stack(self) -> dict[str, Any]:
        """Return the addresses recorded by the last stack; empty if there was none or they are unreadable."""
        return read_json(self.path / "stack.json")

    def write_stack(self, stack: dict[str, Any]) -> None:
        write_json(self.path / "stack.json", stack)

    def _create(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.path / f".probe.{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise DataDirectoryError(
                f"Cannot write to the data directory {self.path} ({error.strerror}). Nothing was started. "
                "Fix its permissions, or choose another with --data-dir or HEADRACE_EMBEDDED_DATA_DIR."
            ) from error

    def _check_free_space(self) -> None:
        free = shutil.disk_usage(self.path).free
        if free < self._min_free_bytes:
            raise DataDirectoryError(
                f"Only {free // 2**20} MiB free on the disk of {self.path}, less than embedded.min_free "
                f"({self._min_free_bytes // 2**20} MiB). Nothing was started. Free some disk space or choose "
                "another data directory."
            )

    def _acquire_lock(self) -> None:
        lock = (self.path / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise DataDirectoryError(
                f"Another Headrace stack is running on {self.path} "
                f"(process {self.read_last_stack().get('pid', 'unknown')}). "
                "Nothing was started. Stop it, or use another --data-dir."
            ) from error
        self._lock = lock

    def _check_format(self) -> None:
        found = read_json(self.path / "version.json")
        if found.get("format", 0) > FORMAT:
            raise DataDirectoryError(
                f"{self.path} was written by Headrace {found.get('headrace')} (format {found['format']}; this "
                f"release, {version('headrace')}, reads up to {FORMAT}). Nothing was changed. Use that release or "
                "a newer one, or choose another data directory."
            )
        write_json(self.path / "version.json", {"format": FORMAT, "headrace": version("headrace")})


def find_running_stack(path: Path) -> dict[str, Any] | None:
    """Return the addresses of the stack that is running on a data directory, or None if there is none."""
    try:
        with (path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # the lock is free: no stack is running
    except BlockingIOError:
        return read_json(path / "stack.json") or None
    except OSError:
        return None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or unreadable."""
    try:
        found: object = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_private_file(path, json.dumps(value, indent=2))


def write_private_file(path: Path, text: str) -> None:
    """Write a file that only its owner can read, replacing any existing file atomically."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)  # an existing file may have other permissions
    with open(fresh, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)

"""The data directory of a stack: who owns it, which release wrote it, where its servers listen.

.headrace/
  lock         held (flock) by the running `headrace up`; the kernel frees it when that dies
  version.json the format of what is inside, and the release that wrote it
  stack.json   addresses of the servers; true while the lock is held, a hint for ports otherwise
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
    """Opened by one process at a time; two directories live side by side."""

    def __init__(self, path: Path, min_free_bytes: int) -> None:
        self.path = path.absolute()
        self.log_dir = self.path / "log"
        self._min_free_bytes = min_free_bytes
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Take the directory, or say why not. Nothing in it changes when it is refused."""
        self._make()
        self._refuse_little_space()
        self._take_lock()
        try:
            self._refuse_newer_format()
        except DataDirectoryError:
            self.close()
            raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def last_stack(self) -> dict[str, Any]:
        """What the last stack wrote about itself (empty if there was none, or it is unreadable)."""
        return read_json(self.path / "stack.json")

    def write_stack(self, stack: dict[str, Any]) -> None:
        write_json(self.path / "stack.json", stack)

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.path / f".probe.{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise DataDirectoryError(
                f"The data directory {self.path} cannot be written ({error.strerror}). Nothing was started. "
                "Choose another with --data-dir or HEADRACE_EMBEDDED_DATA_DIR, or correct its permissions."
            ) from error

    def _refuse_little_space(self) -> None:
        free = shutil.disk_usage(self.path).free
        if free < self._min_free_bytes:
            raise DataDirectoryError(
                f"The disk of {self.path} has {free // 2**20} MiB free, less than embedded.min_free "
                f"({self._min_free_bytes // 2**20} MiB). Nothing was started. Free some space or choose "
                "another data directory."
            )

    def _take_lock(self) -> None:
        lock = (self.path / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise DataDirectoryError(
                f"Another Headrace is running on {self.path} (process {self.last_stack().get('pid', 'unknown')}). "
                "Nothing was started. Stop it, or give this one its own --data-dir."
            ) from error
        self._lock = lock

    def _refuse_newer_format(self) -> None:
        found = read_json(self.path / "version.json")
        if found.get("format", 0) > FORMAT:
            raise DataDirectoryError(
                f"{self.path} was written by Headrace {found.get('headrace')} (format {found['format']}; this "
                f"release, {version('headrace')}, reads up to {FORMAT}). Nothing was changed. Use that release or "
                "newer, or another data directory."
            )
        write_json(self.path / "version.json", {"format": FORMAT, "headrace": version("headrace")})


def running_stack(path: Path) -> dict[str, Any] | None:
    """The addresses of the stack that runs on a data directory now, or None."""
    try:
        with (path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # nobody holds it
    except BlockingIOError:
        return read_json(path / "stack.json") or None
    except OSError:
        return None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none or it is unreadable."""
    try:
        found: object = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_private(path, json.dumps(value, indent=2))


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole with one that only its owner can read."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)  # its permissions may be others
    with open(fresh, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)

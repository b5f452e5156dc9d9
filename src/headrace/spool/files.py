"""File system interface of the spool: every call that can fail, block or lose data goes through it.

Tests substitute a subclass: a disk that becomes full, whose fsync fails, or that loses unsynced data at a simulated
power loss. Paths are absolute; handles are numbers that only the same `Files` accepts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

from headrace.errors import SpoolDiskFull, SpoolError, SpoolWriteFailed

READ_AHEAD = 2**20
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Files:
    """The local file system."""

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_append(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        """Read `length` bytes at `offset`; fewer only at the end of the file."""
        data = os.pread(handle, length, offset)
        if not data or len(data) == length:
            return data
        pieces = [data]
        got = len(data)
        while got < length and (data := os.pread(handle, length - got, offset + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def write(self, handle: int, data: bytes) -> None:
        """Write all of `data`, or raise; part of it may then be in the file."""
        written = os.write(handle, data)
        while written < len(data):
            written += os.write(handle, memoryview(data)[written:])

    def truncate(self, handle: int, length: int) -> None:
        os.ftruncate(handle, length)

    def sync(self, handle: int) -> None:
        os.fdatasync(handle) if hasattr(os, "fdatasync") else os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: Path) -> int:
        """Lock a file until the handle is closed or the process ends. Raises BlockingIOError."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def free_bytes(self, path: Path) -> int | None:
        """Return the free disk space in bytes; None if unknown."""
        try:
            return shutil.disk_usage(path).free
        except OSError:
            return None


class FileReader:
    """Reads a file through a window, because it may be large. The first read opens the file."""

    def __init__(self, files: Files, path: Path) -> None:
        self.window = b""
        self.window_at = 0  # its offset in the file
        self._files = files
        self._path = path
        self._handle: int | None = None

    def load(self, at: int, length: int, size: int) -> int:
        """Load these bytes into the window, as far as `size` goes. Return their position in the window."""
        here = at - self.window_at
        if here < 0 or here + length > len(self.window):
            self.window = self.read(at, min(max(length, READ_AHEAD), size - at))
            self.window_at, here = at, 0
        return here

    def read(self, at: int, length: int) -> bytes:
        if self._handle is None:
            self._handle = self._files.open_read(self._path)
        return self._files.read(self._handle, length, at)

    def close(self) -> None:
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None
        self.window = b""


def read_all(files: Files, path: Path) -> bytes:
    """Return the content of a small file; empty if it does not exist."""
    try:
        handle = files.open_read(path)
    except FileNotFoundError:
        return b""
    try:
        return files.read(handle, files.size(path), 0)
    finally:
        files.close(handle)


def write_atomically(files: Files, path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file so that, after a crash, it has either its old content or all of the new. With `sync`, the new
    content is durable when this returns."""
    draft = path.with_name(path.name + ".tmp")
    handle = files.create(draft)
    try:
        files.write(handle, data)
        files.sync(handle)  # always: the rename may reach the disk before the data does
    except BaseException:
        files.close(handle)
        discard(files, draft)
        raise
    files.close(handle)
    files.rename(draft, path)
    if sync:
        files.sync_directory(path.parent)


def discard(files: Files, path: Path) -> None:
    """Remove a file that is no longer needed, ignoring errors."""
    try:
        files.remove(path)
    except OSError:
        pass  # retried at the next open


def is_no_space(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in NO_SPACE


def to_spool_error(error: OSError) -> SpoolError:
    """Return the error to raise for a failed write: SpoolDiskFull if no space is left, else SpoolWriteFailed."""
    if is_no_space(error):
        return SpoolDiskFull()
    return SpoolWriteFailed(
        f"Writing to the spool's disk failed: {error}. The record was not accepted; earlier records are kept. Check the"
        " disk, then put the record again."
    )

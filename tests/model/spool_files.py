"""A file system that can lose power: after `lose_power` only synced data is certain.

Of everything else, any part may have reached the disk, in any order: writes in pieces of 64 bytes, file names one by
one. A failed sync drops data as Linux does: the pages count as clean, are still readable, and are lost at a power loss.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from headrace.spool.files import Files

PIECE = 64


@dataclass(eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Callable[[bytearray], None]] = field(default_factory=list[Callable[[bytearray], None]])


def write_piece(data: bytearray, at: int, piece: bytes) -> None:
    if len(data) < at:
        data.extend(bytes(at - len(data)))
    data[at : at + len(piece)] = piece


def cut(data: bytearray, length: int) -> None:
    del data[length:]
    data.extend(bytes(length - len(data)))


@dataclass
class Folder:
    names: dict[str, Inode] = field(default_factory=dict[str, Inode])
    durable: dict[str, Inode] = field(default_factory=dict[str, Inode])
    unsynced: list[dict[str, Inode | None]] = field(default_factory=list[dict[str, Inode | None]])

    def change(self, change: dict[str, Inode | None]) -> None:
        self.unsynced.append(change)
        apply_names(self.names, change)


def apply_names(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


class CrashFiles(Files):
    """Files in memory."""

    def __init__(self) -> None:
        self.folders: dict[Path, Folder] = {}
        self.capacity: int | None = None  # in bytes; None: unlimited
        self.failing_syncs = 0  # number of next syncs of segments that fail
        self.failing_writes = 0
        self._handles: dict[int, tuple[Inode, Path]] = {}
        self._next_handle = 1000
        self._locked: dict[int, Path] = {}

    # Called by tests

    def lose_power(self, random: Random) -> None:
        for folder in self.folders.values():
            for change in folder.unsynced:
                if random.random() < 0.5:
                    apply_names(folder.durable, change)
            folder.names = dict(folder.durable)
            folder.unsynced = []
            for inode in folder.names.values():
                self._settle(inode, random)
        self.kill()

    def _settle(self, inode: Inode, random: Random) -> None:
        keep_all, share = random.random() < 0.2, random.random()
        for each in inode.unsynced:
            if keep_all or random.random() < share:
                each(inode.durable)
        inode.data = bytearray(inode.durable)
        inode.unsynced = []

    def kill(self) -> None:
        """Simulate the death of the process; the operating system keeps its data."""
        self._handles.clear()
        self._locked.clear()

    def twin(self) -> CrashFiles:
        """Return an independent copy."""
        other = CrashFiles()
        copies: dict[int, Inode] = {}

        def copied(inode: Inode) -> Inode:
            fresh = Inode(bytearray(inode.data), bytearray(inode.durable), list(inode.unsynced))
            return copies.setdefault(id(inode), fresh)

        for path, folder in self.folders.items():
            names = {name: copied(inode) for name, inode in folder.names.items()}
            durable = {name: copied(inode) for name, inode in folder.durable.items()}
            changes = [{name: inode and copied(inode) for name, inode in each.items()} for each in folder.unsynced]
            other.folders[path] = Folder(names, durable, changes)
        return other

    def used(self) -> int:
        return sum(len(inode.data) for folder in self.folders.values() for inode in folder.names.values())

    # Called by the spool

    def make_directory(self, path: Path) -> None:
        self.folders.setdefault(path, Folder())

    def names(self, path: Path) -> list[str]:
        return sorted(self.folders[path].names) if path in self.folders else []

    def size(self, path: Path) -> int:
        return len(self._inode(path).data)

    def open_read(self, path: Path) -> int:
        return self._handle(self._inode(path), path)

    def open_append(self, path: Path) -> int:
        if path.name not in self.folders[path.parent].names:
            return self.create(path)
        return self._handle(self._inode(path), path)

    def create(self, path: Path) -> int:
        names = self.folders[path.parent].names
        inode = names.get(path.name)
        if inode is None:
            inode = Inode()
            self.folders[path.parent].change({path.name: inode})
        else:
            self._do(inode, lambda data: cut(data, 0))
        return self._handle(inode, path)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        return bytes(self._handles[handle][0].data[offset : offset + length])

    def write(self, handle: int, data: bytes) -> None:
        inode, path = self._handles[handle]
        if self.failing_writes and path.suffix == ".seg":
            self.failing_writes -= 1
            self._append(inode, data[: len(data) // 2])
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        room = len(data) if self.capacity is None else max(0, self.capacity - self.used())
        self._append(inode, data[:room])
        if room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, handle: int, length: int) -> None:
        self._do(self._handles[handle][0], lambda data: cut(data, length))

    def sync(self, handle: int) -> None:
        inode, path = self._handles[handle]
        if self.failing_syncs and path.suffix == ".seg":
            self.failing_syncs -= 1
            inode.unsynced = []  # never written and never retried
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode.durable = bytearray(inode.data)
        inode.unsynced = []

    def close(self, handle: int) -> None:
        del self._handles[handle]
        self._locked.pop(handle, None)

    def rename(self, old: Path, new: Path) -> None:
        self.folders[old.parent].change({old.name: None, new.name: self._inode(old)})

    def remove(self, path: Path) -> None:
        self.folders[path.parent].change({path.name: None})

    def sync_directory(self, path: Path) -> None:
        folder = self.folders[path]
        folder.durable = dict(folder.names)
        folder.unsynced = []

    def lock(self, path: Path) -> int:
        if path in self._locked.values():
            raise BlockingIOError()
        handle = self.open_append(path)
        self._locked[handle] = path
        return handle

    def free_bytes(self, path: Path) -> int | None:
        return None if self.capacity is None else max(0, self.capacity - self.used())

    def _append(self, inode: Inode, data: bytes) -> None:
        step = PIECE if len(data) < 16_384 else 4096  # larger pieces for the ballast, for speed
        for start in range(0, len(data), step):
            at, piece = len(inode.data), data[start : start + step]
            self._do(inode, lambda data, at=at, piece=piece: write_piece(data, at, piece))

    def _do(self, inode: Inode, change: Callable[[bytearray], None]) -> None:
        change(inode.data)
        inode.unsynced.append(change)

    def _inode(self, path: Path) -> Inode:
        folder = self.folders.get(path.parent)
        if folder is None or path.name not in folder.names:
            raise FileNotFoundError(path)
        return folder.names[path.name]

    def _handle(self, inode: Inode, path: Path) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = (inode, path)
        return self._next_handle

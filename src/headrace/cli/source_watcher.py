"""Finds changed Python files, for `headrace worker --reload`.

Compares modification times: enough for a development option, and the same on every system and file system.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

SCAN_S = 1.0  # pause between two scans
SCAN_SHARE = 10  # a scan that takes long is followed by a pause of this many times its duration
IGNORED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}

FileVersion = tuple[int, int, int]  # modification time (ns), size, inode


class SourceWatcher:
    """Compares the Python files below some folders with those of the last scan."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._versions = self._scan()
        self._scan_at = 0.0

    @property
    def count(self) -> int:
        return len(self._versions)

    def find_changes(self) -> list[str]:
        """Return the files that were changed, added or removed since the last scan; none before the next one is due."""
        started = time.monotonic()
        if started < self._scan_at:
            return []
        before = self._versions
        self.forget_changes()
        ended = time.monotonic()
        self._scan_at = ended + max(SCAN_S, (ended - started) * SCAN_SHARE)
        return sorted(
            path for path in before.keys() | self._versions.keys() if before.get(path) != self._versions.get(path)
        )

    def forget_changes(self) -> None:
        """Let the next comparison start from the files as they are now."""
        self._versions = self._scan()

    def _scan(self) -> dict[str, FileVersion]:
        return {path: version for folder in self._folders for path, version in scan_sources(str(folder))}


def scan_sources(folder: str) -> Iterator[tuple[str, FileVersion]]:
    """Yield path and version of each Python file below a folder. Skips hidden folders, caches, virtual environments,
    links to folders, and what disappears or cannot be read meanwhile."""
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError:
        return
    if any(entry.name == "pyvenv.cfg" for entry in listed):
        return
    for entry in listed:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in IGNORED_FOLDERS:
                    yield from scan_sources(entry.path)
            elif entry.name.endswith(".py"):
                found = entry.stat()
                yield entry.path, (found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError:
            continue

"""Files in quarantine/ and dead/: damaged bytes and rejected records, removed from the queue but kept for inspection.

Each file has a line of JSON that describes the bytes, followed by the bytes themselves. The file name is derived from
their origin, so writing the file again after a crash changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.spool.files import Files, read_all, write_atomically

QUARANTINE = "quarantine"
DEAD = "dead"
SUFFIX = ".aside"


@dataclass(frozen=True)
class RetainedFile:
    path: Path
    facts: Mapping[str, Any]
    size: int  # of the retained bytes, without the line of facts


def write_retained_file(files: Files, folder: Path, name: str, facts: Mapping[str, Any], data: bytes) -> None:
    """Write a file to quarantine/ or dead/; it is durable when this returns."""
    files.make_directory(folder)
    line = json.dumps(facts, ensure_ascii=False, sort_keys=True).encode()
    write_atomically(files, folder / f"{name}{SUFFIX}", b"".join((line, b"\n", data)))
    files.sync_directory(folder.parent)


def measure_retained_files(files: Files, folder: Path) -> int:
    """Return the bytes of all files in quarantine/ or dead/. The spool never deletes them."""
    size = 0
    for name in files.names(folder):
        try:
            size += files.size(folder / name)
        except OSError:
            pass  # deleted in the meantime
    return size


def list_retained_files(folder: Path, files: Files | None = None) -> list[RetainedFile]:
    files = files or Files()
    names = sorted(name for name in files.names(folder) if name.endswith(SUFFIX))
    return [_read(folder / name, read_all(files, folder / name)) for name in names]


def _read(path: Path, data: bytes) -> RetainedFile:
    line, _, rest = data.partition(b"\n")
    try:
        facts: Any = json.loads(line)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        return RetainedFile(path, {"reason": "unreadable description line"}, len(data))
    return RetainedFile(path, facts, len(rest))

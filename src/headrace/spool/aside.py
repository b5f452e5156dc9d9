"""What is taken out of the queue but kept: damaged bytes in quarantine/, refused records in dead/.

One file each: a line of JSON with the facts, then the bytes as they were. A name says where they come from, so doing
it again (after a crash in between) changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace.spool.files import Files, SystemFiles, read_all, write_atomically

QUARANTINE = "quarantine"
DEAD = "dead"
SUFFIX = ".aside"


@dataclass(frozen=True)
class Aside:
    """One file of quarantine/ or dead/."""

    path: Path
    facts: Mapping[str, Any]
    size: int  # of the bytes kept, without the line of facts


def set_aside(files: Files, folder: Path, name: str, facts: Mapping[str, Any], data: bytes) -> None:
    """Durable when it returns."""
    files.make_directory(folder)
    line = json.dumps(facts, ensure_ascii=False, sort_keys=True).encode()
    write_atomically(files, folder / f"{name}{SUFFIX}", b"".join((line, b"\n", data)))
    files.sync_directory(folder.parent)


class AsideSize(NamedTuple):
    """What lies in quarantine/ or dead/. Nothing in there is ever deleted by the spool."""

    files: int
    bytes: int


def aside_size(files: Files, folder: Path) -> AsideSize:
    sizes: list[int] = []
    for name in files.names(folder):
        try:
            sizes.append(files.size(folder / name))
        except OSError:
            pass  # taken away meanwhile
    return AsideSize(len(sizes), sum(sizes))


def list_aside(folder: Path, files: Files | None = None) -> list[Aside]:
    files = files or SystemFiles()
    names = sorted(name for name in files.names(folder) if name.endswith(SUFFIX))
    return [_read(folder / name, read_all(files, folder / name)) for name in names]


def read_aside(path: Path, files: Files | None = None) -> tuple[Mapping[str, Any], bytes]:
    data = read_all(files or SystemFiles(), path)
    line, _, rest = data.partition(b"\n")
    return _read(path, data).facts, rest if line else data


def _read(path: Path, data: bytes) -> Aside:
    line, _, rest = data.partition(b"\n")
    try:
        facts: Any = json.loads(line)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        return Aside(path, {"reason": "the facts cannot be read"}, len(data))
    return Aside(path, facts, len(rest))

"""`spool.meta`: a summary for people and tools, and a hint of the highest sequence number.

The segments and journals are authoritative: neither the content of this file nor its absence changes a record. Its
sequence number is used only if it is higher than those of the segments; the next record then gets a higher number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from headrace.spool.files import Files, read_all, write_atomically

NAME = "spool.meta"
VERSION = 1
MAX_HINT = 2**62


def write_meta(files: Files, folder: Path, facts: Mapping[str, Any]) -> None:
    text = json.dumps({"version": VERSION, **facts}, sort_keys=True)
    data = json.dumps({"crc32c": google_crc32c.value(text.encode()), "meta": text})
    write_atomically(files, folder / NAME, data.encode() + b"\n", sync=False)


def read_next_sequence_hint(files: Files, folder: Path) -> int:
    """Return the next sequence number according to the file; 1 if the file is missing or invalid."""
    try:
        outer: Any = json.loads(read_all(files, folder / NAME))
        text: Any = outer["meta"]
        if google_crc32c.value(text.encode()) != outer["crc32c"]:
            return 1
        found: Any = json.loads(text)
        hint = found["next_sequence"] if found["version"] == VERSION else 1
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError):
        return 1
    return hint if isinstance(hint, int) and 0 < hint < MAX_HINT else 1

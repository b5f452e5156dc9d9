"""Names of environments and queues. Any text of up to 128 bytes without control characters is valid."""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass

MAX_NAME_BYTES = 128


def find_name_problem(name: str) -> str | None:
    """Return why a name is invalid ("is empty"), or None if it is valid. Every name that users choose is checked
    here."""
    if not name:
        return "is empty"
    if len(name) * (1 if name.isascii() else 4) <= MAX_NAME_BYTES and name.isprintable():
        return None  # fast path for nearly every name: it runs for each job of a bulk call
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if len(encoded) > MAX_NAME_BYTES:
        return f"has {len(encoded)} bytes, more than {MAX_NAME_BYTES}"
    # Control characters separate fields in events and keys, so names must not contain them. Line and paragraph
    # separators are refused too: tools break lines there.
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in name):
        return "holds a control character"
    return None


@dataclass(frozen=True, order=True)
class EnvRef:
    """An environment: the unit of fairness, limits and sharding."""

    org: str
    project: str
    env: str

    def shard(self, shards: int) -> int:
        """Return the shard of this environment: a stable hash modulo `shards`. It must not change between clients,
        releases or platforms, because it decides where data is stored."""
        text = "\x1f".join((self.org, self.project, self.env)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % shards


@dataclass(frozen=True, order=True)
class QueueRef:
    """A queue of an environment."""

    org: str
    project: str
    env: str
    queue: str

    @property
    def environment(self) -> EnvRef:
        return EnvRef(self.org, self.project, self.env)

"""Who a queue belongs to. Any text without control characters is a legal name, up to 128 bytes."""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass

MAX_NAME_BYTES = 128


def name_problem(name: str) -> str | None:
    """Why a name is not legal, or None. The one rule for every name a user can choose."""
    if not name:
        return "is empty"
    if len(name) * (1 if name.isascii() else 4) <= MAX_NAME_BYTES and name.isprintable():
        return None  # nearly every name; every job of a bulk call passes here
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if len(encoded) > MAX_NAME_BYTES:
        return f"has {len(encoded)} bytes, more than {MAX_NAME_BYTES}"
    # Separators inside events and keys are control characters, which is why names hold none.
    # Line and paragraph separators are refused with them: tools break lines there.
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in name):
        return "holds a control character"
    return None


@dataclass(frozen=True, order=True)
class EnvRef:
    """An environment: the unit of fairness, of limits and of sharding."""

    org: str
    project: str
    env: str

    def shard(self, shards: int) -> int:
        """The same for every client, release and platform: it decides where data lives."""
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

"""The API key of the local stack: `headrace up` creates it and stores its text in the data directory."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.api import audit
from headrace.api.callers import EVERYTHING, Level
from headrace.api.keys import add_key, find_key, id_of, live_named, revoke_key
from headrace.postgres.connect import Connection

NAME = "local"
FILE = "api.key"


def read_local_key(data_dir: Path) -> str | None:
    """Return the text of the local key; None if no stack was started on the directory or the file is unreadable."""
    try:
        text = (data_dir / FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if id_of(text) else None


def ensure_local_key(conn: Connection, data_dir: Path, alone: bool) -> str:
    """Return the text of a key with full access: the stored one if it is still valid, otherwise a new one.

    `exclusive`: no other stack uses this PostgreSQL, so older local keys whose text was lost are revoked.
    """
    text = read_local_key(data_dir)
    known = find_key(conn, id_of(text) or "") if text else None
    if text is not None and known is not None and known.is_text(text):
        return text
    for lost in live_named(conn, NAME) if alone else []:
        revoke_key(conn, lost)
        audit.record_command(conn, "key.revoke", EVERYTHING, id=lost, name=NAME)
    key_id, text = add_key(conn, NAME, EVERYTHING, Level.ADMIN)
    audit.record_command(conn, "key.create", EVERYTHING, id=key_id, name=NAME, level=Level.ADMIN.word)
    _write(data_dir / FILE, text)
    return text


def _write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)  # an existing file may have other permissions
    with open(fresh, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)

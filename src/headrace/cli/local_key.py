"""The API key of the local stack: `headrace up` creates it and stores its text in the data directory."""

from __future__ import annotations

from pathlib import Path

from headrace.api import audit_log
from headrace.api.access import GLOBAL_SCOPE, AccessLevel
from headrace.api.api_keys import add_key, find_key, find_unrevoked_key_ids, parse_key_id, revoke_key
from headrace.embedded.data_directory import write_private_file
from headrace.postgres.connect import Connection

NAME = "local"
FILE = "api.key"


def read_local_key(data_dir: Path) -> str | None:
    """Return the text of the local key; None if no stack was started on the directory or the file is unreadable."""
    try:
        text = (data_dir / FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if parse_key_id(text) else None


def ensure_local_key(conn: Connection, data_dir: Path, exclusive: bool) -> str:
    """Return the text of a key with full access: the stored one if it is still valid, otherwise a new one.

    `exclusive`: no other stack uses this PostgreSQL, so older local keys whose text was lost are revoked.
    """
    text = read_local_key(data_dir)
    known = find_key(conn, parse_key_id(text) or "") if text else None
    if text is not None and known is not None and known.matches(text):
        return text
    for lost in find_unrevoked_key_ids(conn, NAME) if exclusive else []:
        revoke_key(conn, lost)
        audit_log.record_cli_operation(conn, "key.revoke", GLOBAL_SCOPE, id=lost, name=NAME)
    key_id, text = add_key(conn, NAME, GLOBAL_SCOPE, AccessLevel.ADMIN)
    audit_log.record_cli_operation(
        conn, "key.create", GLOBAL_SCOPE, id=key_id, name=NAME, level=AccessLevel.ADMIN.label
    )
    write_private_file(data_dir / FILE, f"{text}\n")
    return text

"""Passwords of the embedded servers, generated once per data directory and stored in a private file."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from headrace.embedded.data_directory import read_json, write_json
from headrace.errors import DataDirectoryError

FILE = "credentials.json"
PASSWORD_BYTES = 24


def ensure_passwords(data_dir: Path, *users: str) -> Mapping[str, str]:
    """Return the passwords in `data_dir` by user, after generating those of `users` that are missing."""
    path = data_dir / FILE
    known = read_passwords(data_dir)
    missing = [user for user in users if user not in known]
    if missing:
        known = {**known, **{user: secrets.token_urlsafe(PASSWORD_BYTES) for user in missing}}
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, known)
    elif path.stat().st_mode & 0o077:  # a copied or unpacked file may have other permissions
        path.chmod(0o600)
    return known


def read_passwords(data_dir: Path) -> dict[str, str]:
    """Return the passwords by user; empty if there are none yet. Raises DataDirectoryError if they are unreadable."""
    path = data_dir / FILE
    if not path.exists():
        return {}
    found = read_json(path)
    if not found or not all(isinstance(password, str) and password for password in found.values()):
        raise DataDirectoryError(
            f"Cannot read the passwords in {path}. Nothing was started. Fix its permissions, or remove the file: new "
            "passwords are generated at the next start."
        )
    return found

"""API keys: format, storage, and the in-memory key ring that authenticates requests.

The text of a key is `hr_` + id + `_` + secret. It is shown once; PostgreSQL stores its SHA-256. A slow hash is not
needed: it protects guessable passwords, while the secret is 32 random bytes and is checked at every request.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from threading import Lock

from headrace.alerts.records import count_rules_and_channels
from headrace.api.access import AccessLevel, Caller, KeyScope
from headrace.api.queries import QUERIES
from headrace.cold.quota_records import find_and_lock_quotas, raise_if_exceeded
from headrace.errors import HeadraceError
from headrace.model.quotas import Quota, TenantRef
from headrace.postgres.connect import Connection, Pool, class_row, dict_row, scalar_row, transaction

log = logging.getLogger(__name__)


ID_BYTES = 6
SECRET_BYTES = 32
KEY_PATTERN = re.compile(rf"hr_([0-9a-f]{{{2 * ID_BYTES}}})_[0-9a-f]{{{2 * SECRET_BYTES}}}", re.ASCII)

REFRESH_S = 2.0
"""Maximum time in seconds that a revoked key stays valid; with PostgreSQL down, until it is back."""
MIN_REFRESH_INTERVAL_S = 0.1
"""Minimum time in seconds between two reloads caused by unknown keys and sessions."""

REFRESH_WAIT_S = 2.0


def generate_key() -> str:
    return f"hr_{secrets.token_hex(ID_BYTES)}_{secrets.token_hex(SECRET_BYTES)}"


def parse_key_id(text: str) -> str | None:
    """Return the id in a key's text; None if it is not a key."""
    return match[1] if (match := KEY_PATTERN.fullmatch(text)) else None


def compute_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True, kw_only=True)
class ScopedRow:
    org: str | None
    project: str | None
    env: str | None
    level: str

    @property
    def scope(self) -> KeyScope:
        return KeyScope(self.org, self.project, self.env)


@dataclass(frozen=True, kw_only=True)
class Credential:
    """A secret that is stored as its digest. `expires_at` is None if it does not expire."""

    id: str
    hash: bytes = field(repr=False)
    expires_at: datetime | None

    def is_valid(self) -> bool:
        return self.expires_at is None or self.expires_at > datetime.now(UTC)

    def matches(self, text: str) -> bool:
        return hmac.compare_digest(self.hash, compute_digest(text))


@dataclass(frozen=True, kw_only=True)
class ApiKey(ScopedRow, Credential):
    """A key that is not revoked."""

    name: str

    @property
    def caller(self) -> Caller:
        return Caller(self.id, self.name, self.scope, AccessLevel.from_label(self.level))


@dataclass(frozen=True, kw_only=True)
class BrowserSession(Credential):
    key_id: str


@dataclass(frozen=True, kw_only=True)
class ApiKeyInfo(ScopedRow):
    """Public information about a key, including revoked and expired ones."""

    id: str
    name: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None

    def get_state(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "live"


def add_key(
    conn: Connection, name: str, scope: KeyScope, level: AccessLevel, expires_s: float | None = None
) -> tuple[str, str]:
    """Create a key and return its id and its text, which is not stored. Raises QuotaExceeded."""
    tenant = TenantRef(scope.org or "", scope.project or "", scope.env or "")
    quotas = find_and_lock_quotas(conn, tenant, [Quota.KEYS])
    text = generate_key()
    key_id = parse_key_id(text)
    assert key_id is not None, "a generated key has an id"
    row = {"id": key_id, "name": name, "hash": compute_digest(text), "level": level.label, "expires_s": expires_s}
    conn.execute(QUERIES["add_key"], {**row, **vars(scope)})
    raise_if_exceeded(quotas, partial(count_keys, conn), {Quota.KEYS: 1})
    return key_id, text


def count_keys(conn: Connection, tenant: TenantRef) -> dict[str, int]:
    """Count the keys of a tenant that are neither revoked nor expired."""
    count = conn.cursor(row_factory=scalar_row).execute(QUERIES["count_keys"], vars(tenant)).fetchone()
    return {Quota.KEYS: int(count or 0)}


def count_quota_use(conn: Connection, tenant: TenantRef) -> dict[str, int]:
    """Count the alert rules, channels and keys of a tenant, for their quotas."""
    return {**count_rules_and_channels(conn, tenant), **count_keys(conn, tenant)}


def list_keys(conn: Connection) -> list[ApiKeyInfo]:
    return conn.cursor(row_factory=class_row(ApiKeyInfo)).execute(QUERIES["list_keys"]).fetchall()


def find_key(conn: Connection, key_id: str) -> ApiKey | None:
    """Return a key that is neither revoked nor expired; None if there is none with this id."""
    return conn.cursor(row_factory=class_row(ApiKey)).execute(QUERIES["find_key"], {"id": key_id}).fetchone()


def find_unrevoked_key_ids(conn: Connection, name: str) -> list[str]:
    rows = conn.cursor(row_factory=scalar_row).execute(QUERIES["find_unrevoked_key_ids"], {"name": name})
    return [str(key_id) for key_id in rows]


def revoke_key(conn: Connection, key_id: str) -> dict[str, str | None] | None:
    """Revoke a key and return its name and scope; None if it does not exist or is already revoked."""
    return conn.cursor(row_factory=dict_row).execute(QUERIES["revoke_key"], {"id": key_id}).fetchone()


def mark_keys_used(conn: Connection, ids: Iterable[str]) -> None:
    conn.execute(QUERIES["mark_keys_used"], {"ids": list(ids)})


@dataclass(frozen=True)
class KeySnapshot:
    """All valid keys and sessions, read at one moment."""

    keys: Mapping[str, ApiKey]
    sessions: Mapping[str, BrowserSession]


class KeyRing:
    """In-memory copy of all valid keys and sessions, so that requests are authenticated without PostgreSQL.

    Reloaded every REFRESH_S. While PostgreSQL is down the last copy stays in use; expiry times still apply.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._snapshot: KeySnapshot | None = None
        self._tried_at = float("-inf")
        self._failing = False
        self._reading = Lock()

    @property
    def is_loaded(self) -> bool:
        return self._snapshot is not None

    def find(self, text: str) -> ApiKey | None:
        """Return the valid key with this text; None if there is none."""
        found = self.find_by_id(key_id) if (key_id := parse_key_id(text)) else None
        return found if found is not None and found.matches(text) else None

    def find_by_id(self, key_id: str) -> ApiKey | None:
        found = self._snapshot.keys.get(key_id) if self._snapshot else None
        return found if found is not None and found.is_valid() else None

    def find_session(self, cookie: str) -> BrowserSession | None:
        """Return the valid session of this cookie; None if there is none."""
        session_id, _, secret = cookie.partition(".")
        found = self._find_session(session_id)
        return found if found is not None and found.matches(secret) else None

    def is_live(self, caller: Caller) -> bool:
        """Return True if the caller's key, and session if any, is still valid."""
        has_session = caller.session_id is None or self._find_session(caller.session_id) is not None
        return has_session and self.find_by_id(caller.key_id) is not None

    def _find_session(self, session_id: str) -> BrowserSession | None:
        found = self._snapshot.sessions.get(session_id) if self._snapshot else None
        return found if found is not None and found.is_valid() else None

    def wait_before_read_s(self) -> float:
        """Return the seconds to wait before the keys may be reloaded for an unknown key."""
        return max(0.0, self._tried_at + MIN_REFRESH_INTERVAL_S - time.monotonic())

    def refresh_if_older(self, than: float) -> None:
        """Reload the keys unless a reload started after `than` (`time.monotonic()`).

        Waits at most REFRESH_WAIT_S for a reload in progress, so that an unresponsive PostgreSQL does not occupy
        request threads.
        """
        if not self._reading.acquire(timeout=REFRESH_WAIT_S):
            return
        try:
            if self._tried_at <= than:
                self._read()
        finally:
            self._reading.release()

    def refresh(self) -> None:
        """Reload the keys. If PostgreSQL does not answer, the last copy stays in use."""
        with self._reading:
            self._read()

    def _read(self) -> None:
        self._tried_at = time.monotonic()  # start of the read: a key created during it may be missing
        try:
            self._snapshot = self._read_snapshot()
            self._failing = False
        except HeadraceError as error:
            if not self._failing:
                log.warning("could not refresh API keys, cached keys stay valid: %s", error, extra={"action": "keys"})
            self._failing = True
            self._tried_at = time.monotonic()  # requests that waited for this reload need not repeat it

    def _read_snapshot(self) -> KeySnapshot:
        with transaction(self._pool) as conn:
            keys = conn.cursor(row_factory=class_row(ApiKey)).execute(QUERIES["list_live_keys"]).fetchall()
            sessions = (
                conn.cursor(row_factory=class_row(BrowserSession)).execute(QUERIES["list_live_sessions"]).fetchall()
            )
        return KeySnapshot({key.id: key for key in keys}, {session.id: session for session in sessions})

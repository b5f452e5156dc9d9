"""Keys: what they look like, the rows that stand for them, and the copy by which requests are checked.

The text of a key is `hr_` + id + `_` + secret. It is shown once; PostgreSQL holds its SHA-256. A slow hash would guard
passwords that people choose; 32 random bytes cannot be guessed however fast the guesses are, and every request is
checked.
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

from headrace.alerts.records import count_used
from headrace.api.callers import Caller, Level, Scope
from headrace.api.queries import QUERIES
from headrace.cold.quota_records import hold_quotas, refuse_beyond
from headrace.errors import HeadraceError
from headrace.model.quotas import Quota, TenantRef
from headrace.postgres.connect import Connection, Pool, class_row, connection, dict_row, scalar_row

log = logging.getLogger(__name__)


ID_BYTES = 6
SECRET_BYTES = 32
TEXT = re.compile(rf"hr_([0-9a-f]{{{2 * ID_BYTES}}})_[0-9a-f]{{{2 * SECRET_BYTES}}}", re.ASCII)

REFRESH_S = 2.0
"""How long a revoked key is still let in, at most; with PostgreSQL down, until it is back."""
LOOK_AGAIN_S = 0.1
"""Unknown keys and sessions make the copy be read again, with at least this between two reads."""

PATIENCE_S = 2.0


def new_text() -> str:
    return f"hr_{secrets.token_hex(ID_BYTES)}_{secrets.token_hex(SECRET_BYTES)}"


def id_of(text: str) -> str | None:
    """None if it is not the text of a key."""
    return found[1] if (found := TEXT.fullmatch(text)) else None


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True)
class Key:
    """A key that is not revoked."""

    id: str
    name: str
    hash: bytes = field(repr=False)
    org: str | None
    project: str | None
    env: str | None
    level: str
    expires_at: datetime | None

    @property
    def scope(self) -> Scope:
        return Scope(self.org, self.project, self.env)

    @property
    def caller(self) -> Caller:
        return Caller(self.id, self.name, self.scope, Level.of(self.level))

    def is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def is_text(self, text: str) -> bool:
        return hmac.compare_digest(self.hash, digest(text))


@dataclass(frozen=True)
class KeyFacts:
    """What is shown of a key, revoked and expired ones too."""

    id: str
    name: str
    org: str | None
    project: str | None
    env: str | None
    level: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None

    @property
    def scope(self) -> Scope:
        return Scope(self.org, self.project, self.env)

    def state(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "live"


def add_key(conn: Connection, name: str, scope: Scope, level: Level, expires_s: float | None = None) -> tuple[str, str]:
    """The new key's id and its text, which cannot be read again. Raises QuotaExceeded."""
    tenant = TenantRef(scope.org or "", scope.project or "", scope.env or "")
    quotas = hold_quotas(conn, tenant, [Quota.KEYS])
    text = new_text()
    key_id = id_of(text)
    assert key_id is not None, "it was just made"
    row = {"id": key_id, "name": name, "hash": digest(text), "level": level.word, "expires_s": expires_s}
    conn.execute(QUERIES["add_key"], {**row, "org": scope.org, "project": scope.project, "env": scope.env})
    refuse_beyond(quotas, partial(count_keys, conn), {Quota.KEYS: 1})
    return key_id, text


def count_keys(conn: Connection, tenant: TenantRef) -> dict[str, int]:
    """Count the keys of a tenant that are neither revoked nor expired."""
    found = conn.cursor(row_factory=scalar_row).execute(QUERIES["count_keys"], vars(tenant)).fetchone()
    return {Quota.KEYS: int(found or 0)}


def count_quota_use(conn: Connection, tenant: TenantRef) -> dict[str, int]:
    """Count the alert rules, channels and keys of a tenant, for their quotas."""
    return {**count_used(conn, tenant), **count_keys(conn, tenant)}


def list_keys(conn: Connection) -> list[KeyFacts]:
    return conn.cursor(row_factory=class_row(KeyFacts)).execute(QUERIES["list_keys"]).fetchall()


def find_key(conn: Connection, key_id: str) -> Key | None:
    """A live key."""
    return conn.cursor(row_factory=class_row(Key)).execute(QUERIES["find_key"], {"id": key_id}).fetchone()


def live_named(conn: Connection, name: str) -> list[str]:
    rows = conn.cursor(row_factory=scalar_row).execute(QUERIES["find_unrevoked_key_ids"], {"name": name})
    return [str(key_id) for key_id in rows]


def revoke_key(conn: Connection, key_id: str) -> dict[str, str | None] | None:
    """Name and scope of what was revoked now; None if there was no such key, or it was revoked before."""
    return conn.cursor(row_factory=dict_row).execute(QUERIES["revoke_key"], {"id": key_id}).fetchone()


def mark_used(pool: Pool, ids: Iterable[str]) -> None:
    with connection(pool) as conn:
        conn.execute(QUERIES["mark_keys_used"], {"ids": list(ids)})


@dataclass(frozen=True)
class Session:
    """A browser that is signed in."""

    id: str
    hash: bytes = field(repr=False)
    key_id: str
    expires_at: datetime

    def is_over(self, now: datetime) -> bool:
        return self.expires_at <= now

    def is_secret(self, text: str) -> bool:
        return hmac.compare_digest(self.hash, digest(text))


@dataclass(frozen=True)
class Copy:
    """All live keys and sessions as they were at a moment."""

    keys: Mapping[str, Key]
    sessions: Mapping[str, Session]


class KeyRing:
    """Checks keys and sessions without asking PostgreSQL: it holds a copy of all live ones, read every few seconds.

    While PostgreSQL is away the last good copy stays, so that requests go on; an expiry is kept to all the same.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._copy: Copy | None = None
        self._tried = float("-inf")
        self._failing = False
        self._reading = Lock()

    @property
    def loaded(self) -> bool:
        """False until PostgreSQL has answered once."""
        return self._copy is not None

    def find(self, text: str) -> Key | None:
        """The live key of this text."""
        found = self.find_id(key_id) if (key_id := id_of(text)) else None
        return found if found is not None and found.is_text(text) else None

    def find_id(self, key_id: str) -> Key | None:
        found = self._copy.keys.get(key_id) if self._copy else None
        return None if found is None or found.is_over(datetime.now(UTC)) else found

    def find_session(self, cookie: str) -> Session | None:
        """The live session of this cookie."""
        session_id, _, secret = cookie.partition(".")
        found = self._find_session(session_id)
        return found if found is not None and found.is_secret(secret) else None

    def is_live(self, by: Caller) -> bool:
        """Whether the key, and the session if it is one, may still be used."""
        has_session = by.session_id is None or self._find_session(by.session_id) is not None
        return has_session and self.find_id(by.key_id) is not None

    def _find_session(self, session_id: str) -> Session | None:
        found = self._copy.sessions.get(session_id) if self._copy else None
        return None if found is None or found.is_over(datetime.now(UTC)) else found

    def wait_before_read_s(self) -> float:
        """Return how long to wait, in seconds, before the copy may be read again for an unknown key."""
        return max(0.0, self._tried + LOOK_AGAIN_S - time.monotonic())

    def refresh_if_older(self, than: float) -> None:
        """Read again, unless a read began after `than`, a time of `time.monotonic()`.

        Waits for a read in progress, but not for long: a silent PostgreSQL must not hold threads that others need.
        """
        if not self._reading.acquire(timeout=PATIENCE_S):
            return
        try:
            if self._tried <= than:
                self._read()
        finally:
            self._reading.release()

    def refresh(self) -> None:
        """Read now. Never raises for a server that is away: the last copy stays."""
        with self._reading:
            self._read()

    def _read(self) -> None:
        self._tried = time.monotonic()  # not when it ends: a key that is made meanwhile may not be among these
        try:
            self._copy = self._read_copy()
            self._failing = False
        except HeadraceError as error:
            if not self._failing:
                log.warning("The keys cannot be read; those known stay valid. %s", error, extra={"action": "keys"})
            self._failing = True
            self._tried = time.monotonic()  # those who waited for this need not fail one after another

    def _read_copy(self) -> Copy:
        with connection(self._pool) as conn:
            keys = conn.cursor(row_factory=class_row(Key)).execute(QUERIES["list_live_keys"]).fetchall()
            sessions = conn.cursor(row_factory=class_row(Session)).execute(QUERIES["list_live_sessions"]).fetchall()
        return Copy({key.id: key for key in keys}, {session.id: session for session in sessions})

"""Browser sessions: cookies that represent a key, and one-time sign-in links.

The cookie contains the session's id and a secret; PostgreSQL stores the id and the SHA-256 of the secret. Ending a
session deletes its row, so that a copied cookie becomes invalid; revoking a key ends all its sessions.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response

from headrace.api.access import AccessLevel, Caller
from headrace.api.api_keys import ScopedRow, compute_digest
from headrace.api.problems import Problem
from headrace.api.queries import QUERIES
from headrace.postgres.connect import Connection, class_row, scalar_row
from headrace.settings import ApiSettings

COOKIE = "headrace_session"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LINK_LIFE_S = 3600.0
ID_BYTES = 8
TOKEN_BYTES = 32
LINK_PATTERN = re.compile(r"[A-Za-z0-9_-]{43}")
"""Format of the token in a sign-in link."""

MAX_SESSIONS_PER_KEY = 100
"""Maximum sessions per key; a new one beyond it ends the oldest."""
MAX_USER_AGENT_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class SessionInfo(ScopedRow):
    """Public information about a session."""

    id: str
    key_id: str
    key_name: str
    via: str  # key or link
    address: str
    user_agent: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime


def begin_session(conn: Connection, request: Request, key_id: str, via: str, address: str, life_s: float) -> str:
    """Create a session and return the value of its cookie."""
    session_id, secret = secrets.token_hex(ID_BYTES), secrets.token_hex(TOKEN_BYTES)
    agent = "".join(char for char in request.headers.get("user-agent", "") if char.isprintable())
    row = {"id": session_id, "hash": compute_digest(secret), "key_id": key_id, "via": via, "life_s": life_s}
    conn.execute(QUERIES["add_session"], {**row, "address": address, "user_agent": agent[:MAX_USER_AGENT_CHARS]})
    conn.execute(QUERIES["delete_excess_sessions"], {"key_id": key_id, "most": MAX_SESSIONS_PER_KEY})
    return f"{session_id}.{secret}"


def end_session(conn: Connection, session_id: str) -> bool:
    """End a session. Return False if it does not exist."""
    return conn.execute(QUERIES["delete_session"], {"id": session_id}).fetchone() is not None


def list_sessions(
    conn: Connection,
    caller: Caller,
    limit: int,
    before: tuple[datetime, str] | None = None,
    session_id: str | None = None,
) -> list[SessionInfo]:
    """List valid sessions, newest first: those of the caller's own key, and for admins those of all keys whose scope is
    within theirs."""
    before_at, before_id = before or (None, None)
    params = {
        **vars(caller.scope),
        **{"key_id": caller.key_id, "is_admin": caller.level >= AccessLevel.ADMIN, "id": session_id, "limit": limit},
        **{"before_at": before_at, "before_id": before_id},
    }
    return conn.cursor(row_factory=class_row(SessionInfo)).execute(QUERIES["list_sessions"], params).fetchall()


def mark_sessions_used(conn: Connection, ids: Iterable[str]) -> None:
    conn.execute(QUERIES["mark_sessions_used"], {"ids": list(ids)})


def purge_expired(conn: Connection) -> None:
    """Delete expired sessions and sign-in links."""
    conn.execute(QUERIES["purge_links"])
    conn.execute(QUERIES["purge_sessions"])


# --- Cookies ---------------------------------------------------------------------------------------


def get_cookie_name(request: Request) -> str:
    """Return the cookie name, which contains the port: browsers share cookies between the ports of a host, and two
    stacks on one machine must not share sessions."""
    return f"{COOKIE}_{(request.scope.get('server') or ('', 0))[1]}"


def read_cookie(request: Request) -> str | None:
    return request.cookies.get(get_cookie_name(request))


def set_session_cookie(request: Request, response: Response, value: str, settings: ApiSettings) -> None:
    response.set_cookie(
        get_cookie_name(request), value, max_age=int(settings.session), **_make_cookie_attributes(request, settings)
    )


def clear_session_cookie(request: Request, response: Response, settings: ApiSettings) -> None:
    response.delete_cookie(get_cookie_name(request), **_make_cookie_attributes(request, settings))


def is_secure(scheme: str, settings: ApiSettings) -> bool:
    """Return True if browsers must use HTTPS for the cookie and all requests."""
    return scheme == "https" if settings.cookie_secure is None else settings.cookie_secure


def _make_cookie_attributes(request: Request, settings: ApiSettings) -> dict[str, Any]:
    secure = is_secure(request.url.scheme, settings)
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": secure}


# --- Cross-site requests ---------------------------------------------------------------------------


def refuse_cross_site(request: Request) -> None:
    """Refuse cross-site requests (CSRF).

    A cookie-authenticated request that changes state must be same-origin by `Sec-Fetch-Site` or `Origin`, which scripts
    cannot forge.
    """
    if request.method not in SAFE_METHODS and not _is_same_origin(request):
        raise Problem(
            403,
            "Cross-site request refused: with a session cookie, changes are accepted only from Headrace's own pages. "
            "Nothing was done. Programs send a key instead: `Authorization: Bearer hr_…`.",
        )


def refuse_cross_site_sign_in(request: Request) -> None:
    """Refuse cross-site sign-in (login CSRF). Requests with neither header come from programs and pass."""
    headers = request.headers
    if ("sec-fetch-site" in headers or "origin" in headers) and not _is_same_origin(request):
        raise Problem(403, "Cross-site sign-in refused. Nothing was done.")


def _is_same_origin(request: Request) -> bool:
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", ""))
    return origin.netloc != "" and (origin.scheme, origin.netloc) == (request.url.scheme, request.headers.get("host"))


# --- Links -----------------------------------------------------------------------------------------


def create_login_link(conn: Connection, key_id: str, life_s: float = LINK_LIFE_S) -> str:
    """Create a sign-in link for a key and return its token, for /login/TOKEN."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    conn.execute(QUERIES["add_link"], {"hash": compute_digest(token), "key_id": key_id, "life_s": life_s})
    return token


def consume_login_link(conn: Connection, token: str) -> str | None:
    """Use up a sign-in link and return the id of its key; None if it was used, has expired or never existed."""
    return (
        conn.cursor(row_factory=scalar_row).execute(QUERIES["consume_link"], {"hash": compute_digest(token)}).fetchone()
    )

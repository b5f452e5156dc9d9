"""Sessions of browsers: a cookie that stands for a key until its session is ended, and links that begin one, once.

The cookie holds the session's id and a secret; PostgreSQL holds the id and the SHA-256 of the secret. Ending a session
deletes its row, so that a copy of the cookie is worth nothing; revoking a key ends all its sessions.
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

from headrace.api.callers import Caller, Level, Scope
from headrace.api.keys import digest
from headrace.api.problems import Problem
from headrace.api.queries import QUERIES
from headrace.postgres.connect import Connection, class_row, scalar_row
from headrace.settings import ApiSettings

COOKIE = "headrace_session"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LINK_LIFE_S = 3600.0
ID_BYTES = 8
TOKEN_BYTES = 32
LINK = re.compile(r"[A-Za-z0-9_-]{43}")
"""What a token of a link looks like."""

MOST_PER_KEY = 100
"""Sessions of one key; with one more, the oldest ends."""
MOST_AGENT_CHARS = 200


@dataclass(frozen=True)
class SessionFacts:
    """What is shown of a session."""

    id: str
    key_id: str
    key_name: str
    level: str
    org: str | None
    project: str | None
    env: str | None
    via: str  # key or link
    address: str
    user_agent: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime

    @property
    def scope(self) -> Scope:
        return Scope(self.org, self.project, self.env)


def begin_session(conn: Connection, request: Request, key_id: str, via: str, address: str, life_s: float) -> str:
    """Return the value of the cookie of a new session."""
    session_id, secret = secrets.token_hex(ID_BYTES), secrets.token_hex(TOKEN_BYTES)
    agent = "".join(char for char in request.headers.get("user-agent", "") if char.isprintable())
    row = {"id": session_id, "hash": digest(secret), "key_id": key_id, "via": via, "life_s": life_s}
    conn.execute(QUERIES["add_session"], {**row, "address": address, "user_agent": agent[:MOST_AGENT_CHARS]})
    conn.execute(QUERIES["delete_excess_sessions"], {"key_id": key_id, "most": MOST_PER_KEY})
    return f"{session_id}.{secret}"


def end_session(conn: Connection, session_id: str) -> bool:
    """Whether there was one to end."""
    return conn.execute(QUERIES["delete_session"], {"id": session_id}).fetchone() is not None


def list_sessions(
    conn: Connection, by: Caller, limit: int, before: tuple[datetime, str] | None = None, session_id: str | None = None
) -> list[SessionFacts]:
    """Return live sessions, newest first: those of the caller's own key, and for admins those of all keys that reach
    nothing beyond what theirs reaches."""
    scope = by.scope
    before_at, before_id = before or (None, None)
    asked = {
        **{"key_id": by.key_id, "is_admin": by.level >= Level.ADMIN, "id": session_id, "limit": limit},
        **{
            "org": scope.org,
            "project": scope.project,
            "env": scope.env,
            "before_at": before_at,
            "before_id": before_id,
        },
    }
    return conn.cursor(row_factory=class_row(SessionFacts)).execute(QUERIES["list_sessions"], asked).fetchall()


def mark_used(conn: Connection, ids: Iterable[str]) -> None:
    conn.execute(QUERIES["mark_sessions_used"], {"ids": list(ids)})


def tidy(conn: Connection) -> None:
    """Delete sessions and links that are over."""
    conn.execute(QUERIES["purge_links"])
    conn.execute(QUERIES["purge_sessions"])


# --- Cookies ---------------------------------------------------------------------------------------


def cookie_name(request: Request) -> str:
    """Browsers keep the cookies of all ports of a host together; two stacks on one machine shall not share theirs."""
    return f"{COOKIE}_{(request.scope.get('server') or ('', 0))[1]}"


def cookie_of(request: Request) -> str | None:
    return request.cookies.get(cookie_name(request))


def give_cookie(request: Request, response: Response, value: str, settings: ApiSettings) -> None:
    response.set_cookie(cookie_name(request), value, max_age=int(settings.session), **_attributes(request, settings))


def take_cookie(request: Request, response: Response, settings: ApiSettings) -> None:
    response.delete_cookie(cookie_name(request), **_attributes(request, settings))


def is_secure(scheme: str, settings: ApiSettings) -> bool:
    """Whether browsers shall send the cookie, and everything else, over HTTPS only."""
    return scheme == "https" if settings.cookie_secure is None else settings.cookie_secure


def _attributes(request: Request, settings: ApiSettings) -> dict[str, Any]:
    secure = is_secure(request.url.scheme, settings)
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": secure}


# --- Requests of other sites -----------------------------------------------------------------------


def refuse_foreign(request: Request) -> None:
    """A browser sends cookies with requests that other sites make it send: what changes something must prove that it
    comes from our own pages. Browsers say so by themselves and no script can make them say otherwise."""
    if request.method not in SAFE_METHODS and not _is_same_origin(request):
        raise Problem(
            403,
            "A request with a session cookie that changes something must come from Headrace's own pages. Nothing was "
            "done. Programs send a key instead: `Authorization: Bearer hr_…`.",
        )


def refuse_foreign_sign_in(request: Request) -> None:
    """Nobody signs others in without their knowing. Programs send neither header."""
    says = request.headers
    if ("sec-fetch-site" in says or "origin" in says) and not _is_same_origin(request):
        raise Problem(403, "Signing in from another site's page is not possible. Nothing was done.")


def _is_same_origin(request: Request) -> bool:
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", ""))
    return origin.netloc != "" and (origin.scheme, origin.netloc) == (request.url.scheme, request.headers.get("host"))


# --- Links -----------------------------------------------------------------------------------------


def make_link(conn: Connection, key_id: str, life_s: float = LINK_LIFE_S) -> str:
    """A token for /login/TOKEN."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    conn.execute(QUERIES["add_link"], {"hash": digest(token), "key_id": key_id, "life_s": life_s})
    return token


def use_link(conn: Connection, token: str) -> str | None:
    """The id of the key that the link stands for; None if it was used, is over, or never was."""
    return conn.cursor(row_factory=scalar_row).execute(QUERIES["consume_link"], {"hash": digest(token)}).fetchone()

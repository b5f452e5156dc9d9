"""Sessions of browsers: a signed cookie that stands for a key, and links that give one, once.

The cookie holds the key's id and an end, signed with a secret that all API processes share. Nothing is stored per
session: revoking the key ends them all.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response

from headrace.api.keys import SQL, Key, KeyRing, digest
from headrace.api.problems import Problem
from headrace.postgres.connect import Connection, scalar_row
from headrace.postgres.queries import load_query

COOKIE = "headrace_session"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LINK_LIFE_S = 3600.0
TOKEN_BYTES = 32


def cookie_name(request: Request) -> str:
    """Browsers keep the cookies of all ports of a host together; two stacks on one machine shall not share theirs."""
    return f"{COOKIE}_{(request.scope.get('server') or ('', 0))[1]}"


def cookie_of(request: Request) -> str | None:
    return request.cookies.get(cookie_name(request))


def give_cookie(request: Request, response: Response, key: Key, ring: KeyRing, life_s: float) -> None:
    value = sign({"key": key.id, "until": int(time.time() + life_s)}, ring.signing_secret)
    response.set_cookie(cookie_name(request), value, max_age=int(life_s), **_attributes(request))


def take_cookie(request: Request, response: Response) -> None:
    response.delete_cookie(cookie_name(request), **_attributes(request))


def key_of(cookie: str, ring: KeyRing) -> Key | None:
    """The key that a cookie stands for, if the cookie is ours, not over, and the key still valid."""
    claims = verified(cookie, ring.signing_secret)
    return None if claims is None or claims["until"] <= time.time() else ring.find_id(claims["key"])


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


def sign(claims: dict[str, Any], secret: bytes) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode())
    return f"{body.decode()}.{_signature(body, secret)}"


def verified(cookie: str, secret: bytes) -> dict[str, Any] | None:
    body, _, signature = cookie.encode(errors="replace").partition(b".")
    if not hmac.compare_digest(signature, _signature(body, secret).encode()):
        return None
    try:
        return json.loads(base64.urlsafe_b64decode(body))
    except (binascii.Error, ValueError):
        return None  # signed by us, but not in a way that this release knows


def make_link(conn: Connection, key_id: str, life_s: float = LINK_LIFE_S) -> str:
    """A token for /login/TOKEN."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    conn.execute(load_query(SQL, "add_link"), {"hash": digest(token), "key_id": key_id, "life_s": life_s})
    return token


def use_link(conn: Connection, token: str) -> str | None:
    """The id of the key that the link stands for; None if it was used, is over, or never was."""
    return conn.cursor(row_factory=scalar_row).execute(load_query(SQL, "use_link"), {"hash": digest(token)}).fetchone()


def tidy_links(conn: Connection) -> None:
    conn.execute(load_query(SQL, "tidy_links"))


def _signature(body: bytes, secret: bytes) -> str:
    return base64.urlsafe_b64encode(hmac.digest(secret, body, hashlib.sha256)).decode()


def _attributes(request: Request) -> dict[str, Any]:
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": request.url.scheme == "https"}


def _is_same_origin(request: Request) -> bool:
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", ""))
    return origin.netloc != "" and (origin.scheme, origin.netloc) == (request.url.scheme, request.headers.get("host"))

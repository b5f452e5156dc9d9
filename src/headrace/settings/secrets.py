"""Masks passwords in text that is shown."""

from __future__ import annotations

import re


def mask_secret(secret: str) -> str:
    """Replace the passwords in a URL by `***`; hide any other text completely.

    Hides too much rather than too little: everything up to the last `@` (a password may contain a raw `/`
    or `@`), and the whole URL if an `@` follows the `?`, because any part of it may then be the password.
    """
    match = re.fullmatch(r"([A-Za-z][\w+.-]*://)([^?]*)(.*)", secret, re.DOTALL)
    if not match or "@" in match[3]:
        return hide_secret(secret)
    server = re.sub(r"^([^:]*:).*@", r"\1***@", match[2], flags=re.DOTALL)
    query = re.sub(r"(?i)([?&][^=&]*(?:pass|secret|token)[^=&]*=)[^&]*", r"\1***", match[3])
    return match[1] + server + query


def hide_secret(secret: str) -> str:
    """Hide everything but the URL scheme, for text that is not a valid URL: any part of it may be a password."""
    scheme = re.match(r"[A-Za-z][\w+.-]*://", secret)
    return (scheme[0] if scheme else "") + "***"

"""Route class that matches the undecoded path, so that `/` in a name stays one segment.

Servers decode a path before it is matched, so a queue named `a/dead` would be taken for the dead jobs of `a`. Routes of
this class match the path as it was sent and decode each segment.
"""

from __future__ import annotations

from urllib.parse import unquote

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from headrace.api.problems import Problem


class RawPathRoute(APIRoute):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent: bytes | None = scope.get("raw_path")
        if not sent:
            return super().matches(scope)
        match, found = super().matches({**scope, "path": sent.decode("latin-1")})
        if match != Match.NONE:
            before = scope.get("path_params", {})
            found["path_params"] = {
                name: value if name in before else _decode_segment(value)
                for name, value in found["path_params"].items()
            }
        return match, found


def _decode_segment(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as error:  # with replacement characters, different names would become equal
        raise Problem(400, f"Path segment {segment[:128]!r} is not percent-encoded UTF-8.") from error

"""Names in paths: one percent-encoded segment each, whatever is in them.

Servers decode a path before it is matched, and a queue called `a/dead` would be taken for the dead jobs of `a`. Routes
of this class are matched against the path as it was sent.
"""

from __future__ import annotations

from urllib.parse import unquote

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from headrace.api.problems import Problem


class SegmentRoute(APIRoute):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent: bytes | None = scope.get("raw_path")
        if not sent:
            return super().matches(scope)
        match, found = super().matches({**scope, "path": sent.decode("latin-1")})
        if match != Match.NONE:
            before = scope.get("path_params", {})
            found["path_params"] = {
                name: value if name in before else _decoded(value) for name, value in found["path_params"].items()
            }
        return match, found


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as error:  # replaced, different names would become one
        raise Problem(400, f"{segment[:128]!r} in the path is not a name in UTF-8, percent-encoded.") from error

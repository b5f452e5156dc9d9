"""Headrace in WSGI applications: Flask, Django and others. Imports none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.app.context import parse_env, use_env
from headrace.model.names import EnvRef

WsgiEnviron = dict[str, Any]
WsgiApplication = Callable[[WsgiEnviron, Any], Iterable[bytes]]

ResolveEnviron = Callable[[WsgiEnviron], EnvRef | str | None]
"""Returns the environment of a request (`org/project/env`), or None if it has none."""


class WsgiTenantMiddleware:
    """WSGI middleware in which jobs are enqueued in the environment of the request, also while the body of the response
    is produced."""

    def __init__(self, app: WsgiApplication, resolve: ResolveEnviron) -> None:
        """`resolve` must only trust what it has verified, for example a session: the environment decides whose data a
        job works on. If it raises, the request fails. If it returns None, the request has no environment, and an
        enqueue that names none goes to that of the app or raises NoEnvironment."""
        self._app = app
        self._resolve = resolve

    def __call__(self, environ: WsgiEnviron, start_response: Any) -> Iterable[bytes]:
        given = self._resolve(environ)
        if given is None:
            return self._app(environ, start_response)
        env = parse_env(given)
        with use_env(env):
            body = self._app(environ, start_response)
            return body if isinstance(body, list | tuple) else TenantBody(body, env)


class TenantBody:
    """The body of a response, each part of which is produced in the environment of its request."""

    def __init__(self, body: Iterable[bytes], env: EnvRef) -> None:
        self._body = body
        self._parts = iter(body)
        self._env = env

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with use_env(self._env):
            return next(self._parts)

    def close(self) -> None:
        """Close the body. Servers call it at the end of each request."""
        if hasattr(self._body, "close"):
            with use_env(self._env):
                self._body.close()  # pyright: ignore[reportAttributeAccessIssue]

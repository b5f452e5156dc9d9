"""Headrace in ASGI applications: FastAPI, Starlette and others. Imports none of them.

`TenantMiddleware` sets the environment of each request. `lifespan` closes the connections of an app when the server
stops, and runs a worker in the server during development.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, overload

from headrace.app.context import parse_env, use_env
from headrace.app.headrace import Headrace
from headrace.model.names import EnvRef

S = TypeVar("S")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

ResolveScope = Callable[[Scope], EnvRef | str | Awaitable[EnvRef | str | None] | None]
"""Returns the environment of a request (`org/project/env`), or None if it has none. May be async."""


class TenantMiddleware:
    """ASGI middleware in which jobs are enqueued in the environment of the request, by handlers on the event loop and
    in threads. It is above the framework because context variables that a dependency sets in a thread are not seen by
    the handler."""

    def __init__(self, app: AsgiApplication, resolve: ResolveScope) -> None:
        """`resolve` must only trust what it has verified, for example a session: the environment decides whose data a
        job works on. If it raises, the request fails. If it returns None, the request has no environment, and an
        enqueue that names none goes to that of the app or raises NoEnvironment."""
        self._app = app
        self._resolve = resolve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        env = None
        if scope["type"] in ("http", "websocket"):
            env = self._resolve(scope)
            if inspect.isawaitable(env):
                env = await env
        if env is None:
            await self._app(scope, receive, send)
            return
        with use_env(parse_env(env)):
            await self._app(scope, receive, send)


WebLifespan = Callable[[Any], AbstractAsyncContextManager[S]]
"""The lifespan of a web application, which is its argument. What it yields is the state of requests."""


@overload
def lifespan(queue: Headrace, yours: None = None, *, worker: bool = False) -> WebLifespan[None]: ...
@overload
def lifespan(queue: Headrace, yours: WebLifespan[S], *, worker: bool = False) -> WebLifespan[S]: ...
def lifespan(queue: Headrace, yours: WebLifespan[Any] | None = None, *, worker: bool = False) -> WebLifespan[Any]:
    """Return the lifespan of a web application: `FastAPI(lifespan=lifespan(queue))`. It closes the connections of the
    queue when the server stops. `yours` is the lifespan of the application itself; what it yields is kept. With
    `worker` a worker runs on the event loop of the server, for development; it installs no signal handlers."""

    @asynccontextmanager
    async def run(app: Any) -> AsyncGenerator[Any]:
        async with queue, AsyncExitStack() as stack:
            state = None if yours is None else await stack.enter_async_context(yours(app))
            if worker:
                await stack.enter_async_context(queue.worker().running())
            yield state

    return run

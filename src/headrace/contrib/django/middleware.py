"""Sets the environment of a request, so that its jobs belong to its tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import iscoroutinefunction
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware
from django.utils.module_loading import import_string

from headrace.app.context import parse_env, use_env
from headrace.model.names import EnvRef

Resolve = Callable[[HttpRequest], EnvRef | str | None]


@sync_and_async_middleware
def tenant_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Enqueue the jobs of a request in the environment of its tenant. The setting HEADRACE_TENANT is the path of a
    function that takes a request and returns its environment ("org/project/env"), or None: the backend's own."""
    resolve = _load_resolve()
    if iscoroutinefunction(get_response):

        async def respond_async(request: HttpRequest) -> HttpResponseBase:
            with _use(await sync_to_async(resolve, thread_sensitive=True)(request)):
                return await cast(Awaitable[HttpResponseBase], get_response(request))

        return respond_async

    def respond(request: HttpRequest) -> HttpResponseBase:
        with _use(resolve(request)):
            return get_response(request)

    return respond


def _load_resolve() -> Resolve:
    path = getattr(settings, "HEADRACE_TENANT", None)
    if path is None:
        raise ImproperlyConfigured("tenant_middleware needs the setting HEADRACE_TENANT: the path of a function.")
    return import_string(path)


def _use(env: EnvRef | str | None) -> AbstractContextManager[EnvRef | None]:
    return nullcontext() if env is None else use_env(parse_env(env))

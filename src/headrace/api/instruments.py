"""Metrics of the API process itself: how many requests, how they ended, how long they took. No tenant in any label."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.vitals.collect import FigureCollector
from headrace.vitals.figures import Families

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Instruments:
    """One set per application, so that two in a process do not count together."""

    def __init__(self, *sources: Callable[[], Families]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(FigureCollector(sources))
        self._requests = Counter(
            "headrace_api_requests_total",
            "Requests answered.",
            ["route", "method", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "headrace_api_request_duration_seconds",
            "From the request's head to the end of its answer.",
            ["route", "method"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def page(self, openmetrics: bool = False) -> bytes:
        return generate_openmetrics(self._registry) if openmetrics else generate_latest(self._registry)


class CountRequests:
    def __init__(self, app: ASGIApp, instruments: Instruments) -> None:
        self._app = app
        self._instruments = instruments

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            self._instruments.count(_route(scope), _method(scope), status, time.perf_counter() - began)


def _route(scope: Scope) -> str:
    """The template, as in /api/v1/queues/{queue}/metrics: what callers write into a path makes no label."""
    route = scope.get("route")
    return getattr(route, "path_format", None) or ("dashboard" if "endpoint" not in scope else "other")


def _method(scope: Scope) -> str:
    """Callers may invent methods too."""
    return scope["method"] if scope["method"] in METHODS else "other"

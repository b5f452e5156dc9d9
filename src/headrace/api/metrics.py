"""Prometheus metrics of the API process: requests by route, method, status and duration. Labels name no tenant."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.runtime.metrics import DurationHistogram, LabelValues, MetricDeclaration, MetricFamilies, MetricValues
from headrace.runtime.prometheus import build_registry

REQUESTS = MetricDeclaration(
    "headrace_api_requests_total", "counter", "Requests answered.", ("route", "method", "status")
)
SECONDS = MetricDeclaration(
    "headrace_api_request_duration_seconds",
    "histogram",
    "Time from the request headers to the end of the response.",
    ("route", "method"),
)
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class ApiMetrics:
    """Metrics of one application, in a registry of their own."""

    def __init__(self, *sources: Callable[[], MetricFamilies]) -> None:
        self._requests = MetricValues(REQUESTS)
        self._seconds: dict[LabelValues, DurationHistogram] = {}
        self._registry = build_registry(*sources, lambda: [self._requests.read(), (SECONDS, dict(self._seconds))])

    def record_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.add(1, route, method, str(status))
        self._seconds.setdefault((route, method), DurationHistogram(BUCKETS_S)).observe(seconds)

    def render_page(self, openmetrics: bool = False) -> bytes:
        return generate_openmetrics(self._registry) if openmetrics else generate_latest(self._registry)


class RequestMetricsMiddleware:
    """Counts requests and measures their duration."""

    def __init__(self, app: ASGIApp, instruments: ApiMetrics) -> None:
        self._app = app
        self._metrics = instruments

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
            self._metrics.record_request(
                _find_route(scope), _normalize_method(scope), status, time.perf_counter() - began
            )


def _find_route(scope: Scope) -> str:
    """Return the route template, such as /api/v1/queues/{queue}/metrics, so that paths do not become labels."""
    route = scope.get("route")
    return getattr(route, "path_format", None) or ("dashboard" if "endpoint" not in scope else "other")


def _normalize_method(scope: Scope) -> str:
    """Return the method, or "other" for unknown ones, which clients could invent."""
    return scope["method"] if scope["method"] in METHODS else "other"

"""Serve /metrics and /healthz of a process.

Direct requests from this machine need no token. Others need one for /metrics, and learn from /healthz only whether the
process is healthy.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from headrace.errors import HeadraceError, PortTaken
from headrace.runtime.access import has_token, is_direct_loopback

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

FORBIDDEN = (
    "/metrics requires the token in the setting metrics.token, except for direct requests from this machine to a "
    "loopback address. Send `Authorization: Bearer TOKEN`."
)

HealthProbe = Callable[[], tuple[int, dict[str, Any]]]


class CannotListen(HeadraceError):
    """Could not listen on the address for /metrics and /healthz. Nothing was started."""

    exit_code = 4


class MetricsServer(ThreadingMixIn, WSGIServer):
    """HTTP server with one thread per request, so that an idle connection blocks no other."""

    daemon_threads = True
    block_on_close = False


class MetricsServerIPv6(MetricsServer):
    address_family = socket.AF_INET6


class QuietRequestHandler(WSGIRequestHandler):
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: there is a scrape every few seconds."""


@contextmanager
def serve_metrics(
    port: int | None, registry: CollectorRegistry, health: HealthProbe, host: str = LOOPBACK, token: str | None = None
) -> Generator[int | None]:
    """Serve /metrics and /healthz inside this context, and yield the port, which is also logged. Port 0 chooses a free
    one; None serves nothing. Without a `token`, /metrics is only for direct requests from this machine."""
    if port is None:
        yield None
        return
    server = _listen(host, port, _build_application(registry, health, token))
    thread = threading.Thread(target=server.serve_forever, name="pages", daemon=True)
    thread.start()
    url_host = f"[{host}]" if ":" in host else host
    log.info(
        "serving metrics on http://%s:%s/metrics", url_host, server.server_port, extra={"action": "serves_metrics"}
    )
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(host: str, port: int, application: Any) -> WSGIServer:
    try:
        return make_server(
            host, port, application, MetricsServerIPv6 if ":" in host else MetricsServer, QuietRequestHandler
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"Port {port} for /metrics is in use by another process. Nothing was started. Stop that process, or "
                "choose another port (0 = any free one)."
            ) from error
        raise CannotListen(
            f"Could not serve /metrics at {host} port {port}: {error.strerror or error}. Nothing was started. Set "
            "metrics.host to an address of this machine and choose a port this user may open."
        ) from error


def _build_application(registry: CollectorRegistry, health: HealthProbe, token: str | None) -> Any:
    metrics: Any = make_wsgi_app(registry)  # text or OpenMetrics, compressed or not, as requested

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics" if not _can_read(environ, token):
                start_response("401 Unauthorized", [_JSON, ("WWW-Authenticate", 'Bearer realm="headrace"')])
                return [json.dumps({"detail": FORBIDDEN}).encode()]
            case "/metrics":
                return metrics(environ, start_response)
            case "/healthz":
                status, body = health()
                if not _can_read(environ, token):
                    body = {"healthy": status == 200}
                start_response("200 OK" if status == 200 else "503 Service Unavailable", [_JSON])
                return [json.dumps(body).encode()]
            case _:
                start_response("404 Not Found", [_JSON])
                return [json.dumps({"pages": ["/metrics", "/healthz"]}).encode()]

    return application


def _can_read(environ: dict[str, Any], token: str | None) -> bool:
    headers = {name.removeprefix(_HEADER).replace("_", "-") for name in environ if name.startswith(_HEADER)}
    hosts = [environ["HTTP_HOST"]] if "HTTP_HOST" in environ else []
    is_direct = is_direct_loopback(environ.get("REMOTE_ADDR"), hosts, headers)
    return is_direct or has_token(environ.get("HTTP_AUTHORIZATION"), token)


_HEADER = "HTTP_"
_JSON = ("Content-Type", "application/json")

"""/metrics and /healthz of a process.

Direct requests from this machine need nothing. Others need a token for /metrics, and get from /healthz only whether
the process is healthy.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from headrace.errors import HeadraceError, PortTaken
from headrace.vitals.access import has_token, is_direct_loopback

LOOPBACK = "127.0.0.1"

REFUSED = (
    "/metrics needs the token of the setting metrics.token, unless it is asked for directly from this machine, at a "
    "loopback address: send `Authorization: Bearer TOKEN`."
)

Health = Callable[[], tuple[int, dict[str, Any]]]


class CannotListen(HeadraceError):
    """The address of /metrics and /healthz cannot be listened on. Nothing was started."""

    exit_code = 4


class Server(ThreadingMixIn, WSGIServer):
    """One thread per request: who connects and says nothing holds up nobody else."""

    daemon_threads = True
    block_on_close = False


class ServerOnIPv6(Server):
    address_family = socket.AF_INET6


class Quiet(WSGIRequestHandler):
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is no news."""


@contextmanager
def served(
    port: int | None, registry: CollectorRegistry, health: Health, host: str = LOOPBACK, token: str | None = None
) -> Generator[int | None]:
    """Gives the port: 0 asks for any that is free. None: nothing is served. Without a `token`, /metrics is for direct
    requests from this machine only."""
    if port is None:
        yield None
        return
    server = _listen(host, port, _application(registry, health, token))
    thread = threading.Thread(target=server.serve_forever, name="pages", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(host: str, port: int, application: Any) -> WSGIServer:
    try:
        return make_server(host, port, application, ServerOnIPv6 if ":" in host else Server, Quiet)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"Port {port} for /metrics is in use by another process. Nothing was started. Stop that process, or "
                "choose another port (0 = any free one)."
            ) from error
        raise CannotListen(
            f"/metrics cannot be served at {host} port {port}: {error.strerror or error}. Nothing was started. Choose "
            "an address of this machine (metrics.host) and a port that may be used."
        ) from error


def _application(registry: CollectorRegistry, health: Health, token: str | None) -> Any:
    metrics: Any = make_wsgi_app(registry)  # text or OpenMetrics, compressed or not, as the request asks

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics" if not _may_read(environ, token):
                start_response("401 Unauthorized", [_JSON, ("WWW-Authenticate", 'Bearer realm="headrace"')])
                return [json.dumps({"detail": REFUSED}).encode()]
            case "/metrics":
                return metrics(environ, start_response)
            case "/healthz":
                status, body = health()
                if not _may_read(environ, token):
                    body = {"healthy": status == 200}
                start_response("200 OK" if status == 200 else "503 Service Unavailable", [_JSON])
                return [json.dumps(body).encode()]
            case _:
                start_response("404 Not Found", [_JSON])
                return [json.dumps({"pages": ["/metrics", "/healthz"]}).encode()]

    return application


def _may_read(environ: dict[str, Any], token: str | None) -> bool:
    headers = {name.removeprefix(_HEADER).replace("_", "-") for name in environ if name.startswith(_HEADER)}
    hosts = [environ["HTTP_HOST"]] if "HTTP_HOST" in environ else []
    is_direct = is_direct_loopback(environ.get("REMOTE_ADDR"), hosts, headers)
    return is_direct or has_token(environ.get("HTTP_AUTHORIZATION"), token)


_HEADER = "HTTP_"
_JSON = ("Content-Type", "application/json")

"""/metrics and /healthz of the pipeline, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

Health = Callable[[], tuple[int, dict[str, Any]]]


class Server(ThreadingMixIn, WSGIServer):
    """One thread per request: who connects and says nothing holds up nobody else."""

    daemon_threads = True
    block_on_close = False


class Quiet(WSGIRequestHandler):
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is no news."""


@contextmanager
def served(port: int | None, registry: CollectorRegistry, health: Health) -> Generator[None]:
    if port is None:
        yield
        return
    server = make_server("127.0.0.1", port, _application(registry, health), Server, Quiet)
    thread = threading.Thread(target=server.serve_forever, name="pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _application(registry: CollectorRegistry, health: Health) -> Any:
    metrics: Any = make_wsgi_app(registry)

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return metrics(environ, start_response)
            case "/healthz":
                status, body = health()
                start_response("200 OK" if status == 200 else "503 Service Unavailable", [_JSON])
                return [json.dumps(body).encode()]
            case _:
                start_response("404 Not Found", [_JSON])
                return [json.dumps({"pages": ["/metrics", "/healthz"]}).encode()]

    return application


_JSON = ("Content-Type", "application/json")

"""Embedded ClickHouse: chDB in a process of its own, behind ClickHouse's HTTP interface."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

from headrace.embedded.process import LOOPBACK, EmbeddedServer


class EmbeddedClickHouse(EmbeddedServer):
    name = "clickhouse"

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def command(self) -> Sequence[str]:
        module = "headrace.embedded.clickhouse_http"
        return [sys.executable, "-m", module, "--data-dir", str(self.data_dir), "--port", str(self.port)]

    def ping(self) -> str | None:
        # The endpoint itself, not a client library: this must stay cheap, it is asked 50 times a second.
        try:
            with urllib.request.urlopen(f"{self.url}/ping", timeout=2) as answer:
                if answer.read() != b"Ok.\n":
                    return None
            with urllib.request.urlopen(f"{self.url}/?query=SELECT+version()", timeout=10) as answer:
                return f"clickhouse {answer.read().decode().strip()}"
        except (urllib.error.URLError, OSError):
            return None

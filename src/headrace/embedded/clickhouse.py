"""Embedded ClickHouse: chDB in its own process, behind ClickHouse's HTTP interface."""

from __future__ import annotations

import base64
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

from headrace.embedded.clickhouse_access import USER
from headrace.embedded.credentials import ensure_passwords
from headrace.embedded.process import LOOPBACK, EmbeddedServer


class EmbeddedClickHouse(EmbeddedServer):
    name = "clickhouse"

    @property
    def url(self) -> str:
        return f"http://{USER}:{self._password}@{LOOPBACK}:{self.port}"

    @property
    def _password(self) -> str:
        return ensure_passwords(self.data_dir, USER)[USER]

    def prepare(self) -> None:
        super().prepare()
        ensure_passwords(self.data_dir, USER)

    def command(self) -> Sequence[str]:
        module = "headrace.embedded.clickhouse_http"
        return [sys.executable, "-m", module, "--data-dir", str(self.data_dir), "--port", str(self.port)]

    def ping(self) -> str | None:
        # Plain HTTP instead of a client library: this runs 50 times a second during start-up.
        address = f"http://{LOOPBACK}:{self.port}"
        token = base64.b64encode(f"{USER}:{self._password}".encode()).decode()
        query = urllib.request.Request(
            f"{address}/?query=SELECT+version()", headers={"Authorization": f"Basic {token}"}
        )
        try:
            with urllib.request.urlopen(f"{address}/ping", timeout=2) as response:
                if response.read() != b"Ok.\n":
                    return None
            with urllib.request.urlopen(query, timeout=10) as response:
                return f"clickhouse {response.read().decode().strip()}"
        except (urllib.error.URLError, OSError):
            return None

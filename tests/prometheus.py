"""A real Prometheus for tests."""

from __future__ import annotations

import json
import os
import signal
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.embedded.process import GuardedProcess
from tests.conftest import wait_until
from tests.programs import find_tool


class Prometheus:
    """Scrapes one endpoint every second, if `target` is given. With further flags it can receive remote write."""

    def __init__(
        self, folder: Path, port: int, target: tuple[str, int] | None = None, flags: Sequence[str] = ()
    ) -> None:
        folder.mkdir(exist_ok=True)
        config = folder / "prometheus.yml"
        scraped = f"[{{targets: ['{target[0]}:{target[1]}']}}]" if target else "[]"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"scrape_configs: [{{job_name: headrace, static_configs: {scraped}}}]\n"
        )
        self.port = port
        command = [
            find_tool("prometheus", "prometheus"),
            *(f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"),
            f"--web.listen-address=127.0.0.1:{self.port}",
            *flags,
        ]
        self.child = GuardedProcess("prometheus", command, log_file=folder / "prometheus.log", env={})

    @property
    def write_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1/write"

    def kill(self) -> None:
        os.kill(self.child.pid, signal.SIGKILL)
        wait_until(lambda: self.child.exit_code() is not None, "Prometheus is dead")

    def query(self, query: str) -> list[dict[str, Any]]:
        return wait_until(lambda: self.query_once(query), f"Prometheus knows {query}: {self.child.log_tail()}")

    def value(self, query: str) -> float:
        [found] = self.query(query)
        return float(found["value"][1])

    def query_once(self, query: str) -> list[dict[str, Any]]:
        """Return the result; empty if there is none, or if Prometheus does not answer yet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]["result"]
        except OSError:
            return []

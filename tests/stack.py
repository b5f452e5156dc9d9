"""`headrace up` as a person runs it: a process with a data directory, watched from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from headrace.api.keys import id_of
from headrace.cli.keys import make_link
from headrace.cli.local_key import read_local_key
from headrace.embedded.datadir import running_stack
from headrace.postgres.connect import connect
from tests.conftest import wait_until

CHART_S = 180.0


class RunningStack:
    def __init__(self, data_dir: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        command = [sys.executable, "-m", "headrace", "up", "--data-dir", str(data_dir), *options]
        self.process = subprocess.Popen(
            command, env=dict(env or os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def urls(self) -> dict[str, str]:
        return wait_until(self._urls, "the stack says where it is", 120)

    @property
    def dashboard(self) -> str:
        url = self.urls["dashboard"]
        wait_until(lambda: self.get("healthz"), "the dashboard answers", 120)
        return url

    @property
    def key(self) -> str:
        """The key that the stack keeps beside its data."""
        return wait_until(lambda: read_local_key(self.data_dir), "the stack has made its key", 120)

    def link(self) -> str:
        """Signs one browser in."""
        with connect(self.urls["postgres"]) as conn:
            return make_link(conn, id_of(self.key) or "", self.dashboard)

    def get(self, path: str) -> Any:
        """What the API answers there; None if it does not, or with an error."""
        assert self.process.poll() is None, self.process.communicate()[1]
        asked = urllib.request.Request(self.urls["dashboard"] + path, headers={"Authorization": f"Bearer {self.key}"})
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return None

    def wait_for_chart(self) -> None:
        """Until the demo's steady queue has completed jobs in its history."""

        def completed() -> bool:
            answer = self.get("api/v1/queues/emails/metrics?org=acme&project=shop&env=prod&period=5m")
            return answer is not None and any(point["throughput"]["completed"] for point in answer["timeseries"])

        wait_until(completed, "the first chart", CHART_S)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, str, str]:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = 240) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def _urls(self) -> dict[str, str] | None:
        assert self.process.poll() is None, self.process.communicate()[1]
        stack = running_stack(self.data_dir)
        return stack["urls"] if stack and stack["pid"] == self.process.pid else None


def outcome(out: str) -> dict[str, Any]:
    """The JSON object in the last line of standard output."""
    return json.loads(out.splitlines()[-1])

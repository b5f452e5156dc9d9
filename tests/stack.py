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

from headrace.embedded.datadir import running_stack
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
        wait_until(lambda: self._get(f"{url}healthz"), "the dashboard answers", 120)
        return url

    def wait_for_chart(self) -> None:
        """Until the demo's steady queue has completed jobs in its history."""
        url = f"{self.dashboard}api/v1/queues/emails/metrics?org=acme&project=shop&env=prod&period=5m"

        def completed() -> bool:
            answer = self._get(url)
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

    def _get(self, url: str) -> Any:
        assert self.process.poll() is None, self.process.communicate()[1]
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return None


def outcome(out: str) -> dict[str, Any]:
    """The JSON object in the last line of standard output."""
    return json.loads(out.splitlines()[-1])

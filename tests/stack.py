"""Runs `headrace up` as a process with its own data directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from headrace.api.api_keys import parse_key_id
from headrace.cli.keys import create_sign_in_link
from headrace.cli.local_key import read_local_key
from headrace.embedded.data_directory import find_running_stack
from headrace.postgres.connect import connect
from tests.conftest import wait_until

START_S = 240.0
CHART_S = 480.0  # Spark takes long to start on a busy machine
CURRENT_MS = 60_000
ANSWER_S = 60.0
POLL_S = 0.2  # polling more often would slow down the processes that are starting
STOP_S = 600.0

# Short intervals for alerts and decisions, receivers on private addresses allowed, and long timeouts for slow disks.
QUICK = {
    "HEADRACE_ALERTS_EVERY": "2s",
    "HEADRACE_AUTOSCALE_EVERY": "2s",
    "HEADRACE_ALERTS_ALLOWED_HOSTS": "127.0.0.1",
    "HEADRACE_API_QUERY_TIMEOUT": "1m",
}
PATIENT = {"HEADRACE_EMBEDDED_START_TIMEOUT": "4m"}


def command_lines(processes: Iterable[psutil.Process]) -> list[str]:
    """Return the arguments of each running process."""
    lines: list[str] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # also raised for a zombie process
            lines.append(" ".join(process.cmdline()))
    return lines


class RunningStack:
    def __init__(
        self,
        data_dir: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        given = [word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "headrace", *given, "up", "--data-dir", str(data_dir), *options]
        self.process = subprocess.Popen(
            command, env={**PATIENT, **(env or os.environ)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def urls(self) -> dict[str, str]:
        return wait_until(self._urls, "the stack says where it is", START_S, POLL_S)

    @property
    def dashboard(self) -> str:
        url = self.urls["dashboard"]
        wait_until(lambda: self.get("healthz"), "the dashboard answers", START_S, POLL_S)
        return url

    @property
    def key(self) -> str:
        """Return the local key in the data directory."""
        return wait_until(lambda: read_local_key(self.data_dir), "the stack has made its key", START_S, POLL_S)

    def link(self) -> str:
        """Return the sign-in link."""
        with connect(self.urls["postgres"]) as conn:
            return create_sign_in_link(conn, parse_key_id(self.key) or "", self.dashboard)

    def get(self, path: str) -> Any:
        """Return the JSON of an API response; None if there is no response or an error."""
        assert self.process.poll() is None, self.process.communicate()[1]
        asked = urllib.request.Request(self.urls["dashboard"] + path, headers={"Authorization": f"Bearer {self.key}"})
        try:
            with urllib.request.urlopen(asked, timeout=ANSWER_S) as answer:
                return json.load(answer)
        except OSError:
            return None

    def wait_for_chart(self) -> None:
        """Wait until history contains completed jobs of the demo's steady queue."""

        def completed() -> bool:
            answer = self.get("api/v1/queues/emails/metrics?org=acme&project=shop&env=prod&period=5m")
            return answer is not None and any(point["throughput"]["completed"] for point in answer["timeseries"])

        wait_until(completed, "the first chart", CHART_S, POLL_S)

    def wait_for_pipeline(self) -> None:
        """Wait until the lag of history is short enough for the stack to catch up when it stops."""

        def is_current() -> bool:
            answer = self.get("api/v1/pipeline")
            return answer is not None and answer["lag_ms"] is not None and answer["lag_ms"] < CURRENT_MS

        wait_until(is_current, "the pipeline keeps up", CHART_S, POLL_S)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, str, str]:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=STOP_S)
        return self.process.returncode, out, err

    def _urls(self) -> dict[str, str] | None:
        assert self.process.poll() is None, self.process.communicate()[1]
        stack = find_running_stack(self.data_dir)
        return stack["urls"] if stack and stack["pid"] == self.process.pid else None


class Demo:
    """The demo on one data directory, started on first use and again after it was killed or stopped.

    It uses the wheel's Java, to cover machines without Java.
    """

    def __init__(self, folder: Path) -> None:
        self._data_dir = folder / "data"
        self._env = {**without_java(folder / "bin"), **QUICK}
        self._stack: RunningStack | None = None

    @property
    def runs(self) -> bool:
        return self._stack is not None

    @property
    def stack(self) -> RunningStack:
        if self._stack is None:
            self._stack = RunningStack(self._data_dir, "--demo", "--json", env=self._env)
            self._stack.wait_for_chart()
        return self._stack

    def kill(self) -> None:
        self.stack.kill()
        self._stack = None

    def stop(self) -> dict[str, Any]:
        """Stop the demo and return its final JSON; the counters must agree with history."""
        self.stack.wait_for_pipeline()
        code, out, err = self.stack.stop()
        self._stack = None
        result = outcome(out)
        assert (code, result["difference"]) == (0, 0), f"{result}\n{err}"
        return result


def without_java(folder: Path) -> dict[str, str]:
    """Return an environment with everything on PATH except Java."""
    folder.mkdir()
    for name in [name for name in os.environ["PATH"].split(os.pathsep) if Path(name).is_dir()]:
        for program in Path(name).iterdir():
            if not program.name.startswith("java") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    env = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    return env | {"PATH": str(folder)}


def outcome(out: str) -> dict[str, Any]:
    """Return the JSON object in the last line of standard output."""
    return json.loads(out.splitlines()[-1])

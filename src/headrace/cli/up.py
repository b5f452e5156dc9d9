"""`headrace up`: a complete stack on one machine, for evaluation, development and small deployments.

Starts embedded servers for those that are not configured, migrates the schemas, then runs the pipeline, the API and,
with --demo, workers and a load, each in its own process. All processes exit with this one. A process that exits
unexpectedly is restarted (see supervision.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from headrace.app.endpoints import SERVERS, Endpoints, get_configured_urls, require_reachable
from headrace.cli import Invocation, build_root_options, pass_invocation
from headrace.cli.extras import require_stack_extras
from headrace.cli.output import json_option, print_json
from headrace.cli.signals import install_stop_event
from headrace.cli.supervision import Supervisor
from headrace.embedded.data_directory import DataDirectory
from headrace.embedded.process import LOOPBACK, GuardedProcess, choose_port
from headrace.embedded.stack import EmbeddedStack
from headrace.errors import EmbeddedError
from headrace.settings import SETTINGS, Settings, mask_secret

POLL_S = 0.1
RECONCILE_TIMEOUT_S = 180.0  # on a busy machine, Spark may still be starting
DEMO_WORKERS = 2
DEMO_TYPES = Path(__file__).with_name("demo_workers.toml")


@click.command()
@click.option("--demo", is_flag=True, help="Also run two workers and a small, reproducible load.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), help="Stop after this many seconds (default: run until Ctrl-C)."
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="Data directory (default: embedded.data_dir).")
@click.option("--port", type=click.IntRange(0, 65535), help="Dashboard port (default: api.port).")
@click.option("--show-secrets", is_flag=True, help="Print the server URLs with their passwords.")
@json_option
@pass_invocation
def up(
    invocation: Invocation,
    demo: bool,
    seconds: float | None,
    data_dir: Path | None,
    port: int | None,
    show_secrets: bool,
    as_json: bool,
) -> None:
    """Run a complete Headrace stack on this machine until Ctrl-C."""
    given = invocation.override(embedded_data_dir=data_dir, api_port=port)
    running = StackRunner(given, demo, show_secrets=show_secrets)
    outcome = running.run(seconds)
    _print_status("stopped")
    if as_json:
        print_json(outcome)
    raise SystemExit(1 if outcome.get("difference") else 0)


class StackRunner:
    """One run of the stack: starts, monitors and stops all processes, and prints each step."""

    def __init__(self, invocation: Invocation, demo: bool, *, show_secrets: bool) -> None:
        self._invocation = invocation
        self._settings: Settings = invocation.settings
        self._demo = demo
        self._format_url = str if show_secrets else mask_secret
        self._stop = install_stop_event(signal.SIGHUP)
        self._children: dict[str, GuardedProcess] = {}
        self._supervisor = Supervisor(_print_status, self._record_parts)
        self._directory = DataDirectory(self._settings.embedded.data_dir, self._settings.embedded.min_free)
        self._env: dict[str, str] = {}
        self._started_s = time.monotonic()
        self._started_at = datetime.now(UTC)

    def run(self, seconds: float | None) -> dict[str, Any]:
        with ExitStack() as cleanup:
            require_stack_extras(self._select_embedded_servers())
            require_reachable(self._settings)
            self._directory.acquire()
            cleanup.callback(self._directory.release)
            stack = EmbeddedStack(self._directory, self._settings.embedded, self._select_embedded_servers())
            cleanup.callback(stack.stop)
            cleanup.callback(self._stop_children)
            stack.start()
            return self._run_services(stack, seconds)

    def _run_services(self, stack: EmbeddedStack, seconds: float | None) -> dict[str, Any]:
        endpoints = self._build_endpoints(stack)
        self._env = {f"HEADRACE_{server.upper()}_URL": url for server, url in vars(endpoints).items()}
        # Started before the servers are ready, because Spark takes longer to start than all of them together.
        self._start_child("pipeline", "pipeline")
        stack.wait_ready(_print_ready)
        for server in stack.servers.values():
            self._supervisor.watch(server, required=True)
        self._migrate(endpoints)
        self._apply_bounds(endpoints)
        key = self._ensure_local_key(endpoints)
        dashboard = self._start_api(stack, endpoints)
        self._start_child("mover", "mover")
        self._start_child("alerts", "alerts", "run")
        watched = self._select_watched_streams()
        self._start_child("snapshot", "snapshot", "run", flags=watched)
        if watched:
            self._start_child("streams", "streams", "watch", flags=watched)
        self._start_autoscaler()
        if self._demo:
            self._start_demo()
        urls = {name: self._format_url(url) for name, url in vars(endpoints).items()}
        for name, url in urls.items():
            _print_status(f"{name} {url}")
        if self._format_url is mask_secret:
            _print_status("          (passwords are masked; `headrace url SERVER` prints a URL with its password)")
        _print_status(f"dashboard {self._create_sign_in_link(endpoints, key, dashboard)}")
        _print_status("          (one-time sign-in link, valid for one hour; `headrace keys link` prints another)")
        outcome: dict[str, Any] = {
            "urls": {"dashboard": dashboard, **urls},
            "versions": stack.versions,
            "data_dir": str(self._directory.path),
            "ready_s": round(time.monotonic() - self._started_s, 2),
        }
        first_chart_s = self._monitor(dashboard, key, seconds)
        if self._demo:
            outcome["first_chart_s"] = first_chart_s
            outcome |= self._reconcile_demo(endpoints)
        return outcome

    def _select_embedded_servers(self) -> frozenset[str]:
        return frozenset(server for server, url in get_configured_urls(self._settings).items() if url is None)

    def _build_endpoints(self, stack: EmbeddedStack) -> Endpoints:
        given = get_configured_urls(self._settings)
        return Endpoints(**{server: given[server] or stack.urls[server] for server in SERVERS})

    def _migrate(self, endpoints: Endpoints) -> None:
        from headrace.cli.migrate import apply_migrations

        if applied := apply_migrations(endpoints, self._settings.warehouse.database, self._settings.warehouse.cluster):
            _print_status(f"applied {len(applied)} schema migrations")

    def _apply_bounds(self, endpoints: Endpoints) -> None:
        """Store the caps and quotas of the settings, before the first job can be enqueued."""
        from headrace.cli.bounds import apply_bounds, apply_quotas

        loaded = self._invocation.override(redis_url=endpoints.redis, postgres_url=endpoints.postgres or None).loaded
        changed = {**apply_bounds(loaded, defaults=False), **apply_quotas(loaded)}
        for key, (before, after) in changed.items():
            _print_status(f"stored {key} = {after} for all clients" + ("" if before is None else f" (was {before})"))

    def _ensure_local_key(self, endpoints: Endpoints) -> str:
        """Return the API key for local commands and tests; browsers sign in with the link instead."""
        from headrace.cli.local_key import ensure_local_key
        from headrace.postgres.connect import open_pool, transaction

        with open_pool(endpoints.postgres, max_size=1) as pool, transaction(pool) as conn:
            return ensure_local_key(conn, self._directory.path, exclusive="postgres" in self._select_embedded_servers())

    def _create_sign_in_link(self, endpoints: Endpoints, key: str, dashboard: str) -> str:
        from headrace.api.api_keys import parse_key_id
        from headrace.cli.keys import create_sign_in_link
        from headrace.postgres.connect import open_pool, transaction

        with open_pool(endpoints.postgres, max_size=1) as pool, transaction(pool) as conn:
            return create_sign_in_link(conn, parse_key_id(key) or "", dashboard)

    def _start_api(self, stack: EmbeddedStack, endpoints: Endpoints) -> str:
        last = self._directory.read_last_stack().get("ports", {})
        port = choose_port("the API (api.port)", self._settings.api.port, last.get("api", 0))
        dashboard = f"http://{LOOPBACK}:{port}/"
        ports = {server.name: server.port for server in stack.servers.values()}
        self._directory.write_stack(
            {
                "pid": os.getpid(),
                "urls": {**vars(endpoints), "dashboard": dashboard},
                "ports": {**last, **ports, "api": port},
            }
        )
        self._start_child("api", "api", flags={"api.port": str(port)})
        self._wait_for_api(dashboard)
        return dashboard

    def _select_watched_streams(self) -> dict[str, str]:
        """Return the flags that watch the configured streams or, in the demo, the demo's own stream by default."""
        from headrace.cli.demo_stream import GROUP, STREAM

        given = self._settings.streams
        if given.watch is not None:
            return {"streams.watch": given.watch}
        return {"streams.watch": f"{STREAM}/{GROUP}"} if self._demo and given.url is None else {}

    def _start_autoscaler(self) -> None:
        if self._settings.autoscale.types is not None:
            self._start_child("autoscale", "autoscale", "run")
        elif self._demo:
            self._start_child("autoscale", "autoscale", "run", flags={"autoscale.types": str(DEMO_TYPES)})

    def _start_demo(self) -> None:
        # Two workers cannot share one port: if a port is configured, each worker uses any free port.
        flags = {} if self._settings.worker.metrics_port is None else {"worker.metrics_port": "0"}
        for number in range(1, DEMO_WORKERS + 1):
            self._start_child(f"worker-{number}", "worker", "headrace.cli.demo:tasks", flags=flags)
        self._start_child("demo", "demo")

    def _start_child(self, name: str, *arguments: str, flags: Mapping[str, str] | None = None) -> None:
        """Start a `headrace` command in its own process, with this process's settings and the URLs of the servers."""
        given = {**self._invocation.flags, "embedded.data_dir": str(self._directory.path), **(flags or {})}
        # Secrets are passed in the environment, because every user of the machine can read command lines.
        secrets = {SETTINGS[key].env: str(given.pop(key)) for key in list(given) if SETTINGS[key].secret}
        root = build_root_options(self._invocation.config, given)
        command = [sys.executable, "-m", "headrace", *root, *arguments]
        log_file = self._directory.log_dir / f"{name}.log"
        child = GuardedProcess(name, command, log_file=log_file, env={**secrets, **self._env})
        child.start()
        self._children[name] = child
        self._supervisor.watch(child)

    def _record_parts(self, parts: dict[str, Any]) -> None:
        """Record the processes that exited unexpectedly, for `headrace doctor`."""
        self._directory.write_stack({**self._directory.read_last_stack(), "parts": parts})

    def _wait_for_api(self, dashboard: str) -> None:
        deadline = time.monotonic() + self._settings.embedded.start_timeout
        while not self._stop.is_set() and not _is_healthy(f"{dashboard}healthz"):
            self._supervisor.check()
            if self._supervisor.is_down("api") or time.monotonic() > deadline:
                raise EmbeddedError(
                    f"The API did not respond at {dashboard} within embedded.start_timeout. "
                    f"See {self._children['api'].log_file}."
                )
            time.sleep(POLL_S)
        _print_status(f"api ready after {time.monotonic() - self._started_s:.1f} s")

    def _monitor(self, dashboard: str, key: str, seconds: float | None) -> float | None:
        """Monitor the processes until stopped. Return the seconds until the first chart had data, or None."""
        first_chart_s: float | None = None
        end = None if seconds is None else time.monotonic() + seconds
        while not self._stop.wait(POLL_S) and (end is None or time.monotonic() < end):
            self._supervisor.check()
            if self._demo and first_chart_s is None and _has_history(dashboard, key):
                first_chart_s = round(time.monotonic() - self._started_s, 2)
                _print_status(f"first chart after {first_chart_s} s")
        return first_chart_s

    def _reconcile_demo(self, endpoints: Endpoints) -> dict[str, Any]:
        """Stop the demo's load and workers, wait for the pipeline to catch up, and compare counters with history."""
        from headrace.cli.reconcile import reconcile_until
        from headrace.warehouse.connect import connect
        from headrace.warehouse.pipeline_batches import read_freshness_since

        _print_status("stopping the demo load and comparing counters with history")
        for name in [name for name in self._children if name == "demo" or name.startswith("worker")]:
            self._supervisor.unwatch(name)
            self._children.pop(name).stop()
        deadline = time.monotonic() + RECONCILE_TIMEOUT_S
        found = reconcile_until(self._settings, endpoints, RECONCILE_TIMEOUT_S)
        warehouse = connect(endpoints.clickhouse, self._settings.warehouse.database)
        fresh = read_freshness_since(warehouse, self._started_at)
        while not fresh.events and any(found.odometers.values()) and time.monotonic() < deadline:
            time.sleep(POLL_S)  # the row about a batch is written after the rows of the batch
            fresh = read_freshness_since(warehouse, self._started_at)
        total = sum(found.odometers.values())
        _print_status(
            f"compared {total} operations of the queues with history: "
            + ("no differences" if not found.difference else f"{found.difference} differ")
        )
        return {**asdict(found), "freshness_p99_ms": fresh.p99_ms, "events": fresh.events}

    def _stop_children(self) -> None:
        children = list(self._children.values())
        for child in children:
            child.request_stop()
        for child in children:
            child.stop()
        self._children = {}


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


def _has_history(dashboard: str, key: str) -> bool:
    """Return whether the API's history contains a completed job of the demo."""
    from headrace.cli.demo import STEADY

    query = f"org={STEADY.org}&project={STEADY.project}&env={STEADY.env}&period=5m"
    url = f"{dashboard}api/v1/queues/{STEADY.queue}/metrics?{query}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            points = json.load(response)["timeseries"]
    except OSError:
        return False
    return any(point["throughput"]["completed"] for point in points)


def _print_ready(name: str, version: str, seconds: float) -> None:
    _print_status(f"{name} ready after {seconds:.1f} s ({version})")


def _print_status(line: str) -> None:
    click.echo(line, err=True)

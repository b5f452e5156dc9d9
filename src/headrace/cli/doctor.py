"""`headrace doctor`: checks the installation, the data directory, the servers and the ports."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.doctor_bounds import examine_bounds
from headrace.cli.doctor_security import examine_security
from headrace.cli.doctor_tiers import examine_tiers
from headrace.cli.doctor_valkey import examine_valkey
from headrace.cli.endpoints import SERVERS, configured, probe
from headrace.cli.findings import Finding
from headrace.cli.output import json_option, print_json, print_table
from headrace.cli.rooms import POSTGRES_ROOMS
from headrace.embedded.datadir import running_stack
from headrace.embedded.java import find_java
from headrace.embedded.process import port_is_free
from headrace.errors import HeadraceError
from headrace.postgres.migrate import pending
from headrace.settings import Settings, mask

EXTRAS = {"pipeline": "pyspark", "server": "fastapi", "embedded": "chdb"}


@click.command()
@click.option("--security", is_flag=True, help="Run the hardening checklist instead: passwords, TLS, permissions.")
@json_option
@pass_invocation
def doctor(invocation: Invocation, security: bool, as_json: bool) -> None:
    """Check the installation and the servers, and suggest fixes."""
    findings = list(examine_security(invocation.loaded) if security else examine(invocation.settings))
    if as_json:
        print_json({"ok": all(one.ok for one in findings), "checks": [asdict(one) for one in findings]})
    else:
        print_table(
            ["status", "check", "result", "suggested action"],
            [["ok" if one.ok else "FAIL", one.check, one.found, one.advice] for one in findings],
        )
    raise SystemExit(0 if all(one.ok for one in findings) else 1)


def examine(settings: Settings) -> Iterator[Finding]:
    yield Finding("python", True, platform.python_version())  # Headrace cannot be installed on an older version
    yield from _extras()
    yield _java(settings)
    yield _disk(settings)
    yield from _servers(settings)
    stack = running_stack(settings.embedded.data_dir)
    if stack is None:
        yield from _ports(settings)
    else:
        yield from _parts(stack)


def _extras() -> Iterator[Finding]:
    for extra, module in EXTRAS.items():
        if find_spec(module) is None:
            advice = f"If this machine runs that part, install it: pip install 'headrace[{extra}]'."
            yield Finding(f"extra {extra}", False, "not installed", advice)
        else:
            yield Finding(f"extra {extra}", True, "installed")


def _java(settings: Settings) -> Finding:
    home = settings.pipeline.java_home
    try:
        java = find_java(settings.embedded.data_dir.absolute(), None if home is None else str(home), os.environ)
    except HeadraceError as error:
        return Finding("java", False, "not found", str(error))
    return Finding("java", True, f"{java.version} ({java.origin})")


def _disk(settings: Settings) -> Finding:
    directory = settings.embedded.data_dir.absolute()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    writable = os.access(existing, os.W_OK)
    enough = free >= settings.embedded.min_free
    return Finding(
        "data directory",
        writable and enough,
        f"{directory}: {free / 2**30:.1f} GiB free" + ("" if writable else ", not writable"),
        "" if writable and enough else "Free some disk space, or set HEADRACE_EMBEDDED_DATA_DIR to another directory.",
    )


def _servers(settings: Settings) -> Iterator[Finding]:
    stack = running_stack(settings.embedded.data_dir) or {}
    redis = configured(settings)["redis"] or stack.get("urls", {}).get("redis")
    for server in SERVERS:
        url = configured(settings)[server] or stack.get("urls", {}).get(server)
        if url is None:
            yield Finding(server, True, "not configured: `headrace up` starts an embedded server")
        elif (version := probe(server, url)) is None:
            advice = f"Start the server, or correct HEADRACE_{server.upper()}_URL."
            yield Finding(server, False, f"no response from {mask(url)}", advice)
        else:
            yield Finding(server, True, f"{version} at {mask(url)}")
            if server == "redis":
                yield from examine_valkey(url, settings.queue.shards)
                yield examine_bounds(url, settings)
            if server == "postgres":
                yield (tables := postgres_tables(url))
                if tables.ok and redis:
                    yield from examine_tiers(redis, url, settings.queue.shards)


def postgres_tables(url: str) -> Finding:
    try:
        missing = pending(url, POSTGRES_ROOMS)
    except HeadraceError as error:
        return Finding("postgres tables", False, "unknown", str(error))
    if missing:
        return Finding("postgres tables", False, f"pending migrations: {', '.join(missing)}", "Run `headrace migrate`.")
    return Finding("postgres tables", True, "up to date")


def _parts(stack: dict[str, Any]) -> Iterator[Finding]:
    """Report the processes of `headrace up` that exited unexpectedly since it started."""
    for name, part in stack.get("parts", {}).items():
        if part["down"]:
            found = f"down (exit code {part['last_exit']})"
            yield Finding(f"part {name}", False, found, f"See {name}.log, then start `headrace up` again.")
        else:
            found = f"restarted {part['restarts']} times, last exit code {part['last_exit']}"
            yield Finding(f"part {name}", True, found)


def _ports(settings: Settings) -> Iterator[Finding]:
    named = {
        "api.port": settings.api.port,
        "embedded.valkey_port": settings.embedded.valkey_port,
        "embedded.postgres_port": settings.embedded.postgres_port,
        "embedded.clickhouse_port": settings.embedded.clickhouse_port,
    }
    for key, port in named.items():
        if port:
            free = port_is_free(port)
            advice = "" if free else f"Stop the process that uses this port, or set {key} to another one."
            yield Finding(key, free, f"{port} is {'free' if free else 'in use'}", advice)

"""`headrace doctor`: checks the installation, the data directory, the servers and the ports."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

import click

from headrace.app.clients import build_queue_options
from headrace.app.endpoints import probe_version, resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.doctor_checks import DoctorCheck
from headrace.cli.doctor_security import check_security
from headrace.cli.doctor_tiers import check_tiers
from headrace.cli.doctor_valkey import check_bounds, check_valkey
from headrace.cli.extras import EXTRAS, is_installed
from headrace.cli.output import json_option, print_json_or_table
from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.embedded.data_directory import find_running_stack
from headrace.embedded.java import find_java
from headrace.embedded.process import is_port_free
from headrace.errors import HeadraceError
from headrace.postgres.migrate import list_pending
from headrace.settings import Settings, mask_secret

PROBE_S = 5.0  # timeout of a request to the receiver of remote write


@click.command()
@click.option("--security", is_flag=True, help="Run the hardening checklist instead: passwords, TLS, permissions.")
@json_option
@pass_invocation
def doctor(invocation: Invocation, security: bool, as_json: bool) -> None:
    """Check the installation and the servers, and suggest fixes."""
    findings = list(check_security(invocation.loaded) if security else run_checks(invocation.settings))
    ok = all(one.ok for one in findings)
    print_json_or_table(
        as_json,
        {"ok": ok, "checks": [asdict(one) for one in findings]},
        ["status", "check", "result", "suggested action"],
        [["ok" if one.ok else "FAIL", one.check, one.found, one.advice] for one in findings],
    )
    raise SystemExit(0 if ok else 1)


def run_checks(settings: Settings) -> Iterator[DoctorCheck]:
    yield DoctorCheck("python", True, platform.python_version())  # Headrace cannot be installed on an older version
    yield from _check_extras()
    yield _check_java(settings)
    yield _check_disk(settings)
    yield from _check_servers(settings)
    yield from check_remote_write(settings)
    stack = find_running_stack(settings.embedded.data_dir)
    if stack is None:
        yield from _check_ports(settings)
    else:
        yield from _check_parts(stack)


def _check_extras() -> Iterator[DoctorCheck]:
    for extra in EXTRAS:
        if not is_installed(extra):
            advice = f"If this machine runs that part, install it: pip install 'headrace[{extra}]'."
            yield DoctorCheck(f"extra {extra}", False, "not installed", advice)
        else:
            yield DoctorCheck(f"extra {extra}", True, "installed")


def _check_java(settings: Settings) -> DoctorCheck:
    home = settings.pipeline.java_home
    try:
        java = find_java(settings.embedded.data_dir.absolute(), None if home is None else str(home), os.environ)
    except HeadraceError as error:
        return DoctorCheck("java", False, "not found", str(error))
    return DoctorCheck("java", True, f"{java.version} ({java.origin})")


def _check_disk(settings: Settings) -> DoctorCheck:
    directory = settings.embedded.data_dir.absolute()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    writable = os.access(existing, os.W_OK)
    enough = free >= settings.embedded.min_free
    return DoctorCheck(
        "data directory",
        writable and enough,
        f"{directory}: {free / 2**30:.1f} GiB free" + ("" if writable else ", not writable"),
        "" if writable and enough else "Free some disk space, or set HEADRACE_EMBEDDED_DATA_DIR to another directory.",
    )


def _check_servers(settings: Settings) -> Iterator[DoctorCheck]:
    endpoints = resolve_endpoints(settings)
    for server, url in vars(endpoints).items():
        if not url:
            yield DoctorCheck(server, True, "not configured: `headrace up` starts an embedded server")
        elif (version := probe_version(server, url)) is None:
            advice = f"Start the server, or correct HEADRACE_{server.upper()}_URL."
            yield DoctorCheck(server, False, f"no response from {mask_secret(url)}", advice)
        else:
            yield DoctorCheck(server, True, f"{version} at {mask_secret(url)}")
            if server == "redis":
                yield from check_valkey(url, settings.queue.shards, build_queue_options(settings).caps)
                yield check_bounds(url, settings)
            if server == "postgres":
                yield (tables := check_postgres_tables(url))
                if tables.ok and endpoints.redis:
                    yield from check_tiers(endpoints.redis, url, settings.queue.shards)


def check_remote_write(settings: Settings) -> Iterator[DoctorCheck]:
    if settings.remote_write.url is None or not is_installed("pipeline"):
        return
    # Imported here, because it needs the pipeline extra.
    from headrace.cli.remote_write import build_remote_write_target
    from headrace.export.remote_write import RemoteWriteDestination

    target = build_remote_write_target(settings)
    assert target is not None
    with closing(RemoteWriteDestination(replace(target, timeout_s=min(target.timeout_s, PROBE_S)))) as destination:
        result = destination.send_series(())  # a request without samples
    problem = result.refusal if result.error is None else str(result.error)
    shown = mask_secret(target.url)
    if problem:
        advice = "Start the receiver, or correct remote_write.url and its credentials. Samples are kept meanwhile."
        yield DoctorCheck("remote write", False, f"{shown}: {problem}", advice)
    else:
        yield DoctorCheck("remote write", True, f"{shown} accepts samples")


def check_postgres_tables(url: str) -> DoctorCheck:
    try:
        missing = list_pending(url, POSTGRES_SCHEMAS)
    except HeadraceError as error:
        return DoctorCheck("postgres tables", False, "unknown", str(error))
    if missing:
        return DoctorCheck(
            "postgres tables", False, f"pending migrations: {', '.join(missing)}", "Run `headrace migrate`."
        )
    return DoctorCheck("postgres tables", True, "up to date")


def _check_parts(stack: dict[str, Any]) -> Iterator[DoctorCheck]:
    """Report the processes of `headrace up` that exited unexpectedly since it started."""
    for name, part in stack.get("parts", {}).items():
        if part["down"]:
            found = f"down (exit code {part['last_exit']})"
            yield DoctorCheck(f"part {name}", False, found, f"See {name}.log, then start `headrace up` again.")
        else:
            found = f"restarted {part['restarts']} times, last exit code {part['last_exit']}"
            yield DoctorCheck(f"part {name}", True, found)


def _check_ports(settings: Settings) -> Iterator[DoctorCheck]:
    named = {
        "api.port": settings.api.port,
        "embedded.valkey_port": settings.embedded.valkey_port,
        "embedded.postgres_port": settings.embedded.postgres_port,
        "embedded.clickhouse_port": settings.embedded.clickhouse_port,
    }
    for key, port in named.items():
        if port:
            free = is_port_free(port)
            advice = "" if free else f"Stop the process that uses this port, or set {key} to another one."
            yield DoctorCheck(key, free, f"{port} is {'free' if free else 'in use'}", advice)

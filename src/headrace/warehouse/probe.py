"""Check whether ClickHouse answers, and which version it is."""

from __future__ import annotations

from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.errors import ServiceUnavailable
from headrace.warehouse.connect import connect


def read_server_version(url: str) -> str | None:
    """Return, for example, "clickhouse 26.9.2.1"; None if the server does not answer."""
    try:
        return f"clickhouse {connect(url).server_version}"
    except (ServiceUnavailable, ClickHouseError):
        return None

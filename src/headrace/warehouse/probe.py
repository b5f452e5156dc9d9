"""Does a server answer, and which one is it?"""

from __future__ import annotations

from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.errors import ServiceUnavailable
from headrace.warehouse.connect import connect


def server_version(url: str) -> str | None:
    """For example "clickhouse 26.9.2.1"; None while nobody answers."""
    try:
        return f"clickhouse {connect(url).server_version}"
    except (ServiceUnavailable, ClickHouseError):
        return None

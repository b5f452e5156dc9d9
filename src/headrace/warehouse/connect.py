"""Connections to ClickHouse, with the settings that every insert relies on."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import clickhouse_connect
from clickhouse_connect.driver.exceptions import OperationalError
from clickhouse_connect.driver.httpclient import HttpClient as Client

from headrace.errors import ServiceUnavailable
from headrace.settings import mask

# Exactly-once rests on these: a retry must form the same blocks, be recognised by its token in every
# table a view fills, and must not be buffered on the way (26.x buffers small inserts by default).
INSERT_SETTINGS: dict[str, Any] = {
    "async_insert": 0,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "max_insert_block_size": 1_048_576,
    "min_insert_block_size_rows": 1_048_449,
    "min_insert_block_size_bytes": 268_402_944,
}


def connect(url: str, database: str = "default", answer_timeout_s: int = 300) -> Client:
    """A client of its own for the caller (not to be shared between threads that run queries at once)."""
    with available(url):
        client = clickhouse_connect.get_client(
            dsn=url,
            database=database,
            autogenerate_session_id=False,
            connect_timeout=5,
            send_receive_timeout=answer_timeout_s,
            query_retries=0,
        )
    assert isinstance(client, Client), "http is the only protocol of clickhouse_connect"
    return client


@contextmanager
def available(what: str) -> Generator[None]:
    """Connection trouble becomes ServiceUnavailable; ClickHouse's own errors pass."""
    try:
        yield
    except OperationalError as error:
        raise ServiceUnavailable(
            f"ClickHouse at {mask(what)} does not answer. What it holds is kept; start it, or correct "
            f"HEADRACE_CLICKHOUSE_URL. ({error})"
        ) from error

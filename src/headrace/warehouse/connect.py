"""Connections to ClickHouse, with the settings that every insert relies on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import clickhouse_connect
from clickhouse_connect.driver.exceptions import OperationalError
from clickhouse_connect.driver.httpclient import HttpClient as Client

from headrace.errors import ServiceUnavailable
from headrace.settings import mask_secret

# Required for exactly-once: a retry must form the same blocks, be recognised by its token in every table that a view
# fills, and must not be buffered on the way (26.x buffers small inserts by default).
INSERT_SETTINGS: dict[str, Any] = {
    "async_insert": 0,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "max_insert_block_size": 1_048_576,
    "min_insert_block_size_rows": 1_048_449,
    "min_insert_block_size_bytes": 268_402_944,
}

# Error codes: unknown user, wrong password, required password, access, authentication
AUTH_CODES = (192, 193, 194, 497, 516)


def connect(url: str, database: str = "default", answer_timeout_s: int = 300) -> Client:
    """Return a new client, which must not be shared between threads that run queries at the same time. Raises
    ServiceUnavailable."""
    with translate_errors(url):
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


def query_rows(client: Client, query: str, parameters: dict[str, Any] | None = None) -> Sequence[Sequence[Any]]:
    """Return the rows of a query's result. Raises ServiceUnavailable."""
    with translate_errors(client.url):
        return client.query(query, parameters=parameters).result_rows


@contextmanager
def translate_errors(what: str) -> Generator[None]:
    """Translate connection errors into ServiceUnavailable; errors reported by ClickHouse pass unchanged."""
    try:
        yield
    except OperationalError as error:
        raise ServiceUnavailable(
            f"ClickHouse at {mask_secret(what)} does not answer. Stored data is not affected. Start it, or correct "
            f"HEADRACE_CLICKHOUSE_URL. ({error})"
        ) from error

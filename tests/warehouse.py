"""Rows of history, written without the pipeline."""

from __future__ import annotations

import pyarrow as pa

from headrace.warehouse.connect import INSERT_SETTINGS, Client, translate_errors
from headrace.warehouse.queue_metrics import TABLE


def insert_rows(client: Client, rows: pa.Table, token: str) -> None:
    """Insert partial sums of queues. Repeating a token has no effect, in any tier."""
    with translate_errors(client.url):
        client.insert_arrow(TABLE, rows, settings={**INSERT_SETTINGS, "insert_deduplication_token": token})

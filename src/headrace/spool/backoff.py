"""Backoff of exporters after a failed send, by destination."""

from __future__ import annotations

from headrace.runtime.backoff import JITTER, LONGEST_RETRY_AFTER_S, Backoff

__all__ = ["CLICKHOUSE_BACKOFF", "DEFAULT_BACKOFF", "JITTER", "LONGEST_RETRY_AFTER_S", "Backoff"]

DEFAULT_BACKOFF = Backoff()
CLICKHOUSE_BACKOFF = Backoff(base_s=1.0, longest_s=30.0)

"""Backoff of exporters after a failed send, by destination."""

from __future__ import annotations

from headrace.vitals.backoff import JITTER, LONGEST_RETRY_AFTER_S, Backoff

__all__ = ["CLICKHOUSE", "JITTER", "LONGEST_RETRY_AFTER_S", "OTHERS", "Backoff"]

OTHERS = Backoff()
CLICKHOUSE = Backoff(base_s=1.0, longest_s=30.0)

"""Tiers of history: tables, retention, and reading all rows of some hours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.warehouse.connect import Client, query_rows, translate_errors
from headrace.warehouse.sql import render_query

if TYPE_CHECKING:
    import pyarrow as pa  # readers need not have it installed


@dataclass(frozen=True)
class Tier:
    name: str
    seconds: int
    kept_days: int
    queues: str  # table names
    environments: str

    @property
    def kept_s(self) -> int:
        return self.kept_days * 86_400


TIERS = (
    Tier("5s", 5, 2, "queue_metrics_5s_v1", "environment_metrics_5s_v1"),
    Tier("1m", 60, 31, "queue_metrics_by_minute_v1", "environment_metrics_by_minute_v1"),
    Tier("1h", 3600, 400, "queue_metrics_by_hour_v1", "environment_metrics_by_hour_v1"),
)

TABLES = tuple(table for tier in TIERS for table in (tier.queues, tier.environments))


def read_queue_rows(client: Client, tier: Tier, start_s: int, end_s: int) -> pa.Table:
    """Read the buckets that start in [start, end): one row per queue, epoch and bucket, in any order."""
    return _read_rows(client, render_query("queue_tier_rows", table=tier.queues), start_s, end_s)


def read_environment_rows(client: Client, tier: Tier, start_s: int, end_s: int) -> pa.Table:
    """Read the buckets that start in [start, end): one row per environment and bucket, in any order."""
    return _read_rows(client, render_query("environment_tier_rows", table=tier.environments), start_s, end_s)


def _read_rows(client: Client, query: str, start_s: int, end_s: int) -> pa.Table:
    with translate_errors(client.url):
        return client.query_arrow(query, parameters={"start_s": start_s, "end_s": end_s}, use_strings=True)


def has_rows(client: Client, start_s: int, end_s: int) -> bool:
    """Return True if any tier has rows in [start, end)."""
    bounds = {"start_s": start_s, "end_s": end_s}
    return any(query_rows(client, render_query("any_rows", table=tier.queues), bounds) for tier in TIERS)

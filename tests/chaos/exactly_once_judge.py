"""Compare the sums of every tier with the queues' own odometers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from headrace.history.reconcile import Reconciliation, Totals, read_totals, reconcile
from headrace.model.event import COUNT_COLUMN, Op
from headrace.queue import keys
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey
from headrace.warehouse import pipeline_batches
from headrace.warehouse.connect import Client
from headrace.warehouse.tiers import TABLES, TIERS
from tests.chaos.exactly_once_crew import SHARDS

ENVIRONMENT_TABLES = tuple(tier.environments for tier in TIERS)


@dataclass(frozen=True)
class Report:
    jobs: int
    events: int
    batches: int
    kills: int
    kills_by_kind: Mapping[str, int]
    connections_cut: int
    checkpoint_files_removed: int
    seconds: float
    difference: int  # absolute, over every queue, verb and tier
    difference_after_optimize: int
    environment_difference: int  # the same for the tables by environment, before and after
    events_missing: int  # numbered by the queue but in no batch; negative: in two
    lost_events: int  # counted as lost by the pipeline
    left_in_spool: int
    max_stream_length: int
    verbs: Mapping[str, int]
    clickhouse_away_s: float = 0.0
    events_while_away: int = 0
    details: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        wrong = self.difference or self.difference_after_optimize or self.environment_difference
        return not (wrong or self.events_missing or self.lost_events or self.left_in_spool or self.grew_while_away)

    @property
    def grew_while_away(self) -> bool:
        """Whether the streams hold all events of the time that ClickHouse was away, as they would if unread."""
        return bool(self.clickhouse_away_s) and self.max_stream_length * 2 > self.events_while_away


@dataclass(frozen=True)
class Counted:
    """Counts of both sides at one time."""

    reconciled: Reconciliation
    environments: int  # difference
    events: int
    events_in_batches: int
    lost_events: int
    details: list[str]  # examples of differences

    @property
    def agrees(self) -> bool:
        return not (self.reconciled.difference or self.environments or self.events != self.events_in_batches)


def count(valkey: Valkey, warehouse: Client) -> Counted:
    # History first: events in between make it look late, never wrong.
    totals = read_totals(warehouse)
    environments = environment_totals(warehouse)
    query = f"SELECT sum(events), sum(lost_events) FROM {pipeline_batches.TABLE}"
    [(in_batches, lost)] = warehouse.query(query).result_rows
    states = read_states(valkey, SHARDS)
    found = reconcile(states, totals, time.time_ns() // 1_000_000)
    own = {COUNT_COLUMN[op]: number for op, number in found.odometers.items()}
    apart = sum(abs(table[column] - own[column]) for table in environments for column in own)
    return Counted(found, apart, sum(count_events(valkey)), int(in_batches), int(lost), differences(states, totals))


def differences(states: Sequence[QueueState], tiers: Mapping[str, Totals]) -> list[str]:
    found = [
        f"{tier} {state.ref} {op}: {counted.get((state.ref, op), 0)} of {state.odometers.get(op, 0)}"
        for tier, counted in tiers.items()
        for state in states
        for op in Op
        if counted.get((state.ref, op), 0) != state.odometers.get(op, 0)
    ]
    return found[:20]


def environment_totals(warehouse: Client) -> list[dict[str, int]]:
    """Return the sums over all environments, for each table."""
    sums = ", ".join(f"sum({column})" for column in COUNT_COLUMN.values())
    rows = [warehouse.query(f"SELECT {sums} FROM {table}").result_rows[0] for table in ENVIRONMENT_TABLES]
    return [dict(zip(COUNT_COLUMN.values(), map(int, row), strict=True)) for row in rows]


def count_events(valkey: Valkey) -> list[int]:
    """Return the number of events of each shard."""
    return [int(cast(Any, valkey.hget(keys.meta(shard), "seq")) or 0) for shard in range(SHARDS)]


def stream_length(valkey: Valkey) -> int:
    return sum(valkey.xlen(keys.metrics(shard)) for shard in range(SHARDS))


def optimize(warehouse: Client) -> None:
    """Merge each table to one part, so that rows are summed."""
    for table in TABLES:
        warehouse.command(f"OPTIMIZE TABLE {table} FINAL")

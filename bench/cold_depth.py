"""Measure the cost of a million jobs in PostgreSQL: memory of Valkey, and the duration of queries over them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, LiteralString

from bench.cold_rates import FLOWS, SPILL_BATCH, TwoTiers, new_jobs, time_call, two_tiers
from bench.report import note
from bench.server import Bench
from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.cold.mover import BATCH
from headrace.cold.queries import QUERIES
from headrace.cold.store import ColdStore
from headrace.model.names import QueueRef
from headrace.postgres.connect import connect
from headrace.postgres.migrate import migrate
from headrace.queue import keys
from headrace.queue.client import DEFAULT_SHARDS, QueueOptions
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import read_states

REF = QueueRef("acme", "shop", "prod", "deep")
SHALLOW = 1000
CAP = 5000
ANY_SIZE = 2**40
SHALLOW_DB, DEEP_DB = 3, 4
HEAD: LiteralString = """
    DELETE FROM cold_queue_entries WHERE seq IN (
      SELECT seq FROM cold_queue_entries WHERE queue_id = %s AND NOT delayed
      ORDER BY priority DESC, due_ms, seq LIMIT %s)
"""


@dataclass(frozen=True)
class Depth:
    """A queue in its own PostgreSQL database."""

    store: ColdStore
    queue_id: int

    def claim_s(self) -> float:
        """Return the seconds of the mover's claim query; nothing is moved."""
        with self.store.transaction() as conn:
            started = time.perf_counter()
            rows = self.store.claim(conn, self.queue_id, BATCH, ANY_SIZE)
            spent = time.perf_counter() - started
        assert len(rows) == BATCH
        return spent

    def oldest_s(self) -> float:
        with self.store.transaction() as conn:
            return time_call(lambda: self.store.find_oldest_ms(conn, self.queue_id))

    def details_s(self) -> float:
        started = time.perf_counter()
        assert len(self.store.list_flow_depths(REF.environment)) == FLOWS
        return time.perf_counter() - started


def measure_depth(bench: Bench, postgres_url: str, deep: int, claims: int) -> dict[str, float]:
    shallow_url = with_database(postgres_url, "shallow")
    deep_url = with_database(postgres_url, "deep")
    options = QueueOptions(caps=WarmCaps(items=CAP))
    bench.redis.execute_command("FLUSHALL", "SYNC")  # otherwise earlier data is freed during the measurement
    with (
        two_tiers(bench, shallow_url, SHALLOW_DB, options) as small,
        two_tiers(bench, deep_url, DEEP_DB, options) as large,
    ):
        fill_to(large, CAP)
        memory_before = used_memory(bench)
        first = fill_to(large, CAP + deep // 10)
        fill_to(large, CAP + deep - deep // 10)
        last = fill_to(large, deep)
        memory_after = used_memory(bench)
        fill_to(small, CAP + SHALLOW)  # last, because it would count in the memory that is compared
        few, many = read_depth(small), read_depth(large)
        check_plan(deep_url, many.queue_id)
        results = {
            "memory_bound_ratio": memory_after / memory_before,
            "memory_warm_full_bytes": memory_before,
            "spill_growth_ratio": last / first,
            **measure_alternately("claim", few.claim_s, many.claim_s, claims),
            **measure_alternately("oldest", few.oldest_s, many.oldest_s, claims),
            **measure_alternately("details", few.details_s, many.details_s, claims),
        }
        results |= measure_after_deletes(few, many, deep_url, deep // 2, claims)
    return results


def with_database(url: str, name: LiteralString) -> str:
    """Create a database with Headrace's tables and return its URL."""
    with connect(url) as conn:
        conn.execute("CREATE DATABASE " + name)
    own = url.rpartition("/")[0] + "/" + name
    migrate(own, POSTGRES_SCHEMAS)
    return own


def read_depth(both: TwoTiers) -> Depth:
    store = both.tiers.store
    return Depth(store, store.ensure_queue_id(REF, both.tiers.stubs.find_shard(REF)))


def fill_to(both: TwoTiers, depth: int) -> float:
    """Enqueue until `depth` jobs wait in both tiers. Returns the seconds per job."""
    states = read_states(both.client.redis, both.client.shards)
    missing = depth - sum(state.depth for state in states)
    note(f"{missing:,} more jobs, up to {depth:,}")
    spent = 0.0
    for start in range(0, missing, SPILL_BATCH):
        jobs = new_jobs(min(SPILL_BATCH, missing - start))
        spent += time_call(partial(both.client.enqueue_many, REF, jobs))
    return spent / missing


def used_memory(bench: Bench) -> float:
    """Return the memory used by Valkey, with empty metric streams and after freed memory was returned."""
    for db in (SHALLOW_DB, DEEP_DB):
        with bench.in_db(db) as redis:
            for shard in range(DEFAULT_SHARDS):
                redis.xtrim(keys.metrics(shard), maxlen=0, approximate=False)
    readings = [math.inf]
    while len(readings) < 20:
        readings.append(float(bench.redis.info("memory")["used_memory"]))
        if readings[-1] > 0.999 * readings[-2]:
            break
        time.sleep(0.5)
    return readings[-1]


def measure_alternately(name: str, few: Callable[[], float], many: Callable[[], float], turns: int) -> dict[str, float]:
    """Measure both alternately; return the median of each, and their ratio."""
    spent = [(few(), many()) for _ in range(turns + 1)][1:]  # the first one connects and reads from disk
    before, after = (median(side) for side in zip(*spent, strict=True))
    return {
        f"{name}_growth_ratio": after / before,
        f"{name}_shallow_ms": before * 1000,
        f"{name}_deep_ms": after * 1000,
    }


def measure_after_deletes(few: Depth, many: Depth, deep_url: str, rows: int, claims: int) -> dict[str, float]:
    """Measure claims after many deletes without a vacuum: deleted rows leave their entries in the index."""
    with connect(deep_url, statement_timeout_s=300) as conn:
        conn.execute("ALTER TABLE cold_queue_entries SET (autovacuum_enabled = off)")
        note(f"deletes {rows:,} rows at the head")
        for _ in range(0, rows, 10 * BATCH):
            conn.execute(HEAD, [many.queue_id, 10 * BATCH])
            many.claim_s()  # as a mover does
    check_plan(deep_url, many.queue_id)
    found = measure_alternately("claim_after_deletes", few.claim_s, many.claim_s, claims)
    return {
        "claim_after_deletes_ratio": found["claim_after_deletes_growth_ratio"],
        "claim_after_deletes_ms": found["claim_after_deletes_deep_ms"],
    }


def check_plan(url: str, queue_id: int) -> None:
    """Raise RuntimeError unless PostgreSQL uses the index for the claim."""
    values = {"queue_id": queue_id, "most": BATCH, "bytes": ANY_SIZE}
    with connect(url) as conn:
        row: Any = conn.execute("EXPLAIN (FORMAT JSON) " + QUERIES["claim"], values).fetchone()
    plan = json.dumps(row[0])
    if "cold_queue_entries_next" not in plan or "Seq Scan" in plan:
        raise RuntimeError(f"PostgreSQL does not use the index for the next jobs: {plan}")

"""Measure the bytes that each unit of load takes: metric events and jobs in Valkey, jobs in PostgreSQL, history in
ClickHouse.

Memory of Valkey is `used_memory` before and after many such units, divided by their number; the bytes of a stream are
those that `MEMORY USAGE` reports. Bytes on disk are those of tables with their indexes, in ClickHouse after all parts
were merged. The results are the coefficients of docs/sizing.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder contains a queue.py, which must not shadow the module of the standard library.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from bench.cold_rates import NEARLY_NOTHING, SPILL_BATCH, two_tiers
from bench.report import Bar, finish, note
from bench.server import READY_S, UNCAPPED, Bench, bench_postgres, bench_server, switch_metrics
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import connect as connect_postgres
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from headrace.warehouse.connect import Client
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.warehouse.migrate import migrate
from headrace.warehouse.tiers import TIERS

HERE = Path(__file__).parent
BARS: tuple[Bar, ...] = ()
PAYLOADS = (200, 1000)
LEASE_MS = 3_600_000
KEEP_DONE_MS = 3_600_000
DELAY_MS = 24 * 3_600_000  # without a cold tier, such jobs wait in Valkey too
BATCH = 10  # jobs per call in a batch, as a worker of concurrency 10 requests
DAY_S = 86_400
LOADS = {"quiet": 1, "busy": 50}
"""Jobs per queue and 5 s of a quiet and a busy queue: each bucket has up to twice as many."""
TABLE_BYTES = """
    SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""


@dataclass(frozen=True)
class Size:
    jobs: int = 50_000  # in Valkey and in PostgreSQL, per payload size and state
    calls: int = 10_000  # that write an event each
    queues: int = 20
    hours: int = 24  # of history


QUICK = Size(jobs=10_000, calls=2000, queues=4, hours=4)


def make_jobs(count: int, payload_bytes: int) -> list[NewJob]:
    """Return jobs with generated ids and payloads that cannot be compressed."""
    return [NewJob("send_email", random.randbytes(payload_bytes)) for _ in range(count)]


def queue_ref(number: int = 0) -> QueueRef:
    return QueueRef("acme", "shop", "production", f"emails-{number:02}")


# Valkey


def read_used_memory(redis: Valkey) -> int:
    """Return the memory used by data: without the buffers of connections."""
    found: dict[str, Any] = redis.info("memory")
    return int(found["used_memory"]) - int(found["mem_clients_normal"])


def measure_jobs(bench: Bench, jobs: int, payload_bytes: int) -> dict[str, float]:
    """Measure a waiting, running, finished and scheduled job, without metric events."""
    bench.redis.execute_command("FLUSHALL", "SYNC")
    ref = queue_ref()
    with SyncClient(bench.url(0), UNCAPPED) as client:
        switch_metrics(client, on=False)
        stubs, redis = client.options.make_stubs(), client.redis
        shard = stubs.find_shard(ref)

        def enqueue(count: int, delay_ms: int = 0) -> None:
            for _ in range(count // SPILL_BATCH):
                payloads = (job.payload for job in make_jobs(SPILL_BATCH, payload_bytes))
                client.enqueue_many(ref, [NewJob("send_email", payload, delay_ms=delay_ms) for payload in payloads])

        def dequeue(count: int) -> list[LeasedJob]:
            calls = [stubs.dequeue(shard, SPILL_BATCH, LEASE_MS) for _ in range(count // SPILL_BATCH)]
            return [job for call in calls for job in run(redis, call)]

        def ack(leased: Sequence[LeasedJob], keep_done_ms: int) -> None:
            for start in range(0, len(leased), SPILL_BATCH):
                done = [(job, 1) for job in leased[start : start + SPILL_BATCH]]
                run(redis, stubs.ack(shard, done, keep_done_ms))

        enqueue(SPILL_BATCH, DELAY_MS)  # creates the queue and loads the scripts
        enqueue(SPILL_BATCH)
        ack(dequeue(SPILL_BATCH), 0)
        readings = [read_used_memory(redis)]

        def read_growth() -> float:
            """Return the bytes per job since the first reading."""
            return (read_used_memory(redis) - readings[0]) / jobs

        enqueue(jobs)
        waiting = read_growth()
        leased = dequeue(jobs)
        assert len(leased) == jobs, "scheduled jobs became due"
        running = read_growth()
        ack(leased, KEEP_DONE_MS)
        finished = read_growth()
        enqueue(jobs, DELAY_MS)
        scheduled = read_growth() - finished
    results = {"waiting": waiting, "running": running, "scheduled": scheduled}
    note(f"payload of {payload_bytes} bytes: " + ", ".join(f"{name} {each:.0f}" for name, each in results.items()))
    return {
        **{f"{name}_job_bytes_payload_{payload_bytes}": value for name, value in results.items()},
        **({"finished_id_bytes": finished} if payload_bytes == PAYLOADS[0] else {}),
    }


def measure_queues(bench: Bench, queues: int) -> float:
    """Return the bytes of a queue without jobs."""
    bench.redis.execute_command("FLUSHALL", "SYNC")
    with SyncClient(bench.url(0), UNCAPPED) as client:
        switch_metrics(client, on=False)
        stubs, redis = client.options.make_stubs(), client.redis

        def use(ref: QueueRef) -> None:
            client.enqueue(ref, NewJob("send_email", b""))
            shard = stubs.find_shard(ref)
            run(redis, stubs.ack(shard, [(job, 1) for job in run(redis, stubs.dequeue(shard, 1, LEASE_MS))], 0))

        use(queue_ref())
        before = read_used_memory(redis)
        for number in range(queues):
            use(queue_ref(number + 1))
        return (read_used_memory(redis) - before) / queues


def measure_events(bench: Bench, calls: int, batch: int) -> dict[str, float]:
    """Return the bytes per event in the metric streams, and the events per job, if each call has `batch` jobs."""
    bench.redis.execute_command("FLUSHALL", "SYNC")
    with SyncClient(bench.url(0), UNCAPPED) as client:
        stubs, redis = client.options.make_stubs(), client.redis
        refs = [queue_ref(number) for number in range(BATCH)]
        for number in range(calls // 3):
            ref = refs[number % len(refs)]
            shard = stubs.find_shard(ref)
            client.enqueue_many(ref, make_jobs(batch, PAYLOADS[0]))
            leased = run(redis, stubs.dequeue(shard, batch, LEASE_MS))
            run(redis, stubs.ack(shard, [(job, random.randrange(5000)) for job in leased], 0))
        streams = [keys.metrics(shard) for shard in range(client.shards)]
        events = sum(int(redis.xlen(stream)) for stream in streams)
        used = sum(int(redis.memory_usage(stream, samples=0) or 0) for stream in streams)
    return {"bytes": used / events, "per_job": events / (calls // 3 * batch)}


# PostgreSQL


def measure_cold_jobs(bench: Bench, postgres_url: str, jobs: int, payload_bytes: int) -> float:
    """Return the bytes of a job in PostgreSQL, in all tables with their indexes."""
    bench.redis.execute_command("FLUSHALL", "SYNC")
    with connect_postgres(postgres_url) as conn:
        conn.execute("TRUNCATE cold_queue_entries")

        def read_bytes() -> int:
            row: Any = conn.execute(TABLE_BYTES).fetchone()
            return int(row[0])

        with two_tiers(bench, postgres_url, 0, NEARLY_NOTHING) as both:
            ref = QueueRef("acme", "shop", "production", f"cold-{payload_bytes}")
            both.client.enqueue_many(ref, make_jobs(2, payload_bytes))
            before, cold = read_bytes(), both.waiting_cold(ref)
            for _ in range(jobs // SPILL_BATCH):
                both.client.enqueue_many(ref, make_jobs(SPILL_BATCH, payload_bytes))
            spilled = both.waiting_cold(ref) - cold
            assert spilled == jobs, f"{jobs - spilled} jobs did not go to PostgreSQL"
            return (read_bytes() - before) / jobs


# ClickHouse


def measure_history(clickhouse: EmbeddedClickHouse, load: str, queues: int, hours: int) -> dict[str, float]:
    """Return rows and bytes on disk per active queue, or environment, and day, by table."""
    database = f"sizing_{load}"
    migrate(connect_clickhouse(clickhouse.url), database)
    client = connect_clickhouse(clickhouse.url, database)
    environments = queues // 2
    start_s = int(time.time()) // 3600 * 3600 - hours * 3600
    values = {"queues": queues, "buckets": hours * 720, "environments": environments, "start_s": start_s}
    text = (HERE / "sizing_rows.sql").read_text("utf-8")
    client.command(text, parameters={**values, "jobs": LOADS[load]}, settings={"async_insert": 0})
    results: dict[str, float] = {}
    for tier in TIERS:
        for kind, table, count in (("queue", tier.queues, queues), ("environment", tier.environments, environments)):
            rows, size = read_table(client, table)
            days = count * hours * 3600 / DAY_S
            results[f"{load}_{kind}_{tier.name}_rows_per_day"] = rows / days
            results[f"{load}_{kind}_{tier.name}_bytes_per_day"] = size / days
    note(f"history of {queues} {load} queues: " + ", ".join(f"{value:,.0f}" for value in results.values()))
    return results


def read_table(client: Client, table: str) -> tuple[int, int]:
    """Merge all parts of a table. Return its rows, and its bytes on disk."""
    client.command(f"OPTIMIZE TABLE {table} FINAL")
    parts = "SELECT sum(rows), sum(bytes_on_disk) FROM system.parts WHERE active AND database = currentDatabase()"
    [found] = cast("Sequence[tuple[int, int]]", client.query(f"{parts} AND table = '{table}'").result_rows)
    return int(found[0]), int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench sizing", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="run a smaller benchmark; write no record")
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    random.seed(1)
    results: dict[str, float | None] = {}
    with bench_server(persistent=False) as bench, bench_postgres(bench.folder) as postgres_url:
        for name, batch in (("single", 1), ("batch", BATCH)):
            events = measure_events(bench, size.calls, batch)
            note(f"events, {batch} jobs per call: {events['bytes']:.0f} bytes")
            results |= {f"event_bytes_{name}": events["bytes"], f"events_per_job_{name}": events["per_job"]}
        for payload in PAYLOADS:
            results |= measure_jobs(bench, size.jobs, payload)
        results["queue_bytes"] = measure_queues(bench, size.calls // 10)
        for payload in PAYLOADS:
            results[f"cold_job_bytes_payload_{payload}"] = measure_cold_jobs(bench, postgres_url, size.jobs, payload)
        clickhouse = EmbeddedClickHouse(bench.folder / "clickhouse", bench.folder / "log")
        clickhouse.start()
        try:
            clickhouse.wait_ready(READY_S)
            for load in LOADS:
                results |= measure_history(clickhouse, load, size.queues, size.hours)
        finally:
            clickhouse.stop()
    finish("sizing", results, BARS, json_only=options.json, record=not options.quick)


if __name__ == "__main__":
    main()

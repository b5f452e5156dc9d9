"""History over HTTP: results for a known workload, and responses where values are unknown."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from headrace.api.routes.history import RankingMetric
from headrace.api.schemas.history import EnvironmentHistory, QueueHistory, TopQueues
from headrace.api.services import Services
from headrace.model.event import COLUMNS, COUNT_COLUMN, FIELD, SEPARATOR, Op
from headrace.model.histogram import compute_percentile
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.model.time import format_iso_ms
from headrace.pipeline.buckets import bucketize
from headrace.pipeline.job import open_pipeline
from headrace.pipeline.options import PARALLEL, PipelineOptions
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.queue.scripts import Deferral, Stubs
from headrace.settings import ApiSettings
from headrace.spool.options import SpoolOptions
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from headrace.warehouse import environment_parts, pipeline_batches, queue_metrics
from headrace.warehouse.connect import Client
from headrace.warehouse.pipeline_batches import PipelineBatch
from headrace.warehouse.query_runner import HistoryCancelled, HistoryTooSlow, QueryRunner
from headrace.warehouse.tiers import TIERS
from tests.access import client_with_key
from tests.conftest import LONG_S, wait_until
from tests.events import event_table
from tests.integration.test_pipeline import compare
from tests.pipelines import running_query
from tests.warehouse import insert_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STUBS = Stubs(2, 1_000_000)
REF = QueueRef("acme", "shop", "prod", "emails")
HOUR_S = 3600
DAY_S = 24 * HOUR_S


@pytest.fixture
def services(valkey_url: str, clickhouse_url: str, warehouse: Client, postgres_url: str) -> Iterator[Services]:
    settings = ApiSettings(history_cache=0)  # rows are inserted without batches, so the cache would not notice them
    made = Services(valkey_url, clickhouse_url, str(warehouse.database), 2, postgres_url, settings)
    yield made
    made.close()


@pytest.fixture
def api(services: Services) -> TestClient:
    return client_with_key(services)


def get_queue_history(api: TestClient, ref: QueueRef, **asked: str) -> dict[str, Any]:
    names = {"org": ref.org, "project": ref.project, "env": ref.env}
    answer = api.get(f"/api/v1/queues/{quote(ref.queue, safe='')}/metrics", params={**names, **asked})
    assert answer.status_code == 200, answer.text
    return answer.json()


def get_environment_history(api: TestClient, ref: EnvRef, what: str, **asked: Any) -> dict[str, Any]:
    path = f"/api/v1/environments/{quote(ref.env, safe='')}/{what}"
    answer = api.get(path, params={"org": ref.org, "project": ref.project, **asked})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stop_clock(monkeypatch: pytest.MonkeyPatch, at_ms: int) -> None:
    """Return the API's clock."""

    def now_ms(_: Services) -> int:
        return at_ms

    monkeypatch.setattr(Services, "now_ms", now_ms)


def column(answer: dict[str, Any], section: str, name: str) -> list[Any]:
    return [point[section][name] for point in answer["timeseries"]]


# Through the real chain ------------------------------------------------------------------------------


@pytest.fixture
def options(valkey_url: str, clickhouse_url: str, warehouse: Client, tmp_path: Path) -> PipelineOptions:
    return PipelineOptions(
        redis_url=valkey_url,
        clickhouse_url=clickhouse_url,
        database=str(warehouse.database),
        shards=2,
        checkpoint=tmp_path / "checkpoint",
        spool=SpoolOptions(tmp_path / "spool"),
        exporter=PARALLEL,
        trigger_s=0.1,
    )


def work(valkey: Valkey, url: str, idle: QueueRef, busy: QueueRef) -> None:
    """An idle queue of 500 jobs; and a queue with a limit that fills, is processed in two buckets, and drains."""
    client = SyncClient(url)
    client.enqueue_many(idle, [NewJob("t", b"12345") for _ in range(500)])
    client.enqueue_many(busy, [NewJob("t", b"x") for _ in range(60)])
    client.limits(busy, 40)
    client.enqueue_many(busy, [NewJob("t", b"y", delay_ms=3_600_000) for _ in range(3)])
    finish(valkey, busy, take(valkey, busy, 30))
    run(valkey, STUBS.defer(busy.environment.shard(2), [Deferral(job, 0, 0) for job in take(valkey, busy, 4)]))
    begun = time.time() // 5
    wait_until(lambda: time.time() // 5 > begun, "the next bucket")
    while leased := take(valkey, busy, 7):
        finish(valkey, busy, leased)


def take(valkey: Valkey, ref: QueueRef, count: int) -> list[Any]:
    shard = ref.environment.shard(2)
    return list(run(valkey, STUBS.dequeue(shard, count, 3_600_000, [ref.queue])))


def finish(valkey: Valkey, ref: QueueRef, leased: Sequence[Any]) -> None:
    """Every seventh attempt fails, every eleventh for good."""
    shard = ref.environment.shard(2)
    failed = [job for number, job in enumerate(leased) if number % 7 == 6 and job.attempt == 1]
    dead = [job for number, job in enumerate(leased) if number % 11 == 10 and job not in failed]
    if failed:
        run(valkey, STUBS.nack(shard, [(job, 0, "x") for job in failed]))
    if dead:
        run(valkey, STUBS.bury(shard, [(job, "x") for job in dead]))
    run(
        valkey,
        STUBS.ack(shard, [(job, 3 + number) for number, job in enumerate(leased) if job not in [*failed, *dead]]),
    )


def run_until_known(spark: SparkSession, options: PipelineOptions, valkey: Valkey, warehouse: Client) -> None:
    """Wait until history is complete up to this time."""

    def known() -> bool:
        return compare(valkey, warehouse).difference == 0 and pipeline_batches.read_watermark_ms(warehouse) is not None

    with open_pipeline(options) as pipeline, running_query(spark, pipeline):
        wait_until(known, "history agrees with the queues", LONG_S / 2)


Event = dict[str, Any]


def read_events(valkey: Valkey) -> dict[QueueRef, list[Event]]:
    """Return every event as the queue wrote it, before any aggregation."""
    found: dict[QueueRef, list[Event]] = defaultdict(list)
    for shard in range(2):
        entries: Any = valkey.xrange(keys.metrics(shard))
        for entry_id, fields in entries:
            texts = fields[FIELD.encode()].decode().split(SEPARATOR)
            event: Event = {column.name: _value(column.kind, text) for column, text in zip(COLUMNS, texts, strict=True)}
            event["at_ms"] = int(entry_id.decode().split("-")[0])
            if event["queue"]:
                found[QueueRef(event["org"], event["project"], event["env"], event["queue"])].append(event)
    return found


def _value(kind: str, text: str) -> Any:
    if kind == "text":
        return text
    return [int(each) for each in text.split(",") if each] if kind == "ints" else int(text) if text else None


def expected_points(events: Sequence[Event], starts_ms: Sequence[int], asked_ms: int) -> list[dict[str, Any]]:
    """Compute the points from single events, slowly and simply."""
    points: list[dict[str, Any]] = []
    for start in starts_ms:
        end = start + 5000
        inside = [event for event in events if start <= event["at_ms"] < end]
        earlier = [event for event in events if event["at_ms"] < start]
        newest = (earlier + inside)[-1] if earlier + inside else None
        into = earlier[-1] if earlier else None
        seen = inside + ([into] if into else [])
        waits = [wait for event in inside for wait in event["waits"]]
        runs = [ran for event in inside for ran in event["runs"]]
        count = {op: sum(event["n"] for event in inside if event["op"] == op) for op in Op}
        highest: dict[str, Any] = {
            name: max((event[name] for event in seen), default=None) for name in ("depth", "running", "bytes")
        }
        flow = {"enqueued": count[Op.ENQUEUE], "dequeued": count[Op.DEQUEUE], "completed": count[Op.ACK]}
        limit = newest and newest["limit"]
        points.append(
            {
                "timestamp": format_iso_ms(start),
                "throughput": {**flow, **{f"{name}_per_s": each / 5 for name, each in flow.items()}},
                "queue_depth": {
                    "max": highest["depth"],
                    "last": newest and newest["depth"],
                    "warm": newest and newest["depth"] - (newest["cold_depth"] or 0),
                    "cold": newest and (newest["cold_depth"] or 0),
                    "scheduled": newest and newest["scheduled"],
                    "bytes": newest and newest["bytes"],
                    "max_bytes": highest["bytes"],
                },
                "latency": {
                    "avg_wait_ms": round(sum(waits) / len(waits), 3) if waits else None,
                    "max_age_ms": _age(inside, newest, min(end, asked_ms)),
                    "avg_run_ms": round(sum(runs) / len(runs), 3) if runs else None,
                },
                "concurrency": {
                    "max": highest["running"],
                    "last": newest and newest["running"],
                    "limit": limit,
                    "utilization_pct": round(100 * highest["running"] / limit, 3) if limit else None,
                },
                "failures": {"nack": count[Op.NACK], "dlq": count[Op.BURY], "ttl_expired": count[Op.EXPIRE]},
                "moves": {
                    "spilled": count[Op.SPILL],
                    "refilled": count[Op.REFILL],
                    "reclaimed": count[Op.RECLAIM],
                    "released": count[Op.RELEASE],
                    "redriven": count[Op.REDRIVE],
                    "cancelled": count[Op.CANCEL],
                    "deferred": count[Op.DEFER],
                },
            }
        )
    return points


def _age(inside: Sequence[Event], newest: Event | None, until_ms: int) -> int | None:
    if newest is None:
        return None
    if inside:
        return max(event["at_ms"] - event["oldest_ms"] if event["oldest_ms"] else 0 for event in inside)
    return until_ms - newest["oldest_ms"] if newest["oldest_ms"] else 0


def without(point: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in point.items() if name not in names}


def nearest_rank(values: Sequence[int], share: float) -> int:
    return sorted(values)[max(1, math.ceil(len(values) * share)) - 1]


def test_a_known_workload_is_reported_exactly(
    spark: SparkSession,
    options: PipelineOptions,
    valkey: Valkey,
    valkey_url: str,
    warehouse: Client,
    api: TestClient,
    queue_ref: QueueRef,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every documented number of every point, for names with every awkward character, against the events themselves."""
    idle, busy = replace(queue_ref, queue="idle"), queue_ref
    work(valkey, valkey_url, idle, busy)
    events = read_events(valkey)
    run_until_known(spark, options, valkey, warehouse)
    asked_ms = max(event["at_ms"] for each in events.values() for event in each) + 12_345
    stop_clock(monkeypatch, asked_ms)
    for ref in (idle, busy):
        answer = get_queue_history(api, ref, period="5m")
        assert answer["queue"] == ref.queue
        assert answer["source"]["tier"] == answer["resolution"] == "5s"
        assert answer["completeness"] == {"pct": 100.0, "missing": {}}
        points = answer["timeseries"]
        assert len(points) == 60
        starts_ms = [int(datetime.fromisoformat(point["timestamp"]).timestamp() * 1000) for point in points]
        shown = [without(point, "complete", "percentiles") for point in points]
        assert shown == expected_points(events[ref], starts_ms, asked_ms)
        watermark = datetime.fromisoformat(answer["watermark"]).timestamp() * 1000
        assert [point["complete"] for point in points] == [start + 5000 <= watermark for start in starts_ms]
        check_percentiles(answer, events[ref], starts_ms)
        check_totals(answer, events[ref])

    idle_points = get_queue_history(api, idle, period="5m")
    depths = column(idle_points, "queue_depth", "last")
    assert depths[0] is None  # the window begins before its first event
    assert depths[-1] == 500
    ages = [age for age in column(idle_points, "latency", "max_age_ms") if age is not None]
    assert ages == sorted(ages)
    assert ages[-1] > ages[0]
    drained = get_queue_history(api, busy, period="5m")
    assert drained["timeseries"][-1]["queue_depth"]["last"] == 0
    assert drained["timeseries"][-1]["queue_depth"]["max"] == 0
    assert drained["headline"]["queue_depth"]["max"] == 60
    everything = get_environment_history(api, busy.environment, "queue-metrics", period="5m")
    assert everything["headline"]["queue_depth"]["last"] == 500
    assert everything["headline"]["totals"]["enqueued"] == 563
    assert everything["completeness"]["pct"] == 100.0


def check_percentiles(answer: dict[str, Any], events: Sequence[Event], starts_ms: Sequence[int]) -> None:
    """Within 2.5 % of the exact ones, point by point and over all; waits of 0 ms count."""
    for what, field in (("wait_ms", "waits"), ("run_ms", "runs")):
        whole = [value for event in events for value in event[field]]
        assert answer["percentiles"][what]["count"] == len(whole)
        told = [(answer["percentiles"][what], whole)]
        for point, start in zip(answer["timeseries"], starts_ms, strict=True):
            inside = [event for event in events if start <= event["at_ms"] < start + 5000]
            told.append((point["percentiles"][what], [value for event in inside for value in event[field]]))
        for found, values in told:
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
                exact = nearest_rank(values, share) if values else None
                assert found[name] == (exact if exact is None else pytest.approx(exact, rel=0.025)), (what, name)


def check_totals(answer: dict[str, Any], events: Sequence[Event]) -> None:
    words = {"enqueued": Op.ENQUEUE, "dequeued": Op.DEQUEUE, "completed": Op.ACK, "nack": Op.NACK, "dlq": Op.BURY}
    headline = answer["headline"]
    count = {word: sum(event["n"] for event in events if event["op"] == op) for word, op in words.items()}
    assert {word: headline["totals"][word] for word in words} == count
    failed, begun = count["nack"] + count["dlq"], count["dequeued"]
    assert headline["failure_rate"] == (round(failed / begun, 6) if begun else None)
    assert headline["queue_depth"]["max"] == max(event["depth"] for event in events)
    waits = [wait for event in events for wait in event["waits"]]
    assert headline["latency"]["avg_wait_ms"] == (round(sum(waits) / len(waits), 3) if waits else None)


# From rows of the warehouse --------------------------------------------------------------------------


def insert(warehouse: Client, *events: dict[str, Any], ref: QueueRef = REF, token: str = "") -> None:
    names = {"org": ref.org, "project": ref.project, "env": ref.env, "queue": ref.queue}
    rows = bucketize(event_table(*({**names, **event} for event in events)))
    insert_rows(warehouse, rows, f"{ref}{events}{token}")


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> int:
    """The beginning of a bucket. For the API it stays a second after that, however long the test takes."""
    found = int(time.time()) // 5 * 5
    stop_clock(monkeypatch, found * 1000 + 1000)
    return found


def add_batch(warehouse: Client, now_s: float, watermark_s: float, lost: int = 0) -> None:
    ms = int(watermark_s * 1000)
    batch = PipelineBatch(datetime.fromtimestamp(now_s, UTC), 1, 1, 1, 1, ms, ms, lost_events=lost, watermark_ms=ms)
    warehouse.insert_arrow(pipeline_batches.TABLE, pipeline_batches.to_arrow(batch))


def enqueued(at_s: float, total: int, n: int = 1, **more: Any) -> dict[str, Any]:
    """Return an event that adds n waiting jobs."""
    ms = int(at_s * 1000)
    waiting = {"depth": total, "oldest_ms": ms, "odometer": total, "epoch": 1}
    return {"at_ms": ms, "n": n, **waiting, **more}


def last(values: Sequence[Any]) -> Any:
    return values[-1]


def test_a_coarser_resolution_reports_the_same_totals(api: TestClient, warehouse: Client, now_s: int) -> None:
    """SQL adds points up as the finer chart would: with gaps at either end of a point, and in its middle."""
    minute = now_s // 60 * 60 - 600
    insert(warehouse, enqueued(minute - 7200, 500, 500))
    insert(warehouse, enqueued(minute + 61, 3, oldest_ms=(minute - 7200) * 1000))
    insert(warehouse, enqueued(minute + 121, 4), enqueued(minute + 171, 5, oldest_ms=(minute + 170) * 1000))
    insert(warehouse, enqueued(minute + 301, 9), enqueued(minute + 340, 0, oldest_ms=None), token="again")
    window = {"start": str(minute), "end": str(minute + 540)}
    fine, coarse = get_queue_history(api, REF, **window), get_queue_history(api, REF, **window, resolution="1m")
    finest = get_queue_history(api, REF, **window, resolution="30s")
    assert (coarse["source"]["tier"], finest["source"]["tier"]) == ("1m", "5s")
    for answer, size in ((coarse, 12), (finest, 6)):
        for section, name, merge in (
            ("throughput", "enqueued", sum),
            ("queue_depth", "max", max),
            ("queue_depth", "last", last),
        ):
            values = column(fine, section, name)
            groups = [values[at : at + size] for at in range(0, len(values), size)]
            assert column(answer, section, name) == [merge(group) for group in groups], (section, name)
        assert answer["headline"]["totals"] == fine["headline"]["totals"]
    ages = column(fine, "latency", "max_age_ms")
    assert column(finest, "latency", "max_age_ms") == [max(ages[at : at + 6]) for at in range(0, len(ages), 6)]


def test_gauges_are_carried_from_whichever_tier_has_them(api: TestClient, warehouse: Client, now_s: int) -> None:
    """The last event is older than what the 5 s tier, the minutes, or every tier keep."""
    for days in (1, 20, 300, 500):
        ref = replace(REF, queue=f"idle for {days} days")
        insert(warehouse, enqueued(now_s - days * DAY_S, 500, 500, bytes=7), ref=ref)
        answer = get_queue_history(api, ref, period="5m")
        assert set(column(answer, "queue_depth", "last")) == {500}
        assert set(column(answer, "queue_depth", "bytes")) == {7}
        ages = column(answer, "latency", "max_age_ms")
        assert ages == sorted(ages)
        assert ages[0] > days * DAY_S * 1000 - 300_000
        assert sum(column(answer, "throughput", "enqueued")) == 0


def test_a_window_before_the_first_event_is_unknown(api: TestClient, warehouse: Client, now_s: int) -> None:
    insert(warehouse, enqueued(now_s - 60, 5, 5))
    answer = get_queue_history(api, REF, start=str(now_s - 600), end=str(now_s - 300))
    assert set(column(answer, "queue_depth", "last")) == {None}
    assert answer["completeness"]["pct"] is None
    later = get_queue_history(api, REF, start=str(now_s - 90), end=str(now_s - 30))
    assert column(later, "queue_depth", "last") == [None] * 6 + [5] * 6


def test_what_was_there_before_a_window_is_not_taken_from_inside_it(
    api: TestClient, warehouse: Client, now_s: int
) -> None:
    """The minute and hour that the window begins in have rows that are later than its start."""
    minute = now_s // 60 * 60 - 120
    insert(warehouse, enqueued(minute + 5, 7), enqueued(minute + 40, 9))
    answer = get_queue_history(api, REF, start=str(minute + 20), end=str(minute + 50))
    assert column(answer, "queue_depth", "last") == [7, 7, 7, 7, 9, 9]


def test_operations_missing_by_the_odometers_are_reported_and_added(
    api: TestClient, warehouse: Client, now_s: int
) -> None:
    add_batch(warehouse, now_s, now_s)
    insert(warehouse, enqueued(now_s - 3600, 90, 90))
    insert(warehouse, enqueued(now_s - 60, 95, 5))
    assert get_queue_history(api, REF, period="5m")["completeness"] == {"pct": 100.0, "missing": {}}
    insert(warehouse, enqueued(now_s - 30, 100, 1))  # four were lost before it
    answer = get_queue_history(api, REF, period="5m")
    assert answer["completeness"] == {"pct": 60.0, "missing": {"enqueued": 4}}
    assert answer["headline"]["totals"]["enqueued"] == 10
    assert sum(column(answer, "throughput", "enqueued")) == 6
    # A new epoch counts from zero; nothing is missing between the two.
    insert(warehouse, enqueued(now_s - 20, 2, 2, epoch=(now_s - 25) * 1000))
    assert get_queue_history(api, REF, period="5m")["completeness"]["missing"] == {"enqueued": 4}


def test_without_a_watermark_completeness_is_unknown(api: TestClient, warehouse: Client, now_s: int) -> None:
    insert(warehouse, enqueued(now_s - 60, 5, 5))
    answer = get_queue_history(api, REF, period="5m")
    assert (answer["watermark"], answer["completeness"]["pct"]) == (None, None)
    assert {point["complete"] for point in answer["timeseries"]} == {False}


def test_an_environment_is_all_its_queues(api: TestClient, warehouse: Client, now_s: int) -> None:
    env = {"env_depth": 12, "env_running": 3, "env_limit": 6}
    insert(warehouse, enqueued(now_s - 65, 5, 5, env_depth=5), ref=REF)
    insert(warehouse, enqueued(now_s - 60, 7, 7, **env), ref=replace(REF, queue="other"))
    insert(warehouse, enqueued(now_s - 60, 9, 9), ref=replace(REF, env="staging"))
    add_batch(warehouse, now_s, now_s - 5)
    answer = get_environment_history(api, REF.environment, "queue-metrics", start=str(now_s - 70), end=str(now_s - 50))
    assert answer["environment"] == "prod"
    assert column(answer, "throughput", "enqueued") == [0, 5, 7, 0]
    assert column(answer, "queue_depth", "last") == [None, 5, 12, 12]
    assert column(answer, "concurrency", "utilization_pct") == [None, None, 50.0, 50.0]
    assert answer["completeness"] == {"pct": 100.0, "missing": {}}
    later = get_environment_history(api, REF.environment, "queue-metrics", period="30s")
    assert set(column(later, "queue_depth", "last")) == {12}
    assert column(later, "latency", "max_age_ms")[-1] == 66_000
    assert EnvironmentHistory.model_validate(answer).model_dump() == answer


def insert_random_states(warehouse: Client, ref: QueueRef, times_s: Sequence[float], random: Random) -> None:
    """Insert events of a queue with random gauges."""
    for number, at_s in enumerate(times_s, start=1):
        ms, waiting = int(at_s * 1000), random.choice([0, 1, 7])
        gauges = {
            "depth": waiting + 2,
            "cold_depth": waiting,
            "scheduled": random.randint(0, 9),
            "bytes": random.randint(0, 99),
        }
        oldest = {"oldest_ms": ms - random.randint(0, 60_000) if waiting else None}
        insert(warehouse, {"at_ms": ms, "odometer": number, "epoch": 1, **gauges, **oldest}, ref=ref)


@pytest.mark.parametrize(
    ("ago_s", "length_s", "resolution"),
    [
        (600, 595, None),
        (600, 540, "30s"),
        (3 * HOUR_S, HOUR_S, None),
        (DAY_S, 12 * HOUR_S, "1m"),
        (DAY_S, 12 * HOUR_S, "1h"),
    ],
)
def test_gauges_of_an_environment_are_those_of_its_queues_added_up(
    api: TestClient, warehouse: Client, now_s: int, ago_s: int, length_s: int, resolution: str | None
) -> None:
    random = Random(f"{ago_s} {length_s} {resolution}")
    start_s = (now_s - ago_s) // HOUR_S * HOUR_S if length_s >= HOUR_S else (now_s - ago_s) // 60 * 60
    end_s = start_s + length_s
    refs = [replace(REF, queue=name) for name in ("it's", "a\\b", "*", "{x:String}", "ü:é", "x', 'y]", "\\'")]
    long_ago, just_before = start_s - 30 * HOUR_S, start_s - 20
    inside = [random.uniform(start_s, end_s) for _ in range(6)]
    times: list[list[float]] = [
        [long_ago],  # idle since then
        [long_ago, *inside[:2]],  # its state before must be looked up
        [just_before, *inside[2:4]],
        [inside[4]],  # new
        [long_ago, min(end_s + 30.0, now_s - 1)],  # idle in the window, but not since
        [just_before],
        [min(end_s + 30.0, now_s - 1)],  # new after the window
    ]
    for ref, times_s in zip(refs, times, strict=True):
        insert_random_states(warehouse, ref, sorted(times_s), random)
    window = {"start": str(start_s), "end": str(end_s), **({"resolution": resolution} if resolution else {})}
    whole = get_environment_history(api, REF.environment, "queue-metrics", **window)
    parts = [get_queue_history(api, ref, **window) for ref in refs[:-1]]
    for name in ("cold", "scheduled", "bytes"):
        columns = [column(part, "queue_depth", name) for part in parts]
        expected = [sum(value or 0 for value in values) for values in zip(*columns, strict=True)]
        assert column(whole, "queue_depth", name) == expected, name
    ages = [column(part, "latency", "max_age_ms") for part in parts]
    expected = [max(age or 0 for age in values) for values in zip(*ages, strict=True)]
    assert column(whole, "latency", "max_age_ms") == expected
    assert whole["headline"]["latency"]["max_age_ms"] == max(expected)
    assert set(column(whole, "queue_depth", "max_bytes")) == {None}


def test_gauges_of_an_environment_are_unknown_before_its_first_queue(
    api: TestClient, warehouse: Client, now_s: int
) -> None:
    insert(warehouse, enqueued(now_s - 100, 3, cold_depth=1, bytes=5, env_depth=3))
    answer = get_environment_history(
        api, REF.environment, "queue-metrics", start=str(now_s - 120), end=str(now_s - 60), fields="queue_depth,latency"
    )
    assert column(answer, "queue_depth", "bytes") == [None] * 4 + [5] * 8
    assert column(answer, "queue_depth", "warm") == [None] * 4 + [2] * 8
    assert column(answer, "latency", "max_age_ms")[:4] == [None] * 4


def test_gauges_of_too_many_queues_are_unknown(
    api: TestClient, warehouse: Client, now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_parts, "MAX_CELLS", 11)
    insert(warehouse, enqueued(now_s - 100, 3, bytes=5, env_depth=3))
    window = {"start": str(now_s - 60), "end": str(now_s)}
    answer = get_environment_history(api, REF.environment, "queue-metrics", **window)
    assert set(column(answer, "queue_depth", "bytes")) == {None}
    assert set(column(answer, "queue_depth", "last")) == {3}


def test_what_an_environment_misses_is_found_by_the_odometers_of_its_queues(
    api: TestClient, warehouse: Client, now_s: int
) -> None:
    minute = now_s // 60 * 60 - 60
    other = replace(REF, queue="other")
    insert(warehouse, enqueued(minute - 360, 90, 90), ref=REF)
    insert(warehouse, enqueued(minute - 60, 95, 2), ref=REF)  # three of it were not seen
    insert(warehouse, enqueued(minute - 60, 4, 4), ref=other)
    add_batch(warehouse, minute - 55, minute - 50, lost=1)
    window = {"start": str(minute - 300), "end": str(minute)}
    answer = get_environment_history(api, REF.environment, "queue-metrics", **window)
    assert answer["completeness"]["missing"] == {"enqueued": 3}
    assert answer["completeness"]["pct"] == 66.666
    assert answer["headline"]["totals"]["enqueued"] == 9
    # Of a third queue it is not known where its odometer stood when the window began.
    insert(warehouse, enqueued(minute - 30, 1000, 1), ref=replace(REF, queue="third"))
    assert get_environment_history(api, REF.environment, "queue-metrics", **window)["completeness"]["pct"] is None


def test_losses_are_seen_where_the_batch_after_them_reports_them(
    api: TestClient, warehouse: Client, now_s: int
) -> None:
    """The pipeline paused and the stream was trimmed; the first batch after that reports the loss."""
    insert(warehouse, enqueued(now_s - 1200, 90, 90))
    add_batch(warehouse, now_s - 1190, now_s - 1195)
    add_batch(warehouse, now_s - 100, now_s - 105, lost=10)
    add_batch(warehouse, now_s - 50, now_s - 55)

    def pct(start_s: int, end_s: int) -> float | None:
        window = {"start": str(now_s - start_s), "end": str(now_s - end_s)}
        return get_environment_history(api, REF.environment, "queue-metrics", **window)["completeness"]["pct"]

    assert pct(1300, 1200) == 100.0
    assert pct(90, 60) == 100.0
    warehouse.command("ALTER TABLE queue_metrics_by_minute_v1 DELETE WHERE 1 SETTINGS mutations_sync = 1")
    insert(warehouse, enqueued(now_s - 150, 200, 1))
    assert pct(900, 110) is None


def test_where_events_were_disabled_completeness_is_unknown(api: TestClient, warehouse: Client, now_s: int) -> None:
    """Metrics were switched off for forty minutes, in which 910 jobs came; the batch after that misses their events."""
    insert(warehouse, enqueued(now_s - 3000, 90, 90))
    add_batch(warehouse, now_s - 2990, now_s - 2995)
    insert(warehouse, enqueued(now_s - 600, 1001, 1))
    add_batch(warehouse, now_s - 595, now_s - 600, lost=300)
    add_batch(warehouse, now_s - 5, now_s - 5)

    def completeness(start_s: int, end_s: int) -> list[Any]:
        window = {"start": str(now_s - start_s), "end": str(now_s - end_s)}
        of_both = (
            get_queue_history(api, REF, **window),
            get_environment_history(api, REF.environment, "queue-metrics", **window),
        )
        return [answer["completeness"] for answer in of_both]

    unknown = {"pct": None, "missing": {}}
    assert completeness(2000, 1000) == [unknown] * 2  # all of it while they were off
    assert completeness(3100, 1000) == [unknown] * 2  # the end of it
    assert completeness(2000, 100) == [{"pct": 0.109, "missing": {"enqueued": 910}}] * 2
    assert completeness(3100, 2995) == [{"pct": 100.0, "missing": {}}] * 2
    assert completeness(500, 100) == [{"pct": 100.0, "missing": {}}] * 2


def test_a_loss_of_others_leaves_a_queue_complete(api: TestClient, warehouse: Client, now_s: int) -> None:
    """Events of the shard were lost around the end of the window; the odometers show that none was the queue's."""
    insert(warehouse, enqueued(now_s - 900, 90, 90))
    add_batch(warehouse, now_s - 890, now_s - 895)
    add_batch(warehouse, now_s - 300, now_s - 305, lost=7)
    window = {"start": str(now_s - 950), "end": str(now_s - 400)}
    assert get_queue_history(api, REF, **window)["completeness"]["pct"] is None  # it was not heard of yet
    insert(warehouse, enqueued(now_s - 250, 90, op="resync", n=0, odometer=None, odometers=[90, *[0] * 11]))
    assert get_queue_history(api, REF, **window)["completeness"] == {"pct": 100.0, "missing": {}}


def test_what_the_pipeline_has_not_come_to_is_not_complete(api: TestClient, warehouse: Client, now_s: int) -> None:
    insert(warehouse, enqueued(now_s - 3000, 90, 90, env_depth=90))
    add_batch(warehouse, now_s - 2990, now_s - 2995)
    for answer in (get_queue_history(api, REF), get_environment_history(api, REF.environment, "queue-metrics")):
        assert answer["completeness"] == {"pct": None, "missing": {}}
        assert set(column(answer, "queue_depth", "last")) == {90}


def test_what_only_a_backfill_wrote_is_known(api: TestClient, warehouse: Client, now_s: int) -> None:
    """ClickHouse began anew, and the hours before that come from the archive."""
    insert(warehouse, enqueued(now_s - 600, 5, 5, env_depth=5))
    warehouse.command("TRUNCATE TABLE queue_last_v1")
    window = {"start": str(now_s - 900), "end": str(now_s - 300)}
    for answer in (
        get_queue_history(api, REF, **window),
        get_environment_history(api, REF.environment, "queue-metrics", **window),
    ):
        assert answer["headline"]["totals"]["enqueued"] == 5
    assert (
        get_environment_history(api, REF.environment, "queue-metrics", period="1m")["headline"]["queue_depth"]["last"]
        == 5
    )


def test_hours_that_were_written_again_are_read_again(api: TestClient, warehouse: Client, now_s: int) -> None:
    hour = now_s // HOUR_S * HOUR_S - 2 * HOUR_S
    insert(warehouse, enqueued(hour + 600, 5, 5))
    window = {"start": str(hour), "end": str(hour + HOUR_S)}
    assert get_queue_history(api, REF, **window)["headline"]["totals"]["enqueued"] == 5
    tables = ("queue_metrics_5s_v1", "queue_metrics_by_minute_v1", "queue_metrics_by_hour_v1")
    for table in tables:
        warehouse.command(
            f"INSERT INTO {table} SELECT * REPLACE (1 AS generation, 6 AS enqueue_count, map(0, 0) AS first_odometers, "
            f"map(0, 6) AS last_odometers) FROM {table}"
        )
    assert get_queue_history(api, REF, **window)["headline"]["totals"]["enqueued"] == 5
    row = [[datetime.fromtimestamp(hour, UTC), datetime.fromtimestamp(hour + HOUR_S, UTC), 1]]
    warehouse.insert("history_windows_v1", row, column_names=["start", "end", "generation"])
    for resolution in ("5s", "1m", "1h"):
        answer = get_queue_history(api, REF, **window, resolution=resolution)
        assert sum(column(answer, "throughput", "enqueued")) == 6, resolution


@pytest.fixture
def three_queues(warehouse: Client, now_s: int) -> int:
    deep, slow, idle = (replace(REF, queue=name) for name in ("deep", "slow", "idle"))
    insert(warehouse, enqueued(now_s - 60, 70, 70, limit=4, running=1), ref=deep)
    waits = {"op": "dequeue", "n": 2, "waits": [900, 1000], "depth": 1, "running": 2, "limit": 4}
    insert(warehouse, {"at_ms": (now_s - 50) * 1000, **waits}, ref=slow)
    insert(warehouse, {"at_ms": (now_s - 40) * 1000, "op": "nack", "n": 1, "depth": 2}, ref=slow, token="nack")
    insert(warehouse, enqueued(now_s - 2 * DAY_S, 500, 500), ref=idle)
    return now_s


@pytest.mark.parametrize(
    ("metric", "leaders"),
    [
        ("depth", ["idle", "deep", "slow"]),
        ("oldest", ["idle", "deep"]),
        ("enqueued", ["deep", "idle", "slow"]),
        ("failures", ["slow", "deep", "idle"]),
        ("failure_rate", ["slow"]),
        ("wait_p95", ["slow"]),
        ("utilization", ["deep"]),
    ],
)
def test_queues_are_ranked(api: TestClient, three_queues: int, metric: RankingMetric, leaders: list[str]) -> None:
    """By what they did in the period and by their gauges of now, idle ones too; not where the number is unknown."""
    answer = get_environment_history(api, REF.environment, "top-queues", metric=metric, period="1h")
    assert [queue["queue"] for queue in answer["queues"]] == leaders
    assert [queue["rank"] for queue in answer["queues"]] == list(range(1, len(leaders) + 1))
    assert TopQueues.model_validate(answer).model_dump() == answer
    assert [
        queue["queue"]
        for queue in get_environment_history(api, REF.environment, "top-queues", metric=metric, period="1h", limit=1)[
            "queues"
        ]
    ] == leaders[:1]


def test_every_ranking_can_be_requested(api: TestClient, three_queues: int) -> None:
    for metric in queue_metrics.RANKING_SQL:
        assert get_environment_history(api, REF.environment, "top-queues", metric=metric)["metric"] == metric
    ranked = get_environment_history(api, REF.environment, "top-queues", metric="wait_p95")["queues"]
    assert ranked[0]["value"] == pytest.approx(1000, rel=0.025)


def test_the_answer_is_what_openapi_describes(api: TestClient, warehouse: Client, now_s: int) -> None:
    insert(warehouse, enqueued(now_s - 60, 5, 5))
    answer = get_queue_history(api, REF, period="5m")
    assert QueueHistory.model_validate(answer).model_dump() == answer
    schema = api.get("/openapi.json").json()
    for path in ("queues/{queue}/metrics", "environments/{environment}/queue-metrics"):
        operation = schema["paths"][f"/api/v1/{path}"]["get"]
        assert {"period", "start", "end", "resolution"} <= {each["name"] for each in operation["parameters"]}
        layouts = operation["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
        assert all("$ref" in layout for layout in layouts)
        assert len(layouts) == 2  # points and columns


@pytest.mark.parametrize(
    ("asked", "status", "says"),
    [
        ({"period": "3w"}, 400, "from 1s to 400d"),
        ({"start": "yesterday"}, 400, "is not a time"),
        ({"start": "4000000000"}, 400, "future"),
        ({"period": "7d", "resolution": "5s"}, 400, "The nearest valid resolution is 1m"),
        ({"period": "30m"}, 404, "No history for queue"),
    ],
)
def test_an_impossible_request_is_refused_with_the_reason(
    api: TestClient, asked: dict[str, str], status: int, says: str
) -> None:
    names = {"org": "acme", "project": "shop", "env": "prod"}
    answer = api.get("/api/v1/queues/unheard-of/metrics", params={**names, **asked})
    assert answer.status_code == status
    assert says in answer.json()["detail"]


@pytest.mark.parametrize("asked", [{"metric": "beauty"}, {"limit": 101}, {"limit": 0}, {"period": "1y"}])
def test_rankings_that_do_not_exist_are_refused(api: TestClient, asked: dict[str, Any]) -> None:
    answer = api.get("/api/v1/environments/prod/top-queues", params={"org": "a", "project": "b", **asked})
    assert answer.status_code == 400


def test_sql_and_model_agree_on_percentiles(warehouse: Client) -> None:
    """Nearest rank, computed in both."""
    waits = [0, 0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]
    start_s = int(time.time()) // 5 * 5 - 60
    insert(warehouse, {"at_ms": start_s * 1000, "op": "dequeue", "n": len(waits), "waits": waits})
    series = queue_metrics.read_points(QueryRunner(warehouse), TIERS[0], REF, start_s, start_s + 5, 5)
    [span] = series.epochs
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        [key] = series.columns[f"wait_{name}"]
        assert compute_percentile({key: 1}, 1) == compute_percentile(span.wait, share), name


def test_odometers_are_summed_in_the_order_of_the_verbs(warehouse: Client) -> None:
    query = queue_metrics.render_query("environment_missing_counts", table="t")
    order = [query.index(f"sumIf({column},") for column in COUNT_COLUMN.values()]
    assert order == sorted(order)


# Timeouts -------------------------------------------------------------------------------------------

LONG = "SELECT sum(sleepEachRow(0.1)) FROM numbers(6000) SETTINGS max_block_size = 1"


def test_a_question_that_takes_too_long_is_withdrawn(warehouse: Client) -> None:
    with pytest.raises(HistoryTooSlow):
        QueryRunner(warehouse, timeout_s=0.3).run(LONG, {})
    wait_until(lambda: not running(warehouse), "ClickHouse has ended it")


def test_a_query_is_cancelled_when_its_client_disconnects(warehouse: Client, services: Services) -> None:
    patient = replace(services, settings=replace(services.settings, query_timeout=600.0))
    reads = QueryRunner(patient.clickhouse, timeout_s=600)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(reads.run, LONG, {})
        wait_until(lambda: running(warehouse), "it runs")
        reads.cancel()
        with pytest.raises(HistoryCancelled):
            asked.result(120)
    wait_until(lambda: not running(warehouse), "ClickHouse has ended it")


def test_after_a_cancellation_no_further_query_runs(warehouse: Client) -> None:
    """A request runs its queries one after the other."""
    reads = QueryRunner(warehouse)
    reads.run("SELECT 1", {})
    reads.cancel()
    with pytest.raises(HistoryCancelled):
        reads.run("SELECT 1", {})


def running(warehouse: Client) -> bool:
    query = (
        "SELECT count() FROM system.processes WHERE query LIKE '%sleepEachRow(0.1)%' AND query NOT LIKE '%processes%'"
    )
    return bool(warehouse.query(query).result_rows[0][0])

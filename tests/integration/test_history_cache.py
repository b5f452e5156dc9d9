"""Cached history over HTTP: final points, backfills, tenants; fields, columns, and only new points."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from headrace.api.access import AccessLevel, KeyScope
from headrace.api.schemas.history import EnvironmentHistoryColumns, QueueHistoryColumns
from headrace.api.services import Services
from headrace.history import reader
from headrace.history.fields import ALL_FIELDS
from headrace.history.presenter import present_queue
from headrace.history.routing import resolve_window
from headrace.model.names import QueueRef
from headrace.model.time import format_iso_ms
from headrace.settings import ApiSettings
from headrace.warehouse import history_windows, pipeline_batches, queue_metrics
from headrace.warehouse.connect import Client, connect
from headrace.warehouse.history_state import read_history_state
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.tiers import TIERS
from tests.access import client_with_key
from tests.conftest import wait_until
from tests.integration.test_history import (
    HOUR_S,
    REF,
    add_batch,
    enqueued,
    get_environment_history,
    get_queue_history,
    insert,
    stop_clock,
)


@pytest.fixture
def services(valkey_url: str, clickhouse_url: str, warehouse: Client, postgres_url: str) -> Iterator[Services]:
    made = Services(valkey_url, clickhouse_url, str(warehouse.database), 2, postgres_url)
    assert made.settings.history_cache > 0
    yield made
    made.close()


@pytest.fixture
def api(services: Services) -> TestClient:
    return client_with_key(services)


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> int:
    found = int(time.time()) // 5 * 5
    stop_clock(monkeypatch, found * 1000 + 1000)
    return found


def get(api: TestClient, ref: QueueRef, **asked: str) -> Any:
    params = {"org": ref.org, "project": ref.project, "env": ref.env, **asked}
    return api.get(f"/api/v1/queues/{ref.queue}/metrics", params=params)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each query of the rows of a queue is added."""
    found: list[str] = []
    read = queue_metrics.read_buckets

    def counted(*args: Any, **named: Any) -> Any:
        found.append("read")
        return read(*args, **named)

    monkeypatch.setattr(reader.queue_metrics, "read_buckets", counted)
    return found


# Cache ---------------------------------------------------------------------------------------------------------------


def test_a_point_is_never_final_before_the_watermark_passed_it(api: TestClient, warehouse: Client, now_s: int) -> None:
    """Rows of a point arrive one after the other, each with a batch. A response in which the point is final must have
    its last value."""
    at_s, total = now_s - 60, 5
    start = format_iso_ms(at_s * 1000)
    for number in range(1, total + 1):
        insert(warehouse, enqueued(at_s, number), token=str(number))
        is_last = number == total
        watermark_s = at_s + 5 if is_last else at_s + 4.9
        add_batch(warehouse, now_s - 50 + number, watermark_s)

        def shows_batch(watermark_s: float = watermark_s, number: int = number) -> bool:
            answer = get_queue_history(api, REF, period="5m")
            [point] = [each for each in answer["timeseries"] if each["timestamp"] == start]
            assert not point["complete"] or point["throughput"]["enqueued"] == total
            return point["throughput"]["enqueued"] == number and point["complete"] == is_last  # noqa: B023

        wait_until(shows_batch, f"batch {number} is shown")


def test_an_unchanged_history_is_read_once(
    api: TestClient, warehouse: Client, now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(warehouse, enqueued(now_s - 60, 5, 5))
    add_batch(warehouse, now_s - 50, now_s - 50)
    reads = count_reads(monkeypatch)
    first = get(api, REF, period="5m")
    assert get(api, REF, period="5m").content == first.content
    assert len(reads) == 1
    again = api.get(first.request.url, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    add_batch(warehouse, now_s - 40, now_s - 40)
    wait_until(lambda: get(api, REF, period="5m").headers["etag"] != first.headers["etag"], "the batch is noticed")
    assert len(reads) == 2


def test_a_closed_range_is_not_read_again_for_each_batch(
    api: TestClient, warehouse: Client, now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(warehouse, enqueued(now_s - 600, 5, 5))
    add_batch(warehouse, now_s - 50, now_s - 50)
    reads = count_reads(monkeypatch)
    closed = {"start": str(now_s - 900), "end": str(now_s - 300)}
    first = get(api, REF, **closed)
    add_batch(warehouse, now_s - 40, now_s - 40)
    opened = get(api, REF, period="5m")
    wait_until(
        lambda: get(api, REF, period="5m").json()["watermark"] == format_iso_ms((now_s - 40) * 1000),
        "the batch is noticed",
    )
    assert opened.status_code == 200
    reads.clear()
    assert get(api, REF, **closed).content == first.content
    assert not reads


@pytest.mark.parametrize("is_open", [False, True])
def test_a_backfill_of_another_process_ends_what_was_cached(
    api: TestClient, warehouse: Client, clickhouse_url: str, now_s: int, is_open: bool
) -> None:
    """The hour is closed in one case; in the other the range ends now, and its first hour is rewritten."""
    hour = now_s // HOUR_S * HOUR_S - HOUR_S
    insert(warehouse, enqueued(hour + 600, 5, 5))
    add_batch(warehouse, now_s - 10, now_s - 10)
    window = {"period": "2h", "resolution": "1m"} if is_open else {"start": str(hour), "end": str(hour + HOUR_S)}
    for _ in range(2):
        answer = get_queue_history(api, REF, **window)
        assert answer["headline"]["totals"]["enqueued"] == 5
        assert answer["generation"] == 0
    other = connect(clickhouse_url, str(warehouse.database))
    generation = history_windows.allocate_generation(other)
    for tier in TIERS:
        other.command(
            f"INSERT INTO {tier.queues} SELECT * REPLACE ({generation} AS generation, 6 AS enqueue_count, "
            f"map(0, 0) AS first_odometers, map(0, 6) AS last_odometers) FROM {tier.queues}"
        )
    history_windows.activate_generation(other, hour, hour + HOUR_S, generation)

    def shows_backfill() -> bool:
        answer = get_queue_history(api, REF, **window)
        assert (answer["generation"], answer["headline"]["totals"]["enqueued"]) in ((0, 5), (generation, 6))
        return answer["generation"] == generation

    wait_until(shows_backfill, "the backfill is noticed")


def test_tenants_do_not_share_responses(api: TestClient, services: Services, warehouse: Client, now_s: int) -> None:
    other = replace(REF, org="globex")
    insert(warehouse, enqueued(now_s - 60, 5, 5))
    insert(warehouse, enqueued(now_s - 60, 9, 9), ref=other)
    add_batch(warehouse, now_s - 50, now_s - 50)
    for ref, total in ((REF, 5), (other, 9), (REF, 5)):
        assert get_queue_history(api, ref, period="5m")["headline"]["totals"]["enqueued"] == total
        everything = get_environment_history(api, ref.environment, "queue-metrics", period="5m")
        assert everything["headline"]["totals"]["enqueued"] == total
        [top] = get_environment_history(api, ref.environment, "top-queues")["queues"]
        assert top["queue_depth"]["last"] == total
    foreign = client_with_key(services, KeyScope(other.org), AccessLevel.READ)
    assert get(foreign, REF, period="5m").status_code == 404  # although the response is cached
    scoped = foreign.get(
        f"/api/v1/queues/{REF.queue}/metrics", params={"project": REF.project, "env": REF.env, "period": "5m"}
    )
    assert scoped.json()["headline"]["totals"]["enqueued"] == 9


def test_a_response_is_compressed_for_those_who_accept_it(api: TestClient, warehouse: Client, now_s: int) -> None:
    insert(warehouse, enqueued(now_s - 60, 5, 5))
    add_batch(warehouse, now_s - 50, now_s - 50)
    plain = get_plain(api, "identity")
    packed = get_plain(api, "gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.json() == plain.json()
    assert len(gzip.compress(plain.content)) < len(plain.content) / 10


def get_plain(api: TestClient, encoding: str) -> Any:
    params = {"org": REF.org, "project": REF.project, "env": REF.env, "period": "30m"}
    return api.get(f"/api/v1/queues/{REF.queue}/metrics", params=params, headers={"Accept-Encoding": encoding})


# Fields, columns, new points -------------------------------------------------------------------------------------


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def test_columns_have_the_values_of_points(api: TestClient, warehouse: Client, now_s: int) -> None:
    insert(warehouse, enqueued(now_s - 60, 5, 5, limit=10, running=2))
    insert(warehouse, {"at_ms": (now_s - 30) * 1000, "op": "dequeue", "n": 2, "waits": [3, 40], "depth": 3}, token="d")
    add_batch(warehouse, now_s - 20, now_s - 20)
    for points, columns, model in (
        (
            get_queue_history(api, REF, period="5m"),
            get(api, REF, period="5m", format="columns").json(),
            QueueHistoryColumns,
        ),
        (
            get_environment_history(api, REF.environment, "queue-metrics", period="5m"),
            get_environment_history(api, REF.environment, "queue-metrics", period="5m", format="columns"),
            EnvironmentHistoryColumns,
        ),
    ):
        assert model.model_validate(columns).model_dump() == columns
        found = columns.pop("columns")
        timeseries = points.pop("timeseries")
        assert columns == points
        assert (found.pop("start"), found.pop("step_s"), found.pop("count")) == (timeseries[0]["timestamp"], 5, 60)
        flat = [flatten(point) for point in timeseries]
        assert flatten(found) == {name: [point[name] for point in flat] for name in flat[0] if name != "timestamp"}


def test_only_the_selected_fields_are_read_and_shown(
    api: TestClient, warehouse: Client, now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(warehouse, enqueued(now_s - 60, 5, 5))
    everything = get_queue_history(api, REF, period="5m")
    queries: list[str] = []
    run = QueryRunner.run

    def recorded(self: QueryRunner, query: str, *args: Any, **named: Any) -> Any:
        queries.append(query)
        return run(self, query, *args, **named)

    monkeypatch.setattr(QueryRunner, "run", recorded)
    chosen = get_queue_history(api, REF, period="5m", fields="throughput.enqueued,queue_depth")
    assert "headline" not in chosen
    assert "percentiles" not in chosen
    assert not any("histogram" in query for query in queries)
    for point, whole in zip(chosen["timeseries"], everything["timeseries"], strict=True):
        assert set(point) == {"timestamp", "complete", "throughput", "queue_depth"}
        assert point["throughput"] == {"enqueued": whole["throughput"]["enqueued"]}
        assert point["queue_depth"] == whole["queue_depth"]
    whole = get_queue_history(api, REF, period="5m", fields="headline")
    assert (whole["headline"], whole["percentiles"]) == (everything["headline"], everything["percentiles"])
    assert set(whole["timeseries"][0]) == {"timestamp", "complete"}
    refused = get(api, REF, fields="throughput,nothing")
    assert refused.status_code == 400
    assert "'nothing' does not exist" in refused.json()["detail"]


def test_since_leaves_out_points_and_nothing_else(api: TestClient, warehouse: Client, now_s: int) -> None:
    insert(warehouse, enqueued(now_s - 60, 5, 5))
    insert(warehouse, enqueued(now_s - 200, 5, 5), token="earlier")
    everything = get_queue_history(api, REF, period="5m")
    since = format_iso_ms((now_s - 62) * 1000)
    new = get_queue_history(api, REF, period="5m", since=since)
    points = everything.pop("timeseries")
    assert new.pop("timeseries") == [
        point for point in points if point["timestamp"] >= format_iso_ms((now_s - 65) * 1000)
    ]
    assert new == everything
    columns = get(api, REF, period="5m", since=since, format="columns").json()["columns"]
    assert (columns["start"], columns["count"]) == (format_iso_ms((now_s - 65) * 1000), 14)
    assert columns["throughput"]["enqueued"][1] == 5
    assert get_queue_history(api, REF, period="5m", since=str(now_s + 60))["timeseries"] == []
    assert get(api, REF, since="yesterday").status_code == 400


# Two ways to add up rows ---------------------------------------------------------------------------------------------


def test_rows_are_added_up_alike_here_and_in_clickhouse(
    warehouse: Client, now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not merged, of two epochs, with empty buckets between them, at every resolution."""
    total = 0
    for number, back_s in enumerate((1700, 900, 895, 894, 700, 300, 295, 60, 59, 3)):
        total += number
        epoch = 1 if number < 6 else 2
        waits = {"op": "dequeue", "n": 2, "waits": [number, 7 * number], "depth": number, "running": number % 3}
        insert(
            warehouse, enqueued(now_s - back_s, total, number or 1, epoch=epoch, bytes=10 * number), token=str(number)
        )
        insert(
            warehouse,
            {
                "at_ms": (now_s - back_s) * 1000 + 500,
                **waits,
                "epoch": epoch,
                "oldest_ms": (now_s - back_s - 20) * 1000,
            },
            token=f"d{number}",
        )
    add_batch(warehouse, now_s - 2, now_s - 2)
    now_ms = now_s * 1000 + 1000
    for asked in (
        {"period": "20m"},
        {"period": "30m", "resolution": "30s"},
        {"period": "2h", "resolution": "5m"},
        {"period": "1m"},
    ):
        window = resolve_window(now_ms, **asked)
        documents: list[Any] = []
        for most in (10**6, 0):
            monkeypatch.setattr(reader, "MAX_BUCKETS", most)
            found = reader.read_queue_history(QueryRunner(warehouse), REF, window, now_ms, ALL_FIELDS)
            assert found is not None
            documents.append(json.loads(present_queue("q", found)))
        assert documents[0] == documents[1], asked
        assert sum(point["throughput"]["dequeued"] for point in documents[0]["timeseries"]) > 0


def test_the_state_before_a_window_is_that_of_any_tier(
    warehouse: Client, now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nack in the window, whose odometer was last read hours before, and one operation of it is missing."""
    nack = {"op": "nack", "depth": 4, "epoch": 1}
    insert(warehouse, {"at_ms": (now_s - 3 * HOUR_S) * 1000, **nack, "n": 1, "odometer": 1}, token="old")
    insert(warehouse, enqueued(now_s - 400, 5, 5), token="before")
    insert(warehouse, {"at_ms": (now_s - 60) * 1000, **nack, "n": 1, "odometer": 3}, token="new")
    add_batch(warehouse, now_s - 10, now_s - 10)
    now_ms = now_s * 1000 + 1000
    found = reader.read_queue_history(QueryRunner(warehouse), REF, resolve_window(now_ms, period="5m"), now_ms)
    assert found is not None
    assert json.loads(present_queue("q", found))["completeness"]["missing"] == {"nack": 1}


# Utilisation ---------------------------------------------------------------------------------------------------------


def test_without_a_limit_of_its_own_a_queue_uses_that_of_its_environment(
    api: TestClient, warehouse: Client, now_s: int
) -> None:
    own, shared, none = (replace(REF, queue=name) for name in ("own", "shared", "none"))
    insert(warehouse, enqueued(now_s - 60, 5, 5, running=4, limit=8, env_limit=40), ref=own)
    insert(warehouse, enqueued(now_s - 60, 5, 5, running=4, env_limit=40), ref=shared)
    insert(warehouse, enqueued(now_s - 60, 5, 5, running=4), ref=replace(none, env="free"))
    for ref, percent in ((own, 50.0), (shared, 10.0), (replace(none, env="free"), None)):
        answer = get_queue_history(api, ref, period="5m")
        concurrency = answer["timeseries"][-1]["concurrency"]
        assert (concurrency["utilization_pct"], concurrency["limit"]) == (percent, 8 if ref is own else None)
        assert answer["headline"]["concurrency"]["max_utilization_pct"] == percent
    top = get_environment_history(api, REF.environment, "top-queues", metric="utilization")["queues"]
    assert [(each["queue"], each["value"], each["concurrency"]["utilization_pct"]) for each in top] == [
        ("own", 50.0, 50.0),
        ("shared", 10.0, 10.0),
    ]


def test_the_cache_can_be_switched_off(
    valkey_url: str,
    clickhouse_url: str,
    warehouse: Client,
    postgres_url: str,
    now_s: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ApiSettings(history_cache=0)
    services = Services(valkey_url, clickhouse_url, str(warehouse.database), 2, postgres_url, settings)
    try:
        api = client_with_key(services)
        insert(warehouse, enqueued(now_s - 60, 5, 5))
        add_batch(warehouse, now_s - 50, now_s - 50)
        reads = count_reads(monkeypatch)
        assert "etag" not in get(api, REF, period="5m").headers
        get(api, REF, period="5m")
        assert len(reads) == 2
    finally:
        services.close()


@pytest.mark.parametrize("lost_back_s", [None, 3, 100, 130, 400])
def test_the_state_tells_losses_as_clickhouse_does(warehouse: Client, now_s: int, lost_back_s: int | None) -> None:
    for back_s in (500, 400, 200, 130, 100, 61, 3):
        add_batch(warehouse, now_s - back_s, now_s - back_s - 1, lost=int(back_s == lost_back_s) * 5)
    queries = QueryRunner(warehouse)
    state = read_history_state(queries)
    for start_s, end_s in ((now_s - 300, now_s), (now_s - 300, now_s - 90), (now_s - 100, now_s - 60), (0, now_s + 5)):
        span = (start_s * 1000, end_s * 1000)
        assert state.find_losses(*span) == pipeline_batches.read_losses(queries, *span)
        assert state.find_losses_at_end(*span) == pipeline_batches.read_losses_at_end(queries, *span)

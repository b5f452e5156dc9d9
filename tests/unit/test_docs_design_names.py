"""The page of names from the design documents is complete, and every name it gives for Headrace exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import pytest

from headrace.alerts.rules import RuleMetric
from headrace.autoscale.worker_types import SCALING_KEYS, WorkerType
from headrace.model.event import COLUMNS
from headrace.settings import SETTINGS
from headrace.snapshot.payload import SnapshotMeta
from headrace.spool.failover import DRAIN_EVERY_S, DRAIN_RECORDS
from tests.contract import sections
from tests.unit.test_docs import documented_commands

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "design-names.md"
API_PAGE = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
NOT_PROVIDED = "not provided"
CODE = re.compile(r"`([^`]+)`")

SETTINGS_OF_DOCUMENTS = {
    "Queue metrics system": """
        MAXLEN queue_metrics:enabled queue_metrics:shard:N redis clickhouse shardCount consumerGroup consumerId
        pollIntervalMs batchSize BLOCK maxRetries XAUTOCLAIM QueueAlertEvaluator QUEUE_BACKLOG BACKLOG QUEUE_LATENCY
        LATENCY QUEUE_ERROR_RATE ERROR_RATE id friendlyId project projectId environment environmentId queueName metric
        operator threshold windowMinutes cooldownMinutes lastTriggeredAt enabled channels createdAt updatedAt
        queue_metrics_5s_v1 queue_metrics_by_minute_v1 queue_metrics_by_hour_v1
    """,
    "Queue metrics snapshot": """
        metrics.queue_snapshot.refresh_interval metrics.queue_snapshot.lock_ttl metrics.queue_snapshot.max_staleness
        metrics.queue_snapshot.redis_prefix metrics.queue_snapshot.keep_versions
    """,
    "Queue architecture": "inMemoryQueueSize coldToWarm getDetailedWarmQueueMetrics heartbeatThresholdMs",
    "Queue system": """
        -queue-enabled enabled -queue-type type -queue-path path -queue-max-size max_size -queue-max-bytes max_bytes
        -queue-full-behavior full_behavior block -queue-always-queue always_queue -queue-workers workers
        -queue-inmemory-blocks inmemory_blocks -queue-chunk-size chunk_size -queue-meta-sync meta_sync_interval
        -queue-stale-flush -queue-write-buffer-size write_buffer_size -queue-compression compression
        -queue-retry-interval -queue-max-retry-delay -queue-backoff-enabled backoff.enabled -queue-backoff-multiplier
        backoff.multiplier -queue-circuit-breaker-enabled circuit_breaker.enabled -queue-circuit-breaker-threshold
        circuit_breaker.threshold -queue-circuit-breaker-reset-timeout circuit_breaker.reset_timeout
        -queue-memory-percent -memory-limit-ratio -queue-adaptive-enabled -queue-target-utilization
        pipeline_split.enabled pipeline_split.preparer_count pipeline_split.sender_count pipeline_split.channel_size
        max_concurrent_sends global_send_limit adaptive_workers.enabled adaptive_workers.min_workers
        adaptive_workers.max_workers
    """,
    "Redis Streams job queue analysis": """
        browser:jobs tankpit:jobs jobs job_queue group consumer count block maxlen json type id enabled scaling
    """,
}
METRICS_OF_DOCUMENTS = {
    "Queue metrics system": """
        queue_metrics_5s_v1 queue_metrics_by_minute_v1 queue_metrics_by_hour_v1 raw_queue_metrics_v1
        queue_metrics_by_minute_mv_v1 queue_metrics_by_hour_mv_v1 organization_id project_id environment_id queue_name
        bucket_start enqueue_count dequeue_count ack_count nack_count dlq_count ttl_expire_count max_queue_length
        max_concurrency_current max_env_queue_length max_env_concurrency max_oldest_message_age_ms
        total_wait_duration_ms wait_duration_count queue_length ql concurrency_current cc concurrency_limit
        env_queue_length eql env_concurrency ec env_concurrency_limit oldest_message_age_ms age op eq org proj env queue
        wait_duration_ms period resolution timeseries timestamp throughput.enqueued .dequeued .completed
        queue_depth.max latency.avg_wait_ms .max_age_ms concurrency.max .limit .utilization_pct failures.nack .dlq
        .ttl_expired
    """,
    "Queue metrics snapshot": """
        convoy_event_queue_total convoy_event_queue_backlog_seconds convoy_event_delivery_queue_total
        convoy_event_delivery_attempts_total convoy_event_delivery_queue_backlog_seconds
        convoy_queue_metrics_snapshot_age_seconds convoy_queue_metrics_refresh_duration_seconds
        convoy_queue_metrics_refresh_total convoy_queue_metrics_snapshot_last_success_timestamp_seconds
        convoy:metrics:queue:snapshot:current convoy:metrics:queue:snapshot:v12345:data
        convoy:metrics:queue:snapshot:v12345:meta generated_at_unix source aggregation_duration_ms rows_total status
        error_message
    """,
    "Queue architecture": """
        gauge.action_queue.queue_size gauge.deltafile.coldQueuedCount gauge.deltafile.warmQueuedCount warmQueues
        coldQueues timestamp actionClass flowName flowType actionName count oldestQueuedAt tasks did startTime
        runningForMs appName heartbeatThresholdMs cold_queue_entries flow_name flow_type action_name queued_at
        action_class delta_file_flow_id delta_file_id cold_queued cold_queued_action COLD_QUEUED allQueues
    """,
    "Queue system": """
        metrics_governor_queue_size metrics_governor_queue_bytes metrics_governor_queue_max_size
        metrics_governor_queue_max_bytes metrics_governor_queue_utilization_ratio
        metrics_governor_queue_disk_available_bytes metrics_governor_queue_push_total
        metrics_governor_queue_dropped_total metrics_governor_queue_retry_total
        metrics_governor_queue_retry_success_total metrics_governor_queue_retry_failure_total
        metrics_governor_queue_disk_full_total metrics_governor_fastqueue_inmemory_blocks
        metrics_governor_fastqueue_disk_bytes metrics_governor_fastqueue_meta_sync_total
        metrics_governor_fastqueue_chunk_rotations metrics_governor_fastqueue_inmemory_flushes
        metrics_governor_queue_workers_active metrics_governor_queue_workers_total
        metrics_governor_queue_preparers_active metrics_governor_queue_senders_active
        metrics_governor_queue_sends_inflight metrics_governor_queue_export_latency_ewma_seconds
        metrics_governor_circuit_breaker_state metrics_governor_circuit_breaker_open_total
        metrics_governor_circuit_breaker_rejected_total metrics_governor_queue_backoff_seconds export_data_loss_total
    """,
    "Redis Streams job queue analysis": """
        XLEN total_messages pending_count estimated_new_messages oldest_pending_ms last-delivered-id queue_pressure
        ScalingDecision current_workers
    """,
}
ROUTES_OF_DOCUMENTS = {
    "GET /api/v1/queues/:queueParam/metrics",
    "GET /api/v1/environments/:envId/queue-metrics",
    "GET /api/v2/metrics/queues/detailed",
    "GET /api/v2/metrics/queues/action-plugins",
    "GET /api/v2/metrics/queues/running",
}
DESCRIBED = {
    *("backoff, first", "backoff, longest", "auto-resolve", "timestamp", "failure timestamp"),
    *("Failure rate", "TTL expiration rate", "Queue depth", "Running count", "Concurrency limit"),
    *("Concurrency utilization", "Paused state", "lock owner", "refresh of queue sizes", "go cold", "warm up"),
    *("leave cold mode", "long-running task", "refresh of running tasks", "failover, count", "failover, bytes"),
    *("failover, drain", "age that doubles the pressure", "true queue depth"),
}


@dataclass(frozen=True)
class NameRow:
    document: str
    there: str
    default_there: str  # "" in tables of metrics
    here: str
    default_here: str
    difference: str
    is_setting: bool


def read_rows() -> Iterator[NameRow]:
    document = ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            document = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[0] in ("there", "---"):
            continue
        if len(cells) == 5:
            yield NameRow(document, *cells, is_setting=True)
        else:
            there, here, difference = cells
            yield NameRow(document, there, "", here, "", difference, is_setting=False)


ROWS = list(read_rows())


@cache
def read_sql() -> set[str]:
    """Return the words of all schema files: names of tables, views and columns, among others."""
    texts = [file.read_text("utf-8") for file in ROOT.joinpath("src", "headrace").rglob("schema/*.sql")]
    return set(re.findall(r"\w+", "\n".join(texts)))


@cache
def read_api_fields() -> set[str]:
    """Return the names of parameters and fields in the OpenAPI description."""
    lines = list(sections.list_openapi())
    found = {match[1] for line in lines if (match := re.match(r"schema \w+ \.(\w+)", line))}
    return found | {match[1] for line in lines if (match := re.search(r" (?:query|path) (\w+)", line))}


KNOWN = {
    "Valkey key": lambda: {each.replace("{0}", "{SHARD}") for each in read_valkey_keys()},
    "table": read_sql,
    "column": read_sql,
    "event column": lambda: {each.name for each in COLUMNS},
    "metadata field": lambda: {each.name for each in fields(SnapshotMeta)},
    "API field": read_api_fields,
    "rule metric": lambda: set(RuleMetric),
    "worker type key": lambda: {each.name for each in fields(WorkerType)} | SCALING_KEYS.keys(),
}
KIND = re.compile(rf"({'|'.join(sorted(KNOWN, key=len, reverse=True))}) ((?:`[^`]+`(?:, )?)+)")


@cache
def read_valkey_keys() -> set[str]:
    text = ROOT.joinpath("tests", "contract", "record", "valkey.txt").read_text("utf-8")
    return set(re.findall(r"^declared key (\S+)", text, re.MULTILINE))


@cache
def read_metrics() -> set[str]:
    return {line.split()[0] for line in sections.list_metrics()}


@cache
def read_commands() -> set[str]:
    return set(documented_commands())


def find_unknown(here: str) -> Iterator[str]:
    """Yield the names in a cell of the column `here` that do not exist."""
    for kind, names in KIND.findall(here):
        known = KNOWN[kind]()
        yield from (f"{kind} {name}" for name in CODE.findall(names) if name not in known)
    for name in CODE.findall(KIND.sub("", here)):
        if name.startswith(("headrace_", "convoy_")):
            exists = name in read_metrics()
        elif name.startswith("headrace "):
            exists = name in read_commands()
        elif name.startswith("GET /"):
            exists = f"`{name}`" in API_PAGE
        else:
            exists = name in SETTINGS
        if not exists:
            yield name


@pytest.mark.parametrize("document", SETTINGS_OF_DOCUMENTS)
def test_every_name_of_a_document_is_listed_once_and_no_other(document: str) -> None:
    for is_setting, expected in ((True, SETTINGS_OF_DOCUMENTS), (False, METRICS_OF_DOCUMENTS)):
        rows = [row for row in ROWS if row.document == document and row.is_setting == is_setting]
        listed = [name for row in rows for name in CODE.findall(row.there) if name not in ROUTES_OF_DOCUMENTS]
        repeated = {name for name in listed if listed.count(name) > 1}
        assert set(listed) == set(expected[document].split())
        assert repeated <= {"coldQueues"}, "the name of a field and of a set in memory"


def test_every_route_of_the_documents_is_listed() -> None:
    listed = {name for row in ROWS for name in CODE.findall(row.there) if name.startswith("GET ")}
    assert listed == ROUTES_OF_DOCUMENTS


def test_what_documents_describe_without_a_name_is_listed() -> None:
    assert {row.there for row in ROWS if not CODE.search(row.there)} == DESCRIBED


def test_a_name_here_exists_or_its_absence_has_a_reason() -> None:
    for row in ROWS:
        if row.here == NOT_PROVIDED:
            assert row.difference, f"{row.there}: say why it is not provided"
        else:
            assert CODE.search(row.here), f"{row.there}: no name"
            assert not list(find_unknown(row.here)), row.there


def test_defaults_of_settings_are_the_real_ones() -> None:
    for row in ROWS:
        keys = [name for name in CODE.findall(row.here) if name in SETTINGS]
        if row.is_setting and keys:
            defaults = [SETTINGS[key].format(SETTINGS[key].default) for key in keys]
            shown = ", ".join(f"`{each}`" if each else "none" for each in defaults)
            assert row.default_here == shown, row.there


def normalize(value: str) -> str:
    return re.sub(r"(?<=\d)([KMG])i$", r"\1iB", value.strip("`"))


def test_a_different_default_has_a_reason() -> None:
    for row in ROWS:
        if row.is_setting and row.default_there != "–" and row.here != NOT_PROVIDED and not row.difference:
            there, here = normalize(row.default_there), normalize(row.default_here)
            same = there == here or {there, here} in ({"1000", "1s"}, {"15s to 60s", "15s"}, {"30000", "30s"})
            assert same, f"{row.there}: {there} there, {here} here: say why"


def test_a_setting_that_exists_is_not_called_missing() -> None:
    """A setting that is added later under the name of a document must be entered on the page."""
    names = {key.partition(".")[2] for key in SETTINGS}
    for row in ROWS:
        if row.document == "Queue system" and row.here == NOT_PROVIDED:
            for name in CODE.findall(row.there):
                assert name.removeprefix("-queue-").lstrip("-").replace("-", "_").replace(".", "_") not in names


def test_fixed_values_of_the_failover() -> None:
    [row] = [row for row in ROWS if row.there == "failover, drain"]
    assert row.default_here == f"{DRAIN_EVERY_S:g} s, {DRAIN_RECORDS} records"


def test_the_check_finds_a_name_that_does_not_exist() -> None:
    assert list(find_unknown("`spool.max_siz`")) == ["spool.max_siz"]
    assert list(find_unknown("`headrace_spool_recordz`; API field `depth`, `dept`")) == [
        "API field dept",
        "headrace_spool_recordz",
    ]
    assert not list(find_unknown("event column `depth`; `headrace metrics on`"))

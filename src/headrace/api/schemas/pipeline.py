"""Response models of `/api/v1/pipeline`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from headrace.api.schemas.common import Time


class Batch(BaseModel):
    """One micro-batch."""

    finished_at: str = Field(examples=["2026-01-31T12:00:02.153Z"])
    batch_id: int = Field(examples=[812])
    events: int = Field(examples=[1200])
    rows: int = Field(description="Rows written to ClickHouse.", examples=[14])
    duration_ms: int = Field(examples=[640])
    fresh_after_ms: int | None = Field(
        description="Time from the oldest event until its rows were readable; null if the batch had no events.",
        examples=[2100],
    )
    lost_events: int = Field(description="Events trimmed or never written before the pipeline read them.", examples=[0])
    set_aside: int = Field(description="Unreadable entries.", examples=[0])
    rewinds: int = Field(
        description="How often a shard's event number decreased because Valkey lost data.", examples=[0]
    )


class GapDocument(BaseModel):
    """Time range in which rows were lost between the pipeline and ClickHouse."""

    shard: int = Field(examples=[1])
    start: str = Field(examples=["2026-01-31T11:20:00Z"])
    end: str = Field(examples=["2026-01-31T11:20:05Z"])
    events: int | None = Field(description="Missing events; null if unknown.", examples=[420])


class LossDocument(BaseModel):
    """Missing accepted jobs of a queue, according to counters."""

    org: str
    project: str
    env: str
    queue: str
    missing: int = Field(examples=[12])


class ServerEventDocument(BaseModel):
    """A server failed over, lost data, was restored to an earlier point, or was replaced."""

    id: int = Field(examples=[7])
    noticed_at: Time = Field(examples=["2026-01-31T11:58:04.120Z"])
    server: Literal["valkey", "postgres"]
    shard: int = Field(description="Shard whose mover detected the event.", examples=[1])
    kind: str = Field(examples=["went back"])
    description: str | None = Field(description="Returned only to keys with global scope, otherwise null.")
    missing: int = Field(
        description="Missing accepted jobs of queues in the key's scope, according to counters.",
        examples=[12],
    )
    queues: int = Field(description="Queues in the key's scope with missing jobs.", examples=[1])
    losses: list[LossDocument] = Field(description="Queues with the most missing jobs, at most 20.")


class LastHour(BaseModel):
    """Totals over the batches of the last hour. Null if there is nothing to measure."""

    batches: int = Field(examples=[1640])
    events: int = Field(examples=[980000])
    rows: int = Field(examples=[22400])
    duration_p50_ms: int | None = Field(examples=[610])
    duration_p99_ms: int | None = Field(examples=[1450])
    freshness_p50_ms: int | None = Field(description="As `fresh_after_ms`, weighted by events.", examples=[1900])
    freshness_p99_ms: int | None = Field(examples=[3800])
    lost_events: int = Field(examples=[0])
    set_aside: int = Field(examples=[0])
    rewinds: int = Field(examples=[0])


class PipelineSpool(BaseModel):
    """Disk queue between the pipeline and ClickHouse. Null: unknown."""

    records: int | None = Field(description="Waiting or in flight.", examples=[12])
    bytes: int | None = Field(examples=[480000])
    max_records: int | None = Field(examples=[1000000])
    max_bytes: int | None = Field(examples=[10737418240])
    in_flight: int | None = Field(examples=[1])
    delayed: int | None = Field(description="Failed records whose delay has not passed.", examples=[0])
    oldest_at: str | None = Field(
        description="When the oldest record was stored; null also if the spool is empty.",
        examples=["2026-01-31T11:58:04.120Z"],
    )
    disk_available: int | None = Field(description="Free bytes on its disk.", examples=[53687091200])
    dead: int | None = Field(description="Records that ClickHouse rejected, since the process started.", examples=[0])
    dropped: int | None = Field(description="Records dropped because of a limit, since then.", examples=[0])
    corrupt: int | None = Field(description="Records lost to corruption on disk, since then.", examples=[0])


class PipelineExport(BaseModel):
    """Exporter that sends the records of the spool to ClickHouse. Null: unknown."""

    healthy: bool | None = Field(description="False after three consecutive failures.", examples=[True])
    problem: str | None = Field(
        description="Last error; null while healthy, and for keys that are not global.", examples=[None]
    )
    breaker: str | None = Field(
        description="State of the circuit breaker: `closed` (sends), `open` (waits) or `half_open` (probes).",
        examples=["closed"],
    )
    breaker_opened: int | None = Field(description="How often it opened since the process started.", examples=[0])
    backoff_ms: int | None = Field(description="Remaining delay after a failure; 0: none.", examples=[0])
    latency_ms: int | None = Field(description="Average duration of a request.", examples=[14])
    sent_records: int | None = Field(description="Since the process started.", examples=[3280])
    failures: int | None = Field(description="Failed sends since then.", examples=[0])
    unclear_records: int | None = Field(description="Records whose outcome is unknown.", examples=[0])
    rows_per_s: float | None = Field(
        description="Insert rate: rows that ClickHouse acknowledged per second in the last minute; null: not measured.",
        examples=[22.4],
    )
    bytes_per_s: float | None = Field(examples=[9100.5])
    records_per_s: float | None = Field(examples=[1.9])


class PipelineProcess(BaseModel):
    """Last report of the pipeline process, stored in Valkey. Null: unknown."""

    condition: Literal["fresh", "stale", "missing", "unreadable"] = Field(
        description="`fresh`: the values are current. `stale`: they are those of `reported_at`; since then the process "
        "has stopped, or could not reach Valkey. `missing`: none has reported for a week. `unreadable`: the report is "
        "of another release."
    )
    reported_at: str | None = Field(description="Valkey's clock.", examples=["2026-01-31T12:00:03.120Z"])
    age_ms: int | None = Field(description="Time since then.", examples=[518])
    state: str | None = Field(
        description="`starting`, `running`, `retrying` (a batch failed) or `stopping`.", examples=["running"]
    )
    failures_in_a_row: int | None = Field(description="Failed batches since the last success.", examples=[0])
    last_error: str | None = Field(
        description="Of the last failed batch; null if the last one succeeded, and for keys that are not global."
    )
    read_up_to: str | None = Field(
        description="All events up to this time were read. Their rows may still be in the spool.",
        examples=["2026-01-31T12:00:02.153Z"],
    )
    last_batch_at: str | None = Field(examples=["2026-01-31T12:00:02.153Z"])
    batches: int | None = Field(description="Since the process started.", examples=[812])
    events: int | None = Field(description="Since the process started.", examples=[480000])
    lost_events: int | None = Field(description="Since the process started.", examples=[0])
    host: str | None = Field(description="Null for keys that are not global.", examples=["metrics-1"])
    pid: int | None = Field(description="Null for keys that are not global.", examples=[4711])
    metrics_port: int | None = Field(
        description="Port of /metrics and /healthz; null if not served, and for keys that are not global.",
        examples=[9420],
    )
    spool: PipelineSpool | None
    export: PipelineExport | None


class MetricStream(BaseModel):
    """Stream of metric events of one shard."""

    shard: int = Field(examples=[0])
    length: int | None = Field(description="Entries in the stream; null: unknown.", examples=[1204])
    max_length: int = Field(
        description="Length at which the oldest entries are removed, read or not.", examples=[1000000]
    )
    unread: int | None = Field(
        description="Events that are not yet in the spool, as reported by the pipeline; null: unknown.", examples=[31]
    )
    enabled: bool = Field(description="False while metric events are turned off.", examples=[True])


class ValkeyShard(BaseModel):
    shard: int = Field(examples=[0])
    payload_bytes: int = Field(description="Payloads of waiting and running jobs.", examples=[73400320])
    max_bytes: int | None = Field(
        description="Cap of Headrace on them; further jobs wait in PostgreSQL. Null: no cap.", examples=[1073741824]
    )


class ValkeyServer(BaseModel):
    """Memory of a Valkey server that holds shards."""

    name: str = Field(description="The shards that it holds.", examples=["0-1"])
    shards: list[ValkeyShard]
    used_bytes: int | None = Field(description="`used_memory`; null: not reported.", examples=[209715200])
    max_bytes: int | None = Field(description="`maxmemory`; null: no limit, or not reported.", examples=[1073741824])
    limit: Literal["maxmemory", "shard_max_bytes"] | None = Field(
        description="The limit that is reached first: of the server (it then accepts no new jobs), or of Headrace (new "
        "jobs then wait in PostgreSQL). Null: there is none.",
        examples=["maxmemory"],
    )
    full_in_s: int | None = Field(
        description="Seconds until that limit if memory grows as in the last hour; null: unknown.", examples=[5400]
    )
    growth_bytes_per_s: float | None = Field(
        description="Growth of what the limit bounds; null: unknown.", examples=[160000.0]
    )
    unknown: Literal["no limit", "short window", "no growth"] | None = Field(
        description="Why `full_in_s` is unknown. `short window`: measured for less than two minutes. `no growth`: it "
        "does not grow, or needs more than 30 days.",
        examples=[None],
    )


class Pipeline(BaseModel):
    process: PipelineProcess | None = Field(description="Null if Valkey did not answer.")
    streams: list[MetricStream] | None = Field(description="Null if Valkey did not answer.")
    valkey: list[ValkeyServer] | None = Field(description="Null if Valkey did not answer.")
    watermark: str | None = Field(
        description="All events up to this time are in history; null if unknown.",
        examples=["2026-01-31T12:00:02.153Z"],
    )
    lag_ms: int | None = Field(description="Time since then, in ms.", examples=[1485])
    last_hour: LastHour | None = Field(description="Null if ClickHouse did not answer.")
    gaps: list[GapDocument] | None = Field(
        description="Gaps of the last day, oldest first; at most 100. Null if ClickHouse did not answer."
    )
    server_events: list[ServerEventDocument] | None = Field(
        description="Events of the last 7 days, newest first; at most 50. null if PostgreSQL did not answer."
    )
    batches: list[Batch] | None = Field(
        description="Batches of the last day, newest first. Null if ClickHouse did not answer."
    )
    unavailable: dict[str, str] = Field(
        description="Why parts are null: the reason by server (`clickhouse`, `postgres`, `valkey`). Empty: all of them "
        "answered.",
        examples=[{}],
    )
    timestamp: str = Field(description="The API's clock.", examples=["2026-01-31T12:00:03.638Z"])

"""Live state of the pipeline, all of it from Valkey, so that it is known while ClickHouse is unavailable: the last
report of the pipeline process, the metric streams, and the memory of the servers."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.api.schemas.common import format_time_ms
from headrace.api.schemas.pipeline import (
    MetricStream,
    PipelineExport,
    PipelineProcess,
    PipelineSpool,
    ValkeyServer,
    ValkeyShard,
)
from headrace.api.services import Services
from headrace.pipeline.published_status import ExportReport, PipelineReport, PublishedStatus, SpoolReport, read_status
from headrace.queue.bounds import read_bounds
from headrace.queue.metrics_flag import ShardMetrics, read_metrics
from headrace.queue.server_memory import ServerMemory


@dataclass(frozen=True)
class LivePipeline:
    process: PipelineProcess
    streams: list[MetricStream]
    valkey: list[ValkeyServer]


def read_live_pipeline(services: Services, is_global: bool) -> LivePipeline:
    """Read the live state. Errors of the process and its address are only for keys with global scope (`is_global`).
    Raises QueueUnavailable."""
    published = read_status(services.valkey)
    stored_maxlen = read_bounds(services.valkey).stream_maxlen
    maxlen = services.queue.stream_maxlen if stored_maxlen is None else stored_maxlen
    # The lag of a stale report is not current, and a lag that is too small is worse than an unknown one.
    fresh = published.report if published.condition == "fresh" else None
    lags = fresh.lag_events if fresh else {}
    return LivePipeline(
        process=_present_process(published, is_global),
        streams=[
            _present_stream(each, maxlen, lags.get(str(each.shard)))
            for each in read_metrics(services.valkey, services.shards)
        ],
        valkey=[_present_server(each) for each in services.read_memory()],
    )


def _present_process(published: PublishedStatus, is_global: bool) -> PipelineProcess:
    report = published.report or PipelineReport()
    return PipelineProcess(
        condition=published.condition,
        reported_at=format_time_ms(published.reported_ms),
        age_ms=published.age_ms,
        state=report.state,
        failures_in_a_row=report.failures_in_a_row,
        last_error=report.last_error if is_global else None,
        read_up_to=format_time_ms(report.watermark_ms),
        last_batch_at=format_time_ms(report.last_batch_ms),
        batches=report.batches,
        events=report.events,
        lost_events=report.lost_events,
        host=report.host if is_global else None,
        pid=report.pid if is_global else None,
        metrics_port=report.metrics_port if is_global else None,
        spool=published.report and _present_spool(report.spool),
        export=published.report and _present_export(report.export, is_global),
    )


def _present_spool(spool: SpoolReport) -> PipelineSpool:
    fields = {name: value for name, value in vars(spool).items() if name != "oldest_put_ms"}
    return PipelineSpool(**fields, oldest_at=format_time_ms(spool.oldest_put_ms))


def _present_export(export: ExportReport, is_global: bool) -> PipelineExport:
    same = ("healthy", "breaker", "breaker_opened", "sent_records", "failures", "unclear_records")
    return PipelineExport(
        **{name: getattr(export, name) for name in same},
        problem=export.problem if is_global else None,
        backoff_ms=_to_ms(export.backoff_s),
        latency_ms=_to_ms(export.latency_s),
        **vars(export.rates),
    )


def _to_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _present_stream(stream: ShardMetrics, maxlen: int, unread: int | None) -> MetricStream:
    return MetricStream(
        shard=stream.shard, length=stream.stream_length, max_length=maxlen, unread=unread, enabled=stream.enabled
    )


def _present_server(server: ServerMemory) -> ValkeyServer:
    forecast = server.forecast
    return ValkeyServer(
        name=server.name,
        shards=[ValkeyShard(**vars(each)) for each in server.shards],
        used_bytes=server.used_bytes,
        max_bytes=server.max_bytes,
        limit=forecast.limit,
        full_in_s=None if forecast.full_in_s is None else int(forecast.full_in_s),
        growth_bytes_per_s=forecast.growth_bytes_per_s,
        unknown=forecast.unknown,
    )

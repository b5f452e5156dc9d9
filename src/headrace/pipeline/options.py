"""Options of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.export.exporter import ExporterOptions
from headrace.pipeline.problem_reports import ReportProblem
from headrace.pipeline.session import SessionOptions
from headrace.runtime.backoff import Backoff
from headrace.runtime.http_server import LOOPBACK
from headrace.spool.options import SpoolOptions

# One worker, so that records arrive in the order of their batches: the watermark must follow its rows.
IN_ORDER = ExporterOptions(workers=1, backoff=Backoff(base_s=1.0, longest_s=30.0))


@dataclass(frozen=True)
class PipelineOptions:
    redis_url: str
    clickhouse_url: str
    database: str
    shards: int
    checkpoint: Path
    spool: SpoolOptions
    exporter: ExporterOptions = IN_ORDER
    send_timeout_s: float = 60.0
    stop_timeout_s: float = 30.0
    metrics_port: int | None = None
    metrics_host: str = LOOPBACK
    metrics_token: str | None = field(default=None, repr=False)
    trigger_s: float = 1.0
    max_events_per_trigger: int = 500_000
    events_per_partition: int = 250_000
    stream_maxlen: int = 1_000_000
    archive: str | None = None
    archive_keep_days: int = 30
    session: SessionOptions = field(default_factory=SessionOptions)
    report_problem: ReportProblem | None = None

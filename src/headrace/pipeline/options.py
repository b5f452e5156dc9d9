"""Options of the pipeline."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.errors import SettingsError
from headrace.export.exporter import ExporterOptions
from headrace.pipeline.problem_reports import ReportProblem
from headrace.pipeline.remote_write import RemoteWriteOptions
from headrace.pipeline.session import SessionOptions
from headrace.runtime.backoff import Backoff
from headrace.runtime.http_server import LOOPBACK
from headrace.spool.options import SpoolOptions

# The record with a batch's watermark follows the rows of its batch, however many workers send
# (`ClickHouseDestination.get_order`).
PARALLEL = ExporterOptions(workers=4, backoff=Backoff(base_s=1.0, longest_s=30.0))
IN_ORDER = replace(PARALLEL, workers=1)
"""One worker: every record arrives in the order in which it was put."""


@dataclass(frozen=True)
class PipelineOptions:
    redis_url: str
    clickhouse_url: str
    database: str
    shards: int
    checkpoint: Path
    spool: SpoolOptions
    exporter: ExporterOptions = PARALLEL
    send_limit: threading.Semaphore | None = None  # limits the sends of all exporters together; None: no limit
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
    remote_write: RemoteWriteOptions | None = None

    def __post_init__(self) -> None:
        if self.spool.type == "memory":
            raise SettingsError(
                "spool.type = memory cannot be used by the pipeline: its spool keeps the position in the metric"
                " streams, which must survive a restart together with the checkpoint. Set spool.type = disk."
            )

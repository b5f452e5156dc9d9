"""Report the duration of each phase of a micro-batch to the monitor."""

from __future__ import annotations

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.pipeline.monitor import PipelineMonitor


class ProgressListener(StreamingQueryListener):
    def __init__(self, monitor: PipelineMonitor) -> None:
        self._monitor = monitor

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass  # required by Spark

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._monitor.record_phases(dict(event.progress.durationMs))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass  # required by Spark

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass  # required by Spark

"""Spark tells how long each part of a micro-batch took."""

from __future__ import annotations

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.pipeline.vitals import Monitor


class Listener(StreamingQueryListener):
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing was measured yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._monitor.phases(dict(event.progress.durationMs))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to read is no news."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The job sees it end, and says so."""

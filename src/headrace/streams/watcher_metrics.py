"""Metrics of `headrace streams watch`."""

from __future__ import annotations

from headrace.runtime.loop import LoopStats, ServiceMetrics
from headrace.runtime.metrics import MetricDeclaration, MetricValues

GROUPS = MetricDeclaration("headrace_streams_watched_groups", "gauge", "Watched groups.")
SILENT = MetricDeclaration(
    "headrace_streams_silent_groups", "gauge", "Watched groups that could not be read in the last iteration."
)
METRICS = (GROUPS, SILENT)


class WatcherMetrics(ServiceMetrics):
    def __init__(self, groups: int) -> None:
        self.rounds = LoopStats("streams")
        self._groups, self._silent = MetricValues(GROUPS), MetricValues(SILENT)
        self._groups.set(groups)
        super().__init__([self.rounds], [self._groups, self._silent])

    def set_silent(self, silent: int) -> None:
        self._silent.set(silent)

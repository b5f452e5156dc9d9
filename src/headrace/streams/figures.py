"""Metrics of `headrace streams watch`."""

from __future__ import annotations

from headrace.vitals.figures import Metric, Numbers
from headrace.vitals.rounds import LoopFigures, Rounds

GROUPS = Metric("headrace_streams_watched_groups", "gauge", "Watched groups.")
SILENT = Metric(
    "headrace_streams_silent_groups", "gauge", "Watched groups that could not be read in the last iteration."
)
METRICS = (GROUPS, SILENT)


class WatchFigures(LoopFigures):
    def __init__(self, groups: int) -> None:
        self.rounds = Rounds("streams")
        self._groups, self._silent = Numbers(GROUPS), Numbers(SILENT)
        self._groups.put(groups)
        super().__init__([self.rounds], [self._groups, self._silent])

    def told(self, silent: int) -> None:
        self._silent.put(silent)

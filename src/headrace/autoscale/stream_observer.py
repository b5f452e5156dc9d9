"""What there is to do for groups of streams."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.autoscale.decide import Observation, Source
from headrace.autoscale.meter import Meter, Reading
from headrace.autoscale.worker_types import WorkerType
from headrace.errors import HeadraceError, NoSuchGroup, ServiceUnavailable
from headrace.streams.depth import COUNT_BOUND, Depth, read_depth
from headrace.valkey.connect import Valkey, available

log = logging.getLogger(__name__)


@dataclass
class _Counters:
    meter: Meter
    added: int = 0
    ended: int = 0
    epoch: int = 0  # grows when the stream begins anew


class StreamObserver:
    def __init__(self, connect: Callable[[], Valkey], window_s: float = 60.0, count_bound: int = COUNT_BOUND) -> None:
        self._connect = connect
        self._window_s = window_s
        self._count_bound = count_bound
        self._client: Valkey | None = None
        self._counters: dict[tuple[str, str], _Counters] = {}

    def observe(self, worker: WorkerType, workers: int | None, now_ms: int) -> Observation:
        stream, group = worker.stream or "", worker.group or ""
        what = f"lag of group {group}"
        try:
            if self._client is None:
                self._client = self._connect()
            depth = read_depth(self._client, stream, group, count_bound=self._count_bound)
            added = _entries_added(self._client, stream)
        except HeadraceError as error:
            log.warning("The stream %s cannot be read: %s", stream, error, extra={"action": "stream_unknown"})
            if isinstance(error, ServiceUnavailable):
                self._client = None
                return Observation(workers=workers, unknown=f"{what} (Valkey does not answer)")
            why = "there is no such group" if isinstance(error, NoSuchGroup) else "the key holds no stream"
            return Observation(workers=workers, unknown=f"{what} ({why})")
        return Observation([self._source(depth, added, now_ms)], workers=workers)

    def _source(self, depth: Depth, added: int, now_ms: int) -> Source:
        rates = self._counted(depth, added).meter.add(self._reading(depth, now_ms))
        waits_since = depth.oldest_undelivered_ms
        return Source(
            name=f"group {depth.group} of stream {depth.stream}",
            depth=depth.undelivered,
            running=depth.pending,
            arrivals_per_s=rates.arrivals_per_s,
            service_s=rates.service_s,
            age_s=None if waits_since is None else max(0, now_ms - waits_since) / 1000,
            unknown=f"lag of group {depth.group}" if depth.undelivered is None else f"arrival rate of {depth.stream}",
        )

    def _counted(self, depth: Depth, added: int) -> _Counters:
        known = self._counters.setdefault((depth.stream, depth.group), _Counters(Meter(self._window_s)))
        if added < known.added:
            known.epoch, known.ended = known.epoch + 1, 0
        known.added = added
        if depth.load is not None:
            # The two numbers are read one after the other, and must not make the count go back.
            known.ended = max(known.ended, added - depth.load)
        return known

    def _reading(self, depth: Depth, now_ms: int) -> Reading:
        known = self._counters[depth.stream, depth.group]
        return Reading(now_ms, known.epoch, known.added, known.ended, depth.pending)


def _entries_added(client: Valkey, stream: str) -> int:
    """That ever were."""
    with available():
        found: dict[str, Any] = client.xinfo_stream(stream)
    return int(found["entries-added"])

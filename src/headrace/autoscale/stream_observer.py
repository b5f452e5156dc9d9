"""Observe the load of stream groups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace.autoscale.demand import LoadSource, Observation
from headrace.autoscale.rate_meter import CounterSample, RateMeter, SourceRates
from headrace.autoscale.worker_types import WorkerType
from headrace.errors import HeadraceError, NotAStream, ServiceUnavailable, UnknownGroup
from headrace.model.event import COUNT_COLUMN, Op
from headrace.streams.depth import COUNT_BOUND
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import FIRST_ID, GroupSnapshot, GroupStubs
from headrace.streams.watcher import count_running, find_oldest_ms
from headrace.valkey.connect import ScriptError, Valkey
from headrace.valkey.scripts import run
from headrace.valkey.stream_groups import translate_group_errors

log = logging.getLogger(__name__)

RETRY_OPS = (Op.NACK, Op.RECLAIM, Op.DEFER)
UNKNOWN_REASONS = {
    ServiceUnavailable: "Valkey does not answer",
    UnknownGroup: "there is no such group",
    NotAStream: "the key is not a stream",
}


@dataclass
class _Counters:
    meter: RateMeter
    added: int = 0
    retried: int = 0
    ended: int = 0
    epoch: int = 0  # incremented when the stream or its counters restart


class StreamObserver:
    def __init__(self, connect: Callable[[], Valkey], window_s: float = 60.0, count_bound: int = COUNT_BOUND) -> None:
        self._connect = connect
        self._window_s = window_s
        self._count_bound = count_bound
        self._client: Valkey | None = None
        self._counters: dict[GroupKeys, _Counters] = {}

    def observe(self, worker: WorkerType, workers: int | None, now_ms: int) -> Observation:
        keys = GroupKeys(worker.stream or "", worker.group or "")
        try:
            self._client = self._client or self._connect()
            with translate_group_errors(keys.stream, keys.group):
                snapshot = run(self._client, GroupStubs(keys).snapshot(self._count_bound, FIRST_ID, 1))
        except (HeadraceError, ScriptError) as error:
            log.warning("could not read stream %s: %s", keys.stream, error, extra={"action": "stream_unknown"})
            if isinstance(error, ServiceUnavailable):
                self._client = None
            why = next(
                (text for kind, text in UNKNOWN_REASONS.items() if isinstance(error, kind)),
                "the server returned an error",
            )
            return Observation(workers=workers, unknown=f"lag of group {keys.group} ({why})")
        return Observation([self._make_source(keys, snapshot, now_ms)], workers=workers)

    def _make_source(self, keys: GroupKeys, snapshot: GroupSnapshot, now_ms: int) -> LoadSource:
        known = self._counters.setdefault(keys, _Counters(RateMeter(self._window_s)))
        rates = known.meter.add(_make_sample(known, snapshot, now_ms))
        waits_since = find_oldest_ms(snapshot)
        return LoadSource(
            name=f"group {keys.group} of stream {keys.stream}",
            depth=None if snapshot.undelivered is None else snapshot.undelivered + snapshot.due,
            running=count_running(snapshot),
            scheduled=snapshot.waiting - snapshot.due,
            arrivals_per_s=rates.arrivals_per_s,
            service_s=rates.service_s,
            age_s=None if waits_since is None else max(0, now_ms - waits_since) / 1000,
            unknown=_describe_unknown(keys, snapshot, rates),
        )


def _make_sample(known: _Counters, snapshot: GroupSnapshot, now_ms: int) -> CounterSample:
    """Build a counter sample.

    Only failed attempts need Headrace's own counters; everything else comes from the stream and the group, for any kind
    of consumer.
    """
    counts = dict(zip(COUNT_COLUMN, snapshot.counts, strict=True))
    retried = sum(counts[op] for op in RETRY_OPS)
    if snapshot.entries_added < known.added or retried < known.retried:
        known.epoch, known.ended = known.epoch + 1, 0
    known.added, known.retried = snapshot.entries_added, retried
    if snapshot.undelivered is not None:
        # max: an entry that is delivered again after it was finished must not lower the count.
        known.ended = max(known.ended, known.added - snapshot.undelivered - snapshot.pending + retried)
    came_due = retried - (snapshot.waiting - snapshot.due)
    return CounterSample(now_ms, known.epoch, known.added + came_due, known.ended, count_running(snapshot))


def _describe_unknown(keys: GroupKeys, snapshot: GroupSnapshot, rates: SourceRates) -> str:
    if snapshot.undelivered is None:
        return f"lag of group {keys.group}"
    return "" if rates.arrivals_per_s is not None else f"arrival rate of {keys.stream}"

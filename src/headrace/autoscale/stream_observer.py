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
from headrace.streams.scripts import FIRST_ID, RETRY_CONSUMER, GroupSnapshot, GroupStubs
from headrace.streams.watcher import count_running, find_oldest_ms
from headrace.valkey.connect import ScriptError, Valkey
from headrace.valkey.scripts import run
from headrace.valkey.stream_groups import list_consumers, translate_group_errors

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
    """Observes stream groups.

    A pending entry counts as waiting, not as running, for the age rule once nothing has touched it for `lease_s` in a
    group that Headrace's workers serve: they send heartbeats, so its consumer is gone. Other programs send none; there
    the limit is `stuck_after_s`.
    """

    def __init__(
        self,
        connect: Callable[[], Valkey],
        window_s: float = 60.0,
        count_bound: int = COUNT_BOUND,
        lease_s: float = 60.0,
        stuck_after_s: float = 300.0,
    ) -> None:
        self._connect = connect
        self._window_s = window_s
        self._count_bound = count_bound
        self._lease_s = lease_s
        self._stuck_after_s = stuck_after_s
        self._client: Valkey | None = None
        self._counters: dict[GroupKeys, _Counters] = {}

    def observe(self, worker: WorkerType, workers: int | None, now_ms: int) -> Observation:
        keys = GroupKeys(worker.stream or "", worker.group or "")
        try:
            self._client = self._client or self._connect()
            with translate_group_errors(keys.stream, keys.group):
                snapshot = run(self._client, GroupStubs(keys).snapshot(self._count_bound, FIRST_ID, 1))
            abandoned_s = self._read_abandoned_s(self._client, keys, snapshot)
        except (HeadraceError, ScriptError) as error:
            log.warning("could not read stream %s: %s", keys.stream, error, extra={"action": "stream_unknown"})
            if isinstance(error, ServiceUnavailable):
                self._client = None
            why = next(
                (text for kind, text in UNKNOWN_REASONS.items() if isinstance(error, kind)),
                "the server returned an error",
            )
            return Observation(workers=workers, unknown=f"lag of group {keys.group} ({why})")
        return Observation([self._make_source(keys, snapshot, abandoned_s, now_ms)], workers=workers)

    def _read_abandoned_s(self, client: Valkey, keys: GroupKeys, snapshot: GroupSnapshot) -> float | None:
        """Return how long the longest-abandoned pending entry has been without its consumer; None: none is abandoned.

        The idle times of entries are known for the oldest ones only. A consumer's own idle time is a lower bound for
        each entry that it holds."""
        if not count_running(snapshot):
            return None
        idle_ms = [
            each_ms
            for name, pending, each_ms in list_consumers(client, keys.stream, keys.group)
            if pending > 0 and name != RETRY_CONSUMER
        ]
        longest_s = max(snapshot.longest_idle_ms or 0, *idle_ms, 0) / 1000
        return longest_s if longest_s >= (self._lease_s if snapshot.counted else self._stuck_after_s) else None

    def _make_source(
        self, keys: GroupKeys, snapshot: GroupSnapshot, abandoned_s: float | None, now_ms: int
    ) -> LoadSource:
        known = self._counters.setdefault(keys, _Counters(RateMeter(self._window_s)))
        rates = known.meter.add(_make_sample(known, snapshot, now_ms))
        waits_since = find_oldest_ms(snapshot)
        # The ids of entries are times of the streams server, so its clock shows their age.
        waited_s = None if waits_since is None else max(0, snapshot.now_us // 1000 - waits_since) / 1000
        return LoadSource(
            name=f"group {keys.group} of stream {keys.stream}",
            depth=None if snapshot.undelivered is None else snapshot.undelivered + snapshot.due,
            running=count_running(snapshot),
            scheduled=snapshot.waiting - snapshot.due,
            arrivals_per_s=rates.arrivals_per_s,
            service_s=rates.service_s,
            age_s=max((each for each in (waited_s, abandoned_s) if each is not None), default=None),
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

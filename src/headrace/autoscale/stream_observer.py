"""Observe the load of stream groups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace.autoscale.decide import Observation, Source
from headrace.autoscale.meter import Meter, Rates, Reading
from headrace.autoscale.worker_types import WorkerType
from headrace.errors import HeadraceError, NoSuchGroup, NotAStream, ServiceUnavailable
from headrace.model.event import COUNT_COLUMN, Op
from headrace.streams.depth import COUNT_BOUND
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import FIRST_ID, GroupStubs, Survey
from headrace.streams.watch import oldest_ms, running_of
from headrace.valkey.connect import ScriptError, Valkey
from headrace.valkey.scripts import run
from headrace.valkey.stream_groups import of_group

log = logging.getLogger(__name__)

RETRIED = (Op.NACK, Op.RECLAIM)
WHY = {NoSuchGroup: "there is no such group", NotAStream: "the key is not a stream"}


@dataclass
class _Counters:
    meter: Meter
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
        what = f"lag of group {keys.group}"
        try:
            if self._client is None:
                self._client = self._connect()
            with of_group(keys.stream, keys.group):
                survey = run(self._client, GroupStubs(keys).survey(self._count_bound, FIRST_ID, 1))
        except (HeadraceError, ScriptError) as error:
            log.warning("could not read stream %s: %s", keys.stream, error, extra={"action": "stream_unknown"})
            if isinstance(error, ServiceUnavailable):
                self._client = None
                return Observation(workers=workers, unknown=f"{what} (Valkey does not answer)")
            why = next((text for kind, text in WHY.items() if isinstance(error, kind)), "the server returned an error")
            return Observation(workers=workers, unknown=f"{what} ({why})")
        return Observation([self._source(keys, survey, now_ms)], workers=workers)

    def _source(self, keys: GroupKeys, survey: Survey, now_ms: int) -> Source:
        known = self._counters.setdefault(keys, _Counters(Meter(self._window_s)))
        rates = known.meter.add(_reading(known, survey, now_ms))
        waits_since = oldest_ms(survey)
        return Source(
            name=f"group {keys.group} of stream {keys.stream}",
            depth=None if survey.undelivered is None else survey.undelivered + survey.due,
            running=running_of(survey),
            scheduled=survey.waiting - survey.due,
            arrivals_per_s=rates.arrivals_per_s,
            service_s=rates.service_s,
            age_s=None if waits_since is None else max(0, now_ms - waits_since) / 1000,
            unknown=_unknown(keys, survey, rates),
        )


def _reading(known: _Counters, survey: Survey, now_ms: int) -> Reading:
    """Build a counter sample.

    Only failed attempts need Headrace's own counters; everything else comes from the stream and the group, for any kind
    of consumer.
    """
    counts = dict(zip(COUNT_COLUMN, survey.counts, strict=True))
    retried = sum(counts[op] for op in RETRIED)
    if survey.entries_added < known.added or retried < known.retried:
        known.epoch, known.ended = known.epoch + 1, 0
    known.added, known.retried = survey.entries_added, retried
    if survey.undelivered is not None:
        # max: an entry that is delivered again after it was finished must not lower the count.
        known.ended = max(known.ended, known.added - survey.undelivered - survey.pending + retried)
    came_due = retried - (survey.waiting - survey.due)
    return Reading(now_ms, known.epoch, known.added + came_due, known.ended, running_of(survey))


def _unknown(keys: GroupKeys, survey: Survey, rates: Rates) -> str:
    if survey.undelivered is None:
        return f"lag of group {keys.group}"
    return "" if rates.arrivals_per_s is not None else f"arrival rate of {keys.stream}"

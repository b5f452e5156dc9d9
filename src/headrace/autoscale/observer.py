"""Observe the load of each worker type in Valkey.

Inputs that could not be read are reported as unknown, with the reason; nothing is guessed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.autoscale.demand import LoadSource, Observation
from headrace.autoscale.rate_meter import CounterSample, RateMeter, SourceRates
from headrace.autoscale.run_times import RunTimeCache
from headrace.autoscale.stream_observer import StreamObserver
from headrace.autoscale.worker_types import WorkerType
from headrace.errors import HeadraceError, ServiceUnavailable, ShardMismatch
from headrace.model.event import Op
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.client import read_shards
from headrace.queue.state import EnvLimits, QueueState, read_due_times, read_limits, read_states
from headrace.valkey.connect import ScriptError, Valkey

log = logging.getLogger(__name__)

DEPARTURE_OPS = (Op.DEQUEUE, Op.EXPIRE, Op.CANCEL)
"""Operations that remove a waiting job."""
ATTEMPT_END_OPS = (Op.ACK, Op.NACK, Op.BURY, Op.RECLAIM, Op.DEFER)
UNKNOWN_REASONS = {
    ServiceUnavailable: "Valkey does not answer",
    ShardMismatch: "queue.shards differs from the server's",
}


MAX_DUE_READ = 2000
"""Maximum due times read per shard in Valkey and per queue in PostgreSQL."""

DueTimes = Mapping[QueueRef, Sequence[float]]
"""Due times of scheduled jobs by queue, in ms."""


@dataclass(frozen=True)
class LiveQueues:
    """State of every queue that some worker type serves, read at one moment."""

    states: Sequence[QueueState]
    limits: Mapping[EnvRef, EnvLimits]
    rates: Mapping[QueueRef, SourceRates]
    warm_due: DueTimes
    cold_due: DueTimes | None  # None: unknown

    def count_due(self, state: QueueState, until_ms: float) -> int | None:
        """Return how many scheduled jobs of a queue are due by `until_ms`; None if unknown."""
        times = list(self.warm_due.get(state.ref, ()))
        if state.cold_scheduled:
            if self.cold_due is None:
                return None
            times += self.cold_due.get(state.ref, ())
        # Jobs that are being moved may be listed in both tiers.
        return min(state.scheduled, sum(due_ms <= until_ms for due_ms in times))


class LoadObserver:
    """Observes the load of worker types.

    `connect` opens a Valkey client on first use and again after a failure. `read_cold_due` returns the due times of
    delayed jobs in PostgreSQL up to a time; without it they are unknown. `every_s` is the time between two
    observations: jobs that are due before the next one plus the worker type's lead count now.
    """

    def __init__(
        self,
        connect: Callable[[], Valkey],
        shards: int | None,
        window_s: float = 60.0,
        streams: StreamObserver | None = None,
        run_times: RunTimeCache | None = None,
        read_cold_due: Callable[[float], DueTimes] | None = None,
        every_s: float = 10.0,
    ) -> None:
        self._connect = connect
        self._given_shards = shards  # None: the number stored in Valkey
        self._window_s = window_s
        self._run_times = run_times
        self._read_cold_due = read_cold_due
        self._every_s = every_s
        self._streams = streams or StreamObserver(connect, window_s)
        self._client: Valkey | None = None
        self._meters: dict[QueueRef, RateMeter] = {}
        self._last_ms: int | None = None  # time of the last observation

    def observe(
        self, types: Sequence[WorkerType], workers: Mapping[str, int | None], now_ms: int
    ) -> dict[str, Observation]:
        """Return one observation per worker type, by name. `workers` holds the running workers, where known."""
        queue_types = [each for each in types if each.stream is None]
        live = self._read(queue_types, now_ms) if queue_types else ""
        return {
            each.name: self._observe_queues(each, live, workers.get(each.name), now_ms)
            if each.stream is None
            else self._streams.observe(each, workers.get(each.name), now_ms)
            for each in types
        }

    def _read(self, types: Sequence[WorkerType], now_ms: int) -> LiveQueues | str:
        """Read the queues of these types, or return text that says what is unknown and why."""
        try:
            self._client = self._client or self._connect()
            # Raises ShardMismatch: a partial view of the queues would look complete.
            shards = read_shards(self._client, self._given_shards)
            states = read_states(self._client, shards, lambda env: any(each.covers(env) for each in types))
            envs = sorted({state.ref.environment for state in states})
            limits = dict(zip(envs, read_limits(self._client, shards, envs), strict=True)) if envs else {}
            until_ms = now_ms + max(map(self._compute_horizon_s, types)) * 1000
            warm_due = read_due_times(self._client, shards, until_ms, MAX_DUE_READ)
        except (HeadraceError, ScriptError) as error:
            log.warning("could not read queues: %s", error, extra={"action": "queues_unknown"})
            self._client = None
            why = next(
                (text for kind, text in UNKNOWN_REASONS.items() if isinstance(error, kind)), "Valkey returned an error"
            )
            return f"state of the queues ({why})"
        cold_due = self._load_cold_due(until_ms) if any(state.cold_scheduled for state in states) else {}
        return LiveQueues(states, limits, self._measure_rates(states, now_ms), warm_due, cold_due)

    def _compute_horizon_s(self, worker: WorkerType) -> float:
        return worker.scaling.lead_s + self._every_s

    def _load_cold_due(self, until_ms: float) -> DueTimes | None:
        if self._read_cold_due is None:
            return None
        try:
            return self._read_cold_due(until_ms)
        except HeadraceError as error:
            log.warning("could not read due times in PostgreSQL: %s", error, extra={"action": "due_times_unknown"})
            return None

    def _measure_rates(self, states: Iterable[QueueState], now_ms: int) -> dict[QueueRef, SourceRates]:
        rates: dict[QueueRef, SourceRates] = {}
        for state in states:
            if state.ref not in self._meters:
                self._meters[state.ref] = RateMeter(self._window_s)
                if self._last_ms is not None:  # the queue did not exist at the last observation
                    self._meters[state.ref].add(CounterSample(self._last_ms, state.epoch_ms, 0, 0, 0))
            rates[state.ref] = self._meters[state.ref].add(_make_sample(state, now_ms))
        for gone in self._meters.keys() - rates.keys():
            del self._meters[gone]
        self._last_ms = now_ms
        return rates

    def _observe_queues(
        self, worker: WorkerType, live: LiveQueues | str, workers: int | None, now_ms: int
    ) -> Observation:
        if isinstance(live, str):
            return Observation(workers=workers, unknown=live)
        ours = [state for state in live.states if worker.serves(state.ref)]
        horizon_s = self._compute_horizon_s(worker)
        sources = [
            self._make_source(state, live.rates[state.ref], live.count_due(state, now_ms + horizon_s * 1000), now_ms)
            for state in ours
        ]
        return Observation(
            sources, compute_env_slots(live, {state.ref for state in ours}), workers, horizon_s=horizon_s
        )

    def _make_source(self, state: QueueState, rates: SourceRates, due_soon: int | None, now_ms: int) -> LoadSource:
        measured_s = (
            self._run_times.get_mean_run_s(state.ref, now_ms)
            if self._run_times and state.depth + state.running
            else None
        )
        known_s = [each for each in (rates.service_s, measured_s) if each is not None]
        return LoadSource(
            name=f"queue {state.ref.queue}",
            depth=state.depth,
            running=state.running,
            arrivals_per_s=rates.arrivals_per_s,
            # History covers finished jobs only; long-running ones show up in the live rates.
            service_s=max(known_s, default=None),
            cold=state.cold,
            age_s=None if state.oldest_ms is None else max(0, now_ms - state.oldest_ms) / 1000,
            limit=state.limit,
            paused=state.paused,
            env=format_env(state.ref.environment),
            unknown=_describe_unknown(state.ref, rates, due_soon),
            due_soon=due_soon,
        )


def _describe_unknown(ref: QueueRef, rates: SourceRates, due_soon: int | None) -> str:
    if rates.arrivals_per_s is None:
        return f"arrival rate of queue {ref.queue}"
    return f"due times of queue {ref.queue} in PostgreSQL" if due_soon is None else ""


def compute_env_slots(live: LiveQueues, ours: Collection[QueueRef]) -> dict[str, int]:
    """Return the slots that each environment's limit (× burst) leaves to `ours`, after the running jobs of its other
    queues. Reads each queue and each environment once."""
    envs = {ref.environment for ref in ours}
    running_elsewhere = dict.fromkeys(envs, 0)
    for state in live.states:
        if state.ref not in ours and state.ref.environment in envs:
            running_elsewhere[state.ref.environment] += state.running
    return {
        format_env(env): max(0, math.floor(limits.limit * (limits.burst or 1)) - running_elsewhere[env])
        for env, limits in live.limits.items()
        if limits.limit is not None and env in envs
    }


def format_env(env: EnvRef) -> str:
    return f"{env.org} / {env.project} / {env.env}"


def _make_sample(state: QueueState, now_ms: int) -> CounterSample:
    def total(ops: Iterable[Op]) -> int:
        return sum(state.odometers.get(op, 0) for op in ops)

    return CounterSample(
        now_ms, state.epoch_ms, state.depth + total(DEPARTURE_OPS), total(ATTEMPT_END_OPS), state.running
    )

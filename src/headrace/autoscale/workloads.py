"""Workloads for the simulator: arrival and service time of each job. Seeded, so that a run can be repeated."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

HOUR_S = 3600
DAY_S = 24 * HOUR_S

Arrival = tuple[float, float]
"""Arrival time in seconds from the start, and service time in seconds."""


@dataclass(frozen=True)
class Workload:
    name: str
    length_s: int
    arrivals: Sequence[Arrival]  # in order of time
    outages: Sequence[tuple[int, int]] = ()  # (start, end) in seconds: no job starts and the queue cannot be observed


@dataclass(frozen=True)
class WorkloadShape:
    rate: Callable[[float], float]  # jobs per second, by time
    poison: Callable[[float], float] = lambda at_s: 0.0  # ratio of slow jobs, by time
    outages: tuple[tuple[int, int], ...] = ()


SERVICE_S = 1.0
SPREAD = 0.5  # standard deviation of the logarithm of the service time
POISON_S = 300.0


def make_synthetic_workload(name: str, length_s: int, seed: int = 1, rate: float = 8.0) -> Workload:
    """Generate a workload of one of SHAPES. `rate` is jobs per second under steady load."""
    shape = SHAPES[name](length_s, rate)
    chance = random.Random(f"{name} {seed}")
    return Workload(name, length_s, list(_draw_arrivals(shape, length_s, chance)), shape.outages)


def make_recorded_workload(
    name: str,
    starts_s: Sequence[int],
    step_s: int,
    counts: Sequence[int],
    mean_s: Sequence[float | None],
    seed: int = 1,
) -> Workload:
    """Generate a workload from history: arrivals and mean service time per step.

    History does not record single arrivals, so they are spread randomly within a step.
    """
    chance = random.Random(f"{name} {seed}")
    arrivals: list[Arrival] = []
    known_s = next((each for each in mean_s if each is not None), SERVICE_S)
    for start_s, count, measured_s in zip(starts_s, counts, mean_s, strict=True):
        known_s = known_s if measured_s is None else measured_s
        at_s = sorted(chance.uniform(start_s, start_s + step_s) for _ in range(count))
        arrivals += [(each - starts_s[0], _draw_service_s(chance, known_s)) for each in at_s]
    return Workload(name, len(starts_s) * step_s, arrivals)


def _draw_arrivals(shape: WorkloadShape, length_s: int, chance: random.Random) -> Iterator[Arrival]:
    """Draw arrivals from a Poisson process whose rate changes every second."""
    for second in range(length_s):
        rate, poison = shape.rate(second), shape.poison(second)
        at_s = chance.expovariate(rate) if rate > 0 else 1.0
        while at_s < 1.0:
            slow = poison > 0 and chance.random() < poison
            yield second + at_s, POISON_S if slow else _draw_service_s(chance, SERVICE_S)
            at_s += chance.expovariate(rate)


def _draw_service_s(chance: random.Random, mean_s: float) -> float:
    return chance.lognormvariate(math.log(mean_s) - SPREAD**2 / 2, SPREAD) if mean_s > 0 else 0.0


def _make_steady_shape(_length_s: int, rate: float) -> WorkloadShape:
    return WorkloadShape(lambda at_s: rate)


def _make_burst_shape(length_s: int, rate: float) -> WorkloadShape:
    """Return ten times the rate for five minutes, starting at one third of the length."""
    begins = length_s // 3
    return WorkloadShape(lambda at_s: rate * (10 if begins <= at_s < begins + 300 else 1))


def _make_poison_shape(length_s: int, rate: float) -> WorkloadShape:
    """Return a steady rate at which 1 % of the jobs in the middle third take five minutes."""
    return WorkloadShape(lambda at_s: rate, lambda at_s: 0.01 if length_s / 3 <= at_s < 2 * length_s / 3 else 0.0)


def _make_outage_shape(length_s: int, rate: float) -> WorkloadShape:
    """Return a steady rate with an outage of a tenth of the length, at most 15 minutes."""
    begins = length_s // 3
    return WorkloadShape(lambda at_s: rate, outages=((begins, begins + min(900, length_s // 10)),))


def _make_day_shape(length_s: int, rate: float) -> WorkloadShape:
    """Return a day with a quiet night, four bursts, an hour of slow jobs and an outage."""
    hour = length_s / 24

    def per_s(at_s: float) -> float:
        daily = rate * (1 - 0.75 * math.cos(2 * math.pi * at_s / length_s))
        return daily * (6 if any(0 <= at_s - begins * hour < hour / 8 for begins in (3, 9, 14, 21)) else 1)

    def share(at_s: float) -> float:
        return 0.01 if 11 * hour <= at_s < 12 * hour else 0.0

    return WorkloadShape(per_s, share, ((int(17 * hour), int(17.25 * hour)),))


SHAPES: dict[str, Callable[[int, float], WorkloadShape]] = {
    "steady": _make_steady_shape,
    "burst": _make_burst_shape,
    "poison": _make_poison_shape,
    "outage": _make_outage_shape,
    "day": _make_day_shape,
}

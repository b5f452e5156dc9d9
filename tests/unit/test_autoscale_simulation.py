"""The simulator's arithmetic, and the behaviour of the policy under each workload."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.autoscale.rate_meter import CounterSample, RateMeter
from headrace.autoscale.simulation import HeadracePolicy, PolicyView, Simulation, SimulationOptions, SimulationResult
from headrace.autoscale.worker_types import Scaling, WorkerType
from headrace.autoscale.workloads import HOUR_S, Workload, make_recorded_workload, make_synthetic_workload
from headrace.cli.main import headrace


class FixedPolicy:
    def __init__(self, workers: int) -> None:
        self._workers = workers

    def wanted(self, view: PolicyView, at_s: int) -> int:
        return self._workers


def run_simulation(load: Workload, **scaling: int) -> SimulationResult:
    limits = Scaling(**{"min": 1, "max": 40, **scaling})
    return Simulation(load, HeadracePolicy(WorkerType("w", all_queues=True, scaling=limits))).run()


# --- The model -------------------------------------------------------------------------------------


def test_jobs_wait_for_the_slots_before_them() -> None:
    """One slot, jobs of 2 s that come every second: each waits a second longer."""
    load = Workload("queue", 20, [(float(second), 2.0) for second in range(5)])
    outcome = Simulation(load, FixedPolicy(1), SimulationOptions(per_worker=1)).run()
    assert list(outcome.waits_s) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert outcome.worker_s == 20


def test_workers_take_a_while_to_start() -> None:
    load = Workload("queue", 30, [(0.0, 1.0)])
    outcome = Simulation(load, FixedPolicy(1), SimulationOptions(start_s=15, workers=0)).run()
    assert list(outcome.waits_s) == [15.0]


def test_nothing_starts_during_an_outage() -> None:
    load = Workload("queue", 30, [(5.0, 1.0)], outages=[(3, 12)])
    outcome = Simulation(load, FixedPolicy(1)).run()
    assert list(outcome.waits_s) == [7.0]


def test_what_never_started_has_waited_until_the_end() -> None:
    load = Workload("queue", 30, [(5.0, 1.0)], outages=[(3, 30)])
    assert list(Simulation(load, FixedPolicy(1)).run().waits_s) == [25.0]


def test_workers_that_go_finish_their_jobs() -> None:
    class OneThenNone:
        def wanted(self, view: PolicyView, at_s: int) -> int:
            return 1 if at_s < 10 else 0

    load = Workload("queue", 30, [(0.0, 15.0), (12.0, 1.0)])
    outcome = Simulation(load, OneThenNone(), SimulationOptions(per_worker=1)).run()
    assert outcome.worker_s == 15
    assert list(outcome.waits_s) == [0.0, 18.0]


def test_a_queue_at_eighty_percent_waits_as_theory_says() -> None:
    """M/G/1 queue: the mean wait follows the Pollaczek–Khinchine formula."""
    load = make_synthetic_workload("steady", 40 * HOUR_S, rate=0.8)
    outcome = Simulation(load, FixedPolicy(1), SimulationOptions(per_worker=1)).run()
    service = [service_s for _, service_s in load.arrivals]
    mean, square = sum(service) / len(service), sum(each**2 for each in service) / len(service)
    rate = len(service) / load.length_s
    expected = rate * square / (2 * (1 - rate * mean))
    assert sum(outcome.waits_s) / len(outcome.waits_s) == pytest.approx(expected, rel=0.1)


def test_the_same_seed_is_the_same_day() -> None:
    one, same, other = (make_synthetic_workload("day", HOUR_S, seed) for seed in (1, 1, 2))
    assert one.arrivals == same.arrivals
    assert one.arrivals != other.arrivals


def test_recorded_steps_keep_their_counts_and_times() -> None:
    load = make_recorded_workload("q", [1000, 1060, 1120], 60, [30, 0, 10], [2.0, None, 0.5])
    assert load.length_s == 180
    assert [sum(60 * step <= at_s < 60 * step + 60 for at_s, _ in load.arrivals) for step in range(3)] == [30, 0, 10]
    assert load.arrivals == sorted(load.arrivals)


# --- The rule --------------------------------------------------------------------------------------


def test_steady_load_keeps_its_workers() -> None:
    outcome = run_simulation(make_synthetic_workload("steady", 2 * HOUR_S))
    assert outcome.changes <= 2
    assert outcome.compute_wait_quantile_s(0.95) < 1


def test_a_load_that_comes_and_goes_does_not_move_workers_to_and_fro() -> None:
    """A minute of much, a minute of little, for two hours."""
    arrivals = [
        (minute * 60 + number * 60 / count, 1.0)
        for minute in range(120)
        for count in (600 if minute % 2 else 60,)
        for number in range(count)
    ]
    outcome = run_simulation(Workload("square", 2 * HOUR_S, arrivals))
    after = outcome.workers[120:]
    assert sum(a != b for a, b in pairwise(after)) <= 4


def test_a_backlog_after_an_outage_is_worked_off_and_workers_leave() -> None:
    load = make_synthetic_workload("outage", 2 * HOUR_S)
    outcome = run_simulation(load)
    over = load.outages[0][1] // 10
    assert min(outcome.workers[over - 10 : over]) >= 1, "nothing was known, and nothing was lowered"
    assert max(outcome.depth[over + 60 :]) < 100, "ten minutes later it is gone"
    assert outcome.workers[-1] <= 3


def test_slow_jobs_get_workers_of_their_own() -> None:
    outcome = run_simulation(make_synthetic_workload("poison", 2 * HOUR_S))
    assert outcome.compute_wait_quantile_s(0.95) < 1
    assert max(outcome.workers) > 3


# --- Rates -----------------------------------------------------------------------------------------


def test_rates_are_those_of_the_window() -> None:
    meter = RateMeter(60.0)
    assert meter.add(CounterSample(0, 1, 100, 50, 0)).arrivals_per_s is None
    for number in range(1, 31):
        rates = meter.add(CounterSample(number * 10_000, 1, 100 + number * 20, 50 + number * 20, 4))
    assert rates.arrivals_per_s == 2.0  # pyright: ignore[reportPossiblyUnboundVariable]
    assert rates.service_s == pytest.approx(2.0)  # pyright: ignore[reportPossiblyUnboundVariable]


def test_jobs_that_do_not_end_are_long() -> None:
    meter = RateMeter(60.0)
    services = [meter.add(CounterSample(number * 10_000, 1, 5, 0, 5)).service_s for number in range(7)]
    assert services[1:] == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


@pytest.mark.parametrize(
    "other", [CounterSample(20_000, 2, 5, 5, 0), CounterSample(20_000, 1, 5, 3, 0), CounterSample(140_000, 1, 9, 9, 0)]
)
def test_restarted_or_old_counters_give_no_rate(other: CounterSample) -> None:
    meter = RateMeter(60.0)
    meter.add(CounterSample(0, 1, 5, 5, 0))
    meter.add(CounterSample(10_000, 1, 5, 5, 0))
    assert meter.add(other).arrivals_per_s is None


def test_samples_one_window_apart_give_rates() -> None:
    """autoscale.every may be as long as autoscale.window, and a reading comes when the one before is done."""
    meter = RateMeter(60.0)
    known = [meter.add(CounterSample(number * 60_500, 1, number * 121, number * 121, 4)) for number in range(4)]
    assert [each.arrivals_per_s for each in known] == [None, 2.0, 2.0, 2.0]


# --- On the command line ---------------------------------------------------------------------------


def test_a_simulation_is_printed_and_drawn(tmp_path: Path) -> None:
    file = tmp_path / "burst.png"
    arguments = ["autoscale", "simulate", "--load", "burst", "--for", "20m", "--rate", "1", "--plot", str(file)]
    answer = CliRunner().invoke(headrace, arguments)
    assert answer.exit_code == 0, answer.output
    assert "p95_wait_s" in answer.output
    assert file.read_bytes().startswith(b"\x89PNG")

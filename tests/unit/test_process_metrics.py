"""Metrics of processes, and the reference page that lists them."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.alerts import metrics as alerts
from headrace.autoscale import metrics as autoscale
from headrace.cli import Invocation
from headrace.cli.autoscale import build_worker_flags
from headrace.cold import mover_metrics as cold
from headrace.cold.audit import Drift
from headrace.cold.mover_metrics import MoverMetrics
from headrace.errors import HeadraceError, PortTaken
from headrace.model.names import QueueRef
from headrace.queue import maintenance
from headrace.queue import worker_metrics as tally
from headrace.queue.worker_metrics import ACK, LOST, NACK, WorkerMetrics, WorkerStatus
from headrace.runtime import loop as rounds
from headrace.runtime.http_server import CannotListen, serve_metrics
from headrace.runtime.loop import LoopStats, ServiceMetrics
from headrace.runtime.metrics import BOUNDS_S, DurationHistogram, MetricDeclaration, MetricFamilies, MetricValues
from headrace.runtime.prometheus import build_registry
from headrace.streams import watcher as streams

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "process-metrics.md").read_text("utf-8")
REF = QueueRef("o", "p", "e", "q")
ANY_PORT = {"worker.metrics_port": "0"}


def row(each: MetricDeclaration) -> str:
    """Return the line of the reference page; the failing test prints it, ready to be pasted."""
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"| `{each.name}` | {each.type} | {labels} | {each.help} |"


def test_every_metric_is_documented_and_no_other() -> None:
    documented = [line for line in PAGE.splitlines() if line.startswith("| `headrace_")]
    rooms = (tally, rounds, maintenance, cold, alerts, autoscale, streams)
    expected = [row(each) for room in rooms for each in room.METRICS]
    assert not set(expected) - set(documented), "missing:\n" + "\n".join(sorted(set(expected) - set(documented)))
    assert documented == expected


def test_the_bounds_of_histograms_are_documented() -> None:
    assert ", ".join(f"{bound:g}" for bound in BOUNDS_S) in PAGE
    assert list(BOUNDS_S) == sorted(BOUNDS_S)
    assert (BOUNDS_S[0], BOUNDS_S[-1]) == (0.001, 3600)
    assert all(1.5 <= longer / bound <= 3 for bound, longer in pairwise(BOUNDS_S))


def values(families: MetricFamilies) -> dict[str, dict[tuple[str, ...], float | DurationHistogram]]:
    return {metric.name: dict(found) for metric, found in families}


def sample(families: MetricFamilies, name: str, **labels: str) -> float | None:
    """Return a sample as it is served."""
    read = list(families)
    return build_registry(lambda: read).get_sample_value(name, labels)


@pytest.mark.parametrize(
    ("seconds", "le"), [(0.0, "0.001"), (0.001, "0.001"), (0.0011, "0.002"), (3600.0, "3600.0"), (3601.0, "+Inf")]
)
def test_a_duration_is_in_the_first_bucket_that_holds_it(seconds: float, le: str) -> None:
    """Zero is a value."""
    durations = DurationHistogram()
    durations.observe(seconds)
    family = (MetricDeclaration("x_seconds", "histogram", "x"), {(): durations})
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    found = {bound: sample([family], "x_seconds_bucket", le=bound) for bound in bounds}
    before = bounds.index(le)
    assert list(found.values()) == [0.0] * before + [1.0] * (len(bounds) - before)
    assert sample([family], "x_seconds_count") == 1
    assert sample([family], "x_seconds_sum") == seconds


def test_a_histogram_has_its_own_bounds() -> None:
    durations = DurationHistogram((0.5, 2.5), [1, 0, 0], 0.25)
    durations.observe(0.5)
    durations.observe(3.0)
    family = (MetricDeclaration("x_seconds", "histogram", "x"), {(): durations})
    found = [(le, sample([family], "x_seconds_bucket", le=le)) for le in ("0.5", "2.5", "+Inf")]
    assert found == [("0.5", 2), ("2.5", 2), ("+Inf", 3)]
    assert sample([family], "x_seconds_sum") == 3.75


def test_families_can_be_selected_by_name() -> None:
    registry = build_registry(lambda: [(MetricDeclaration(name, "gauge", name), {(): 1.0}) for name in ("x", "y")])
    assert [family.name for family in registry.restricted_registry(["y"]).collect()] == ["y"]


def test_outcomes_of_jobs_and_their_runs() -> None:
    told = WorkerMetrics(["send"])
    told.record_wait(REF, 0)
    told.record_wait(REF, 1500)
    told.record_ack(REF, "send", 20)
    told.record_outcome(REF, "send", NACK)
    told.record_outcome(REF, "never heard of", LOST)
    names = {"org": "o", "project": "p", "env": "e", "queue": "q"}

    def jobs(task: str, outcome: str) -> float | None:
        return sample(told.families(), "headrace_worker_jobs_total", **names, task=task, outcome=outcome)

    assert sample(told.families(), "headrace_job_wait_seconds_sum", **names) == 1.5
    assert sample(told.families(), "headrace_job_wait_seconds_bucket", **names, le="0.001") == 1
    assert sample(told.families(), "headrace_job_run_seconds_sum", **names, task="send") == 0.02
    assert (jobs("send", ACK), jobs("send", NACK), jobs("send", LOST)) == (1, 1, 0)
    assert (jobs("", LOST), jobs("never heard of", LOST)) == (1, None)  # names from a producer do not create series


@pytest.mark.parametrize("most", [0, 1, 3, 100])
def test_a_sum_is_the_same_however_many_queues_are_named(most: int) -> None:
    told = WorkerMetrics(["a", "b"], most)
    refs = [QueueRef("o", "p", "e", str(number)) for number in range(10)]
    for _ in range(2):
        for ref in refs:
            told.record_wait(ref, 1000)
            for task in ("a", "b", "c"):
                told.record_ack(ref, task, 10)
                told.record_outcome(ref, task, NACK)
    found = values(told.families())
    waits, runs, jobs = (
        found[f"headrace_{name}"] for name in ("job_wait_seconds", "job_run_seconds", "worker_jobs_total")
    )
    assert len(waits) == min(10, most) + (most < 10)
    assert len(runs) == min(30, most) + (most < 30)
    assert sum(sum(each.counts) for each in waits.values() if isinstance(each, DurationHistogram)) == 20
    assert sum(each.sum for each in runs.values() if isinstance(each, DurationHistogram)) == pytest.approx(0.6)
    assert sum(each for each in jobs.values() if not isinstance(each, DurationHistogram)) == 120
    if most < 10:
        assert ("",) * 4 in waits


def moment(connected: bool = True, heartbeat_at: float | None = 4e9) -> WorkerStatus:
    return WorkerStatus(2, 1, 10, connected, "" if connected else "away", heartbeat_at, 30.0, connected)


def test_workers_of_a_process_share_one_set_of_metrics() -> None:
    told = WorkerMetrics([])
    assert told.health()[0] == 503  # no iteration has run yet
    told.status_readers += [moment, moment]
    assert told.health()[0] == 200
    found = values(told.families())
    assert found["headrace_worker_running_jobs"] == {(): 4}
    assert found["headrace_worker_concurrency"] == {(): 20}
    told.status_readers.append(lambda: moment(connected=False))
    assert values(told.families())["headrace_worker_connected"] == {(): 0}
    status, body = told.health()
    assert (status, body["connected"], body["last_error"]) == (503, False, "away")


@pytest.mark.parametrize("heartbeat_at", [None, 1.0])
def test_a_worker_whose_heartbeats_stopped_is_not_well(heartbeat_at: float | None) -> None:
    told = WorkerMetrics([])
    told.status_readers.append(lambda: moment(heartbeat_at=heartbeat_at))
    assert told.health()[0] == 503


def test_a_loop_is_unhealthy_after_three_failures_in_a_row() -> None:
    loop = LoopStats("mover", lambda: False)
    told = ServiceMetrics([loop, LoopStats("other")])
    for _ in range(2):
        loop.record_failure(HeadraceError("away"))
    assert told.health()[0] == 200
    loop.record_failure(HeadraceError("away"))
    status, body = told.health()
    assert (status, body["loops"]["mover"]["last_error"], body["loops"]["other"]["healthy"]) == (503, "away", True)
    assert sample(told.families(), "headrace_loop_rounds_total", loop="mover", status="error") == 3
    assert sample(told.families(), "headrace_loop_healthy", loop="mover") == 0
    assert sample(told.families(), "headrace_loop_last_success_timestamp_seconds", loop="mover") is None
    loop.record_standby()
    assert told.health()[0] == 200
    assert sample(told.families(), "headrace_loop_leading", loop="mover") == 0
    assert sample(told.families(), "headrace_loop_leading", loop="other") is None


def test_rounds_that_are_done_or_superseded() -> None:
    loop = LoopStats("snapshot")
    loop.record_failure(ValueError())
    loop.record_success(0.3)
    loop.record_superseded()
    assert (loop.counts, loop.failures_in_a_row) == ({"ok": 1, "error": 1, "superseded": 1}, 0)
    assert sample(ServiceMetrics([loop]).families(), "headrace_loop_round_seconds_sum", loop="snapshot") == 0.3


def test_what_is_not_known_any_more_is_absent() -> None:
    numbers = MetricValues(MetricDeclaration("x", "gauge", "x", ("kind",)))
    numbers.set(3, "a")
    numbers.set(4, "b")
    numbers.remove("a")
    assert numbers.read()[1] == {("b",): 4}


def test_drift_that_an_audit_found_is_counted_once() -> None:
    told = MoverMetrics(lambda: 1)
    steps = iter([Drift(1, 0, 0), Drift(1, 2, 0), Drift(1, 2, 3)])
    assert list(told.track_audit(steps))[-1] == Drift(1, 2, 3)
    found = values(told.families())["headrace_mover_drift_total"]
    assert found == {("rows",): 1, ("told",): 2, ("settings",): 3}
    assert told.audits.counts["ok"] == 1


def nothing() -> MetricFamilies:
    return []


def test_a_port_is_given_or_refused() -> None:
    def well() -> tuple[int, dict[str, object]]:
        return 200, {}

    with (
        serve_metrics(None, build_registry(nothing), well) as none,
        serve_metrics(0, build_registry(nothing), well) as port,
    ):
        assert none is None
        assert port
        with pytest.raises(PortTaken, match=str(port)), serve_metrics(port, build_registry(nothing), well):
            pass
    with (
        pytest.raises(CannotListen, match=r"metrics\.host"),
        serve_metrics(0, build_registry(nothing), well, "192.0.2.1"),
    ):
        pass


@pytest.mark.parametrize(("environ", "expected"), [({}, {}), ({"HEADRACE_WORKER_METRICS_PORT": "9400"}, ANY_PORT)])
def test_workers_of_the_autoscaler_do_not_share_a_port(environ: dict[str, str], expected: dict[str, str]) -> None:
    assert build_worker_flags(Invocation(None, {"queue.shards": "4"}, environ)) == {"queue.shards": "4", **expected}


def test_a_worker_that_serves_nothing_does_not_load_the_library() -> None:
    """Checks what is imported before a port is opened; in its own process, because others have loaded the library
    here."""
    code = "import headrace.cli.worker, sys; print(*sorted(each for each in sys.modules if 'prometheus' in each))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert loaded.stdout.split() == []

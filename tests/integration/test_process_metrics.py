"""/metrics and /healthz of long-running commands, as Prometheus and a supervisor see them."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import signal
import socket
import subprocess
import urllib.request
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.pipeline.published_status import read_status
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import read_states
from headrace.queue.tasks import TaskRegistry
from headrace.queue.worker_metrics import BURY, LOST, RECLAIM, WorkerMetrics
from headrace.runtime.metrics import BOUNDS_S
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests.conftest import ODD_NAMES, READY_S, wait_until
from tests.model.fold import Event, read_events
from tests.processes import START_S, Process, value
from tests.programs import find_tool
from tests.snapshots import Samples
from tests.streams import STREAM, publish

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "process-metrics.md").read_text("utf-8")
EMAILS = QueueRef("acme", "shop", "prod", "emails")
APP = "tests.processes:tasks"
NOBODY = "http://127.0.0.1:1"
WORKER = ("worker", APP, "--concurrency", "2")
QUICK = {"QUEUE_RETRY_BASE": "1ms", "WORKER_POLL": "10ms", "WORKER_HEARTBEAT": "200ms", "QUEUE_LEASE": "1m"}


def build_labels(ref: QueueRef) -> dict[str, str]:
    return {"org": ref.org, "project": ref.project, "env": ref.env, "queue": ref.queue}


def promtool(text: str) -> list[str]:
    """Return the problems that promtool reports."""
    command = [find_tool("prometheus", "promtool"), "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    return [line for line in (checked.stdout + checked.stderr).splitlines() if line.strip()]


def undocumented(text: str) -> set[str]:
    documented = set(re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE))
    documented |= {name.removesuffix("_total") for name in documented}
    names = {each.name for each in text_string_to_metric_families(text)}
    return {name for name in names - documented if not name.startswith("process_")}


def assert_histogram(samples: Samples, name: str, ref: QueueRef, milliseconds: Sequence[int]) -> None:
    """Check that the series of a queue contain exactly these durations."""
    labels = build_labels(ref)
    assert value(samples, f"{name}_count", **labels) == len(milliseconds)
    assert value(samples, f"{name}_sum", **labels) == pytest.approx(sum(milliseconds) / 1000)
    found = Counter(bisect_left(BOUNDS_S, each / 1000) for each in milliseconds)
    bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
    served = {float(dict(series)["le"]): 0.0 for series in samples[f"{name}_bucket"]}
    for series, count in samples[f"{name}_bucket"].items():
        if set(labels.items()) <= set(series):
            served[float(dict(series)["le"])] += count
    expected = accumulate(found[place] for place in range(len(bounds)))
    assert served == dict(zip(map(float, bounds), expected, strict=True))


def read_all_events(valkey: Valkey) -> list[Event]:
    return [event for shard in range(2) for event in read_events(valkey, shard)]


def test_worker_metrics_count_every_outcome_exactly(valkey: Valkey, valkey_url: str, tmp_path: Path) -> None:
    """Queues with waiting jobs before the worker starts, failures of every kind, and an unknown task."""
    jobs = [NewJob("good") for _ in range(10)] + [NewJob("shaky") for _ in range(3)]
    jobs += [NewJob("hopeless"), NewJob("fails", max_attempts=1), NewJob("nobody has it", max_attempts=1)]
    with SyncClient(valkey_url) as client:
        client.enqueue_many(EMAILS, jobs)
        client.enqueue_many(ODD_NAMES, [NewJob("good") for _ in range(5)])
    with Process(tmp_path, {"REDIS_URL": valkey_url, "WORKER_UNKNOWN_FOR": "1s", **QUICK}, *WORKER) as worker:
        wait_until(
            lambda: (
                sum(value(worker.read_metrics(), "headrace_worker_jobs_total", outcome=each) for each in ("ack", BURY))
                == 21
            ),
            "all jobs have ended",
        )
        samples, text = worker.read_metrics(), worker.page()
        told_of = {
            name: value(samples, f"headrace_worker_{name}") for name in ("running_jobs", "held_jobs", "connected")
        }
        assert told_of == {"running_jobs": 0, "held_jobs": 0, "connected": 1}
        assert value(samples, "headrace_worker_concurrency") == 2
        assert value(samples, "headrace_worker_heartbeat_failures_total") == 0
        assert value(samples, "headrace_worker_busy_seconds_total") > 0
        assert worker.wait_healthy()["last_error"] == ""

    outcomes = {
        (dict(series)["queue"], dict(series).get("task", ""), dict(series)["outcome"]): count
        for series, count in samples["headrace_worker_jobs_total"].items()
        if count
    }
    emails = {("good", "ack"): 10, ("shaky", "nack"): 3, ("shaky", "ack"): 3, ("hopeless", BURY): 1}
    emails |= {("fails", BURY): 1, ("", "defer"): 1, ("", BURY): 1}
    assert outcomes == {("emails", *what): count for what, count in emails.items()} | {
        (ODD_NAMES.queue, "good", "ack"): 5
    }

    events = read_all_events(valkey)
    for ref in (EMAILS, ODD_NAMES):
        waits = [ms for event in events if event.ref == ref for ms in event.waits]
        runs = [ms for event in events if event.ref == ref for ms in event.runs]
        assert len(waits) == (20 if ref == EMAILS else 5)
        assert_histogram(samples, "headrace_job_wait_seconds", ref, waits)
        assert_histogram(samples, "headrace_job_run_seconds", ref, runs)
    assert max(ms for event in events for ms in event.waits) > 0  # the jobs waited before the worker started
    assert promtool(text) == []
    assert undocumented(text) == set()


def test_stream_worker_metrics_count_every_outcome_exactly(valkey: Valkey, valkey_url: str, tmp_path: Path) -> None:
    publish(valkey, *(NewJob("good") for _ in range(4)), NewJob("shaky"), NewJob("hopeless"))
    valkey.xadd(STREAM, {"json": "no job"})
    command = ("worker", APP, "--stream", STREAM, "--group", "workers")
    env = {**QUICK, "STREAMS_ORG": "acme", "STREAMS_PROJECT": "shop", "STREAMS_ENV": "streams"}
    with Process(tmp_path, {"REDIS_URL": valkey_url, **env}, *command) as worker:
        wait_until(
            lambda: (
                sum(value(worker.read_metrics(), "headrace_worker_jobs_total", outcome=each) for each in ("ack", BURY))
                == 7
            ),
            "all entries are done with",
        )
        samples, text = worker.read_metrics(), worker.page()
        worker.wait_healthy()
    ref = QueueRef("acme", "shop", "streams", f"{STREAM}/workers")
    outcomes = {
        (dict(series).get("task", ""), dict(series)["outcome"]): count
        for series, count in samples["headrace_worker_jobs_total"].items()
        if count and set(build_labels(ref).items()) <= set(series)
    }
    assert outcomes == {
        ("good", "ack"): 4,
        ("shaky", "nack"): 1,
        ("shaky", "ack"): 1,
        ("hopeless", BURY): 1,
        ("", BURY): 1,
    }
    assert value(samples, "headrace_job_wait_seconds_count", **build_labels(ref)) == 8
    assert value(samples, "headrace_job_run_seconds_count", **build_labels(ref)) == 5
    assert promtool(text) == []
    assert undocumented(text) == set()


def test_the_page_as_openmetrics_and_compressed(valkey_url: str, tmp_path: Path) -> None:
    with Process(tmp_path, {"REDIS_URL": valkey_url}, *WORKER) as worker:
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        asked = urllib.request.Request(f"{worker.url}/metrics", headers={"Accept": accept, "Accept-Encoding": "gzip"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            text = gzip.decompress(answer.read()).decode()
        assert text.endswith("# EOF\n")
        found = {each.name: each.type for each in parse_openmetrics(text)}
        assert found["headrace_job_wait_seconds"] == "histogram"
        assert found["headrace_worker_jobs"] == "counter"
        with pytest.raises(urllib.request.HTTPError, match="404"):
            urllib.request.urlopen(f"{worker.url}/other", timeout=60)


def test_a_port_in_use_is_reported_before_any_job_is_dequeued(valkey: Valkey, valkey_url: str, tmp_path: Path) -> None:
    with SyncClient(valkey_url) as client:
        client.enqueue(EMAILS, NewJob("good"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        process = Process(tmp_path, {"REDIS_URL": valkey_url}, *WORKER, port=port)
        assert process.child.wait(START_S) == 4, process.read_log()
    assert f"error: Port {port} for /metrics is in use by another process" in process.read_log()
    [state] = read_states(valkey, 2)
    assert (state.depth, state.odometers) == (1, {"enqueue": 1})


def test_a_worker_is_unhealthy_while_its_server_is_down(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path)
    server.start()
    server.wait_ready(READY_S)
    again = EmbeddedValkey(tmp_path / "data", tmp_path, port=server.port)
    try:
        with Process(tmp_path, {"REDIS_URL": server.url, **QUICK}, *WORKER) as worker:
            wait_until(lambda: worker.wait_healthy()["connected"], "every shard answers")
            os.kill(server.child.pid, signal.SIGKILL)
            server.stop()
            body = worker.wait_healthy(False)  # healthy as long as one shard responds
            assert (body["healthy"], body["connected"]) == (False, False)
            assert "Valkey is not responding" in body["last_error"]
            assert value(worker.read_metrics(), "headrace_worker_connected") == 0
            wait_until(
                lambda: value(worker.read_metrics(), "headrace_worker_heartbeat_failures_total"), "a heartbeat fails"
            )
            again.start()
            again.wait_ready(READY_S)
            wait_until(lambda: worker.wait_healthy()["connected"], "every shard answers again")
            assert value(worker.read_metrics(), "headrace_worker_connected") == 1
    finally:
        again.stop()
        server.stop()


def test_jobs_that_were_lost_or_returned(valkey: Valkey, valkey_url: str) -> None:
    """A job whose lease another process ends while it runs; one running when its worker stops; one that the worker
    holds."""
    tasks, tally = TaskRegistry(), WorkerMetrics(["stolen", "endless"])

    async def scenario() -> None:
        started = asyncio.Event()

        @tasks.task()
        async def stolen(job: LeasedJob) -> None:
            stubs = QueueOptions().make_stubs()
            assert run(valkey, stubs.ack(stubs.find_shard(job.queue), [(job, 0)])) == [True]

        @tasks.task()
        async def endless(job: LeasedJob) -> None:
            started.set()
            await asyncio.Event().wait()

        SyncClient(valkey_url).enqueue_many(EMAILS, [NewJob("stolen"), NewJob("endless")])
        stop = asyncio.Event()
        async with Client(valkey_url) as client:
            worker = Worker(client, tasks, WorkerOptions(poll_s=0.01, grace_s=0.0), metrics=tally)
            running = asyncio.create_task(worker.run_forever(stop))
            await asyncio.wait_for(started.wait(), START_S)
            await asyncio.to_thread(lambda: wait_until(lambda: counted().get(("stolen", LOST)), "it is refused"))
            [moment] = [read() for read in tally.status_readers]
            assert (moment.running, moment.prefetched) == (1, 0)
            stop.set()
            await asyncio.wait_for(running, START_S)

    def counted() -> dict[tuple[str, str], float]:
        samples = {metric.name: values for metric, values in tally.families()}
        jobs = samples["headrace_worker_jobs_total"]
        return {labels[4:]: float(count) for labels, count in jobs.items() if isinstance(count, int) and count}  # pyright: ignore

    asyncio.run(scenario())
    assert counted() == {("stolen", LOST): 1, ("endless", RECLAIM): 1}
    [state] = read_states(valkey, 2)
    assert (state.depth, state.odometers["reclaim"]) == (1, 1)


def test_mover_metrics_count_moved_rows(valkey: Valkey, valkey_url: str, postgres_url: str, tmp_path: Path) -> None:
    from headrace.cold.tiers import Tiers

    options = QueueOptions(caps=WarmCaps(items=10))
    with SyncClient(valkey_url, options, Tiers(valkey_url, postgres_url, options)) as client:
        client.enqueue_many(EMAILS, [NewJob("good") for _ in range(30)])
    env = {"REDIS_URL": valkey_url, "POSTGRES_URL": postgres_url, "QUEUE_WARM_MAX_ITEMS": "100"}
    with Process(tmp_path, env, "mover") as mover:
        wait_until(
            lambda: value(mover.read_metrics(), "headrace_mover_rows_total", op="refill") == 20, "all have come back"
        )
        wait_until(
            lambda: value(mover.read_metrics(), "headrace_loop_rounds_total", loop="mover_audit", status="ok"),
            "audited",
        )
        samples, text = mover.read_metrics(), mover.page()
        assert value(samples, "headrace_mover_shards") == 2
        assert value(samples, "headrace_loop_leading", loop="mover") == 1
        assert value(samples, "headrace_mover_drift_total") == 0
        body = mover.wait_healthy()
        assert body["loops"]["mover"]["leading"] is True
    assert promtool(text) == []
    assert undocumented(text) == set()
    [state] = read_states(valkey, 2)
    assert state.depth == 30


def test_a_worker_exports_the_metrics_of_its_mover(valkey_url: str, postgres_url: str, tmp_path: Path) -> None:
    with Process(tmp_path, {"REDIS_URL": valkey_url, "POSTGRES_URL": postgres_url}, *WORKER) as worker:
        wait_until(lambda: value(worker.read_metrics(), "headrace_mover_shards") == 2, "its mover leads")
        samples = worker.read_metrics()
        assert value(samples, "headrace_loop_healthy", loop="mover") == 1
        assert "headrace_worker_concurrency" in samples


def test_a_mover_is_unhealthy_while_its_servers_are_down(tmp_path: Path) -> None:
    env = {"REDIS_URL": "redis://127.0.0.1:1/0", "POSTGRES_URL": "postgresql://127.0.0.1:1/nowhere"}
    with Process(tmp_path, env, "mover") as mover:
        body = mover.wait_healthy(False)
        assert body["loops"]["mover"]["failures_in_a_row"] >= 3
        assert "Valkey is not responding" in body["loops"]["mover"]["last_error"]
        samples = mover.read_metrics()
        assert value(samples, "headrace_loop_healthy", loop="mover") == 0
        assert value(samples, "headrace_loop_rounds_total", loop="mover", status="error") >= 3
        assert "headrace_loop_last_success_timestamp_seconds" not in samples


TYPES = """
[[worker]]
name = "mail"
app = "tests.processes:tasks"
queues = ["emails"]
scaling = {min = 0, max = 1}
"""


@pytest.mark.parametrize(
    ("command", "loop"),
    [
        (("snapshot", "run"), "snapshot"),
        (("alerts", "run"), "alerts"),
        (("autoscale", "run"), "autoscale"),
        (("streams", "watch", "--stream", STREAM), "streams"),
    ],
)
def test_every_loop_exports_its_loop_metrics(
    valkey: Valkey, valkey_url: str, postgres_url: str, tmp_path: Path, command: tuple[str, ...], loop: str
) -> None:
    """ClickHouse is unavailable, and none of them needs it to continue."""
    publish(valkey, NewJob("good"))
    valkey.xgroup_create(STREAM, "workers", id="0")
    types = tmp_path / "types.toml"
    types.write_text(TYPES)
    env = {"REDIS_URL": valkey_url, "POSTGRES_URL": postgres_url, "CLICKHOUSE_URL": NOBODY}
    env |= {
        "AUTOSCALE_TYPES": str(types),
        "AUTOSCALE_EVERY": "200ms",
        "ALERTS_EVERY": "200ms",
        "STREAMS_EVERY": "200ms",
    }
    env |= {"METRICS_QUEUE_SNAPSHOT_REFRESH_INTERVAL": "200ms"}
    with Process(tmp_path, env, *command) as process:
        wait_until(
            lambda: value(process.read_metrics(), "headrace_loop_rounds_total", loop=loop, status="ok") >= 2,
            "two rounds",
            START_S,
        )
        samples, text = process.read_metrics(), process.page()
        assert value(samples, "headrace_loop_round_seconds_count", loop=loop) >= 2
        assert value(samples, "headrace_loop_last_success_timestamp_seconds", loop=loop) > 0
        assert value(samples, "headrace_loop_leading", loop=loop) == (
            0 if loop == "streams" else 1
        )  # watchers have no leader
        assert value(samples, "process_resident_memory_bytes") > 0
        process.wait_healthy()
    assert promtool(text) == []
    assert undocumented(text) == set()
    if loop == "autoscale":
        assert value(samples, "headrace_autoscale_decisions_total", type="mail") >= 2
        assert "headrace_autoscale_wanted_workers" in samples
    if loop == "streams":
        assert value(samples, "headrace_streams_watched_groups") == 1
        assert value(samples, "headrace_streams_silent_groups") == 0
    if loop == "alerts":
        assert value(samples, "headrace_alerts_rules") == 0
        assert value(samples, "headrace_loop_rounds_total", loop="alerts_lease", status="ok") >= 1


@pytest.mark.slow
def test_a_pipeline_reports_its_metrics_port(valkey: Valkey, valkey_url: str, tmp_path: Path) -> None:
    """On a free port, in its log and in its published status. ClickHouse is unavailable."""
    env = {"REDIS_URL": valkey_url, "CLICKHOUSE_URL": NOBODY, "EMBEDDED_DATA_DIR": str(tmp_path / "data")}
    with Process(tmp_path, env, "pipeline") as process:
        published = wait_until(lambda: read_status(valkey).report, "it publishes its status", START_S)
        assert process.url == f"http://127.0.0.1:{published.metrics_port}"
        text = process.page()
        assert "headrace_maintenance_shards" in text
        assert "process_resident_memory_bytes" in text
        assert 'headrace_spool_records{spool="pipeline"} 0.0' in text
    assert promtool(text) == []
    final = read_status(valkey).report
    assert final
    assert final.state == "stopping"

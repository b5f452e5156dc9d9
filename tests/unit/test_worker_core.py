"""The worker core with sources that fail, hang or have a backlog at a chosen moment.

Tests with real servers are in tests/integration.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.errors import QueueUnavailable
from headrace.model.job import AttemptRecord, JobLeaseState, LeasedJob
from headrace.model.names import QueueRef
from headrace.queue.scripts import Deferral, LeasedJobs, Records
from headrace.queue.tasks import TaskRegistry
from headrace.queue.worker_metrics import DEFER, RUN, WorkerMetrics
from headrace.runtime.metrics import DurationHistogram
from headrace.valkey.connect import Valkey
from headrace.worker import core as core_module
from headrace.worker import heartbeat
from headrace.worker.core import WorkerCore
from headrace.worker.options import WorkerOptions

REF = QueueRef("acme", "shop", "prod", "emails")
DEADLINE_S = 60.0
NO_SERVER = "redis://127.0.0.1:1/0"


class FakeSource:
    """A source whose jobs are in memory. Calls wait while `gate` is not set, and raise `error`."""

    def __init__(self, name: str, jobs: int = 0, *, max_attempts: int = 5) -> None:
        self.name = self.label = name
        self.jobs = deque(
            LeasedJob(REF, f"{name}-{number}", "run", b"", 1, max_attempts, "1", 1, 0) for number in range(jobs)
        )
        self.error: Exception | None = None
        self.report_error: Exception | None = None
        self.gate, self.woken = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.dequeues = 0
        self.reports: list[tuple[str, str]] = []  # verb and job
        self.delays_ms: list[int] = []  # of retries
        self.deferrals: list[Deferral] = []
        self.records: dict[str, AttemptRecord] = {}  # by lease

    async def dequeue(self, limit: int, excluded: Mapping[str, bool]) -> LeasedJobs:
        self.dequeues += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        jobs = LeasedJobs(self.jobs.popleft() for _ in range(min(limit, len(self.jobs))))
        jobs.has_more = bool(self.jobs)
        return jobs

    async def begin(self, job: LeasedJob) -> bool:
        return True

    async def ack(self, done: Sequence[tuple[LeasedJob, int]], records: Records) -> Sequence[bool]:
        self.records |= records
        return self._report("ack", [job for job, _ in done])

    async def nack(self, failed: Sequence[tuple[LeasedJob, int, str]], records: Records) -> Sequence[bool]:
        self.records |= records
        self.delays_ms += [delay_ms for _, delay_ms, _ in failed]
        return self._report("nack", [job for job, _, _ in failed])

    async def bury(self, buried: Sequence[tuple[LeasedJob, str]], records: Records) -> Sequence[bool]:
        self.records |= records
        return self._report("bury", [job for job, _ in buried])

    async def defer(self, deferrals: Sequence[Deferral]) -> Sequence[str]:
        self.deferrals += deferrals
        self._report("defer", [each.job for each in deferrals])
        return [DEFER] * len(deferrals)

    async def requeue(self, jobs: Sequence[LeasedJob]) -> Sequence[bool]:
        return self._report("requeue", jobs)

    def _report(self, verb: str, jobs: Sequence[LeasedJob]) -> list[bool]:
        if self.report_error is not None:
            raise self.report_error
        self.reports += [(verb, job.id) for job in jobs]
        return [True] * len(jobs)

    def extend(self, client: Valkey, jobs: Sequence[LeasedJob]) -> Sequence[JobLeaseState]:
        return [JobLeaseState.HELD] * len(jobs)

    def send_progress(self, client: Valkey, jobs: Sequence[LeasedJob]) -> None:
        pass

    def note_failure(self) -> None:
        pass

    @property
    def finished(self) -> int:
        return sum(verb == "ack" for verb, _ in self.reports)


class FakeWait:
    """Waits for the `woken` events of sources on one server."""

    def __init__(self, sources: Sequence[FakeSource], indexes: Sequence[int]) -> None:
        self.sources = indexes
        self._all = sources
        self.waits = 0

    async def wait(self) -> int | None:
        self.waits += 1
        tasks = {asyncio.create_task(self._all[index].woken.wait()): index for index in self.sources}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        index = tasks[done.pop()]
        self._all[index].woken.clear()
        return index

    async def pass_on(self, index: int) -> None:
        self._all[index].woken.set()

    async def close(self) -> None:
        pass


def make_tasks(function: Callable[[LeasedJob], object] | None = None) -> TaskRegistry:
    tasks = TaskRegistry()

    @tasks.task()
    async def run(job: LeasedJob) -> None:
        await asyncio.sleep(0)
        if function is not None and asyncio.iscoroutine(result := function(job)):
            await result

    assert run
    return tasks


@asynccontextmanager
async def serve(
    core: WorkerCore, *sources: FakeSource, together: bool = True
) -> AsyncGenerator[tuple[asyncio.Task[None], asyncio.Event]]:
    """Run a worker. `together`: all sources are on one server."""
    groups = [range(len(sources))] if together else [[index] for index in range(len(sources))]
    waits = [FakeWait(sources, group) for group in groups]
    stop = asyncio.Event()
    running = asyncio.create_task(core.run_forever(stop, lambda: core.serve_sources(NO_SERVER, sources, waits)))
    try:
        yield running, stop
    finally:
        stop.set()
        for source in sources:
            source.gate.set()
            source.error = source.report_error = None
        await asyncio.wait([running], timeout=DEADLINE_S)
        assert running.done()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def heartbeat_without_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(url: str, timeout_s: float, retries: int) -> Valkey:
        return Valkey()

    monkeypatch.setattr(heartbeat, "connect", connect)


def test_a_backlog_of_one_source_does_not_starve_another() -> None:
    """Even if the worker runs one job at a time, so that it has none between two."""

    async def scenario() -> None:
        first, second = FakeSource("first", 10_000), FakeSource("second", 5)
        core = WorkerCore(make_tasks(), WorkerOptions(concurrency=1, prefetch=0, grace_s=0.0))
        async with serve(core, first, second):
            await until(lambda: second.finished == 5)
            assert first.jobs
            second.jobs.extend(FakeSource("later", 5).jobs)
            await until(lambda: second.finished == 10)
            assert first.jobs

    asyncio.run(scenario())


@pytest.mark.parametrize("together", [True, False])
def test_a_source_that_fails_does_not_keep_the_worker_from_others(together: bool) -> None:
    async def scenario() -> None:
        broken, healthy = FakeSource("broken"), FakeSource("healthy")
        broken.error = QueueUnavailable()
        async with serve(WorkerCore(make_tasks(), WorkerOptions(grace_s=0.0)), broken, healthy, together=together):
            await until(lambda: broken.dequeues >= 1 and healthy.dequeues >= 1)
            healthy.jobs.extend(FakeSource("healthy", 5).jobs)
            healthy.woken.set()
            await until(lambda: healthy.finished == 5)

    asyncio.run(scenario())


def test_a_dequeue_that_hangs_does_not_keep_the_worker_from_others() -> None:
    async def scenario() -> None:
        hung, healthy = FakeSource("hung"), FakeSource("healthy")
        hung.gate.clear()
        async with serve(WorkerCore(make_tasks(), WorkerOptions(grace_s=0.0)), hung, healthy, together=False):
            await until(lambda: hung.dequeues == 1 and healthy.dequeues >= 1)
            healthy.jobs.extend(FakeSource("healthy", 5).jobs)
            healthy.woken.set()
            await until(lambda: healthy.finished == 5)
            assert hung.dequeues == 1

    asyncio.run(scenario())


def test_long_jobs_are_not_leased_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that were requested from one source count while another source answers."""
    monkeypatch.setattr(core_module, "SLOW_CALL_S", 3600.0)  # however long the machine stands still, no call is slow

    async def scenario() -> None:
        release = asyncio.Event()
        sources = [FakeSource(f"source {number}", 50) for number in range(4)]
        for source in sources[1:]:
            source.gate.clear()
        core = WorkerCore(make_tasks(lambda _: release.wait()), WorkerOptions(concurrency=10, grace_s=60.0))
        async with serve(core, *sources) as (_, stop):
            await until(lambda: len(sources[0].jobs) < 50)
            for source in sources[1:]:
                source.gate.set()
                await asyncio.sleep(0)
            await until(lambda: sum(50 - len(source.jobs) for source in sources) >= 10)
            stop.set()
            release.set()
        assert sum(50 - len(source.jobs) for source in sources) <= 12  # 3 of each source were requested
        assert sum(source.finished for source in sources) >= 10

    asyncio.run(scenario())


def test_a_cancelled_worker_takes_no_more_jobs() -> None:
    async def scenario() -> None:
        source = FakeSource("source", 10_000)
        core = WorkerCore(make_tasks(), WorkerOptions(concurrency=2))
        async with serve(core, source) as (running, _):
            await until(lambda: source.finished > 10)
            running.cancel()
            await asyncio.wait([running])
            dequeues = source.dequeues
            for _ in range(100):
                await asyncio.sleep(0)
            assert source.dequeues == dequeues

    asyncio.run(scenario())


class StubbornWait(FakeWait):
    """Swallows the cancellation of a wait, like a client that is interrupted while it reconnects."""

    async def wait(self) -> int | None:
        try:
            return await super().wait()
        except asyncio.CancelledError:
            return None


def test_no_wait_goes_on_after_the_end_of_its_worker() -> None:
    async def scenario() -> None:
        source = FakeSource("source", 0)
        wait, stop = StubbornWait([source], [0]), asyncio.Event()
        core = WorkerCore(make_tasks(), WorkerOptions())
        running = asyncio.create_task(core.run_forever(stop, lambda: core.serve_sources(NO_SERVER, [source], [wait])))
        await until(lambda: wait.waits > 0)
        stop.set()
        await running
        waits = wait.waits
        for _ in range(100):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert wait.waits == waits

    asyncio.run(scenario())


def test_a_worker_that_is_recycled_does_not_wait_for_a_source_that_fails() -> None:
    async def scenario() -> None:
        broken, healthy = FakeSource("broken", 1), FakeSource("healthy", 5)
        broken.report_error = QueueUnavailable()
        core = WorkerCore(make_tasks(), WorkerOptions(max_jobs=3, grace_s=0.0))
        async with serve(core, broken, healthy) as (running, _):
            await asyncio.wait([running], timeout=DEADLINE_S)
            assert running.done()
            assert "jobs, the maximum" in core.needs_restart

    asyncio.run(scenario())


def test_a_job_that_is_interrupted_by_the_end_of_the_grace_period_is_returned() -> None:
    """Whatever its task makes of the interruption."""

    async def scenario() -> None:
        started = asyncio.Event()

        async def fail_when_cancelled() -> None:
            started.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError as error:
                raise ValueError("cleaning up failed") from error

        source = FakeSource("source", 1, max_attempts=1)
        core = WorkerCore(make_tasks(lambda _: fail_when_cancelled()), WorkerOptions(grace_s=0.0))
        async with serve(core, source) as (_, stop):
            await asyncio.wait_for(started.wait(), DEADLINE_S)
            source.gate.clear()  # a dequeue is in flight when the worker stops
            source.woken.set()
            await until(lambda: source.dequeues >= 2)
            stop.set()
        assert source.reports == [("requeue", "source-0")]

    asyncio.run(scenario())


def test_a_worker_that_waits_for_running_jobs_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        started, release = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            started.set()
            await release.wait()

        core = WorkerCore(make_tasks(lambda _: wait()), WorkerOptions(grace_s=60.0))
        async with serve(core, FakeSource("source", 1)) as (_, stop):
            await asyncio.wait_for(started.wait(), DEADLINE_S)
            stop.set()
            await until(lambda: "stopping: 1 running jobs have 60 s to finish" in caplog.messages)
            release.set()

    with caplog.at_level("INFO"):
        asyncio.run(scenario())


def test_a_task_that_raises_a_cancellation_fails() -> None:
    """The worker has not cancelled it: it has awaited something that was cancelled."""

    async def scenario() -> None:
        async def await_cancelled() -> None:
            inner = asyncio.create_task(asyncio.sleep(3600))
            inner.cancel()
            await inner

        source = FakeSource("source", 1)
        async with serve(WorkerCore(make_tasks(lambda _: await_cancelled()), WorkerOptions()), source):
            await until(lambda: bool(source.reports))
        assert source.reports == [("nack", "source-0")]

    asyncio.run(scenario())


def test_a_task_that_exits_fails() -> None:
    def leave(_: LeasedJob) -> None:
        raise SystemExit(3)

    async def scenario() -> None:
        source = FakeSource("source", 1)
        async with serve(WorkerCore(make_tasks(leave), WorkerOptions()), source):
            await until(lambda: bool(source.reports))
        assert source.reports == [("nack", "source-0")]

    asyncio.run(scenario())


def test_heartbeats_without_jobs_do_not_make_a_worker_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = threading.Semaphore(0)
    metrics = WorkerMetrics(["run"])

    async def scenario() -> None:
        source = FakeSource("source")
        source.error = QueueUnavailable()
        core = WorkerCore(make_tasks(), WorkerOptions(heartbeat_s=0.001, grace_s=0.0), metrics=metrics)

        def list_leased(state: object) -> list[LeasedJob]:
            beats.release()
            return []

        monkeypatch.setattr(core, "_list_leased", list_leased)
        async with serve(core, source):
            await until(lambda: source.dequeues >= 1)
            for _ in range(10):
                assert await asyncio.to_thread(beats.acquire, timeout=DEADLINE_S)
            assert metrics.health()[0] == 503

    asyncio.run(scenario())


def test_the_run_time_of_a_job_does_not_include_the_record_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, passed_s = WorkerMetrics(["run"]), [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s[0], time=time.time, time_ns=time.time_ns)
    monkeypatch.setattr(core_module, "time", clock)

    class SlowToBegin(FakeSource):
        async def begin(self, job: LeasedJob) -> bool:
            passed_s[0] += 10_000
            return True

    async def scenario() -> None:
        source = SlowToBegin("source", 1, max_attempts=1)
        async with serve(WorkerCore(make_tasks(), WorkerOptions(), metrics=metrics), source):
            await until(lambda: source.finished == 1)

    asyncio.run(scenario())
    [histogram] = cast("dict[object, DurationHistogram]", dict(metrics.families())[RUN]).values()
    assert histogram.sum < 10_000

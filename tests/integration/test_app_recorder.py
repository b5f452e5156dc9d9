"""The recorder of `app.testing()` answers like real servers and a worker: the same steps, the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from headrace import Bury, Headrace, JobState, Retry, Snooze, current_job
from headrace.model.job import NewJob
from headrace.model.names import QueueRef

QUEUE = QueueRef("acme", "shop", "prod", "default")


class Scenario:
    """An app, and how its jobs are run until none is ready."""

    def __init__(self, app: Headrace, run: Callable[[], object]) -> None:
        self.app = app
        self.run = run
        self.runs: list[Any] = []

        @app.task(retry=Retry(attempts=2, base=0, longest=0), aliases=["former"])
        def work(kind: str = "done") -> None:
            self.runs.append((kind, current_job().attempt, current_job().task, dict(current_job().headers)))
            match kind:
                case "bury":
                    raise Bury("refused")
                case "fail":
                    raise ValueError("broken")
                case "snooze":
                    raise Snooze(3600)
                case _:
                    pass

        self.work = work

    def observe(self, job_id: str) -> list[Any]:
        """Return what a handle says about a job, without times."""
        info = self.app.handle(job_id).info()
        if info is None:
            return []
        last_line = (info.error or "").strip().rpartition("\n")[2]
        counts = info.attempts, info.max_attempts, info.priority
        return [info.state, info.queue, info.task, info.payload, dict(info.headers), info.flow, *counts, last_line]


@pytest.fixture(params=["servers", "recorder"])
def scenario(request: pytest.FixtureRequest, valkey_url: str) -> Generator[Scenario]:
    app = Headrace(valkey_url, env="acme/shop/prod")
    if request.param == "servers":
        with app:
            yield Scenario(app, lambda: asyncio.run(app.worker(concurrency=1).run_until_idle()))
    else:
        with app.testing() as jobs:
            yield Scenario(app, lambda: jobs.drain_sync(due=False, raising=False))


def test_waiting_jobs(scenario: Scenario) -> None:
    work = scenario.work.using(id="1", priority=3, flow="f", headers={"a": "b"}, max_attempts=4)
    assert [work.enqueue().accepted, work.enqueue().accepted] == [True, False]
    scenario.work.using(id="2", delay=3600).enqueue("bury")
    common = ["default", "work"]
    assert scenario.observe("1") == [JobState.READY, *common, b"{}", {"a": "b"}, "f", 0, 4, 3, ""]
    assert scenario.observe("2") == [JobState.SCHEDULED, *common, b'{"kind":"bury"}', {}, "", 0, 2, 0, ""]
    assert scenario.observe("3") == []


def test_ended_jobs(scenario: Scenario) -> None:
    for kind in ("done", "bury", "fail", "snooze"):
        scenario.work.using(id=kind).enqueue(kind)
    for _ in range(3):  # retries are due at once
        scenario.run()
    assert scenario.observe("done")[0] == JobState.DONE
    bury, fail, snooze = (scenario.observe(kind) for kind in ("bury", "fail", "snooze"))
    assert (bury[0], bury[6], bury[-1]) == (JobState.DEAD, 1, "headrace.queue.tasks.Bury: refused")
    assert (fail[0], fail[6], fail[-1]) == (JobState.DEAD, 2, "ValueError: broken")
    assert (snooze[0], snooze[6], snooze[-1]) == (JobState.SCHEDULED, 0, "")
    assert sorted((kind, attempt) for kind, attempt, _, _ in scenario.runs) == [
        *(("bury", 1), ("done", 1), ("fail", 1), ("fail", 2), ("snooze", 1))
    ]
    ids = ("done", "bury", "snooze")
    assert [scenario.work.using(id=job_id).enqueue().accepted for job_id in ids] == [False] * 3


def test_cancelled_jobs(scenario: Scenario) -> None:
    scenario.work.using(id="ready").enqueue()
    scenario.work.using(id="later", delay=3600).enqueue()
    handles = {name: scenario.app.handle(name) for name in ("ready", "later", "unknown", "done", "dead")}
    states = [handles[name].cancel() for name in ("ready", "later", "unknown")]
    assert states == [JobState.READY, JobState.SCHEDULED, None]
    assert [handles[name].state() for name in ("ready", "later")] == [None, None]
    assert scenario.work.using(id="ready").enqueue().accepted
    scenario.work.using(id="done").enqueue()
    scenario.work.using(id="dead").enqueue("bury")
    scenario.run()
    for running in (False, True):
        assert [handles[name].cancel(running=running) for name in ("done", "dead")] == [None, JobState.DEAD]


def test_jobs_of_a_former_name(scenario: Scenario) -> None:
    scenario.app.transport.enqueue_many(QUEUE, [NewJob("former", b'{"kind":"done"}', "1")])
    scenario.run()
    assert scenario.runs == [("done", 1, "former", {})]
    assert scenario.observe("1")[0] == JobState.DONE

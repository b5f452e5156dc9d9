"""Typed tasks in child processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from multiprocessing import forkserver
from pathlib import Path

import pytest

from headrace import JobState, NewJob, QueueRef
from tests import app_process_tasks as tasks
from tests.app_process_tasks import Item, app

QUEUE = QueueRef("acme", "shop", "prod", "default")


@pytest.fixture(autouse=True)
def connected(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the app of the module use the server of this test."""
    settings = app.settings
    monkeypatch.setattr(app, "_settings", replace(settings, redis=replace(settings.redis, url=valkey_url)))
    app.replace_transport(None)
    yield
    app.close()
    forkserver._forkserver._stop()  # pyright: ignore


async def run_all() -> None:
    await app.worker(concurrency=1).run_until_idle()


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_dependencies_lifespan_and_middleware_work_in_a_child_process(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    handle = tasks.record.enqueue(str(path), [Item("tea", Decimal("4.50"))])
    asyncio.run(run_all())
    assert handle.state() == JobState.DONE
    line, closed, commit = read_lines(path)
    pid = line.partition(" ")[0]
    assert int(pid) != os.getpid()
    assert line == f"{pid} record 1 acme state of {pid} calling record"
    assert (closed, commit) == ("closed", "commit")


def test_an_async_function_runs_in_a_child_process(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tasks.record_async.using(headers={"a": "b"}).enqueue(str(path))
    asyncio.run(run_all())
    line, commit = read_lines(path)
    pid = line.partition(" ")[0]
    assert int(pid) != os.getpid()
    assert (line, commit) == (f"{pid} record_async {{'a': 'b'}} state of {pid}", "commit")


def test_providers_in_a_child_process_see_the_error_of_the_task(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    handle = tasks.fail.enqueue(str(path), "error")

    async def run() -> None:
        async with app.worker(concurrency=1).running():
            while await handle.astate() is not JobState.DEAD:
                await asyncio.sleep(0.01)

    asyncio.run(run())
    assert read_lines(path) == ["error 1", "rollback broken", "error 2", "rollback broken"]


@pytest.mark.parametrize("kind", ["bury", "key"])
def test_the_policy_decides_in_a_child_process(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lines"
    handle = tasks.fail.enqueue(str(path), kind)
    asyncio.run(run_all())
    assert handle.state() == JobState.DEAD
    assert read_lines(path) == [f"{kind} 1"]


def test_the_context_of_a_job_does_not_leak_to_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    first, second = tasks.record.using(priority=1).job(str(path), []), NewJob("look_for_job", str(path).encode())
    app.enqueue_many([first])
    app.transport.enqueue_many(QUEUE, [second])
    asyncio.run(run_all())
    assert read_lines(path)[-1] == "no job"


def test_an_async_function_that_raises_an_exit_does_not_block_its_child_process(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    left = tasks.leave.enqueue()
    tasks.record_async.enqueue(str(path))
    asyncio.run(asyncio.wait_for(run_all(), 60))
    info = left.info()
    assert info is not None
    assert info.state is JobState.DEAD
    assert "SystemExit: 3" in (info.error or "")
    assert len(read_lines(path)) == 2

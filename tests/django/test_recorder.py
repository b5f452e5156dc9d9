"""Django tasks in tests of an application: recorded, without servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from django.test import override_settings

from headrace.contrib.django import HeadraceBackend
from tests.django.conftest import get_backend
from tests.django.shop import tasks
from tests.django.shop.settings import make_tasks


@pytest.fixture
def offline() -> Iterator[HeadraceBackend]:
    with override_settings(TASKS=make_tasks("redis://127.0.0.1:1")):
        yield get_backend()


def test_recorded_jobs(offline: HeadraceBackend) -> None:
    with offline.app.testing() as jobs:
        good, bad = tasks.add.enqueue(1, b=2), tasks.fail.enqueue()
        assert [job.task for job in jobs.all()] == [tasks.add.module_path, tasks.fail.module_path]
        good.refresh()
        assert good.status == "READY"
        assert asyncio.run(jobs.drain(raising=False)) == {"done": 1, "dead": 1}
        good.refresh()
        bad.refresh()
        assert good.return_value == 3
        assert (bad.status, bad.errors[0].exception_class) == ("FAILED", ValueError)


def test_inline(offline: HeadraceBackend) -> None:
    with offline.app.testing(inline=True):
        result = tasks.async_add.enqueue(1, b=2)
        result.refresh()
        assert result.return_value == 3

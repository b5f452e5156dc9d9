"""Configures Django once per process, and points its tasks to the Valkey of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

import django
from tests.django.shop import settings as shop_settings

if not django_settings.configured:
    django_settings.configure(**{name: value for name, value in vars(shop_settings).items() if name.isupper()})
    django.setup()

from headrace.contrib.django.backend import HeadraceBackend
from headrace.contrib.django.compat import task_backends
from tests.django.shop import tasks


def get_backend(alias: str = "default") -> HeadraceBackend:
    backend = task_backends[alias]
    assert isinstance(backend, HeadraceBackend)
    return backend


@pytest.fixture
def use_tasks(valkey_url: str) -> Iterator[Callable[..., HeadraceBackend]]:
    """Return a function that configures TASKS with options for this test, and returns the backend `default`."""
    overrides: list[override_settings] = []

    def use(**options: Any) -> HeadraceBackend:
        override = override_settings(TASKS=shop_settings.make_tasks(valkey_url, **options))
        override.enable()
        overrides.append(override)
        return get_backend()

    yield use
    for override in reversed(overrides):
        override.disable()


@pytest.fixture
def backend(use_tasks: Callable[..., HeadraceBackend]) -> HeadraceBackend:
    tasks.seen.clear()
    tasks.failures_left[0] = 0
    return use_tasks()


async def _run_until(backend: HeadraceBackend, condition: Callable[[], bool], concurrency: int) -> None:
    worker = backend.app.worker(concurrency=concurrency, queues=tuple(backend.queues))
    async with worker.running():
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)


def run_until(backend: HeadraceBackend, condition: Callable[[], bool], concurrency: int = 4) -> None:
    """Run a worker of the backend, in this process, until a condition is true."""
    asyncio.run(_run_until(backend, condition, concurrency))


def run_all(backend: HeadraceBackend, *results: Any, concurrency: int = 4) -> None:
    """Run a worker until these results have finished, and refresh them."""

    def are_finished() -> bool:
        for result in results:
            if not result.is_finished:
                result.refresh()
        return all(result.is_finished for result in results)

    run_until(backend, are_finished, concurrency)


def wait_async(function: Callable[[], Awaitable[Any]]) -> Any:
    async def call() -> Any:
        return await function()

    return asyncio.run(call())

"""The demo application that does not use Headrace: the contents of its stream."""

from __future__ import annotations

import asyncio

from headrace.cli.demo_stream import (
    DEAD_CONSUMER,
    DEAD_CONSUMER_ENTRIES,
    GROUP,
    STREAM,
    WAVE_TICKS,
    WORKERS,
    DemoStreamApp,
)
from headrace.streams.consumers import read_consumers
from headrace.streams.depth import read_depth
from headrace.valkey.connect import Valkey, connect_async


async def steps(url: str, *ticks: int) -> None:
    async with connect_async(url) as client:
        jobs = DemoStreamApp(client)
        for tick in ticks:
            await jobs.step(tick)


def pending(client: Valkey) -> dict[str, int]:
    return {each.name: each.pending for each in read_consumers(client, STREAM, GROUP, stuck_after_ms=0).consumers}


def test_its_backlog_comes_and_goes_and_a_worker_is_lost(valkey: Valkey, valkey_url: str) -> None:
    asyncio.run(steps(valkey_url, *range(WAVE_TICKS)))
    high = read_depth(valkey, STREAM, GROUP).undelivered
    assert high is not None
    assert high > 50
    assert pending(valkey) == {DEAD_CONSUMER: DEAD_CONSUMER_ENTRIES, **dict.fromkeys(WORKERS, 1)}
    asyncio.run(steps(valkey_url, *range(WAVE_TICKS, 2 * WAVE_TICKS)))
    low = read_depth(valkey, STREAM, GROUP).undelivered
    assert low is not None
    assert low < 10
    assert (
        pending(valkey)[DEAD_CONSUMER] == DEAD_CONSUMER_ENTRIES
    )  # the dead consumer still has its entries, and no more


def test_it_begins_again_where_its_stream_was_deleted(valkey: Valkey, valkey_url: str) -> None:
    async def deleted() -> None:
        async with connect_async(valkey_url) as client:
            jobs = DemoStreamApp(client)
            await jobs.step(0)
            valkey.delete(STREAM)
            for tick in range(1, 4):
                await jobs.step(tick)

    asyncio.run(deleted())
    assert pending(valkey)[DEAD_CONSUMER] == DEAD_CONSUMER_ENTRIES

"""A producer: sends jobs of one library as commands on standard input request, one line of JSON each.

    python -m bench.peer_programs.produce MODULE

MODULE is a module of this package. It defines `send(task, payload)` or `send_async(task, payload)`, or both, and, if
the library can send many jobs in one call, `send_many(task, payloads)` or `send_many_async(task, payloads)`. An
optional asynchronous context manager `opened()` is held while the producer runs.

A reply is one line of JSON: jobs per second by the way in which they were sent, for example `{"threads": 4200.0}`;
empty if nothing is measured. The program ends at the end of its input.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from bench.peer_programs.meter import make_payload

BULK = 500
THREADS = 16
AWAITS = 50
WARM_UP = 200

Send = Callable[[str, str], object]
SendAsync = Callable[[str, str], Awaitable[object]]
SendJobs = Callable[[str, int], Awaitable[None]]


class Producer:
    """Sends jobs through the functions of one module."""

    def __init__(self, module: Any) -> None:
        self.send: Send | None = getattr(module, "send", None)
        self.send_async: SendAsync | None = getattr(module, "send_async", None)
        self.send_many: Callable[[str, list[str]], object] | None = getattr(module, "send_many", None)
        self.send_many_async: Callable[[str, list[str]], Awaitable[object]] | None = getattr(
            module, "send_many_async", None
        )

    async def send_one(self, task: str, payload: str) -> None:
        if self.send is not None:
            self.send(task, payload)
        else:
            assert self.send_async is not None
            await self.send_async(task, payload)

    async def send_singles(self, task: str, jobs: int) -> None:
        """Send jobs one by one, each after the reply to the one before."""
        for _ in range(jobs):
            await self.send_one(task, make_payload())

    async def send_bulk(self, task: str, jobs: int) -> None:
        for start in range(0, jobs, BULK):
            payloads = [make_payload() for _ in range(min(BULK, jobs - start))]
            if self.send_many is not None:
                self.send_many(task, payloads)
            else:
                assert self.send_many_async is not None
                await self.send_many_async(task, payloads)

    async def send_from_threads(self, task: str, jobs: int) -> None:
        send = self.send
        assert send is not None

        def send_share(share: int) -> None:
            for _ in range(share):
                send(task, make_payload())

        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(send_share, share) for share in split(jobs, THREADS)]:
                done.result()

    async def send_from_awaits(self, task: str, jobs: int) -> None:
        send = self.send_async
        assert send is not None

        async def send_share(share: int) -> None:
            for _ in range(share):
                await send(task, make_payload())

        await asyncio.gather(*(send_share(share) for share in split(jobs, AWAITS)))

    async def send_spaced(self, task: str, jobs: int, gap_s: tuple[float, float], seed: int) -> None:
        """Send jobs at random distances."""
        chance = random.Random(seed)
        for _ in range(jobs):
            await asyncio.sleep(chance.uniform(*gap_s))
            await self.send_one(task, make_payload())

    def list_concurrent(self) -> dict[str, SendJobs]:
        """Return the ways in which jobs can be sent concurrently."""
        ways: dict[str, SendJobs] = {}
        if self.send is not None:
            ways["threads"] = self.send_from_threads
        if self.send_async is not None:
            ways["awaits"] = self.send_from_awaits
        return ways

    def has_bulk(self) -> bool:
        return self.send_many is not None or self.send_many_async is not None

    async def obey(self, do: str, task: str, jobs: int, **options: Any) -> dict[str, float]:
        """Run one command and return the reply."""
        ways: dict[str, SendJobs] = {}
        match do:
            case "single":
                ways = {"single": self.send_singles}
            case "concurrent":
                ways = self.list_concurrent()
            case "bulk" if self.has_bulk():
                ways = {"bulk": self.send_bulk}
            case "fill":
                fill = self.send_bulk if self.has_bulk() else next(iter(self.list_concurrent().values()))
                await fill(task, jobs)
            case "pickup":
                low, high = options["gap_s"]
                await self.send_spaced(task, jobs, (low, high), options["seed"])
            case _:
                pass  # the library cannot send in bulk
        return {way: await measure_rate(send, task, jobs) for way, send in ways.items()}


def split(jobs: int, parts: int) -> list[int]:
    """Return the sizes of parts that differ by one at most."""
    return [jobs // parts + (number < jobs % parts) for number in range(parts)]


async def measure_rate(send: SendJobs, task: str, jobs: int) -> float:
    """Return the jobs per second, after some that open connections and load scripts."""
    await send(task, WARM_UP)
    started = time.perf_counter()
    await send(task, jobs)
    return jobs / (time.perf_counter() - started)


async def serve(name: str) -> None:
    module = importlib.import_module(f"bench.peer_programs.{name}")
    producer = Producer(module)
    opened: AbstractAsyncContextManager[object] = module.opened() if hasattr(module, "opened") else nullcontext()
    async with opened:
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await producer.obey(**json.loads(line))), flush=True)


def main() -> None:
    name = sys.argv[1]
    factory: Any = None
    if not name.startswith("headrace"):
        try:
            import uvloop  # pyright: ignore[reportMissingImports]  # is in the environment of the peers

            factory = uvloop.new_event_loop
        except ImportError:
            pass  # dramatiq in the environment of the repository
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(name))


if __name__ == "__main__":
    main()

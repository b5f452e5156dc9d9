"""Which concurrent enqueue calls share a request, and who gets which outcome. The server is a function of the test."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence

import pytest

from headrace.errors import QueueClosed, QueueFull, QueueUnavailable
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.coalesce import (
    MAX_MERGED_BYTES,
    MAX_MERGED_JOBS,
    MIN_SPLIT_CALLS,
    AsyncCoalescer,
    AsyncPending,
    EnqueueCall,
    ThreadCoalescer,
    ThreadPending,
    can_merge,
    take_batch,
)
from headrace.queue.scripts import EnqueueArgs, EnqueueResult, Stubs
from tests.conftest import wait_until

REF, OTHER = QueueRef("acme", "shop", "prod", "emails"), QueueRef("acme", "shop", "prod", "other")
STUBS = Stubs(1, 1000)


def make_call(*ids: str, ref: QueueRef = REF, payload: bytes = b"") -> EnqueueCall:
    return STUBS.enqueue(ref, [NewJob("t", payload, job_id) for job_id in ids])


def list_ids(call: EnqueueCall) -> list[str]:
    return [str(job_id) for job_id in call.args[EnqueueArgs.FIRST_JOB :: 7]]


class FakeServer:
    """Accepts each id once, up to `max_jobs`, and refuses calls as a whole."""

    def __init__(self, max_jobs: int = 10**6) -> None:
        self.calls: list[list[str]] = []
        self.known: list[str] = []
        self.max_jobs = max_jobs
        self.error: Exception | None = None

    def answer(self, call: EnqueueCall) -> EnqueueResult:
        ids = list_ids(call)
        self.calls.append(ids)
        if self.error:
            raise self.error
        if len(set(self.known) | set(ids)) > self.max_jobs:
            raise QueueFull
        answers = [int(job_id not in self.known) for job_id in ids]
        self.known += [job_id for job_id, answer in zip(ids, answers, strict=True) if answer]
        return EnqueueResult(1, 1, 1000.0, answers)


# Which calls are merged


def make_waiting(*calls: EnqueueCall) -> deque[AsyncPending]:
    loop = asyncio.new_event_loop()
    try:
        return deque(AsyncPending(call, loop.create_future()) for call in calls)
    finally:
        loop.close()


def batch_sizes(*calls: EnqueueCall) -> list[int]:
    waiting, sizes = make_waiting(*calls), list[int]()
    while waiting:
        sizes.append(len(take_batch(waiting)))
    return sizes


def test_waiting_calls_are_one_batch() -> None:
    assert batch_sizes(make_call("a"), make_call("b", "c"), make_call("d")) == [3]


def test_an_id_that_occurs_again_begins_another_batch() -> None:
    assert batch_sizes(make_call("a"), make_call("b"), make_call("a"), make_call("c")) == [2, 2]
    assert batch_sizes(make_call("a", "a"), make_call("b")) == [2]


def test_batches_are_bounded_in_jobs_and_bytes() -> None:
    half = [str(number) for number in range(MAX_MERGED_JOBS // 2)]
    assert batch_sizes(make_call(*half), make_call(*(f"x{n}" for n in half)), make_call("y")) == [2, 1]
    large = bytes(MAX_MERGED_BYTES // 2)
    assert batch_sizes(*(make_call(str(n), payload=large) for n in range(5))) == [2, 2, 1]
    too_many = [str(number) for number in range(MAX_MERGED_JOBS + 1)]
    assert batch_sizes(make_call("y"), make_call(*too_many), make_call("z")) == [1, 1, 1]


def test_calls_with_other_flags_are_not_merged() -> None:
    without_bodies = STUBS.enqueue(REF, [NewJob("t", id="b")], with_bodies=False)
    assert batch_sizes(make_call("a"), without_bodies, make_call("c")) == [1, 1, 1]
    assert not can_merge(STUBS.enqueue(REF, [NewJob("t")], counted=True))
    assert not can_merge(STUBS.enqueue(REF, [NewJob("t", delay_ms=True)]))
    assert can_merge(make_call("a"))


# asyncio


class AsyncServer(FakeServer):
    def __init__(self, max_jobs: int = 10**6, *, in_order: bool = False) -> None:
        super().__init__(max_jobs)
        self.gate = asyncio.Event()
        self.gate.set()
        self.coalescer = AsyncCoalescer(self.run, in_order=in_order)

    async def run(self, call: EnqueueCall) -> EnqueueResult:
        await asyncio.sleep(0)
        await self.gate.wait()
        return self.answer(call)

    async def start(self, *calls: EnqueueCall) -> list[asyncio.Task[EnqueueResult]]:
        """Start calls, the first of which is in flight alone; the others wait for it."""
        self.gate.clear()
        tasks = [asyncio.create_task(self.coalescer.run(call)) for call in calls]
        await settle()
        return tasks


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def gather(tasks: Sequence[asyncio.Task[EnqueueResult]]) -> list[Sequence[int] | type[BaseException]]:
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    return [type(found) if isinstance(found, BaseException) else list(found.answers) for found in outcomes]


def test_calls_that_arrive_while_one_is_in_flight_share_the_next() -> None:
    async def check() -> None:
        server = AsyncServer()
        tasks = await server.start(make_call("a"), make_call("b"), make_call("c", "d"), make_call("x", ref=OTHER))
        server.gate.set()
        assert await gather(tasks) == [[1], [1], [1, 1], [1]]
        assert server.calls == [["a"], ["x"], ["b", "c", "d"]]
        await server.coalescer.run(make_call("e"))
        await server.coalescer.run(make_call("f"))
        assert server.calls[3:] == [["e"], ["f"]]

    asyncio.run(check())


def test_callers_in_a_loop_join_the_next_request_together() -> None:
    async def check() -> None:
        server = AsyncServer()

        async def produce(name: str) -> None:
            for number in range(10):
                await server.coalescer.run(make_call(f"{name}{number}"))

        await asyncio.gather(*map(produce, "abcdefgh"))
        assert len(server.known) == 80
        assert len(server.calls) <= 12
        for name in "abcdefgh":  # each producer's jobs are in its order
            assert [job_id for job_id in server.known if job_id[0] == name] == [f"{name}{n}" for n in range(10)]

    asyncio.run(check())


def test_many_waiting_calls_are_two_requests_if_the_server_answers_in_order() -> None:
    async def check() -> None:
        server = AsyncServer(in_order=True)
        few = [make_call(f"few{number}") for number in range(MIN_SPLIT_CALLS)]
        many = [make_call(f"many{number:02}") for number in range(MIN_SPLIT_CALLS + 1)]
        for calls, sizes in ((few, [1, MIN_SPLIT_CALLS - 1]), (many, [1, MIN_SPLIT_CALLS // 2, MIN_SPLIT_CALLS // 2])):
            tasks = await server.start(*calls)
            server.gate.set()
            assert await gather(tasks) == [[1]] * len(calls)
            await settle()
            assert list(map(len, server.calls)) == sizes
            assert [job_id for ids in server.calls for job_id in ids] == [list_ids(call)[0] for call in calls]
            server.calls.clear()
        assert server.coalescer._waiting == server.coalescer._in_flight == {}  # pyright: ignore[reportPrivateUsage]

    asyncio.run(check())


def test_callers_in_a_loop_keep_two_requests_in_flight() -> None:
    async def check() -> None:
        server = AsyncServer(max_jobs=2000, in_order=True)

        async def produce(name: int) -> None:
            for number in range(50):
                await server.coalescer.run(make_call(f"{name}-{number}"))

        outcomes = await asyncio.gather(*(produce(name) for name in range(50)), return_exceptions=True)
        assert {type(each) for each in outcomes} <= {type(None), QueueFull}
        assert len(server.known) == len(set(server.known)) == 2000
        for name in range(50):
            mine = [job_id for job_id in server.known if job_id.startswith(f"{name}-")]
            assert mine == [f"{name}-{number}" for number in range(len(mine))]
        await server.coalescer.drain()

    asyncio.run(check())


def test_a_refused_batch_is_sent_call_by_call() -> None:
    async def check() -> None:
        server = AsyncServer(max_jobs=4)
        tasks = await server.start(make_call("a"), make_call("b"), make_call("c", "d", "e"), make_call("f"))
        server.gate.set()
        assert await gather(tasks) == [[1], [1], QueueFull, [1]]
        assert server.known == ["a", "b", "f"]

    asyncio.run(check())


def test_each_caller_gets_its_own_error() -> None:
    async def check() -> None:
        for error in (QueueClosed(), QueueUnavailable("gone")):
            server = AsyncServer()
            tasks = await server.start(*(make_call(str(number)) for number in range(4)))
            server.error = error
            server.gate.set()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in found] == [type(error)] * 4
            assert [str(each) for each in found] == [str(error)] * 4
            if isinstance(error, QueueUnavailable):
                assert len(set(map(id, found))) == 4
                assert len(server.calls) == 2  # its outcome is unknown: callers repeat it, not the client
            server.error = None
            assert (await server.coalescer.run(make_call("again"))).answers == [1]

    asyncio.run(check())


def test_the_same_id_in_two_calls_is_accepted_once() -> None:
    async def check() -> None:
        server = AsyncServer()
        tasks = await server.start(make_call("x"), make_call("a"), make_call("a"), make_call("b", "a"), make_call("x"))
        server.gate.set()
        assert await gather(tasks) == [[1], [1], [0], [1, 0], [0]]

    asyncio.run(check())


def test_a_cancelled_caller_does_not_affect_the_others() -> None:
    async def check() -> None:
        server = AsyncServer()
        tasks = await server.start(*(make_call(name) for name in "abcde"))
        tasks[2].cancel()  # it waits, so it is never sent
        await settle()
        tasks[0].cancel()  # in flight
        await settle()  # now b, d and e are in flight
        tasks[3].cancel()
        server.gate.set()
        assert await gather(tasks) == [asyncio.CancelledError, [1], asyncio.CancelledError, asyncio.CancelledError, [1]]
        assert server.calls == [["b", "d", "e"]]

    asyncio.run(check())


def test_draining_waits_for_calls_in_flight_and_those_that_wait() -> None:
    async def check() -> None:
        server = AsyncServer()
        tasks = await server.start(make_call("a"), make_call("b"), make_call("c"))
        draining = asyncio.create_task(server.coalescer.drain())
        await settle()
        assert not draining.done()
        server.gate.set()
        await draining
        assert all(task.done() for task in tasks)
        await server.coalescer.drain()  # there is nothing to wait for
        assert (await server.coalescer.run(make_call("d"))).answers == [1]

    asyncio.run(check())


def test_event_loops_do_not_wait_for_each_other() -> None:
    server, gates = FakeServer(), dict[str, asyncio.Event]()

    async def run(call: EnqueueCall) -> EnqueueResult:
        if gate := gates.get(list_ids(call)[0]):
            await gate.wait()
        return server.answer(call)

    coalescer = AsyncCoalescer(run)

    async def call(job_id: str) -> Sequence[int]:
        return (await coalescer.run(make_call(job_id))).answers

    async def check() -> None:
        gates["stuck"] = asyncio.Event()
        stuck = asyncio.create_task(call("stuck"))
        await settle()
        assert await asyncio.to_thread(lambda: asyncio.run(call("elsewhere"))) == [1]
        gates["stuck"].set()
        assert await stuck == [1]

    asyncio.run(check())
    assert asyncio.run(call("later")) == [1]


# Threads


class ThreadServer(FakeServer):
    def __init__(self, max_jobs: int = 10**6) -> None:
        super().__init__(max_jobs)
        self.gate = threading.Event()
        self.coalescer = ThreadCoalescer(self.run)
        self.outcomes: dict[int, Sequence[int] | BaseException] = {}

    def run(self, call: EnqueueCall) -> EnqueueResult:
        self.gate.wait()
        return self.answer(call)

    def start(self, *calls: EnqueueCall) -> list[threading.Thread]:
        """Start calls, the first of which is in flight alone; the others wait for it, in their order."""
        self.gate.clear()
        threads: list[threading.Thread] = []
        for number, call in enumerate(calls):
            threads.append(threading.Thread(target=self._call, args=(number, call), daemon=True))
            threads[-1].start()
            wait_until(lambda number=number: self._count_waiting() == number, "the call waits")
        return threads

    def _count_waiting(self) -> int:
        lanes = self.coalescer._waiting  # pyright: ignore[reportPrivateUsage]
        return sum(map(len, lanes.values())) if lanes else -1

    def _call(self, number: int, call: EnqueueCall) -> None:
        try:
            self.outcomes[number] = list(self.coalescer.run(call).answers)
        except BaseException as error:
            self.outcomes[number] = error

    def finish(self, threads: Sequence[threading.Thread]) -> list[Sequence[int] | type[BaseException]]:
        self.gate.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        found = [self.outcomes[number] for number in range(len(threads))]
        return [type(each) if isinstance(each, BaseException) else each for each in found]


def test_threads_share_requests() -> None:
    server = ThreadServer()
    assert server.finish(server.start(*(make_call(name) for name in "abcdef"))) == [[1]] * 6
    assert server.calls == [["a"], list("bcdef")]
    assert server.coalescer.run(make_call("g")).answers == [1]


def test_threads_get_their_own_outcomes() -> None:
    server = ThreadServer(max_jobs=4)
    threads = server.start(make_call("a"), make_call("b"), make_call("c", "d", "e"), make_call("b"), make_call("f"))
    assert server.finish(threads) == [[1], [1], QueueFull, [0], [1]]
    server = ThreadServer()
    threads = server.start(*(make_call(name) for name in "abcd"))
    server.error = QueueUnavailable("gone")
    assert server.finish(threads) == [QueueUnavailable] * 4
    assert len(set(map(id, server.outcomes.values()))) == 4


def test_an_interrupted_thread_leaves_the_others_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waiting thread would send the calls of all."""
    server = ThreadServer()
    send_batch = server.coalescer._send_batch  # pyright: ignore[reportPrivateUsage]
    interrupts = iter([True])

    def interrupt_first(batch: Sequence[ThreadPending]) -> None:
        if next(interrupts, False):
            raise KeyboardInterrupt
        send_batch(batch)

    monkeypatch.setattr(server.coalescer, "_send_batch", interrupt_first)
    threads = server.start(*(make_call(name) for name in "abcd"))
    assert server.finish(threads) == [[1], KeyboardInterrupt, [1], [1]]
    assert server.calls == [["a"], ["c", "d"]]


def test_a_thread_interrupted_while_it_sends_leaves_an_unknown_outcome() -> None:
    server = ThreadServer()
    threads = server.start(*(make_call(name) for name in "abcd"))
    answer = server.answer

    def interrupt_batch(call: EnqueueCall) -> EnqueueResult:
        if len(list_ids(call)) > 1:
            raise KeyboardInterrupt
        return answer(call)

    server.answer = interrupt_batch
    assert server.finish(threads) == [[1], KeyboardInterrupt, QueueUnavailable, QueueUnavailable]
    assert server.coalescer.run(make_call("e")).answers == [1]


def test_closing_waits_for_the_calls_of_other_threads() -> None:
    server = ThreadServer()
    threads = server.start(*(make_call(name) for name in "abc"))
    drained = threading.Event()

    def drain() -> None:
        server.coalescer.drain()
        drained.set()

    threading.Thread(target=drain, daemon=True).start()
    wait_until(lambda: server.coalescer._draining, "the client is closing")  # pyright: ignore[reportPrivateUsage]
    assert not drained.is_set()
    assert server.finish(threads) == [[1]] * 3
    assert drained.wait(60)

"""Each test is a bug that the model (tests/model) or its development found: it failed before the fix."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TypeVar

import pytest

from headrace.errors import InvalidJob
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, SyncClient
from headrace.queue.registry import WorkerRegistration, read_workers
from headrace.queue.scripts import DeadFilter, RedriveResult, Stubs
from headrace.queue.state import QueueState, read_states
from headrace.queue.tasks import TaskRegistry
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import ScriptCall, run

T = TypeVar("T")

LEASE_MS = 60_000
A, B = QueueRef("o", "p", "e", "a"), QueueRef("o", "p", "e", "b")
SENT = LeasedJob(A, "id", "send", b"", 1, 1, "lease", 0, 0)


class Shard:
    def __init__(self, valkey: Valkey) -> None:
        self.valkey = valkey
        self.stubs = Stubs(1, 1_000_000)

    def run(self, call: ScriptCall[T]) -> T:
        return run(self.valkey, call)

    def enqueue(self, ref: QueueRef, *jobs: NewJob) -> None:
        assert all(self.run(self.stubs.enqueue(ref, jobs)).accepted)

    def dequeue(self, n: int, *queues: str) -> list[LeasedJob]:
        return self.run(self.stubs.dequeue(0, n, LEASE_MS, queues))

    def bury(self, ref: QueueRef, *ids: str) -> None:
        """Dead jobs, one after the other in this order."""
        for job_id in ids:
            self.enqueue(ref, NewJob("t", b"12", id=job_id))
            assert self.run(self.stubs.bury(0, [(job, "boom") for job in self.dequeue(1)])) == [True]

    def redrive(self, ref: QueueRef, which: DeadFilter) -> RedriveResult:
        redriven = self.run(self.stubs.redrive(ref, which, 10))
        assert redriven is not None
        return redriven

    def state(self, ref: QueueRef) -> QueueState:
        return next(state for state in read_states(self.valkey, 1) if state.ref == ref)


@pytest.fixture
def shard(valkey: Valkey) -> Shard:
    return Shard(valkey)


def test_jobs_of_negative_priority_are_served_when_nothing_else_waits(shard: Shard) -> None:
    shard.enqueue(A, NewJob("t", id="low", priority=-1), NewJob("t", id="lower", priority=-2))
    assert [job.id for job in shard.dequeue(5)] == ["low", "lower"]


def test_redriving_an_unknown_queue_writes_nothing(shard: Shard) -> None:
    assert shard.run(shard.stubs.redrive(A, DeadFilter(), 10)) is None
    assert shard.valkey.dbsize() == 0


def test_an_id_named_twice_is_redriven_once(shard: Shard) -> None:
    shard.bury(A, "1")
    redriven = shard.redrive(A, DeadFilter(ids=["1", "1"]))
    assert (redriven.moved, redriven.examined) == (1, 1)
    state = shard.state(A)
    assert (state.depth, state.bytes, state.odometers["redrive"]) == (1, 2, 1)


def test_redrive_by_id_heeds_the_time_of_burial(shard: Shard) -> None:
    shard.bury(A, "1")
    assert shard.redrive(A, DeadFilter(ids=["1"], buried_until_ms=1)).moved == 0
    assert shard.state(A).dead == 1


def test_redriven_jobs_keep_the_order_they_are_redriven_in(shard: Shard) -> None:
    shard.bury(A, "z", "y", "x")
    assert shard.redrive(A, DeadFilter(ids=["z", "x", "y"])).moved == 3
    assert [job.id for job in shard.dequeue(3)] == ["z", "x", "y"]


def test_a_queue_name_that_was_served_long_is_not_starved_by_a_new_one(shard: Shard) -> None:
    """Turns are counted per queue name from zero, so a name that had jobs all along was behind any new name."""
    shard.enqueue(A, *(NewJob("t") for _ in range(400)))
    for _ in range(20):
        shard.dequeue(10, "a")
    shard.enqueue(B, *(NewJob("t") for _ in range(200)))
    served = Counter(job.queue.queue for _ in range(100) for job in shard.dequeue(1, "a", "b"))
    assert min(served["a"], served["b"]) > 20  # drawn with equal weight: below 20 of 100 once in 10⁹ runs


def test_a_job_reported_twice_in_one_call_is_done_once(shard: Shard) -> None:
    shard.enqueue(A, NewJob("t", b"12"))
    [job] = shard.dequeue(1)
    assert shard.run(shard.stubs.ack(0, [(job, 1), (job, 1)])) == [True, False]
    state = shard.state(A)
    assert (state.running, state.bytes, state.odometers["ack"]) == (0, 0, 1)


def test_an_error_with_half_a_character_can_be_reported(shard: Shard) -> None:
    """It ended the worker that met it, and then the next one."""
    shard.enqueue(A, NewJob("t", b"12", id="x"))
    [job] = shard.dequeue(1)
    assert shard.run(shard.stubs.nack(0, [(job, 0, "no file \udcff")])) == [1]
    info = shard.run(shard.stubs.get(A.environment, "x"))
    assert info is not None
    assert info.error == "no file \\udcff"


@pytest.mark.parametrize(("count", "size"), [(10_001, 0), (257, 2**20)])
def test_a_call_that_is_too_large_for_the_server_is_refused(
    valkey: Valkey, valkey_url: str, count: int, size: int
) -> None:
    """It kept Valkey from everybody else for seconds, or broke its protocol, and was sent again and again for that."""
    job = NewJob("t", bytes(size))
    with SyncClient(valkey_url) as client, pytest.raises(InvalidJob, match=r"Nothing was written.*several calls"):
        client.enqueue_many(A, [job] * count)
    assert valkey.dbsize() == 0


def test_workers_are_listed_whatever_their_clocks_say(
    valkey: Valkey, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers whose clocks were minutes behind that of the reader were taken for gone, and removed."""
    tasks = TaskRegistry("mail:1")
    tasks.task("send")(lambda job: None)

    async def report() -> None:
        async with Client(valkey_url) as client:
            registry = WorkerRegistration(client.redis, "w")
            registry.record_served(SENT)
            await registry.report(tasks, [])

    with monkeypatch.context() as behind:
        behind.setattr("time.time_ns", lambda: 0)
        asyncio.run(report())
    assert read_workers(valkey).plugins == {(SENT.queue.environment, "send"): {"mail:1"}}
    valkey.delete(keys.worker("w"))  # as its end does
    assert read_workers(valkey).plugins == {}
    assert valkey.zcard(keys.WORKERS) == 0

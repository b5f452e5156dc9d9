"""Decisions of client calls that take several steps, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import (
    ColdFull,
    CommitUnclear,
    InvalidLimit,
    InvalidName,
    QuotaExceeded,
    SpillRefused,
    UnknownQueue,
)
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.client import Client, SyncClient
from headrace.queue.operations import (
    DEAD_JOBS_PAGE,
    MAX_TRIES,
    SEND_EPOCH_AFTER,
    DeadJobsOperation,
    EnqueueOperation,
)
from headrace.queue.overflow import EpochClosed
from headrace.queue.scripts import DeadFilter, EnqueueResult, RedriveResult, Stubs

REF = QueueRef("acme", "shop", "prod", "emails")
STUBS = Stubs(1, 1000)
FAR_MS = 60_000
NO_SERVER = "redis://127.0.0.1:1/0"
WITH_BODIES, COUNTED, COLD_EPOCH = 13, 14, 12  # positions in the arguments of enqueue.lua


def start(jobs: int, cold_queues: set[QueueRef] | None = None) -> EnqueueOperation:
    new = [NewJob("t", b"body", id=str(number)) for number in range(jobs)]
    return EnqueueOperation(STUBS, REF, new, FAR_MS, set() if cold_queues is None else cold_queues)


def reply(*answers: int) -> EnqueueResult:
    return EnqueueResult(1, 1, 1000.0, answers)


def test_a_call_whose_jobs_fit_ends_with_its_first_reply() -> None:
    operation = start(2)
    operation.build_call()
    operation.apply(reply(1, 0))
    assert (operation.accepted, list(operation.remaining), list(operation.to_spill)) == ([True, False], [], [])


def test_jobs_that_do_not_fit_are_spilled_in_their_order() -> None:
    cold_queues: set[QueueRef] = set()
    operation = start(4, cold_queues)
    operation.build_call()
    operation.apply(reply(1, 2, 0, 2))
    assert [job.new.id for job in operation.to_spill] == ["1", "3"]
    assert [job.due_ms for job in operation.to_spill] == [1000 + 1 / 4096, 1000 + 3 / 4096]
    assert cold_queues == {REF}
    operation.apply_stored([True, False])
    assert (operation.accepted, list(operation.remaining)) == ([True, True, False, False], [])


def test_bodies_are_sent_to_a_queue_in_cold_mode_only_if_it_has_space() -> None:
    cold_queues = {REF}
    operation = start(3, cold_queues)
    assert operation.build_call().args[WITH_BODIES] == 0
    operation.apply(reply(3, 0, 2))
    assert cold_queues == set()
    again = operation.build_call()
    assert (again.args[WITH_BODIES], again.args[COUNTED]) == (1, 1)
    operation.apply(reply(1, 1))
    assert operation.accepted == [True, False, True]


def test_the_epoch_of_postgresql_is_sent_after_some_tries_and_the_call_ends_after_many() -> None:
    operation, sent, waits = start(1), list[object](), list[float]()
    for _ in range(MAX_TRIES):
        sent.append(operation.build_call().args[COLD_EPOCH])
        operation.apply(reply(2))
        waits.append(operation.retry_after_s(EpochClosed(7)))
    assert sent == [0] * (SEND_EPOCH_AFTER + 1) + [7] * (MAX_TRIES - SEND_EPOCH_AFTER - 1)
    assert waits == sorted(waits)
    assert waits[-1] == 0.2
    with pytest.raises(SpillRefused, match=r"1 of 1 jobs .* kept switching"):
        operation.build_call()


@pytest.mark.parametrize(
    ("error", "message"), [(ColdFull(), "were refused"), (CommitUnclear(), "unknown whether PostgreSQL stored them")]
)
def test_a_failed_spill_names_the_accepted_jobs(error: ColdFull | CommitUnclear, message: str) -> None:
    operation = start(3)
    operation.apply(reply(1, 2, 2))
    with pytest.raises(SpillRefused, match=f"2 of 3 jobs .*{message}.* 1 were accepted") as refused:
        operation.raise_refused(error)
    assert refused.value.accepted == [True, False, False]
    assert refused.value.__cause__ is error


def test_a_quota_that_refuses_every_job_is_raised_as_it_is() -> None:
    error = QuotaExceeded("warm_jobs", "the environment", 1, 1)
    with pytest.raises(QuotaExceeded):
        start(2).raise_refused(error)
    operation = start(2)
    operation.apply(reply(1, 2))
    with pytest.raises(SpillRefused):
        operation.raise_refused(error)


def test_dead_jobs_are_processed_page_by_page_past_those_that_stay() -> None:
    operation = DeadJobsOperation(REF, DeadFilter(), STUBS.redrive)
    operation.apply(RedriveResult(moved=100, examined=DEAD_JOBS_PAGE, remaining=3))
    assert not operation.is_done
    assert operation.build_call().args[5] == DEAD_JOBS_PAGE - 100  # jobs to skip
    operation.apply(RedriveResult(moved=1, examined=2, remaining=1))
    assert operation.is_done
    assert (operation.count, operation.count.remaining) == (101, 4)
    with pytest.raises(UnknownQueue):
        DeadJobsOperation(REF, DeadFilter(), STUBS.redrive).apply(None)


BAD_QUEUE, BAD_ENV = QueueRef("acme", "shop", "prod", "a\nb"), EnvRef("acme", "", "prod")
INVALID: dict[str, tuple[Callable[[SyncClient], object], Callable[[Client], Awaitable[object]], type[Exception]]] = {
    "enqueue": (lambda c: c.enqueue(BAD_QUEUE, NewJob("t")), lambda c: c.enqueue(BAD_QUEUE, NewJob("t")), InvalidName),
    "cancel": (lambda c: c.cancel(BAD_ENV, "1"), lambda c: c.cancel(BAD_ENV, "1"), InvalidName),
    "get": (lambda c: c.get(REF.environment, ""), lambda c: c.get(REF.environment, ""), InvalidName),
    "pause": (lambda c: c.pause(BAD_QUEUE), lambda c: c.pause(BAD_QUEUE), InvalidName),
    "limits": (lambda c: c.limits(BAD_ENV, 1), lambda c: c.limits(BAD_ENV, 1), InvalidName),
    "limits of a queue": (lambda c: c.limits(REF, -1), lambda c: c.limits(REF, -1), InvalidLimit),
    "caps": (lambda c: c.caps(REF, 0, 1), lambda c: c.caps(REF, 0, 1), InvalidLimit),
    "redrive": (lambda c: c.redrive(BAD_QUEUE), lambda c: c.redrive(BAD_QUEUE), InvalidName),
    "remove_dead": (lambda c: c.remove_dead(BAD_QUEUE), lambda c: c.remove_dead(BAD_QUEUE), InvalidName),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_arguments_are_refused_without_a_server(name: str) -> None:
    call, call_async, error = INVALID[name]
    with SyncClient(NO_SERVER) as client, pytest.raises(error):
        call(client)

    async def run() -> None:
        async with Client(NO_SERVER) as client:
            with pytest.raises(error):
                await call_async(client)

    asyncio.run(run())

"""Headrace in an afternoon. Read from top to bottom: each test is one thing to know, and the code in it runs.

A queue belongs to an environment of a project of an organisation. Producers enqueue jobs, workers run them. Everything
below uses the synchronous client; `headrace.Client` has the same methods, awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from headrace import Bury, Client, DeadFilter, JobState, LeasedJob, NewJob, QueueRef, SyncClient, Tasks
from headrace.errors import InvalidJob, QueueClosed
from headrace.queue.state import read_states
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests.conftest import wait_until

EMAILS = QueueRef(org="acme", project="shop", env="prod", queue="emails")
ACME = EMAILS.environment


@pytest.fixture
def queue(valkey_url: str) -> Iterator[SyncClient]:
    with SyncClient(valkey_url) as client:
        yield client


def work(url: str, tasks: Tasks, until: Callable[[], object]) -> None:
    """What `headrace worker app:tasks` does, until something happened."""

    async def run() -> None:
        stop = asyncio.Event()
        async with Client(url) as client:
            options = WorkerOptions(poll_s=0.01, retry_base_s=0.001)
            worker = asyncio.create_task(Worker(client, tasks, options).run_forever(stop))
            await asyncio.to_thread(wait_until, until, "the jobs ran")
            stop.set()
            await worker

    asyncio.run(run())


def is_dead(queue: SyncClient, job_id: str) -> bool:
    job = queue.get(ACME, job_id)
    return job is not None and job.state == JobState.DEAD


def test_a_job_is_a_task_and_a_payload(queue: SyncClient, valkey_url: str) -> None:
    """The payload is bytes: encode it as you like. The worker looks the task up by name."""
    queue.enqueue(EMAILS, NewJob("send_email", b'{"to": "ann@example.com"}'))

    tasks, sent = Tasks(), list[bytes]()

    @tasks.task()
    async def send_email(job: LeasedJob) -> None:
        sent.append(job.payload)

    assert send_email
    work(valkey_url, tasks, until=lambda: sent)
    assert sent == [b'{"to": "ann@example.com"}']


def test_the_same_id_twice_is_one_job(queue: SyncClient) -> None:
    """Choose the id yourself and a retry after a lost answer is safe. Otherwise it is a UUID that sorts by time."""
    assert queue.enqueue(EMAILS, NewJob("send_email", id="order-4711-confirmation")) is True
    assert queue.enqueue(EMAILS, NewJob("send_email", id="order-4711-confirmation")) is False


def test_many_jobs_go_in_one_call(queue: SyncClient) -> None:
    """All of them are accepted or, if one is refused, none is."""
    assert queue.enqueue_many(EMAILS, [NewJob("send_email") for _ in range(1000)]) == [True] * 1000
    with pytest.raises(InvalidJob, match="Nothing was written"):
        queue.enqueue_many(EMAILS, [NewJob("send_email"), NewJob("send_email", priority=9000)])


def test_a_job_can_wait_hurry_and_give_up(queue: SyncClient) -> None:
    """Later (by the server's clock), sooner than others of its queue, or not at all if nobody started it in time."""
    queue.enqueue(EMAILS, NewJob("send_email", id="tomorrow", delay_ms=86_400_000))
    queue.enqueue(EMAILS, NewJob("send_email", id="urgent", priority=10))
    queue.enqueue(EMAILS, NewJob("send_email", id="only while fresh", ttl_ms=60_000))
    tomorrow = queue.get(ACME, "tomorrow")
    assert tomorrow is not None
    assert tomorrow.state == JobState.SCHEDULED


def test_failures_are_tried_again_and_then_buried(queue: SyncClient, valkey_url: str) -> None:
    """A task that raises is tried again after a growing, random delay. After its last attempt the job is dead: kept,
    with its traceback, until somebody looks."""
    queue.enqueue(EMAILS, NewJob("send_email", id="bounces", max_attempts=2))
    tasks = Tasks()

    @tasks.task()
    def send_email(job: LeasedJob) -> None:  # not async: runs in a thread
        raise ConnectionError("mail server is down")

    assert send_email
    work(valkey_url, tasks, until=lambda: is_dead(queue, "bounces"))
    dead = queue.get(ACME, "bounces")
    assert dead is not None
    assert dead.attempts == 2
    assert "ConnectionError: mail server is down" in (dead.error or "")

    # The mail server is back: let them run again, with all their attempts.
    assert queue.redrive(EMAILS, DeadFilter(error="mail server is down")) == 1


def test_some_failures_are_not_worth_a_retry(queue: SyncClient, valkey_url: str) -> None:
    queue.enqueue(EMAILS, NewJob("send_email", b"not an address", id="hopeless"))
    tasks = Tasks()

    @tasks.task(timeout_s=60)  # a run that takes longer has failed
    async def send_email(job: LeasedJob) -> None:
        raise Bury(f"{job.payload!r} will never be an address")

    assert send_email
    work(valkey_url, tasks, until=lambda: is_dead(queue, "hopeless"))
    dead = queue.get(ACME, "hopeless")
    assert dead is not None
    assert dead.attempts == 1


def test_a_job_can_be_taken_back_while_it_waits(queue: SyncClient) -> None:
    queue.enqueue(EMAILS, NewJob("send_email", id="regretted"))
    assert queue.cancel(ACME, "regretted") == JobState.READY
    assert queue.get(ACME, "regretted") is None


def test_queues_can_be_paused_closed_and_limited(queue: SyncClient) -> None:
    queue.enqueue(EMAILS, NewJob("send_email"))
    queue.pause(EMAILS)  # nothing is started; jobs are accepted still
    queue.resume(EMAILS)
    queue.close_queue(EMAILS)  # nothing is accepted; what waits is run still
    with pytest.raises(QueueClosed):
        queue.enqueue(EMAILS, NewJob("send_email"))
    queue.open_queue(EMAILS)
    queue.limits(EMAILS, 5)  # at most five at once
    queue.limits(ACME, 20, burst=1.5)  # the whole environment: twenty, thirty in a burst


def test_every_number_is_there_at_any_time(queue: SyncClient) -> None:
    """`headrace queues` shows this; history, the dashboard and alerts are made of the same numbers."""
    queue.enqueue_many(EMAILS, [NewJob("send_email", b"12345"), NewJob("send_email", delay_ms=60_000)])
    [state] = wait_until(lambda: read_states(queue.redis, 2), "the queue is there")
    assert (state.depth, state.scheduled, state.running, state.bytes) == (1, 1, 0, 5)
    assert state.odometers == {"enqueue": 2}

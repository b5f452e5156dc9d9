"""Workers and producers of streams against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from headrace.cli.worker import run_stream_workers
from headrace.embedded.valkey import EmbeddedValkey
from headrace.errors import NotAStream, SeveralGroups, StreamFull, StreamsUnavailable
from headrace.model.job import LeasedJob, NewJob
from headrace.queue.registry import WorkerRegistration, read_workers
from headrace.queue.scripts import Records
from headrace.queue.tasks import Bury, TaskRegistry
from headrace.queue.worker_metrics import JOBS, SHARD_FAILURES, WorkerMetrics
from headrace.streams.broker import Broker, BrokerOptions
from headrace.streams.dead_letters import count_dead, read_dead_letters, redrive
from headrace.streams.depth import read_depth
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import FIRST_ID, RETRY_CONSUMER, EntryDeferral, GroupStubs, LeasedEntry
from headrace.valkey.connect import Valkey, connect, connect_async
from headrace.valkey.scripts import ScriptCall, run
from headrace.valkey.stream_groups import list_consumers
from headrace.worker import core
from headrace.worker import reconnect as patience
from headrace.worker.core import CompletionRate
from headrace.worker.stream_source import StreamGroup
from headrace.worker.stream_worker import StreamWorker
from tests.conftest import READY_S, wait_until
from tests.streams import FAST, GROUP, KEYS, STREAM, WATCHED, entry_ids, publish, stats, work_until

T = TypeVar("T")

NO_REPLICAS = "errorstat_NOREPLICAS"

ALICE, BOB = GroupStubs(KEYS, "headrace:alice"), GroupStubs(KEYS, "headrace:bob")


@pytest.fixture
def any_client(any_valkey_url: str) -> Iterator[Valkey]:
    with connect(any_valkey_url) as client:
        yield client


@pytest.fixture
def group(valkey: Valkey) -> Valkey:
    valkey.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    return valkey


def notes(count: int) -> list[NewJob]:
    return [NewJob("note", str(number).encode()) for number in range(count)]


def holder(client: Valkey, entry_id: str) -> tuple[str, int]:
    """Who holds an entry, and how often it was delivered."""
    found: Any = client.xpending_range(STREAM, GROUP, entry_id, entry_id, 1)
    return found[0]["consumer"].decode(), found[0]["times_delivered"]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


def take(client: Valkey, by: GroupStubs, n: int = 10) -> list[LeasedEntry]:
    return list(run(client, by.dequeue(n)).entries)


# Whole workers ------------------------------------------------------------------------------------


def test_jobs_are_acknowledged_after_they_ran_and_failures_are_tried_again(
    any_valkey_url: str, any_client: Valkey
) -> None:
    """On one server and on a cluster: what lies beside a stream lies where the stream is."""
    ran: list[tuple[bytes, int]] = []
    pending: list[int] = []
    tasks = TaskRegistry()

    async def scenario() -> None:
        finished, loop = asyncio.Event(), asyncio.get_running_loop()

        def ran_one(job: LeasedJob) -> None:
            ran.append((job.payload, job.attempt))
            if len(ran) == 12:
                finished.set()

        @tasks.task()
        async def note(job: LeasedJob) -> None:
            pending.append(read_depth(any_client, STREAM, GROUP).pending)
            ran_one(job)

        @tasks.task()
        def shaky(job: LeasedJob) -> None:
            if job.attempt < 3:
                raise ValueError("not yet")
            loop.call_soon_threadsafe(ran_one, job)

        publish(any_client, *notes(10), NewJob("shaky", b"\xff"), NewJob("note", "ü".encode()))
        await work_until(any_valkey_url, tasks, finished)

    asyncio.run(scenario())
    assert sorted(ran) == sorted([*((job.payload, 1) for job in notes(10)), (b"\xff", 3), ("ü".encode(), 1)])
    assert min(pending) >= 1  # while a job runs, it is not acknowledged
    assert read_depth(any_client, STREAM, GROUP).load == 0
    assert stats(any_client) == {"dequeue": 14, "ack": 12, "nack": 2}
    assert [name for name, _, _ in list_consumers(any_client, STREAM, GROUP)] == [RETRY_CONSUMER]  # the worker left


class SteadyRate(CompletionRate):
    """The rate of a worker whose jobs are short: it takes more entries than it may run."""

    per_s = property(lambda _: 1000.0, lambda _, value: None)  # type: ignore[assignment]


def test_an_entry_that_was_lost_before_it_began_is_left_to_others(
    valkey_url: str, group: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "CompletionRate", SteadyRate)
    ran: list[bytes] = []
    tally = WorkerMetrics(["note"])

    def lost() -> float:
        counts = cast("dict[tuple[str, ...], float]", dict(tally.families())[JOBS])
        return sum(count for labels, count in counts.items() if labels[-1] == "lost")

    async def scenario() -> None:
        goes_on, stop, tasks = asyncio.Event(), asyncio.Event(), TaskRegistry()

        @tasks.task()
        async def note(job: LeasedJob) -> None:
            ran.append(job.payload)
            await goes_on.wait()

        assert note
        publish(group, *notes(2))
        first, second = entry_ids(group)
        options = replace(FAST, concurrency=1, heartbeat_s=0.05)
        worker = StreamWorker(valkey_url, KEYS, WATCHED.ref, tasks, options, metrics=tally)
        running = asyncio.create_task(worker.run_forever(stop))
        await until(lambda: ran == [b"0"] and len(group.xpending_range(STREAM, GROUP, "-", "+", 2)) == 2)  # pyright: ignore
        group.xclaim(STREAM, GROUP, "another", 0, [second])
        await until(lambda: lost() == 1)
        goes_on.set()
        await until(lambda: stats(group).get("ack") == 1)
        stop.set()
        await asyncio.wait_for(running, 120)
        assert first != second
        assert holder(group, second)[0] == "another"

    asyncio.run(scenario())
    assert ran == [b"0"]


def test_as_many_tasks_run_in_threads_as_may_run_at_a_time(valkey_url: str, valkey: Valkey) -> None:
    """More than Python's own pool of threads has."""
    together = threading.Barrier(40)
    tasks = TaskRegistry()

    async def scenario() -> None:
        finished, loop = asyncio.Event(), asyncio.get_running_loop()

        @tasks.task()
        def note(job: LeasedJob) -> None:
            together.wait(60)
            loop.call_soon_threadsafe(finished.set)

        assert note
        publish(valkey, *notes(40))
        await work_until(valkey_url, tasks, finished, replace(FAST, concurrency=40))

    asyncio.run(scenario())
    assert stats(valkey)["ack"] == 40


def test_what_cannot_be_done_becomes_a_dead_letter_with_its_reason(valkey_url: str, valkey: Valkey) -> None:
    tasks = TaskRegistry()

    async def scenario() -> None:
        finished = asyncio.Event()

        @tasks.task()
        async def fails(job: LeasedJob) -> None:
            raise ValueError(f"attempt {job.attempt}")

        @tasks.task()
        async def hopeless(job: LeasedJob) -> None:
            raise Bury("no such customer")

        @tasks.task()
        async def last(job: LeasedJob) -> None:
            while count_dead(valkey, KEYS) < 6:
                await asyncio.sleep(0.01)
            finished.set()

        valkey.xadd(STREAM, {"json": "{not json"})
        valkey.xadd(STREAM, {"body": "{}"})
        valkey.xadd(STREAM, {"json": '["type"]'})
        valkey.xadd(STREAM, {"json": '{"type": 7}'})
        publish(valkey, NewJob("fails", max_attempts=2), NewJob("hopeless"), NewJob("last"))
        await work_until(valkey_url, tasks, finished)

    asyncio.run(scenario())
    letters = read_dead_letters(valkey, KEYS)
    reasons = [letter.reason for letter in letters]
    for words in (
        "is not JSON",
        "no field 'json'",
        "not a JSON object",
        "does not name a task",
        "attempt 2",
        "customer",
    ):
        assert len([reason for reason in reasons if words in reason]) == 1, words
    [failed] = [letter for letter in letters if "attempt 2" in letter.reason]
    assert failed.deliveries == 2
    assert json.loads(failed.fields["json"])["type"] == "fails"
    assert read_depth(valkey, STREAM, GROUP).load == 0


def test_a_job_whose_workers_all_died_is_buried(group: Valkey, valkey_url: str) -> None:
    publish(group, NewJob("kills", max_attempts=2), NewJob("note"))
    for _ in range(2):
        take(group, ALICE, 1)
        run(group, BOB.reclaim(0, FIRST_ID, 10))
    tasks = TaskRegistry()

    async def scenario() -> None:
        finished = asyncio.Event()

        @tasks.task()
        async def kills(job: LeasedJob) -> None:
            raise AssertionError("it must not be run a third time")

        @tasks.task()
        async def note(job: LeasedJob) -> None:
            finished.set()

        await work_until(valkey_url, tasks, finished)

    asyncio.run(scenario())
    [letter] = read_dead_letters(group, KEYS)
    assert "Delivered 2 times" in letter.reason


def test_jobs_of_another_application_are_run_as_they_are(valkey: Valkey, valkey_url: str) -> None:
    text = '{"type": "shot", "id": 7, "url": "https://example.org"}'
    seen: list[LeasedJob] = []
    tasks = TaskRegistry()

    async def scenario() -> None:
        finished = asyncio.Event()

        @tasks.task()
        async def shot(job: LeasedJob) -> None:
            seen.append(job)
            finished.set()

        valkey.xadd(STREAM, {"json": text, "trace": "abc"})
        await work_until(valkey_url, tasks, finished)

    asyncio.run(scenario())
    assert (seen[0].id, seen[0].payload.decode(), seen[0].max_attempts) == ("7", text, 5)


def test_a_worker_whose_stream_is_deleted_goes_on(valkey: Valkey, valkey_url: str) -> None:
    tasks = TaskRegistry()

    async def scenario() -> None:
        finished = asyncio.Event()

        @tasks.task()
        async def deletes(job: LeasedJob) -> None:
            valkey.delete(STREAM)
            publish(valkey, NewJob("ends"))

        @tasks.task()
        async def ends(job: LeasedJob) -> None:
            finished.set()

        publish(valkey, NewJob("deletes"))
        await work_until(valkey_url, tasks, finished)

    asyncio.run(scenario())
    assert read_depth(valkey, STREAM, GROUP).load == 0


def test_a_worker_of_something_that_is_no_stream_says_so(valkey: Valkey, valkey_url: str) -> None:
    valkey.set(STREAM, "x")
    with pytest.raises(NotAStream, match="does not hold a stream"):
        asyncio.run(work_until(valkey_url, TaskRegistry(), asyncio.Event()))


def test_a_stream_that_cannot_be_served_does_not_affect_others(valkey: Valkey, valkey_url: str) -> None:
    """Its worker retries, and serves it once it is a stream again."""
    tasks, tally = TaskRegistry(), WorkerMetrics(["note"])

    def failures() -> float:
        counts = cast("dict[tuple[str, ...], float]", dict(tally.families())[SHARD_FAILURES])
        return counts.get(("other",), 0)

    async def scenario() -> None:
        stop = asyncio.Event()

        @tasks.task()
        async def note(job: LeasedJob) -> None:
            pass

        assert note
        keys = (KEYS, GroupKeys("other", GROUP))
        workers = [StreamWorker(valkey_url, each, WATCHED.ref, tasks, FAST, metrics=tally) for each in keys]
        running = asyncio.create_task(run_stream_workers(workers, stop))
        await until(lambda: valkey.exists("other", STREAM) == 2)
        valkey.set("other", "no stream any more")
        await until(lambda: failures() >= 1)
        publish(valkey, NewJob("note"))
        await until(lambda: stats(valkey).get("ack") == 1)
        valkey.delete("other")
        Broker(valkey).publish_many("other", [NewJob("note")])
        await until(lambda: valkey.hget(keys[1].list_all()[2], "o:ack") == b"1")
        stop.set()
        await asyncio.wait_for(running, 120)

    asyncio.run(scenario())
    assert read_depth(valkey, STREAM, GROUP).load == 0


RETURNS: dict[str, Callable[[Valkey, LeasedEntry], object]] = {
    "requeued": lambda client, held: run(client, ALICE.requeue([held])),
    "failed": lambda client, held: run(client, ALICE.nack([(held, 1)])),
    "deferred": lambda client, held: run(client, ALICE.defer([EntryDeferral(held, 1, 1)])),
    "reclaimed": lambda client, held: run(client, ALICE.reclaim(0, FIRST_ID, 10)),
}


@pytest.mark.parametrize("how", RETURNS)
def test_an_idle_worker_is_woken_by_an_entry_that_another_one_gave_back(
    valkey: Valkey, valkey_url: str, how: str
) -> None:
    """Its longest wait is far longer than the test may take."""
    tasks, ran = TaskRegistry(), asyncio.Event()

    @tasks.task()
    async def note(job: LeasedJob) -> None:
        ran.set()

    async def scenario() -> None:
        publish(valkey, NewJob("note"))
        valkey.xgroup_create(STREAM, GROUP, id="0")
        [held] = take(valkey, ALICE)
        running = asyncio.create_task(work_until(valkey_url, tasks, ran, replace(FAST, poll_s=3600.0)))
        await until(lambda: valkey.info("clients")["blocked_clients"] > 0)  # pyright: ignore
        RETURNS[how](valkey, held)
        await running

    asyncio.run(scenario())
    assert stats(valkey)["ack"] == 1


def test_a_later_retry_wakes_nobody(group: Valkey) -> None:
    """Idle workers have a timer for the earlier one, and learn of the next when they dequeue."""
    publish(group, *(NewJob("note") for _ in range(3)))
    first, second, third = take(group, ALICE, 3)
    run(group, ALICE.nack([(first, 500_000)]))
    woken = run(group, BOB.dequeue(1)).last_wake_id
    assert woken != FIRST_ID
    run(group, ALICE.nack([(second, 900_000)]))
    assert run(group, BOB.reclaim(3_600_000, FIRST_ID, 10)).returned == 0
    found = run(group, BOB.dequeue(1))
    assert found.last_wake_id == woken
    assert found.next_due_ms is not None
    assert found.next_due_ms <= 500_000
    run(group, ALICE.nack([(third, 100_000)]))
    found = run(group, BOB.dequeue(1))
    assert found.last_wake_id != woken
    assert found.next_due_ms is not None
    assert found.next_due_ms <= 100_000
    assert group.xlen(KEYS.wake) == 1


def test_a_job_that_ends_during_the_last_report_is_not_left_to_its_lease(
    valkey: Valkey, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, stop, late_runs, acked = TaskRegistry(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    ack = StreamGroup.ack

    async def ack_slowly(
        source: StreamGroup, done: Sequence[tuple[LeasedJob, int]], records: Records
    ) -> Sequence[bool]:
        answer = await ack(source, done, records)
        acked.set()
        await asyncio.sleep(0.05)
        return answer

    monkeypatch.setattr(StreamGroup, "ack", ack_slowly)

    @tasks.task()
    async def late(job: LeasedJob) -> None:
        late_runs.set()
        await acked.wait()

    @tasks.task()
    async def last(job: LeasedJob) -> None:
        await late_runs.wait()
        stop.set()

    async def scenario() -> None:
        publish(valkey, NewJob("late"), NewJob("last"))
        worker = StreamWorker(valkey_url, KEYS, WATCHED.ref, tasks, replace(FAST, concurrency=2, grace_s=0.0))
        await asyncio.wait_for(worker.run_forever(stop), 120)

    asyncio.run(scenario())
    counts = stats(valkey)  # acknowledged or returned, depending on when the report began
    assert counts["dequeue"] == counts["ack"] + counts.get("reclaim", 0) == 2
    assert [name for name, _, _ in list_consumers(valkey, STREAM, GROUP)] == [RETRY_CONSUMER]


def test_heartbeats_outlive_what_a_server_refuses_for_a_while(valkey: Valkey, valkey_url: str) -> None:
    """A worker whose slots are all in use dequeues nothing: only its heartbeats are refused."""
    tasks, runs, go_on = TaskRegistry(), asyncio.Event(), asyncio.Event()

    @tasks.task()
    async def long(job: LeasedJob) -> None:
        runs.set()
        await go_on.wait()

    def pending() -> dict[str, Any]:
        [found] = cast("list[dict[str, Any]]", valkey.xpending_range(STREAM, GROUP, "-", "+", 1))
        return found

    def refused() -> int:
        return cast("dict[str, dict[str, int]]", valkey.info("errorstats")).get(NO_REPLICAS, {}).get("count", 0)

    async def scenario() -> None:
        publish(valkey, NewJob("long"))
        options = replace(FAST, concurrency=1, lease_s=3600.0, heartbeat_s=0.05)
        running = asyncio.create_task(work_until(valkey_url, tasks, go_on, options))
        await runs.wait()
        before = refused()
        valkey.config_set("min-replicas-to-write", 1)
        await until(lambda: refused() > before)
        valkey.config_set("min-replicas-to-write", 0)
        held = pending()
        valkey.xclaim(STREAM, GROUP, held["consumer"], 0, [held["message_id"]], idle=600_000, justid=True)
        await until(lambda: pending()["time_since_delivered"] < 300_000)
        go_on.set()
        await running

    try:
        asyncio.run(scenario())
    finally:
        valkey.config_set("min-replicas-to-write", 0)
    assert read_depth(valkey, STREAM, GROUP).load == 0


def test_running_tasks_are_reported_until_the_worker_leaves(valkey: Valkey, valkey_url: str) -> None:
    tasks, seen = TaskRegistry("our-plugin"), list[str]()

    async def scenario() -> None:
        stop = asyncio.Event()

        @tasks.task()
        async def note(job: LeasedJob) -> None:
            while not read_workers(valkey).running:
                await asyncio.sleep(0.01)
            seen.extend(f"{running.queue.queue} {running.task}" for running in read_workers(valkey).running)
            stop.set()

        publish(valkey, NewJob("note"))
        async with connect_async(valkey_url) as client:
            worker = StreamWorker(valkey_url, KEYS, WATCHED.ref, tasks, FAST, registration=WorkerRegistration(client))
            await asyncio.wait_for(worker.run_forever(stop), 120)

    asyncio.run(scenario())
    assert seen == ["browser:jobs/workers note"]
    assert read_workers(valkey).running == []


# Deliveries ---------------------------------------------------------------------------------------


def test_a_result_of_a_delivery_that_was_lost_is_refused(group: Valkey) -> None:
    [entry] = publish(group, NewJob("note"))
    [held] = take(group, ALICE)
    assert run(group, BOB.reclaim(0, FIRST_ID, 10)).returned == 1
    [again] = take(group, BOB)
    assert (again.id, again.delivery) == (entry, 2)
    assert run(group, ALICE.ack([(held, 5)])) == [False]
    assert run(group, ALICE.nack([(held, 5)])) == [False]
    assert run(group, ALICE.bury([(held, "why")])) == [False]
    assert run(group, ALICE.extend([held])) == [False]
    assert run(group, ALICE.requeue([held])) == [False]
    assert holder(group, entry) == ("headrace:bob", 2)
    assert run(group, BOB.ack([(again, 5)])) == [True]
    assert run(group, BOB.ack([(again, 5)])) == [False]


def test_a_heartbeat_resets_the_idle_time_and_counts_no_delivery(group: Valkey) -> None:
    [entry] = publish(group, NewJob("note"))
    [held] = take(group, ALICE)
    group.xclaim(STREAM, GROUP, ALICE.consumer, 0, [entry], idle=7_200_000, justid=True)
    assert run(group, ALICE.extend([held])) == [True]
    assert run(group, BOB.reclaim(3_600_000, FIRST_ID, 10)).returned == 0
    assert holder(group, entry) == ("headrace:alice", 1)


def test_a_failed_entry_waits_for_its_time_however_long_it_is_idle(group: Valkey) -> None:
    [entry] = publish(group, NewJob("note"))
    [held] = take(group, ALICE)
    run(group, ALICE.nack([(held, 3_600_000)]))
    assert run(group, BOB.reclaim(0, FIRST_ID, 10)).returned == 0
    assert take(group, BOB) == []
    assert read_depth(group, STREAM, GROUP).load == 1
    group.zadd(KEYS.list_all()[1], {entry: 0})  # its time has come
    assert [(each.id, each.delivery) for each in take(group, BOB)] == [(entry, 2)]


def test_a_failed_entry_is_not_lost_with_the_note_of_its_time(group: Valkey) -> None:
    publish(group, NewJob("note"))
    run(group, ALICE.nack([(take(group, ALICE)[0], 3_600_000)]))
    group.delete(KEYS.list_all()[1])
    assert run(group, BOB.reclaim(0, FIRST_ID, 10)).returned == 1
    assert len(take(group, BOB)) == 1


def test_a_requeued_entry_keeps_its_attempts(group: Valkey) -> None:
    publish(group, NewJob("note"))
    run(group, ALICE.requeue(take(group, ALICE)))
    assert [each.delivery for each in take(group, BOB)] == [1]


def test_entries_that_were_deleted_while_pending_leave_the_list(group: Valkey) -> None:
    first, second = publish(group, *notes(2))
    held, _ = take(group, ALICE)
    run(group, ALICE.nack([(held, 0)]))
    group.xdel(STREAM, first, second)
    told = run(group, BOB.dequeue(10))
    assert (list(told.entries), told.deleted) == ([], 1)
    assert run(group, BOB.reclaim(0, FIRST_ID, 10)).deleted == 1
    assert read_depth(group, STREAM, GROUP).load == 0


def test_very_many_pending_entries_are_returned_page_by_page(group: Valkey) -> None:
    Broker(group, BrokerOptions()).publish_many(STREAM, notes(2500))
    group.xreadgroup(GROUP, "another consumer", {STREAM: ">"}, count=2500)
    cursor, returned = FIRST_ID, 0
    while True:
        told = run(group, ALICE.reclaim(0, cursor, 100))
        cursor, returned = told.cursor, returned + told.returned
        if cursor == FIRST_ID:
            break
    assert returned == 2500
    assert len(take(group, ALICE, 3000)) == 2500


def test_a_consumer_that_left_is_removed_once_it_holds_nothing(group: Valkey) -> None:
    publish(group, NewJob("note"))
    [held] = take(group, ALICE)
    group.xgroup_createconsumer(STREAM, GROUP, "another consumer")
    assert run(group, BOB.remove_consumers(0)) == 0
    run(group, ALICE.ack([(held, 1)]))
    assert run(group, BOB.remove_consumers(3_600_000)) == 0  # it was active just now
    assert run(group, BOB.remove_consumers(0)) == 1
    assert [name for name, _, _ in list_consumers(group, STREAM, GROUP)] == ["another consumer"]


# Publishing ---------------------------------------------------------------------------------------


def test_trimming_leaves_what_any_group_still_needs(group: Valkey) -> None:
    group.xgroup_create(STREAM, "slow", id="0")
    entries = publish(group, *notes(500), maxlen=100)
    held = take(group, ALICE, 400)
    run(group, ALICE.ack([(each, 1) for each in held[1:]]))  # the first one is still pending
    publish(group, NewJob("note"), maxlen=100)
    assert group.xlen(STREAM) == 501  # the other group has read nothing
    group.xreadgroup("slow", "c", {STREAM: ">"}, count=500, noack=True)
    publish(group, NewJob("note"), maxlen=100)
    assert entry_ids(group)[0] == entries[0]
    run(group, ALICE.ack([(held[0], 1)]))
    publish(group, NewJob("note"), maxlen=100)
    left = entry_ids(group)
    assert 100 <= len(left) <= 400
    assert set(entries[400:]) <= set(left)  # not yet delivered to the first group
    assert read_depth(group, STREAM, GROUP).load == 103


def test_a_stream_whose_workers_do_not_keep_up_refuses(group: Valkey) -> None:
    publish(group, *notes(8), maxlen=2, hard_maxlen=10)
    with pytest.raises(StreamFull, match="Nothing was"):
        publish(group, *notes(3), maxlen=2, hard_maxlen=10)
    assert group.xlen(STREAM) == 8
    run(group, ALICE.ack([(each, 1) for each in take(group, ALICE, 5)]))
    publish(group, *notes(3), maxlen=2, hard_maxlen=10)  # what is done makes room
    assert read_depth(group, STREAM, GROUP).load == 6


def test_each_type_of_job_has_its_stream(valkey: Valkey) -> None:
    broker = Broker(valkey, BrokerOptions(routes={"shot": "browser:jobs"}))
    broker.publish(NewJob("shot"))
    broker.publish(NewJob("mail"))
    assert (valkey.xlen("browser:jobs"), valkey.xlen("jobs")) == (1, 1)


def test_publishing_to_a_server_that_is_down_says_so() -> None:
    with connect("redis://127.0.0.1:1/0") as client, pytest.raises(StreamsUnavailable, match="may add it twice"):
        publish(client, NewJob("note"))


# Dead letters -------------------------------------------------------------------------------------


def test_dead_letters_run_again_with_all_their_attempts(group: Valkey) -> None:
    publish(group, *notes(150))
    run(group, ALICE.bury([(each, "why") for each in take(group, ALICE, 150)]))
    chosen = read_dead_letters(group, KEYS, at_most=2)
    assert read_dead_letters(group, KEYS, after=chosen[0].id, at_most=1) == chosen[1:]
    assert redrive(group, KEYS, [chosen[1].id]) == 1
    assert redrive(group, KEYS) == 149
    again = take(group, BOB, 200)
    assert {each.delivery for each in again} == {1}
    assert {json.loads(each.fields[b"json"])["payload"] for each in again} == {str(number) for number in range(150)}
    assert all(list(each.fields) == [b"json"] for each in again)
    assert count_dead(group, KEYS) == 0


def test_an_entry_of_very_many_fields_can_be_buried(group: Valkey) -> None:
    """Else it would end every worker that tries."""
    group.xadd(STREAM, {f"field {number}": "x" for number in range(5000)})
    [held] = take(group, ALICE)
    assert run(group, ALICE.bury([(held, "undecodable")])) == [True]
    [letter] = read_dead_letters(group, KEYS)
    assert len(letter.fields) == 3500
    assert letter.reason == "undecodable (Of its 5000 fields the first 3500 are kept.)"
    assert redrive(group, KEYS) == 1


def test_redriving_into_a_stream_of_several_groups_must_be_meant(group: Valkey) -> None:
    publish(group, NewJob("note"))
    run(group, ALICE.bury([(take(group, ALICE)[0], "why")]))
    group.xgroup_create(STREAM, "audit", id="$")
    with pytest.raises(SeveralGroups, match="audit"):
        redrive(group, KEYS)
    assert count_dead(group, KEYS) == 1
    assert redrive(group, KEYS, every_group=True) == 1


def test_keys_beside_a_stream_are_in_its_slot() -> None:
    assert GroupKeys("a:b", "g:h").dead == "{a:b}:hr:g%3Ah:dead"
    assert GroupKeys("a:{b}", "g").dead == "a:{b}:hr:g:dead"


# A server that dies -------------------------------------------------------------------------------


def test_a_worker_goes_on_when_its_server_comes_back(tmp_path: Path) -> None:
    """What ended while the server was away is reported, not run again."""
    server = EmbeddedValkey(tmp_path / "data", tmp_path)
    server.start()
    server.wait_ready(READY_S)
    ran: list[str] = []
    tasks = TaskRegistry()

    def die_and_come_back() -> None:
        with connect(server.url) as client:
            client.set("last", "")  # what a client waits for is its own last write, and all before it
            wait_until(lambda: cast(Any, client.execute_command("WAITAOF", 1, 0, 5000))[0], "it is on disk")
        os.kill(server.child.pid, signal.SIGKILL)
        server.stop()
        again.start()
        again.wait_ready(READY_S)

    async def scenario() -> None:
        finished = asyncio.Event()

        @tasks.task()
        async def outlives(job: LeasedJob) -> None:
            ran.append("outlives")
            await asyncio.to_thread(die_and_come_back)
            with connect(again.url) as client:
                publish(client, NewJob("after"))

        @tasks.task()
        async def after(job: LeasedJob) -> None:
            ran.append("after")
            finished.set()

        with connect(server.url) as client:
            publish(client, NewJob("outlives"))
        await work_until(server.url, tasks, finished)

    again = EmbeddedValkey(tmp_path / "data", tmp_path, port=server.port)
    try:
        asyncio.run(scenario())
        with connect(again.url) as client:
            assert read_depth(client, STREAM, GROUP).load == 0
            assert stats(client) == {"dequeue": 2, "ack": 2}
    finally:
        again.stop()
        server.stop()
    assert ran == ["outlives", "after"]


def test_a_stopping_worker_does_not_wait_for_an_unavailable_server(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "RECONNECT_S", 0.01)

    async def scenario() -> None:
        stop = asyncio.Event()
        url = "redis://127.0.0.1:1/0"
        async with connect_async(url) as client:
            running = asyncio.create_task(
                StreamWorker(
                    url, KEYS, WATCHED.ref, TaskRegistry(), FAST, registration=WorkerRegistration(client)
                ).run_forever(stop)
            )
            await until(lambda: caplog.text.count("does not respond") >= 2)
            assert not running.done()  # it retries until it is stopped
            stop.set()
            await asyncio.wait_for(running, 60)

    asyncio.run(scenario())


def test_a_worker_with_results_waits_for_an_unavailable_server_during_its_grace_period(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path)
    server.start()
    server.wait_ready(READY_S)
    tasks, finished = TaskRegistry(), asyncio.Event()

    @tasks.task()
    async def last(job: LeasedJob) -> None:
        await asyncio.to_thread(server.stop)
        finished.set()

    try:
        with connect(server.url) as client:
            publish(client, NewJob("last"))
        asyncio.run(work_until(server.url, tasks, finished, replace(FAST, grace_s=0.5)))
    finally:
        server.stop()


def test_an_entry_that_cannot_run_now_is_deferred_and_buried_after_the_bound(group: Valkey) -> None:
    publish(group, NewJob("gone", b"x"))
    deferred = KEYS.list_all()[5]
    stubs = ALICE
    [held] = run(group, stubs.dequeue(1)).entries
    assert run(group, stubs.defer([EntryDeferral(held, 60_000, 60_000, "no task", 3_600_000)])) == [1]
    assert run(group, stubs.defer([EntryDeferral(held, 0, 0)])) == [EntryDeferral.LOST]
    assert run(group, stubs.dequeue(1)).entries == []  # not due yet
    group.zadd(KEYS.list_all()[1], {held.id: 0})
    [again] = run(group, stubs.dequeue(1)).entries
    assert again.delivery == 1  # the attempt did not count
    since = group.zscore(deferred, held.id)
    assert since is not None
    group.zadd(deferred, {held.id: since - 3_600_000})
    assert run(group, stubs.defer([EntryDeferral(again, 0, 0, "no task", 3_600_000)])) == [EntryDeferral.BURIED]
    [(_, fields)] = cast("list[Any]", group.xrange(KEYS.dead))
    assert (fields[b"headrace:reason"], fields[b"headrace:deliveries"]) == (b"no task", b"0")
    assert stats(group) == {"dequeue": 2, "defer": 1, "bury": 1}
    assert not group.exists(deferred)


@pytest.mark.parametrize("how", ["ack", "nack", "requeue", "reclaim"])
def test_another_result_of_an_entry_ends_its_deferrals(group: Valkey, how: str) -> None:
    publish(group, NewJob("gone", b"x"))
    stubs = ALICE
    [held] = run(group, stubs.dequeue(1)).entries
    run(group, stubs.defer([EntryDeferral(held, 0, 0)]))
    [held] = run(group, stubs.dequeue(1)).entries
    assert group.exists(KEYS.list_all()[5])
    calls: dict[str, ScriptCall[Any]] = {
        "ack": stubs.ack([(held, 1)]),
        "nack": stubs.nack([(held, 0)]),
        "requeue": stubs.requeue([held]),
        "reclaim": stubs.reclaim(0, FIRST_ID, 10),
    }
    run(group, calls[how])
    assert not group.exists(KEYS.list_all()[5])

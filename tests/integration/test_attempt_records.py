"""Records of attempts: stored with the result, bounded, expired, and harmless to clients that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.errors import QueueFull
from headrace.model.event import generate_event_lua
from headrace.model.job import MAX_RECORD_BYTES, AttemptRecord, JobInfo, JobState, LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.scripts import Deferral, Stubs, WarmCaps
from headrace.queue.state import QueueState, read_state
from headrace.queue.tasks import PROCESS, CannotRunYet, RegisteredTask, Snooze, TaskRegistry
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import ScriptCall, load_script, parse_flags, run
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests import process_tasks
from tests.compat.releases import extract_release
from tests.compat.versions import VERSIONS
from tests.conftest import wait_until
from tests.model.clock import server_ms

REF = QueueRef("acme", "shop", "prod", "emails")
OTHER = QueueRef("acme", "shop", "prod", "reports")
RIVAL = QueueRef("rival", "shop", "prod", "emails")
ENV = REF.environment
STUBS = Stubs(1, 1_000_000)
HOUR_MS = 3_600_000
OVERHEAD = 256
OPTIONS = WorkerOptions(concurrency=2, lease_s=600.0, heartbeat_s=300.0, grace_s=60.0, retry_base_s=0.001)


@pytest.fixture
def client(valkey_url: str) -> Iterator[SyncClient]:
    with SyncClient(valkey_url, QueueOptions(shards=1)) as client:
        yield client


def lease(client: SyncClient, job_id: str, ref: QueueRef = REF, **options: Any) -> LeasedJob:
    """Enqueue a job and lease it."""
    assert client.enqueue(ref, NewJob("send", b"payload", job_id, **options))
    return dequeue(client)


def dequeue(client: SyncClient) -> LeasedJob:
    [job] = run(client.redis, STUBS.dequeue(0, 1, HOUR_MS))
    return job


def record(job: LeasedJob, body: bytes, ttl_ms: int = HOUR_MS) -> dict[str, AttemptRecord]:
    return {job.lease: AttemptRecord(body, ttl_ms)}


def ack(client: SyncClient, job: LeasedJob, body: bytes, stubs: Stubs = STUBS) -> None:
    assert run(client.redis, stubs.ack(0, [(job, 1)], 0, record(job, body))) == [True]


def state_of(client: SyncClient, ref: QueueRef = REF) -> QueueState:
    state = read_state(client.redis, 1, ref)
    assert state is not None
    return state


def get(client: SyncClient, job_id: str) -> JobInfo:
    info = client.get(ENV, job_id)
    assert info is not None
    return info


def make_old(valkey: Valkey) -> None:
    """Let the TTL of all records pass."""
    members: Any = valkey.zrange(keys.attempt_expiries(0), 0, -1)
    valkey.zadd(keys.attempt_expiries(0), dict.fromkeys(members, 1))


def maintain(valkey: Valkey, at_most: int = 100) -> int:
    return run(valkey, STUBS.maintain(0, "test", 1000, at_most, HOUR_MS)).next_call_ms


def read_async(url: str, job_id: str) -> list[bytes]:
    async def read() -> list[bytes]:
        async with Client(url, QueueOptions(shards=1)) as client:
            return await client.read_attempts(ENV, job_id)

    return asyncio.run(read())


def test_each_attempt_leaves_a_record(client: SyncClient, valkey_url: str) -> None:
    job = lease(client, "1")
    assert run(client.redis, STUBS.nack(0, [(job, 0, "boom")], record(job, b"first\n\tfailed"))) == [1]
    again = dequeue(client)
    assert run(client.redis, STUBS.nack(0, [(again, 0, "boom")])) == [1]
    ack(client, dequeue(client), b"done")
    assert client.read_attempts(ENV, "1") == [b"first\n\tfailed", b"done"]
    assert read_async(valkey_url, "1") == [b"first\n\tfailed", b"done"]
    assert client.read_attempts(ENV, "2") == []
    bodies = len(b"first\n\tfailed") + len(b"done")
    assert state_of(client).result_bytes == 2 * OVERHEAD + bodies
    assert client.get(ENV, "1") is None  # nothing else is kept


def test_a_buried_job_has_its_record_and_keeps_it_when_it_is_redriven(client: SyncClient) -> None:
    job = lease(client, "1", max_attempts=1)
    assert run(client.redis, STUBS.bury(0, [(job, "no")], record(job, b"buried"))) == [True]
    assert client.redrive(REF) == 1
    job = dequeue(client)
    assert run(client.redis, STUBS.nack(0, [(job, 0, "no")], record(job, b"again"))) == [2]
    assert client.read_attempts(ENV, "1") == [b"buried", b"again"]


def test_a_result_that_is_refused_leaves_no_record(client: SyncClient) -> None:
    job = lease(client, "1")
    ack(client, job, b"done")
    stale = replace(job, lease="0-other")
    other = lease(client, "2")
    calls: list[ScriptCall[Any]] = [
        STUBS.ack(0, [(job, 1)], 0, record(job, b"late")),
        STUBS.nack(0, [(job, 0, "no")], record(job, b"late")),
        STUBS.bury(0, [(replace(other, lease="0-other"), "no")], record(stale, b"late")),
    ]
    for call in calls:
        assert run(client.redis, call) in ([False], [0])
    assert client.read_attempts(ENV, "1") == [b"done"]
    assert client.read_attempts(ENV, "2") == []


def test_records_go_to_their_own_jobs(client: SyncClient) -> None:
    jobs = [lease(client, str(number), ref) for number, ref in enumerate((REF, OTHER, RIVAL, REF))]
    records = record(jobs[1], b"one") | record(jobs[3], b"three") | {"of another call": AttemptRecord(b"x", 1)}
    assert run(client.redis, STUBS.ack(0, [(job, 1) for job in jobs], 0, records)) == [True] * 4
    found = [client.read_attempts(job.queue.environment, job.id) for job in jobs]
    assert found == [[], [b"one"], [], [b"three"]]
    assert [state_of(client, ref).result_bytes for ref in (REF, OTHER, RIVAL)] == [5 + OVERHEAD, 3 + OVERHEAD, 0]


def test_the_last_twenty_records_are_kept(client: SyncClient) -> None:
    assert client.enqueue(REF, NewJob("send", b"payload", "1", max_attempts=1000))
    for number in range(23):
        job = dequeue(client)
        run(client.redis, STUBS.nack(0, [(job, 0, "no")], record(job, b"x" * number)))
    assert client.read_attempts(ENV, "1") == [b"x" * number for number in range(3, 23)]
    assert state_of(client).result_bytes == sum(number + OVERHEAD for number in range(3, 23))


def test_a_later_job_with_the_same_id_has_none_of_the_earlier_ones_records(client: SyncClient) -> None:
    ack(client, lease(client, "1"), b"earlier")
    client.redis.lset(
        keys.attempts(0, ENV, "1"), 0, f"1\t0-x\t{REF.queue}\t{7 + OVERHEAD}\nearlier"
    )  # enqueued long ago
    job = lease(client, "1", OTHER)
    assert client.read_attempts(ENV, "1") == []
    ack(client, job, b"later")
    assert client.read_attempts(ENV, "1") == [b"later"]
    assert [state_of(client, ref).result_bytes for ref in (REF, OTHER)] == [0, 5 + OVERHEAD]


def test_a_long_record_is_dropped_and_counted(client: SyncClient) -> None:
    ack(client, lease(client, "1"), b"x" * (MAX_RECORD_BYTES + 1))
    ack(client, lease(client, "2"), b"x" * MAX_RECORD_BYTES)
    assert client.read_attempts(ENV, "1") == []
    assert client.read_attempts(ENV, "2") == [b"x" * MAX_RECORD_BYTES]
    assert (state_of(client).results_dropped, state_of(client).odometers["ack"]) == (1, 2)


def test_records_take_half_of_a_queue_and_leave_the_rest_to_jobs(valkey_url: str) -> None:
    caps = WarmCaps(bytes=10_000)
    stubs = Stubs(1, 1_000_000, caps)
    with SyncClient(valkey_url, QueueOptions(shards=1, caps=caps)) as client:
        for number in range(6):
            ack(client, lease(client, str(number)), b"x" * (1000 - OVERHEAD), stubs)
        assert (state_of(client).result_bytes, state_of(client).results_dropped) == (5000, 1)
        assert client.read_attempts(ENV, "5") == []
        client.enqueue(REF, NewJob("send", bytes(3000)))
        client.enqueue(REF, NewJob("send", bytes(2000)))
        with pytest.raises(QueueFull):
            client.enqueue(REF, NewJob("send", b"x"))
        make_old(client.redis)
        maintain(client.redis)
        assert state_of(client).result_bytes == 0
        client.enqueue(REF, NewJob("send", bytes(5000)))


def test_an_empty_queue_accepts_a_job_beside_records(valkey_url: str) -> None:
    with SyncClient(valkey_url, QueueOptions(shards=1, caps=WarmCaps(bytes=10_000))) as client:
        ack(client, lease(client, "1"), b"x" * 1000)
        client.caps(REF, 10, 1000)  # less than the records take
        assert client.enqueue(REF, NewJob("send", bytes(5000)))
        with pytest.raises(QueueFull):
            client.enqueue(REF, NewJob("send", bytes(2)))


def test_jobs_leave_no_room_for_records(valkey_url: str) -> None:
    caps = WarmCaps(bytes=10_000)
    with SyncClient(valkey_url, QueueOptions(shards=1, caps=caps)) as client:
        job = lease(client, "1")
        client.enqueue(REF, NewJob("send", bytes(9500)))
        ack(client, job, b"x" * 1000, Stubs(1, 1_000_000, caps))
        assert (state_of(client).result_bytes, state_of(client).results_dropped) == (0, 1)


def test_records_do_not_take_the_share_of_another_environment(valkey_url: str) -> None:
    """Records and jobs of one fill the shard; the reserve is left to the other."""
    caps = WarmCaps(shard_bytes=10_000)
    stubs = Stubs(1, 1_000_000, caps)
    with SyncClient(valkey_url, QueueOptions(shards=1, caps=caps)) as client:
        client.enqueue(RIVAL, NewJob("send", b"", "of the rival", delay_ms=HOUR_MS))
        for number in range(7):
            ack(client, lease(client, str(number)), b"x" * (1000 - OVERHEAD), stubs)
        assert (state_of(client).result_bytes, state_of(client).results_dropped) == (5000, 2)
        client.enqueue(REF, NewJob("send", bytes(5000)))
        client.enqueue(OTHER, NewJob("send", b"x", delay_ms=HOUR_MS))
        with pytest.raises(QueueFull):
            client.enqueue(REF, NewJob("send", bytes(1300)))
        assert client.enqueue(RIVAL, NewJob("send", bytes(1200)))  # half of a quarter of the cap


def test_stored_caps_apply_to_records(client: SyncClient) -> None:
    client.enqueue(REF, NewJob("send", b"", "later", delay_ms=HOUR_MS))
    client.caps(REF, 10, 1000)
    ack(client, lease(client, "1"), b"x" * 400)
    assert (state_of(client).result_bytes, state_of(client).results_dropped) == (0, 1)


def test_maintenance_deletes_old_records_and_gives_their_bytes_back(client: SyncClient) -> None:
    for number in range(3):
        ack(client, lease(client, str(number)), b"result")
    assert maintain(client.redis) > 0
    assert state_of(client).result_bytes == 3 * (6 + OVERHEAD)
    make_old(client.redis)
    assert maintain(client.redis, 2) == 0  # there are more
    assert state_of(client).result_bytes == 6 + OVERHEAD
    assert maintain(client.redis, 2) > 0
    assert state_of(client).result_bytes == 0
    assert not client.redis.exists(keys.attempt_expiries(0), *(keys.attempts(0, ENV, str(n)) for n in range(3)))
    assert cast(Any, client.redis.hget(keys.meta(0), "result_bytes")) == b"0"


def test_records_are_kept_for_the_ttl_of_the_last_one(client: SyncClient) -> None:
    job = lease(client, "1")
    run(client.redis, STUBS.nack(0, [(job, 0, "no")], record(job, b"failed", ttl_ms=1)))
    before_ms = server_ms(client.redis)
    ack(client, dequeue(client), b"done")
    after_ms = server_ms(client.redis)
    maintain(client.redis)
    assert client.read_attempts(ENV, "1") == [b"failed", b"done"]
    ends_ms = client.redis.zscore(keys.attempt_expiries(0), keys.job_part(ENV, "1"))
    assert ends_ms is not None
    assert int(before_ms) <= ends_ms - HOUR_MS <= after_ms


def test_malformed_records_do_not_stop_maintenance(client: SyncClient) -> None:
    ack(client, lease(client, "1"), b"result")
    parts = [keys.job_part(ENV, job_id) for job_id in ("gone", "text", "string")]
    client.redis.rpush(keys.attempts(0, ENV, "text"), "no header")
    client.redis.set(keys.attempts(0, ENV, "string"), "no list")
    client.redis.zadd(keys.attempt_expiries(0), dict.fromkeys([*parts, "nonsense"], 1))
    make_old(client.redis)
    assert maintain(client.redis) > 0
    assert not client.redis.exists(keys.attempt_expiries(0))
    assert state_of(client).result_bytes == 0


def test_scripts_of_an_earlier_release_run_beside_records(client: SyncClient, tmp_path: Path) -> None:
    """An earlier release acknowledges a job that has records, and enqueues one with the same id."""
    release = extract_release(VERSIONS["0.4.0"], tmp_path)
    folder = release.source / "headrace" / "queue" / "lua"
    script = load_script(folder, "ack", preamble=generate_event_lua(), finds_keys=True, on_failure="failure")
    job = lease(client, "1")
    run(client.redis, STUBS.nack(0, [(job, 0, "no")], record(job, b"failed")))
    job = dequeue(client)
    args = [keys.prefix(0), 1000, 0, keys.env_part(ENV), job.id, job.lease, 1]
    assert run(client.redis, ScriptCall(script, [keys.meta(0)], args, parse_flags)) == [True]
    assert client.read_attempts(ENV, "1") == [b"failed"]
    state = state_of(client)
    assert (state.odometers["ack"], state.running, state.result_bytes) == (1, 0, 6 + OVERHEAD)


def test_a_snoozed_job_starts_its_deferrals_again(client: SyncClient) -> None:
    """Otherwise a job that is snoozed for long would be buried by the first worker that cannot run it."""
    job = lease(client, "1")
    run(client.redis, STUBS.defer(0, [Deferral(job, 1, 1000, "newer code", HOUR_MS)]))
    assert client.redis.hexists(keys.job(0, ENV, "1"), "deferred_since")
    client.redis.zadd(keys.scheduled(0), {keys.job_part(ENV, "1"): 1})
    run(client.redis, STUBS.release(0, 10))
    job = dequeue(client)
    assert run(client.redis, STUBS.defer(0, [Deferral(job, HOUR_MS, HOUR_MS)])) == [Deferral.DEFERRED]
    assert not client.redis.hexists(keys.job(0, ENV, "1"), "deferred_since")
    assert (get(client, "1").state, get(client, "1").attempts) == (JobState.SCHEDULED, 0)


def test_progress_is_that_of_the_current_attempt(client: SyncClient) -> None:
    job = lease(client, "1")
    other = lease(client, "2")
    assert get(client, "1").progress is None
    run(client.redis, STUBS.extend(0, [other, job], HOUR_MS, {job.lease: "10 %\n\ud800"}))
    assert get(client, "1").progress == "10 %\n\\ud800"
    assert get(client, "2").progress is None
    run(client.redis, STUBS.extend(0, [replace(job, lease="0-x")], HOUR_MS, {"0-x": "late"}))
    assert get(client, "1").progress == "10 %\n\\ud800"
    run(client.redis, STUBS.nack(0, [(job, 0, "no")]))
    assert get(client, "1").progress is None
    dequeue(client)
    assert (get(client, "1").state, get(client, "1").progress) == (JobState.RUNNING, None)


def run_worker(
    url: str, tasks: TaskRegistry, condition: Callable[[], bool], what: str, options: WorkerOptions = OPTIONS
) -> None:
    """Run a worker until the condition holds."""

    async def main() -> None:
        stop = asyncio.Event()
        async with Client(url, QueueOptions(shards=1)) as client:
            worker = asyncio.create_task(Worker(client, tasks, options).run_forever(stop))
            try:
                await asyncio.to_thread(wait_until, condition, what)
            finally:
                stop.set()
                await worker

    asyncio.run(main())


@pytest.fixture
def fork_server() -> Iterator[None]:
    """Stop the fork server after the test: it would stay until this process ends."""
    yield
    forkserver._forkserver._stop()  # pyright: ignore


@pytest.mark.usefixtures("fork_server")
def test_a_worker_keeps_what_its_tasks_return(client: SyncClient, valkey_url: str) -> None:
    tasks = TaskRegistry()
    charge = process_tasks.charge
    tasks.add(RegisteredTask("charge", charge.handle, pool=PROCESS, policy=charge.policy))

    @tasks.task()
    def send(job: LeasedJob) -> object:
        return AttemptRecord(f"{job.flow} {job.flow_type}".encode(), HOUR_MS)

    assert send
    client.enqueue(REF, NewJob("send", id="1", flow="orders", flow_type="import"))
    client.enqueue(REF, NewJob("charge", b"paid", id="2"))
    client.enqueue(REF, NewJob("charge", b"key", id="3"))
    ids = ("1", "2", "3")
    run_worker(valkey_url, tasks, lambda: all(client.read_attempts(ENV, each) for each in ids), "all have a record")
    found = [client.read_attempts(ENV, each) for each in ids]
    assert found == [[b"orders import"], [b"paid"], [b"builtins.KeyError 'customer' True"]]
    assert get(client, "3").state is JobState.DEAD


def test_a_worker_defers_jobs_that_ask_for_it(client: SyncClient, valkey_url: str) -> None:
    tasks = TaskRegistry()

    @tasks.task()
    def snooze(job: LeasedJob) -> None:
        raise Snooze(3600)

    @tasks.task()
    def wait(job: LeasedJob) -> None:
        raise CannotRunYet("version 3")

    assert snooze
    assert wait
    client.enqueue(REF, NewJob("snooze", id="1", max_attempts=1))
    client.enqueue(REF, NewJob("wait", id="2", max_attempts=1))
    options = replace(OPTIONS, unknown_for_s=0.001)
    run_worker(valkey_url, tasks, lambda: get(client, "2").state is JobState.DEAD, "the second is buried", options)
    assert (get(client, "1").state, get(client, "1").attempts) == (JobState.SCHEDULED, 0)
    assert get(client, "2").error == "version 3"
    assert not client.redis.exists(keys.missing(0))


def test_a_worker_sends_progress_between_heartbeats(client: SyncClient, valkey_url: str) -> None:
    """The heartbeats of this worker are five minutes apart."""
    tasks, release = TaskRegistry(), threading.Event()

    @tasks.task()
    def send(job: LeasedJob) -> None:
        job.report_progress("half")
        release.wait(300)

    assert send
    client.enqueue(REF, NewJob("send", id="1"))

    def is_shown() -> bool:
        info = client.get(ENV, "1")
        if info is not None and info.progress == "half":
            release.set()
        return release.is_set()

    try:
        run_worker(valkey_url, tasks, is_shown, "the progress is shown")
    finally:
        release.set()
    assert get(client, "1").state is JobState.DONE

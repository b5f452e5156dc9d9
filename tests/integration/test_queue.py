"""The verbs against a real Valkey: one queue, one job at a time, every number checked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urlsplit

import psutil
import pytest

from headrace.embedded.valkey import EmbeddedValkey
from headrace.errors import (
    InvalidJob,
    InvalidLimit,
    InvalidName,
    MemoryFull,
    QueueClosed,
    QueueUnavailable,
    ShardMismatch,
    UnknownQueue,
)
from headrace.model.event import COLUMNS, FIELD, SEPARATOR
from headrace.model.job import JobState, LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import DeadFilter, Stubs
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.probe import read_server_version
from headrace.valkey.scripts import ScriptCall, run
from tests.conftest import READY_S, wait_until

T = TypeVar("T")

HOUR_MS = LEASE_MS = 3_600_000


@pytest.fixture
def valkey_url(any_valkey_url: str) -> str:
    return any_valkey_url


class Bench:
    """A queue with a shard of its own, and the verbs on it."""

    def __init__(self, valkey: Valkey, url: str, ref: QueueRef) -> None:
        self.valkey = valkey
        self.ref = ref
        self.client = SyncClient(url, QueueOptions(shards=1))
        self.stubs = Stubs(1, 1_000_000)

    def enqueue(self, *jobs: NewJob) -> list[bool]:
        return self.client.enqueue_many(self.ref, jobs)

    def dequeue(self, n: int = 1, lease_ms: int = LEASE_MS) -> list[LeasedJob]:
        return self.run(self.stubs.dequeue(0, n, lease_ms))

    def ack(self, job: LeasedJob, run_ms: int = 5) -> bool:
        return self.run(self.stubs.ack(0, [(job, run_ms)]))[0]

    def nack(self, job: LeasedJob, delay_ms: int = 0, error: str = "boom") -> int:
        return self.run(self.stubs.nack(0, [(job, delay_ms, error)]))[0]

    def run(self, call: ScriptCall[T]) -> T:
        return run(self.valkey, call)

    def now_ms(self) -> int:
        """Return the server's clock (nodes of a test's cluster share one)."""
        seconds, micros = self.valkey.time()
        return seconds * 1000 + micros // 1000

    @property
    def state(self) -> QueueState:
        [state] = read_states(self.valkey, 1)
        return state

    def events(self) -> list[dict[str, str]]:
        names = [column.name for column in COLUMNS]
        packed = [fields[FIELD.encode()].decode() for _, fields in self.valkey.xrange(keys.metrics(0))]  # pyright: ignore
        return [dict(zip(names, event.split(SEPARATOR), strict=True)) for event in packed]


@pytest.fixture
def bench(valkey: Valkey, valkey_url: str, queue_ref: QueueRef) -> Bench:
    return Bench(valkey, valkey_url, queue_ref)


def test_a_job_is_enqueued_leased_and_done(bench: Bench) -> None:
    assert bench.enqueue(NewJob("send", b"\x00\xffbody", id="j:1")) == [True]
    assert (bench.state.depth, bench.state.running, bench.state.bytes) == (1, 0, 6)
    [job] = bench.dequeue()
    assert (job.queue, job.id, job.task, job.payload, job.attempt) == (bench.ref, "j:1", "send", b"\x00\xffbody", 1)
    assert (bench.state.depth, bench.state.running) == (0, 1)
    assert bench.ack(job)
    assert (bench.state.depth, bench.state.running, bench.state.bytes) == (0, 0, 0)
    assert bench.state.odometers == {"enqueue": 1, "dequeue": 1, "ack": 1}
    assert not list(bench.valkey.scan_iter("*:job:*"))


def test_the_same_id_twice_is_one_job(bench: Bench) -> None:
    assert bench.enqueue(NewJob("t", id="1"), NewJob("t", id="1"), NewJob("t", id="2")) == [True, False, True]
    assert bench.state.odometers == {"enqueue": 2}


def test_a_result_of_a_lost_lease_is_refused(bench: Bench) -> None:
    bench.enqueue(NewJob("t"))
    [first] = bench.dequeue(lease_ms=1)
    wait_until(lambda: bench.run(bench.stubs.reclaim(0, 10)), "the lease ends")
    [second] = bench.dequeue()
    assert not bench.ack(first)
    assert bench.nack(first) == 0
    assert bench.run(bench.stubs.extend(0, [first], LEASE_MS)) == [False]
    assert bench.ack(second)
    assert not bench.ack(second)
    assert bench.state.odometers == {"enqueue": 1, "dequeue": 2, "reclaim": 1, "ack": 1}


def test_an_extended_lease_is_not_reclaimed(bench: Bench) -> None:
    bench.enqueue(NewJob("t"), NewJob("t"))
    kept, lost = bench.dequeue(2, lease_ms=1)
    assert bench.run(bench.stubs.extend(0, [kept], LEASE_MS)) == [True]
    wait_until(lambda: bench.run(bench.stubs.reclaim(0, 10)), "the other lease ends")
    assert [job.id for job in bench.dequeue(10)] == [lost.id]
    assert bench.ack(kept)


def test_a_failed_job_is_tried_again_and_then_buried(bench: Bench) -> None:
    bench.enqueue(NewJob("t", b"12345", max_attempts=2))
    [job] = bench.dequeue()
    assert bench.nack(job) == 1
    [again] = bench.dequeue()
    assert again.attempt == 2
    assert bench.nack(again, error="Traceback …") == 2
    state = bench.state
    assert (state.depth, state.running, state.dead, state.bytes) == (0, 0, 1, 0)
    # The nack that exhausts the attempts is a bury, not also a nack.
    assert state.odometers == {"enqueue": 1, "dequeue": 2, "nack": 1, "bury": 1}
    kept = bench.valkey.hgetall(keys.job(0, bench.ref.environment, job.id))
    assert kept[b"error"].decode() == "Traceback …"  # pyright: ignore


def test_a_delayed_job_waits_until_it_is_due(bench: Bench) -> None:
    bench.enqueue(NewJob("t", id="it", delay_ms=HOUR_MS))
    assert bench.run(bench.stubs.release(0, 10)) == 0
    assert (bench.state.depth, bench.state.scheduled) == (0, 1)
    assert bench.dequeue() == []
    bench.valkey.zincrby(keys.scheduled(0), -2 * HOUR_MS, keys.job_part(bench.ref.environment, "it"))
    assert bench.run(bench.stubs.release(0, 10)) == 1
    assert (bench.state.depth, bench.state.scheduled) == (1, 0)
    [job] = bench.dequeue()
    assert job.waited_ms >= HOUR_MS  # counted from when it was due
    assert bench.ack(job)


def test_oldest_first_within_an_environment_and_turns_between_them(bench: Bench, valkey_url: str) -> None:
    noisy, quiet = QueueRef("noisy", "p", "e", "q"), QueueRef("quiet", "p", "e", "q")
    client = SyncClient(valkey_url, QueueOptions(shards=1))
    client.enqueue_many(noisy, [NewJob("t", id=f"n{number}") for number in range(100)])
    client.enqueue_many(quiet, [NewJob("t", id=f"q{number}") for number in range(3)])
    order = [job.id for job in bench.dequeue(6)]  # three for each of the two
    assert [job_id for job_id in order if job_id.startswith("q")] == ["q0", "q1", "q2"]
    assert [job_id for job_id in order if job_id.startswith("n")] == ["n0", "n1", "n2"]


def test_events_carry_the_state_after_each_operation(bench: Bench) -> None:
    bench.enqueue(NewJob("t"), NewJob("t"))
    one, two = bench.dequeue(2)
    bench.ack(one, run_ms=7)
    bench.nack(two)
    events = bench.events()
    assert [event["op"] for event in events] == ["enqueue", "dequeue", "ack", "nack"]
    assert [int(event["seq"]) for event in events] == [1, 2, 3, 4]
    assert [int(event["n"]) for event in events] == [2, 2, 1, 1]
    assert [int(event["depth"]) for event in events] == [2, 0, 0, 1]
    assert [int(event["env_depth"]) for event in events] == [2, 0, 0, 1]
    assert [int(event["running"]) for event in events] == [0, 2, 1, 0]
    assert [event["queue"] for event in events] == [bench.ref.queue] * 4
    assert len(events[1]["waits"].split(",")) == 2
    assert events[2]["runs"] == "7"
    assert events[1]["oldest_ms"] == ""
    assert int(events[0]["oldest_ms"]) > 1_700_000_000_000


def test_a_broken_stream_fails_no_operation(bench: Bench) -> None:
    bench.valkey.set(keys.metrics(0), "not a stream")
    bench.enqueue(NewJob("t"))
    [job] = bench.dequeue()
    assert bench.ack(job)
    assert bench.state.odometers == {"enqueue": 1, "dequeue": 1, "ack": 1}


def test_switched_off_metrics_leave_the_odometers_running(bench: Bench) -> None:
    bench.valkey.set(keys.metrics_enabled(0), "0")
    bench.enqueue(NewJob("t"))
    assert bench.events() == []
    bench.valkey.delete(keys.metrics_enabled(0))
    bench.enqueue(NewJob("t"))
    [event] = bench.events()
    assert (event["seq"], event["odometer"]) == ("2", "2")


def test_a_queue_has_one_number_of_shards(bench: Bench, valkey_url: str) -> None:
    bench.enqueue(NewJob("t"))
    with pytest.raises(ShardMismatch, match=r"Set queue\.shards = 1"):
        SyncClient(valkey_url, QueueOptions(shards=2)).enqueue(bench.ref, NewJob("t"))


@pytest.mark.parametrize("job", [NewJob("t", b"x" * 11), NewJob("t", delay_ms=-1), NewJob("t", max_attempts=0)])
def test_what_is_out_of_bounds_is_refused_and_nothing_is_written(valkey: Valkey, valkey_url: str, job: NewJob) -> None:
    client = SyncClient(valkey_url, QueueOptions(max_payload_bytes=10))
    with pytest.raises(InvalidJob, match="Nothing was written"):
        client.enqueue_many(QueueRef("o", "p", "e", "q"), [NewJob("t"), job])
    assert valkey.dbsize() == 0


def test_an_absent_server_is_an_error_of_ours() -> None:
    with pytest.raises(QueueUnavailable, match="is not responding"):
        SyncClient("redis://127.0.0.1:1/0").enqueue(QueueRef("o", "p", "e", "q"), NewJob("t"))


def test_urgent_jobs_first_and_equal_ones_in_order(bench: Bench) -> None:
    jobs = [("late", -1), ("a", 0), ("urgent", 5), ("b", 0), ("first", 5)]
    bench.enqueue(*(NewJob("t", id=name, priority=priority) for name, priority in jobs))
    oldest = bench.state.oldest_ms
    assert [bench.dequeue()[0].id for _ in jobs] == ["urgent", "first", "a", "b", "late"]
    assert oldest is not None
    assert bench.state.oldest_ms is None


def test_jobs_of_one_call_keep_their_order(bench: Bench) -> None:
    names = [f"job {number}" for number in range(300)]
    bench.enqueue(*(NewJob("t", id=name) for name in names))
    assert [job.id for job in bench.dequeue(300)] == names


def test_a_ttl_counts_while_the_job_waits_and_survives_a_failure(bench: Bench) -> None:
    bench.enqueue(NewJob("t", b"123", id="short", ttl_ms=1), NewJob("t", id="long", ttl_ms=600_000))
    wait_until(lambda: bench.run(bench.stubs.expire(0, 10)), "the short one expires")
    [job] = bench.dequeue(10)
    assert job.id == "long"
    bench.nack(job)
    info = bench.client.get(bench.ref.environment, "long")
    assert info is not None
    assert info.expires_at_ms is not None
    assert bench.valkey.zscore(keys.expiries(0), keys.job_part(bench.ref.environment, "long")) is not None
    assert bench.client.get(bench.ref.environment, "short") is None
    assert bench.state.odometers["expire"] == 1
    assert bench.state.bytes == 0


def test_an_expired_job_is_not_handed_out_before_the_sweeper_came(bench: Bench) -> None:
    bench.enqueue(NewJob("t", ttl_ms=1))
    accepted_ms = bench.now_ms()
    wait_until(lambda: bench.now_ms() > accepted_ms + 1, "the job expired by the server's clock")
    assert bench.dequeue() == []
    assert bench.state.depth == 0
    assert bench.state.odometers == {"enqueue": 1, "expire": 1}


def test_limits_hold_for_the_queue_and_its_environment(bench: Bench) -> None:
    other = QueueRef(bench.ref.org, bench.ref.project, bench.ref.env, "other")
    bench.enqueue(*(NewJob("t") for _ in range(10)))
    bench.client.enqueue_many(other, [NewJob("t") for _ in range(10)])
    bench.client.limits(bench.ref, 2)
    assert len([job for job in bench.dequeue(5) if job.queue == bench.ref]) <= 2
    held = bench.dequeue(20)
    running = {state.ref.queue: state.running for state in read_states(bench.valkey, 1)}
    assert running == {bench.ref.queue: 2, "other": 10}
    assert held
    bench.client.limits(bench.ref.environment, 4, burst=2.0)
    assert bench.dequeue(20) == []  # twelve run already, more than eight
    bench.client.limits(bench.ref, None)
    bench.client.limits(bench.ref.environment, None)
    assert len(bench.dequeue(20)) == 8


def test_an_environment_may_burst_but_no_queue_beyond_its_limit(bench: Bench) -> None:
    other = QueueRef(bench.ref.org, bench.ref.project, bench.ref.env, "other")
    bench.client.limits(bench.ref.environment, 4, burst=1.5)
    bench.enqueue(*(NewJob("t") for _ in range(10)))
    assert len(bench.dequeue(20)) == 4
    bench.client.enqueue_many(other, [NewJob("t") for _ in range(10)])
    [first, *rest] = bench.dequeue(20)
    assert len(rest) == 1
    assert {job.queue for job in (first, *rest)} == {other}
    assert bench.dequeue(20) == []
    assert bench.ack(first)
    assert len(bench.dequeue(20)) == 1


def test_a_worker_may_serve_some_queues_only(bench: Bench) -> None:
    refs = [QueueRef(org, "p", "e", queue) for org in ("one", "two") for queue in ("wanted", "other")]
    for ref in refs:
        bench.client.enqueue_many(ref, [NewJob("t") for _ in range(5)])
    bench.client.limits(refs[0].environment, 1)
    only = bench.run(bench.stubs.dequeue(0, 20, LEASE_MS, ["wanted"]))
    assert sorted((job.queue.org, job.queue.queue) for job in only) == [("one", "wanted"), *[("two", "wanted")] * 5]
    assert bench.run(bench.stubs.dequeue(0, 20, LEASE_MS, ["wanted"])) == []
    bench.ack(next(job for job in only if job.queue.org == "one"))
    assert len(bench.run(bench.stubs.dequeue(0, 20, LEASE_MS, ["wanted", "nothing"]))) == 1


def test_paused_and_closed(bench: Bench) -> None:
    bench.enqueue(NewJob("t"))
    bench.client.pause(bench.ref)
    assert bench.dequeue() == []
    assert bench.state.paused
    bench.enqueue(NewJob("t"))
    bench.client.resume(bench.ref)
    assert len(bench.dequeue(5)) == 2
    bench.client.close_queue(bench.ref)
    with pytest.raises(QueueClosed, match="Nothing was written"):
        bench.enqueue(NewJob("t"))
    bench.client.open_queue(bench.ref)
    assert bench.enqueue(NewJob("t")) == [True]
    with pytest.raises(UnknownQueue):
        bench.client.pause(QueueRef("nobody", "p", "e", "q"))
    assert {event["op"] for event in bench.events()} == {"enqueue", "dequeue", "resync"}


def test_a_waiting_job_can_be_cancelled_a_running_one_not(bench: Bench) -> None:
    env = bench.ref.environment
    bench.enqueue(NewJob("t", id="ready"), NewJob("t", id="later", delay_ms=60_000), NewJob("t", id="runs", priority=1))
    [running] = bench.dequeue()
    assert running.id == "runs"
    assert bench.client.cancel(env, "runs") == JobState.RUNNING
    assert bench.client.cancel(env, "ready") == JobState.READY
    assert bench.client.cancel(env, "later") == JobState.SCHEDULED
    assert bench.client.cancel(env, "ready") is None
    assert (bench.state.depth, bench.state.scheduled, bench.state.odometers["cancel"]) == (0, 0, 2)
    assert bench.ack(running)


def test_dead_jobs_can_be_redriven_by_filter(bench: Bench) -> None:
    bench.enqueue(*(NewJob(task, id=f"{task}{number}") for task in ("a", "b") for number in range(3)))
    for job in bench.dequeue(6):
        bench.run(bench.stubs.bury(0, [(job, f"{job.task} went wrong\n")]))
    assert bench.state.dead == 6
    assert bench.client.redrive(bench.ref, DeadFilter(ids=["a0", "nobody"])) == 1
    assert bench.client.redrive(bench.ref, DeadFilter(task="b", error="a went")) == 0
    assert bench.client.redrive(bench.ref, DeadFilter(task="b")) == 3
    assert bench.client.redrive(bench.ref, DeadFilter(error="went wrong")) == 2
    assert (bench.state.dead, bench.state.depth, bench.state.odometers["redrive"]) == (0, 6, 6)
    assert {job.attempt for job in bench.dequeue(6)} == {1}


def test_a_job_that_no_worker_began_is_not_buried(bench: Bench) -> None:
    """However often its delivery is lost on the way to a worker."""
    bench.enqueue(NewJob("t", id="1", max_attempts=2))
    for _ in range(6):
        assert bench.dequeue(lease_ms=1)
        wait_until(lambda: bench.run(bench.stubs.reclaim(0, 10)), "the lease ends")
    [job] = bench.dequeue()
    assert (job.attempt, bench.state.dead) == (2, 0)
    assert bench.run(bench.stubs.begin(0, [job])) == [True]
    assert bench.nack(job) == 2


def test_a_job_that_kills_its_workers_is_buried(bench: Bench) -> None:
    bench.enqueue(NewJob("t", id="killer", max_attempts=2))
    for _ in range(2):
        [job] = bench.dequeue(lease_ms=1)
        bench.run(bench.stubs.begin(0, [job]))
        wait_until(lambda: bench.run(bench.stubs.reclaim(0, 10)), "the lease ends")
    info = bench.client.get(bench.ref.environment, "killer")
    assert info is not None
    assert info.state == JobState.DEAD
    assert "lease of attempt 2 ended" in (info.error or "")


def test_a_requeued_job_keeps_its_attempts(bench: Bench) -> None:
    bench.enqueue(NewJob("t", max_attempts=1))
    [job] = bench.dequeue()
    assert bench.run(bench.stubs.requeue(0, [job])) == [True]
    [again] = bench.dequeue()
    assert again.attempt == 1
    assert bench.ack(again)


def test_the_id_of_a_finished_job_stays_taken_for_a_while(bench: Bench) -> None:
    env = bench.ref.environment
    bench.enqueue(NewJob("t", id="once"))
    bench.run(bench.stubs.ack(0, [(bench.dequeue()[0], 1)], keep_ms=HOUR_MS))
    assert bench.enqueue(NewJob("t", id="once")) == [False]
    info = bench.client.get(env, "once")
    assert info is not None
    assert info.state == JobState.DONE


def test_a_full_memory_refuses_jobs_and_lets_workers_go_on(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log")
    server.start()
    server.wait_ready(READY_S)
    try:
        with connect(server.url) as valkey:
            bench = Bench(valkey, server.url, QueueRef("o", "p", "e", "q"))
            bench.enqueue(NewJob("t"), NewJob("t"), NewJob("t"))
            valkey.config_set("maxmemory", 1)
            with pytest.raises(MemoryFull, match="Nothing was written"):
                bench.enqueue(NewJob("t"))
            done, failed, dead = bench.dequeue(3)
            assert bench.run(bench.stubs.extend(0, [done], LEASE_MS)) == [True]
            assert bench.ack(done)
            assert bench.nack(failed) == 1
            assert bench.run(bench.stubs.bury(0, [(dead, "x")])) == [True]
            assert bench.state.odometers == {"enqueue": 3, "dequeue": 3, "ack": 1, "nack": 1, "bury": 1}
    finally:
        server.stop()


def test_the_clock_of_a_client_does_not_matter(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600_000_000_000)
    bench.enqueue(NewJob("t", id="skewed", delay_ms=HOUR_MS // 2))  # by the client's clock it would be due already
    info = bench.client.get(bench.ref.environment, "skewed")
    assert info is not None
    assert info.enqueued_at_ms is not None
    assert abs(info.enqueued_at_ms - real() // 1_000_000) < 600_000
    assert bench.run(bench.stubs.release(0, 10)) == 0
    assert bench.dequeue() == []


def test_accepted_jobs_outlive_a_killed_server(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log")
    server.start()
    server.wait_ready(READY_S)
    with connect(server.url) as valkey:
        Bench(valkey, server.url, QueueRef("o", "p", "e", "q")).enqueue(*(NewJob("t") for _ in range(50)))
        valkey.set("last", "")  # what a client waits for is its own last write, and all before it
        wait_until(lambda: cast("list[int]", valkey.execute_command("WAITAOF", 1, 0, 5000))[0], "it is on disk")
    psutil.Process(server.child.pid).kill()
    wait_until(server.exit_code, "it died")
    server.start()
    server.wait_ready(READY_S)
    try:
        with connect(server.url) as valkey:
            bench = Bench(valkey, server.url, QueueRef("o", "p", "e", "q"))
            assert len(bench.dequeue(100)) == 50
    finally:
        server.stop()


def test_what_does_not_exist_or_has_no_legal_name_is_refused(bench: Bench) -> None:
    nobody, illegal = QueueRef("nobody", "p", "e", "q"), QueueRef("o\n", "p", "e", "q")
    with pytest.raises(UnknownQueue, match="Nothing was changed"):
        bench.client.redrive(nobody)
    for act in (bench.client.pause, bench.client.close_queue, bench.client.redrive):
        with pytest.raises(InvalidName):
            act(illegal)
    with pytest.raises(InvalidName):
        bench.client.limits(illegal.environment, 5)
    with pytest.raises(InvalidLimit):
        bench.client.limits(nobody.environment, -1)
    assert list(bench.valkey.scan_iter("*nobody*")) == []


def test_version_is_read_from_a_server_of_any_kind(valkey_url: str) -> None:
    assert (read_server_version(valkey_url) or "").startswith("valkey ")
    assert read_server_version(f"{urlsplit(valkey_url).scheme}://127.0.0.1:1") is None

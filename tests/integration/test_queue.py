"""The verbs against a real Valkey: one queue, one job at a time, every number checked."""

from __future__ import annotations

from typing import TypeVar

import pytest

from headrace.errors import InvalidJob, QueueUnavailable, ShardMismatch
from headrace.model.event import COLUMNS, FIELD, SEPARATOR
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.queue import QueueOptions, SyncClient
from headrace.queue.scripts import Stubs
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import Call, run
from tests.conftest import wait_until

T = TypeVar("T")

LEASE_MS = 60_000


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

    def run(self, call: Call[T]) -> T:
        return run(self.valkey, call)

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
    bench.enqueue(NewJob("t", delay_ms=30))
    assert (bench.state.depth, bench.state.scheduled) == (0, 1)
    assert bench.dequeue() == []
    wait_until(lambda: bench.run(bench.stubs.release(0, 10)), "the job is due")
    assert (bench.state.depth, bench.state.scheduled) == (1, 0)
    [job] = bench.dequeue()
    assert job.waited_ms < 30_000  # counted from when it was due
    assert bench.ack(job)


def test_oldest_first_within_an_environment_and_turns_between_them(bench: Bench, valkey_url: str) -> None:
    noisy, quiet = QueueRef("noisy", "p", "e", "q"), QueueRef("quiet", "p", "e", "q")
    client = SyncClient(valkey_url, QueueOptions(shards=1))
    client.enqueue_many(noisy, [NewJob("t", id=f"n{number}") for number in range(100)])
    client.enqueue_many(quiet, [NewJob("t", id=f"q{number}") for number in range(3)])
    order = [job.id for job in bench.dequeue(6)]  # three for each of the two
    assert [job_id for job_id in order if job_id.startswith("q")] == ["q0", "q1", "q2"]
    assert [job_id for job_id in order if job_id.startswith("n")] == ["n0", "n1", "n2"]


def test_events_tell_the_state_after_each_operation(bench: Bench) -> None:
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
    with pytest.raises(QueueUnavailable, match="does not answer"):
        SyncClient("redis://127.0.0.1:1/0").enqueue(QueueRef("o", "p", "e", "q"), NewJob("t"))

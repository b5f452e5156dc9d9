"""Faults of the two tiers that the model (tests/model/test_tiers_model.py) or a review found, one plain test each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import pytest

from headrace.cold.audit import Audit, Drift
from headrace.cold.mover import Mover
from headrace.cold.tiers import Tiers
from headrace.errors import QueueFull
from headrace.model.job import LeasedJob, NewJob
from headrace.queue import keys
from headrace.queue.queue import QueueOptions, SyncClient
from headrace.queue.scripts import Caps
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import Call, run
from tests.conftest import ODD_NAMES

T = TypeVar("T")

REF = ODD_NAMES
CAP = 5
HOUR_MS = 3_600_000


class Crash(BaseException):
    pass


class DyingTiers(Tiers):
    """Dies right after the script `dies_after` ran, or right before `dies_before`."""

    dies_after = dies_before = ""

    def run(self, call: Call[T]) -> T:
        if call.script.name == self.dies_before:
            raise Crash
        answer = super().run(call)
        if call.script.name == self.dies_after:
            raise Crash
        return answer


@dataclass
class Bench:
    client: SyncClient
    tiers: DyingTiers

    def __post_init__(self) -> None:
        self.stubs = self.client.options.stubs()
        self.valkey = self.client.redis
        self.mover = self.next_mover()

    def next_mover(self) -> Mover:
        """The former one's lease is over."""
        self.valkey.delete(keys.mover(0))
        self.tiers.dies_after = self.tiers.dies_before = ""
        self.mover = Mover(self.tiers)
        self.mover.elect()
        return self.mover

    @property
    def state(self) -> QueueState:
        return read_states(self.valkey, 1)[0]

    def enqueue(self, *ids: int, delay_ms: int = 0, ttl_ms: int | None = None) -> list[bool]:
        jobs = [NewJob("send", b"12", id=str(number), delay_ms=delay_ms, ttl_ms=ttl_ms) for number in ids]
        return self.client.enqueue_many(REF, jobs)

    def work(self) -> list[str]:
        jobs: list[LeasedJob] = run(self.valkey, self.stubs.dequeue(0, 100, 60_000))
        run(self.valkey, self.stubs.ack(0, [(job, 1) for job in jobs], 0))
        return [job.id for job in jobs]


@pytest.fixture
def bench(valkey_url: str, postgres_url: str) -> Iterator[Bench]:
    options = QueueOptions(shards=1, caps=Caps(items=CAP))
    tiers = DyingTiers(valkey_url, postgres_url, options)
    with SyncClient(valkey_url, options, tiers) as client:
        yield Bench(client, tiers)


def test_a_job_that_was_moved_and_is_done_does_not_expire_as_well(bench: Bench) -> None:
    """Its row was left behind by a mover that died; the row's TTL is nobody's business."""
    bench.enqueue(*range(CAP))
    bench.enqueue(7, ttl_ms=HOUR_MS)
    bench.work()
    bench.tiers.dies_after = "refill"
    with pytest.raises(Crash):
        bench.mover.visit(REF)
    assert bench.work() == ["7"]
    with bench.tiers.store.transaction() as conn:
        conn.execute("UPDATE cold_queue_entries SET expires_ms = 1")
    bench.next_mover().sweep(0)
    state = bench.state
    assert (state.odometers["ack"], state.odometers.get("expire", 0)) == (CAP + 1, 0)
    assert (state.depth, state.bytes, state.cold_mode) == (0, 0, False)


def test_jobs_that_were_moved_are_not_counted_in_both_tiers_while_there_is_no_room(bench: Bench) -> None:
    bench.enqueue(*range(2 * CAP))
    bench.work()
    bench.tiers.dies_after = "refill"
    with pytest.raises(Crash):
        bench.mover.visit(REF)
    bench.next_mover().sweep(0)
    state = bench.state
    assert (state.depth, state.warm, state.cold, state.bytes) == (CAP, CAP, 0, 2 * CAP)


def test_what_a_dead_mover_left_in_a_queue_that_nobody_visits_is_tidied_up(bench: Bench, valkey: Valkey) -> None:
    """A job that became due was moved to a queue that is not in cold mode, and nobody was told."""
    bench.enqueue(1, delay_ms=HOUR_MS)
    with bench.tiers.store.transaction() as conn:
        conn.execute("UPDATE cold_queue_entries SET due_ms = 1")
    bench.tiers.dies_before = "settle"
    with pytest.raises(Crash):
        bench.mover.visit(REF)
    bench.next_mover().sweep(0)
    assert Audit(bench.tiers).run(0) == Drift()
    assert valkey.smembers(keys.moving(0, REF)) == set()
    assert (bench.state.depth, bench.state.scheduled) == (1, 0)


def test_a_delayed_job_in_cold_mode_is_scheduled_until_it_is_due(bench: Bench) -> None:
    bench.enqueue(*range(CAP + 1))
    bench.enqueue(99, delay_ms=HOUR_MS)
    bench.enqueue(100, delay_ms=50_000)  # would wait in Valkey if there were room
    state = bench.state
    assert (state.depth, state.cold, state.scheduled) == (CAP + 1, 1, 2)
    assert bench.work() == [str(number) for number in range(CAP)]
    bench.mover.sweep(0)
    assert bench.work() == [str(CAP)]
    bench.mover.sweep(0)
    assert not bench.state.cold_mode


def test_without_postgres_jobs_that_are_there_already_need_no_room(valkey_url: str) -> None:
    options = QueueOptions(shards=1, caps=Caps(items=3, shard_bytes=5))
    jobs = [NewJob("send", b"12", id=str(number)) for number in range(4)]
    with SyncClient(valkey_url, options) as client:
        with pytest.raises(QueueFull):
            client.enqueue_many(REF, jobs[:3])  # more than the shard may hold, though it is empty
        assert client.enqueue_many(REF, [jobs[0], jobs[1], jobs[1], jobs[1]]) == [True, True, False, False]
        client.caps(REF, 1, None)
        assert client.enqueue_many(REF, jobs[:2]) == [False, False]
        with pytest.raises(QueueFull):
            client.enqueue_many(REF, jobs[1:3])


def test_a_queue_that_valkey_lost_can_be_read_before_the_audit_has_come(bench: Bench, valkey: Valkey) -> None:
    bench.enqueue(*range(CAP + 2))
    numbers = bench.tiers.store.numbers(0)[0][1]
    valkey.flushall()
    bench.tiers.tell(REF, numbers)
    assert (bench.state.depth, bench.state.bytes) == (0, 0)
    assert Audit(bench.tiers).run(0) == Drift()
    assert (bench.state.depth, bench.state.cold, bench.state.cold_mode) == (2, 2, True)


def test_the_same_id_twice_in_one_call_is_one_job_whichever_tier_each_is_for(bench: Bench) -> None:
    later, now = (NewJob("send", b"12", id="1", delay_ms=delay_ms) for delay_ms in (HOUR_MS, 0))
    assert bench.client.enqueue_many(REF, [later, now]) == [True, False]
    assert (bench.state.depth, bench.state.scheduled) == (0, 1)


def test_jobs_that_wait_already_are_not_taken_for_newer_ones(bench: Bench) -> None:
    """As many as were asked for wait, so they were taken for all there is; but one of them is from before."""
    bench.enqueue(*range(CAP), CAP)
    bench.work()
    oldest_ms = bench.state.oldest_ms
    time.sleep(0.01)
    assert bench.enqueue(CAP, CAP + 1) == [False, True]
    assert bench.state.oldest_ms == oldest_ms


def test_the_oldest_is_cancelled(bench: Bench) -> None:
    bench.enqueue(*range(CAP), CAP)
    time.sleep(0.01)
    bench.enqueue(CAP + 1)
    bench.work()
    before_ms = bench.state.oldest_ms
    bench.client.cancel(REF.environment, str(CAP))
    assert before_ms is not None
    assert (bench.state.oldest_ms or 0) > before_ms

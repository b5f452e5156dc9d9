"""Faults of the two tiers that the model (tests/model/test_tiers_model.py) or a review found, one plain test each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import pytest

from headrace.cold.audit import Drift, TierAudit
from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.tiers import Tiers
from headrace.errors import QueueFull
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import ScriptCall, run
from tests.audits import run_audit
from tests.conftest import ODD_NAMES

T = TypeVar("T")

REF = ODD_NAMES
OTHER = QueueRef(REF.org, REF.project, REF.env, "another")
CAP = 5
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def long_lock_validity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep movers on a slow machine from concluding that they were paused and lost their lock."""
    monkeypatch.setattr("headrace.cold.mover.LOCK_VALID_MS", 600_000.0)


class Crash(BaseException):
    pass


class DyingTiers(Tiers):
    """Dies right after the script `dies_after` ran, or right before `dies_before`."""

    dies_after = dies_before = ""

    def run(self, call: ScriptCall[T]) -> T:
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
        self.stubs = self.client.options.make_stubs()
        self.valkey = self.client.redis
        self.mover = self.next_mover()

    def next_mover(self) -> Mover:
        """The former one's lease is over."""
        self.valkey.delete(keys.mover(0))
        self.tiers.dies_after = self.tiers.dies_before = ""
        self.mover = Mover(self.tiers, MoverOptions(lease_s=3600.0, audit_every_s=3600.0))
        self.mover.renew_leadership()
        return self.mover

    @property
    def state(self) -> QueueState:
        return read_states(self.valkey, 1)[0]

    def enqueue(self, *ids: int, delay_ms: int = 0, ttl_ms: int | None = None) -> list[bool]:
        jobs = [NewJob("send", b"12", id=str(number), delay_ms=delay_ms, ttl_ms=ttl_ms) for number in ids]
        return self.client.enqueue_many(REF, jobs)

    def work(self) -> list[str]:
        jobs: list[LeasedJob] = run(self.valkey, self.stubs.dequeue(0, 100, HOUR_MS))
        run(self.valkey, self.stubs.ack(0, [(job, 1) for job in jobs], 0))
        return [job.id for job in jobs]


@pytest.fixture
def bench(valkey_url: str, postgres_url: str) -> Iterator[Bench]:
    options = QueueOptions(shards=1, caps=WarmCaps(items=CAP))
    tiers = DyingTiers(valkey_url, postgres_url, options)
    with SyncClient(valkey_url, options, tiers) as client:
        yield Bench(client, tiers)


def test_a_job_that_was_moved_and_is_done_does_not_expire_as_well(bench: Bench) -> None:
    """A mover died and left its row; the TTL of that row must be ignored."""
    bench.enqueue(*range(CAP))
    bench.enqueue(7, ttl_ms=HOUR_MS)
    bench.work()
    bench.tiers.dies_after = "refill"
    with pytest.raises(Crash):
        bench.mover.refill_queue(REF)
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
        bench.mover.refill_queue(REF)
    bench.next_mover().sweep(0)
    state = bench.state
    assert (state.depth, state.warm, state.cold, state.bytes) == (CAP, CAP, 0, 2 * CAP)


def test_audit_confirms_rows_that_a_dead_mover_placed_in_an_idle_queue(bench: Bench, valkey: Valkey) -> None:
    """A job that became due was moved to a queue that is not in cold mode, and the counters were not synced."""
    bench.enqueue(1, delay_ms=HOUR_MS)
    with bench.tiers.store.transaction() as conn:
        conn.execute("UPDATE cold_queue_entries SET due_ms = 1")
    bench.tiers.dies_before = "sync_cold"
    with pytest.raises(Crash):
        bench.mover.refill_queue(REF)
    bench.next_mover().sweep(0)
    assert run_audit(bench.tiers, 0) == Drift()
    assert valkey.smembers(keys.moving(0, REF)) == set()
    assert (bench.state.depth, bench.state.scheduled) == (1, 0)


def test_a_delayed_job_in_cold_mode_is_scheduled_until_it_is_due(bench: Bench) -> None:
    bench.tiers.far_ms = 2 * HOUR_MS
    bench.enqueue(*range(CAP + 1))
    bench.enqueue(99, delay_ms=3 * HOUR_MS)
    bench.enqueue(100, delay_ms=HOUR_MS)  # would wait in Valkey if there were room
    state = bench.state
    assert (state.depth, state.cold, state.scheduled) == (CAP + 1, 1, 2)
    assert bench.work() == [str(number) for number in range(CAP)]
    bench.mover.sweep(0)
    assert bench.work() == [str(CAP)]
    bench.mover.sweep(0)
    assert not bench.state.cold_mode


def test_without_postgres_jobs_that_are_there_already_need_no_room(valkey_url: str) -> None:
    options = QueueOptions(shards=1, caps=WarmCaps(items=3, shard_bytes=5))
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
    store = bench.tiers.store
    numbers = store.read_counters(store.ensure_queue_id(REF, 0))
    valkey.flushall()
    bench.tiers.sync_counters(REF, numbers)
    assert (bench.state.depth, bench.state.bytes) == (0, 0)
    assert run_audit(bench.tiers, 0) == Drift()
    assert (bench.state.depth, bench.state.cold, bench.state.cold_mode) == (2, 2, True)


def test_the_same_id_twice_in_one_call_is_one_job_whichever_tier_each_is_for(bench: Bench) -> None:
    later, now = (NewJob("send", b"12", id="1", delay_ms=delay_ms) for delay_ms in (HOUR_MS, 0))
    assert bench.client.enqueue_many(REF, [later, now]) == [True, False]
    assert (bench.state.depth, bench.state.scheduled) == (0, 1)


def test_jobs_that_wait_already_are_not_taken_for_newer_ones(bench: Bench) -> None:
    """The number of waiting rows equals that of the spilled jobs, so they were taken for all rows; but one is older."""
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


def test_a_setting_that_was_taken_back_is_taken_from_valkey_too(bench: Bench) -> None:
    """PostgreSQL had the record, and the process that was to update Valkey died: the queue stayed paused."""
    bench.enqueue(1)
    bench.client.pause(REF)
    bench.tiers.record_settings(REF, {"paused": None})
    assert bench.state.paused
    assert run_audit(bench.tiers, 0).settings == 1
    assert not bench.state.paused
    assert run_audit(bench.tiers, 0) == Drift()


def test_an_audit_does_not_undo_what_an_operator_has_just_decided(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.enqueue(1)
    bench.client.pause(REF)
    bench.client.resume(REF)
    read = bench.tiers.store.list_settings

    def read_and_be_overtaken() -> object:
        found = read()
        bench.client.pause(REF)
        return found

    monkeypatch.setattr(bench.tiers.store, "list_settings", read_and_be_overtaken)
    assert run_audit(bench.tiers, 0) == Drift()
    assert bench.state.paused


def bury(bench: Bench, error: str) -> None:
    jobs: list[LeasedJob] = run(bench.valkey, bench.stubs.dequeue(0, 100, HOUR_MS))
    run(bench.valkey, bench.stubs.bury(0, [(job, error) for job in jobs]))


@pytest.mark.parametrize("error", ["a \0 b", "a \udcff b"])
def test_an_error_may_hold_any_character(bench: Bench, error: str) -> None:
    """One of these could not be sent by the worker, the other kept all dead jobs of its queue in Valkey for ever."""
    bench.enqueue(1)
    bury(bench, error)
    bench.mover.sweep(0)
    assert (bench.state.dead, bench.valkey.zcard(keys.dead(0, REF))) == (1, 0)
    found = bench.client.get(REF.environment, "1")
    assert found is not None
    assert found.error == error.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def test_ids_that_are_not_kept_are_free_when_their_job_is_dead_in_postgres(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With queue.keep_done = 0 the script failed, and payloads of dead jobs stayed in Valkey."""
    monkeypatch.setattr(bench.tiers, "_keep_ms", 0)
    bench.enqueue(1)
    bury(bench, "no")
    bench.mover.sweep(0)
    assert bench.state.dead == 1
    assert bench.valkey.exists(keys.body(0, REF.environment, "1"), keys.dead(0, REF)) == 0


def test_large_dead_jobs_leave_valkey_some_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 of a megabyte each were one answer, which Valkey had to build before it could do anything else."""
    monkeypatch.setattr("headrace.cold.tiers.DEAD_BYTES", 4)
    bench.enqueue(*range(CAP))
    bury(bench, "no")
    assert len(run(bench.valkey, bench.stubs.list_dead(REF, 500, 4))) == 2
    assert bench.client.redrive(REF) == CAP


def test_a_queue_whose_jobs_keep_dying_does_not_keep_the_mover(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on for as long as it found another one."""
    looks = 0
    read = bench.stubs.list_dead

    def die_once_more(*_: object) -> object:
        nonlocal looks
        looks += 1
        assert looks < 100
        bench.enqueue(looks)
        bury(bench, "no")
        return read(REF, 500)

    monkeypatch.setattr("headrace.queue.scripts.Stubs.list_dead", die_once_more)
    bench.enqueue(0)
    bury(bench, "no")
    bench.mover.sweep(0)
    assert bench.state.dead >= 2


def test_an_audit_passes_over_a_queue_that_makes_trouble(bench: Bench) -> None:
    bench.client.enqueue_many(OTHER, [NewJob("send", b"12", id=f"other {number}") for number in range(CAP + 1)])
    bench.enqueue(*range(CAP + 2))
    bench.valkey.set(keys.moving(0, OTHER), "not a set")
    with bench.tiers.store.transaction() as conn:
        conn.execute("UPDATE cold_queues SET waiting = waiting + 3 WHERE queue = %s", [REF.queue])
    assert run_audit(bench.tiers, 0).rows == 3


def two_cold_queues(bench: Bench) -> None:
    bench.client.enqueue_many(OTHER, [NewJob("send", b"12", id=f"other {number}") for number in range(CAP + 1)])
    bench.enqueue(*range(CAP + 1))


def test_queues_are_fed_while_a_sweep_is_under_way(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at every queue that is cold. With thousands of them one that had run dry waited for all the others."""
    monkeypatch.setattr("headrace.cold.mover.REQUEST_CHECK_S", 0.0)
    two_cold_queues(bench)
    steps: list[str] = []

    def look(_: QueueRef) -> None:
        steps.append("look")
        bench.valkey.zadd(keys.refill_requests(0), {keys.queue_part(REF): 1})

    def visit(_: QueueRef) -> None:
        steps.append("visit")

    monkeypatch.setattr(bench.mover, "_expire", look)
    monkeypatch.setattr(bench.mover, "_refill_queue", visit)
    bench.mover.sweep(0)
    assert steps[:4] == ["look", "visit", "look", "visit"]


def test_queues_are_fed_while_an_audit_is_under_way(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at every queue that ever was cold. The mover even lost its lease meanwhile."""
    monkeypatch.setattr("headrace.cold.mover.AUDIT_SLICE_S", 0.0)
    two_cold_queues(bench)
    steps: list[str] = []

    def look(_: TierAudit, ref: QueueRef, _queue_id: int, drift: Drift) -> Drift:
        steps.append("look")
        bench.valkey.zadd(keys.refill_requests(0), {keys.queue_part(ref): 1})
        return drift

    def visit(_: QueueRef) -> None:
        steps.append("visit")

    def sweep(_: int) -> None:
        """Would visit them, too."""

    monkeypatch.setattr(TierAudit, "_repair_queue", look)
    monkeypatch.setattr(bench.mover, "sweep", sweep)
    monkeypatch.setattr(bench.mover, "_refill_queue", visit)
    for _ in range(4):
        bench.mover.run_once()
    assert steps == ["look", "visit", "look", "visit"]


def test_a_new_cap_decides_when_a_queue_requests_a_refill(bench: Bench) -> None:
    """By the one it went cold with it seemed full, and was refilled every few seconds only."""
    bench.enqueue(*range(6 * CAP))
    bench.client.caps(REF, 4 * CAP, None)
    bench.mover.sweep(0)
    assert bench.state.warm == 4 * CAP
    bench.valkey.delete(keys.refill_requests(0))
    jobs: list[LeasedJob] = run(bench.valkey, bench.stubs.dequeue(0, CAP, HOUR_MS))
    run(bench.valkey, bench.stubs.ack(0, [(job, 1) for job in jobs], 0))
    assert bench.valkey.zcard(keys.refill_requests(0)) == 1

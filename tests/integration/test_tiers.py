"""Two tiers: what does not fit into Valkey waits in PostgreSQL, and comes back in order, once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.doctor_tiers import check_tiers
from headrace.cold.audit import Drift
from headrace.cold.flow_depths import merge_flow_depths
from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.store import ColdLimits
from headrace.cold.tiers import Tiers
from headrace.embedded.process import choose_port
from headrace.errors import CommitUnclear, MoverFenced, QueueCold, QueueFull, QueueUnavailable, SpillRefused
from headrace.model.job import JobState, LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.postgres import connect as postgres_connect
from headrace.postgres.connect import Connection
from headrace.postgres.connect import connect as connect_postgres
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.flow_depths import read_flow_depths
from headrace.queue.scripts import ColdRow, DeadFilter, RefillResult, Stubs, WarmCaps
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import connect
from headrace.valkey.scripts import ScriptCall, run
from tests.audits import run_audit
from tests.conftest import ODD_NAMES, READY_S, QuickPostgres, wait_until

REF = ODD_NAMES
OTHER = QueueRef(REF.org, REF.project, REF.env, "other")
CAP = 10
HOUR_MS = 3_600_000
NO_DRIFT = Drift()
SURE_MS = 600_000.0
UNHURRIED = MoverOptions(lease_s=3600.0)
"""A lease that ends when a test says so, not because the machine stood still."""


@pytest.fixture(autouse=True)
def long_lock_validity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep movers on a slow machine from concluding that they were paused and lost their lock."""
    monkeypatch.setattr("headrace.cold.mover.LOCK_VALID_MS", SURE_MS)


@dataclass
class Bench:
    valkey_url: str
    postgres_url: str
    options: QueueOptions
    client: SyncClient
    tiers: Tiers
    mover: Mover

    def __post_init__(self) -> None:
        self.stubs = self.options.make_stubs()
        self.shard = self.stubs.find_shard(REF)
        self.mover.renew_leadership()

    @property
    def state(self) -> QueueState:
        return self.read_state(REF)

    def read_state(self, ref: QueueRef) -> QueueState:
        return next(state for state in read_states(self.client.redis, 2) if state.ref == ref)

    def enqueue(self, *ids: object, ref: QueueRef = REF, **fields: Any) -> list[bool]:
        return self.client.enqueue_many(ref, [NewJob("send", b"12", id=str(number), **fields) for number in ids])

    def dequeue(self, n: int = 1000) -> list[LeasedJob]:
        return run(self.client.redis, self.stubs.dequeue(self.shard, n, HOUR_MS))

    def ack(self, jobs: list[LeasedJob]) -> None:
        run(self.client.redis, self.stubs.ack(self.shard, [(job, 1) for job in jobs], 0))

    def move(self) -> None:
        self.mover.sweep(self.shard)

    def drain(self) -> list[str]:
        done: list[str] = []
        self.move()
        while jobs := self.dequeue():
            done += [job.id for job in jobs]
            self.ack(jobs)
            self.move()
        return done

    def sql(self, query: str) -> list[Any]:
        with connect_postgres(self.postgres_url) as conn:
            found = conn.execute(query.encode())  # bytes: a test writes its own SQL
            return found.fetchall() if found.description else []

    def another_mover(self) -> Mover:
        """Elected because the lease of the one before has ended."""
        self.client.redis.delete(*(keys.mover(shard) for shard in range(2)))
        mover = Mover(self.tiers, UNHURRIED)
        mover.renew_leadership()
        return mover


@pytest.fixture
def bench(any_valkey_url: str, postgres_url: str) -> Iterator[Bench]:
    with make_bench(any_valkey_url, postgres_url) as bench_client:
        yield bench_client.bench


class make_bench:
    def __init__(self, valkey_url: str, postgres_url: str, caps: WarmCaps | None = None, **tiers: Any) -> None:
        options = QueueOptions(caps=caps or WarmCaps(items=CAP))
        self.tiers = Tiers(valkey_url, postgres_url, options, **tiers)
        client = SyncClient(valkey_url, options, self.tiers)
        self.bench = Bench(valkey_url, postgres_url, options, client, self.tiers, Mover(self.tiers, UNHURRIED))

    def __enter__(self) -> make_bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.client.close()


def read_mover_error(bench: Bench) -> bytes:
    """Return the status that `headrace doctor` reads."""
    found = bench.client.redis.hget(keys.meta(bench.shard), "mover_error")
    assert isinstance(found, bytes)
    return found


def numbers(*ids: int) -> list[str]:
    return [str(number) for number in ids]


def test_what_does_not_fit_comes_back_in_order(bench: Bench) -> None:
    assert bench.enqueue(*range(25)) == [True] * 25
    state = bench.state
    assert (state.depth, state.warm, state.cold, state.bytes, state.cold_mode) == (25, 10, 15, 50, True)
    assert (state.odometers["enqueue"], state.odometers["spill"]) == (25, 15)
    assert bench.enqueue(3, 20, 99) == [False, False, True]
    assert bench.drain() == numbers(*range(25), 99)
    state = bench.state
    assert (state.depth, state.cold, state.cold_mode, state.oldest_ms) == (0, 0, False, None)
    assert (state.odometers["refill"], state.odometers["ack"]) == (16, 26)
    assert bench.enqueue(*range(5)) == [True] * 5
    assert bench.state.cold == 0
    assert run_audit(bench.tiers, bench.shard) == NO_DRIFT


def test_the_cap_is_exact_with_many_producers(bench: Bench) -> None:
    def produce(number: int) -> None:
        bench.enqueue(number, f"b{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(produce, range(40)))
    state = bench.state
    assert (state.warm, state.cold, state.odometers["enqueue"]) == (CAP, 80 - CAP, 80)


def test_running_and_scheduled_jobs_count_and_a_mass_nack_passes_no_cap(bench: Bench) -> None:
    bench.enqueue(*range(4), delay_ms=30_000)
    bench.enqueue(*range(10, 16))
    jobs = bench.dequeue()
    assert len(jobs) == 6
    bench.enqueue(20)
    assert (bench.state.warm, bench.state.cold, bench.state.scheduled, bench.state.running) == (0, 1, 4, 6)
    run(bench.client.redis, bench.stubs.nack(bench.shard, [(job, 0, "boom") for job in jobs]))
    bench.move()
    assert (bench.state.warm, bench.state.cold, bench.state.scheduled) == (6, 1, 4)


def test_bytes_are_capped_too_but_a_large_job_is_not_stuck(any_valkey_url: str, postgres_url: str) -> None:
    with make_bench(any_valkey_url, postgres_url, WarmCaps(100, 10)) as made:
        bench = made.bench
        bench.client.enqueue_many(REF, [NewJob("t", bytes(size), id=str(size)) for size in (6, 4, 1, 50)])
        assert (bench.state.warm, bench.state.cold, bench.state.cold_bytes) == (2, 2, 51)
        assert bench.drain() == ["6", "4", "1", "50"]


def test_the_shard_has_a_cap_of_its_own(any_valkey_url: str, postgres_url: str) -> None:
    with make_bench(any_valkey_url, postgres_url, WarmCaps(100, 1000, 10)) as made:
        bench = made.bench
        bench.enqueue(1, 2, 3, 4)
        bench.enqueue(5, 6, ref=OTHER)
        assert (bench.state.warm, bench.read_state(OTHER).warm, bench.read_state(OTHER).cold) == (4, 1, 1)
        assert sorted(bench.drain()) == numbers(*range(1, 7))


def test_a_queue_has_caps_of_its_own(bench: Bench) -> None:
    bench.enqueue(0)
    bench.client.caps(REF, 2, None)
    bench.enqueue(1, 2, 3)
    assert (bench.state.warm, bench.state.cold) == (2, 2)
    bench.client.caps(REF, None, None)
    bench.move()
    assert (bench.state.warm, bench.state.cold) == (4, 0)


def test_order_is_by_priority_then_age(bench: Bench) -> None:
    bench.enqueue(*range(10))
    bench.enqueue(20, priority=-1)
    bench.enqueue(21, priority=5)
    bench.enqueue(22)
    bench.ack(bench.dequeue(10))
    bench.move()
    assert [job.id for job in bench.dequeue()] == ["21", "22", "20"]


def test_refill_waits_for_ninety_percent_and_cold_mode_for_eighty(bench: Bench) -> None:
    bench.enqueue(*range(12))
    bench.ack(bench.dequeue(1))
    bench.move()
    assert bench.state.cold == 2, "at 90 %"
    bench.ack(bench.dequeue(1))
    bench.move()
    assert (bench.state.warm, bench.state.cold, bench.state.cold_mode) == (10, 0, True)
    bench.ack(bench.dequeue(1))
    bench.enqueue(50)
    bench.move()
    assert bench.state.cold == 1, "still in cold mode: no job overtakes another"
    bench.ack(bench.dequeue(1))
    bench.move()
    assert (bench.state.warm, bench.state.cold, bench.state.cold_mode) == (9, 0, True)
    bench.ack(bench.dequeue(1))
    bench.move()
    assert not bench.state.cold_mode


def test_cold_mode_is_left_under_a_steady_stream_of_spills(bench: Bench) -> None:
    bench.enqueue(*range(CAP + 5))
    sent = CAP + 5
    for _ in range(200):
        bench.ack(bench.dequeue(3))
        bench.enqueue(sent, sent + 1)
        sent += 2
        bench.move()
        if not bench.state.cold_mode:
            break
    assert not bench.state.cold_mode
    assert bench.state.cold == 0


def test_a_spill_of_a_closed_epoch_is_refused_and_retried(bench: Bench) -> None:
    """The mover leaves cold mode between the script's answer and the commit."""
    bench.enqueue(*range(CAP + 1))
    spill, seen = bench.tiers.spill, list[int]()

    def late(ref: QueueRef, jobs: Any, told: Any) -> Any:
        seen.append(told.cold_epoch)
        if len(seen) == 1:
            bench.drain()
        return spill(ref, jobs, told)

    bench.tiers.spill = late  # pyright: ignore[reportAttributeAccessIssue]
    assert bench.enqueue(77) == [True]
    assert (len(seen), bench.state.warm, bench.state.cold, bench.state.cold_mode) == (1, 1, 0, False)


def test_producers_continue_after_an_epoch_was_closed_and_not_reopened(bench: Bench) -> None:
    bench.enqueue(*range(CAP + 1))
    bench.ack(bench.dequeue())
    bench.tiers.run(bench.stubs.read_refill_state(REF))
    bench.sql("UPDATE cold_queues SET epoch = epoch + 1")  # as a mover that died before it reopened the queue
    assert bench.enqueue(50) == [True]
    assert bench.drain() == ["10", "50"]
    assert not bench.state.cold_mode


def test_jobs_due_far_away_wait_in_postgres_and_come_in_time(
    any_valkey_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cold.mover.LOOK_AHEAD_MS", HOUR_MS)
    with make_bench(any_valkey_url, postgres_url, far_ms=2 * HOUR_MS) as made:
        bench = made.bench
        bench.enqueue(1, delay_ms=10 * HOUR_MS)
        bench.enqueue(2, delay_ms=2 * HOUR_MS)
        bench.enqueue(3, delay_ms=2 * HOUR_MS - 1)
        assert (bench.state.scheduled, bench.state.depth, bench.state.cold_mode) == (3, 0, False)
        assert bench.sql("SELECT job_id FROM cold_jobs WHERE delayed ORDER BY 1") == [("1",), ("2",)]
        found = bench.client.get(REF.environment, "1")
        assert found is not None
        assert found.state == JobState.SCHEDULED
        bench.sql("UPDATE cold_queue_entries SET due_ms = due_ms - 5400000")
        bench.move()
        assert bench.sql("SELECT job_id FROM cold_jobs") == [("1",)]
        assert bench.state.scheduled == 3
        bench.sql("UPDATE cold_queue_entries SET due_ms = due_ms - 36000000")
        bench.move()
        assert [job.id for job in bench.dequeue()] == ["1"]


def test_due_jobs_without_room_wait_in_order(any_valkey_url: str, postgres_url: str) -> None:
    with make_bench(any_valkey_url, postgres_url, far_ms=40_000) as made:
        bench = made.bench
        bench.enqueue("far", delay_ms=50_000)
        bench.enqueue(*range(CAP))
        bench.sql("UPDATE cold_queue_entries SET due_ms = due_ms - 60000")
        bench.move()
        assert (bench.state.warm, bench.state.cold, bench.state.scheduled, bench.state.cold_mode) == (10, 1, 0, True)
        assert bench.drain() == [*numbers(*range(CAP)), "far"]


def test_ttls_run_on_in_postgres(bench: Bench) -> None:
    bench.enqueue(*range(CAP))
    bench.enqueue(20, 21, ttl_ms=HOUR_MS)
    bench.enqueue(22)
    bench.sql("UPDATE cold_queue_entries SET expires_ms = 1 WHERE job_id = '20'")
    bench.move()
    assert (bench.state.cold, bench.state.odometers["expire"]) == (2, 1)
    bench.sql("UPDATE cold_queue_entries SET expires_ms = 1 WHERE job_id = '21'")
    bench.ack(bench.dequeue())
    bench.mover.refill_queue(REF)  # met on the way
    assert (bench.state.cold, bench.state.odometers["expire"], bench.state.odometers["refill"]) == (0, 2, 1)


def test_a_cold_job_is_found_and_cancelled(bench: Bench) -> None:
    bench.enqueue(*range(CAP + 2), flow="f", flow_type="T", priority=0)
    found = bench.client.get(REF.environment, "11")
    assert found is not None
    assert (found.state, found.payload, found.flow, found.flow_type) == (JobState.COLD, b"12", "f", "T")
    assert bench.client.cancel(REF.environment, "11") == JobState.COLD
    assert bench.client.cancel(REF.environment, "11") is None
    assert bench.client.get(REF.environment, "11") is None
    assert (bench.state.cold, bench.state.odometers["cancel"]) == (1, 1)
    assert bench.drain() == numbers(*range(CAP + 1))


def test_dead_jobs_move_to_postgres_and_are_redriven_from_there(bench: Bench) -> None:
    bench.enqueue(1, 2, 3, flow="f")
    run(bench.client.redis, bench.stubs.bury(bench.shard, [(job, f"boom {job.id}") for job in bench.dequeue()]))
    bench.move()
    assert (bench.state.dead, bench.client.redis.exists(keys.dead(bench.shard, REF))) == (3, 0)
    found = bench.client.get(REF.environment, "2")
    assert found is not None
    assert (found.state, found.error, found.flow, found.attempts) == (JobState.DEAD, "boom 2", "f", 1)
    assert bench.client.cancel(REF.environment, "2") == JobState.DEAD
    assert bench.client.redrive(REF, DeadFilter(error="boom 2")) == 1
    assert bench.client.redrive(REF, DeadFilter(ids=["9"])) == 0
    assert (bench.state.dead, bench.state.depth, bench.state.odometers["redrive"]) == (2, 1, 1)
    assert bench.client.redrive(REF) == 2
    assert bench.drain() == ["2", "1", "3"]
    assert run_audit(bench.tiers, bench.shard) == NO_DRIFT


def test_a_redrive_finds_jobs_that_have_just_died(bench: Bench) -> None:
    bench.enqueue(1)
    run(bench.client.redis, bench.stubs.bury(bench.shard, [(job, "boom") for job in bench.dequeue()]))
    assert bench.client.redrive(REF) == 1
    assert bench.drain() == ["1"]


def test_a_mover_that_lost_its_lease_is_refused(bench: Bench) -> None:
    bench.enqueue(*range(CAP + 5))
    bench.ack(bench.dequeue())
    successor = bench.another_mover()
    rows = bench.sql("SELECT count(*) FROM cold_queue_entries")
    bench.mover.refill_queue(REF)
    assert bench.sql("SELECT count(*) FROM cold_queue_entries") == rows
    with pytest.raises(MoverFenced):
        bench.tiers.run(bench.stubs.leave_cold(REF, 1, 1, 2))
    successor.refill_queue(REF)
    assert bench.state.cold == 0


def test_a_mover_that_was_paused_places_nothing_of_what_was_cancelled_meanwhile(bench: Bench) -> None:
    """Its lease goes on, but PostgreSQL has ended its session, and with it the lock."""
    bench.enqueue(*range(CAP + 1))
    bench.ack(bench.dequeue())
    late: list[str] = []

    class Paused(Stubs):
        def refill(
            self, ref: QueueRef, token: int, until_ms: float, rows: Iterable[ColdRow], postgres_id: str = ""
        ) -> ScriptCall[RefillResult]:
            with connect_postgres(bench.postgres_url) as conn:
                conn.execute(
                    b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
                )
            late.append(str(bench.client.cancel(REF.environment, str(CAP))))
            return super().refill(ref, token, until_ms - SURE_MS, rows)

    bench.mover._stubs = Paused(2, 1_000_000, bench.options.caps)  # pyright: ignore[reportPrivateUsage]
    bench.mover.refill_queue(REF)
    bench.mover._stubs = bench.stubs  # pyright: ignore[reportPrivateUsage]
    assert late == ["cold"]
    assert bench.drain() == []
    assert (bench.state.odometers["cancel"], bench.state.odometers.get("refill", 0)) == (1, 0)


def test_a_standby_takes_over_only_when_the_lease_has_ended(bench: Bench) -> None:
    standby = Mover(bench.tiers, UNHURRIED)
    standby.renew_leadership()
    bench.enqueue(*range(CAP + 5))
    bench.ack(bench.dequeue())
    standby.refill_queue(REF)
    assert bench.state.cold == 5
    bench.mover.resign()
    wait_until(lambda: bench.client.redis.get(keys.mover(bench.shard)) is None, "the lease is over")
    standby = Mover(bench.tiers, UNHURRIED)
    standby.renew_leadership()
    standby.refill_queue(REF)
    assert bench.state.cold == 0


@pytest.mark.parametrize("damage", ["due_ms = 'NaN'", "task = E'a\\tb'", "enqueued_ms = 9e17", "job_id = ''"])
def test_an_unusable_row_is_quarantined_and_blocks_no_other(bench: Bench, damage: str) -> None:
    bench.enqueue(*range(CAP + 3))
    bench.sql(f"UPDATE cold_queue_entries SET {damage} WHERE job_id = '{CAP}'")
    assert bench.drain() == numbers(*range(CAP), 11, 12)
    [(reason,)] = bench.sql("SELECT reason FROM cold_quarantine")
    assert reason
    assert bench.state.cold == 0
    assert bench.sql("SELECT spilled - refilled - quarantined - waiting FROM cold_queues") == [(0,)]


def test_a_server_that_refuses_every_write_makes_no_row_poison(valkey_url: str, postgres_url: str) -> None:
    """As a replica after a failover, or one whose disk is full: the rows are fine."""
    with make_bench(valkey_url, postgres_url) as made:
        bench = made.bench
        bench.enqueue(*range(CAP + 3))
        bench.ack(bench.dequeue())
        bench.client.redis.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(QueueUnavailable, match="NOREPLICAS"):
                bench.mover.refill_queue(REF)
        finally:
            bench.client.redis.config_set("min-replicas-to-write", 0)
        assert bench.sql("SELECT count(*) FROM cold_quarantine") == [(0,)]
        assert bench.drain() == numbers(10, 11, 12)


def test_a_refill_that_fails_half_way_loses_nothing(bench: Bench) -> None:
    """Valkey's own state is broken. What was placed before the script failed is not placed twice, and is run once
    maintenance has repaired the queue."""
    bench.enqueue(*range(CAP + 3))
    bench.ack(bench.dequeue())
    bench.client.redis.set(keys.detail(bench.shard, REF, "send\t\t"), "not a sorted set")
    bench.move()
    bench.move()
    assert bench.client.redis.zcard(keys.ready(bench.shard, REF)) == 3
    assert bench.sql("SELECT count(*) FROM cold_quarantine") == [(0,)]
    while bench.client.redis.exists(keys.repair(bench.shard)):
        run(bench.client.redis, bench.client.options.make_stubs().repair(bench.shard))
    assert bench.drain() == numbers(10, 11, 12)


def test_a_broken_queue_does_not_stop_the_others(bench: Bench) -> None:
    bench.enqueue(*range(CAP + 2))
    bench.enqueue(*range(100, 100 + CAP + 2), ref=OTHER)
    bench.ack(bench.dequeue())
    bench.client.redis.delete(keys.moving(bench.shard, REF))
    bench.client.redis.set(keys.moving(bench.shard, REF), "not a set")
    bench.move()
    assert bench.read_state(OTHER).cold == 0
    assert bench.state.cold == 2
    assert b"WRONGTYPE" in read_mover_error(bench)
    bench.client.redis.delete(keys.moving(bench.shard, REF))
    bench.move()
    assert bench.state.cold == 0
    assert read_mover_error(bench) == b""


def test_without_postgres_a_full_queue_refuses_all_or_nothing(any_valkey_url: str, postgres_url: str) -> None:
    with make_bench(any_valkey_url, postgres_url) as made, SyncClient(any_valkey_url, made.bench.options) as alone:
        jobs = [NewJob("t", id=str(number)) for number in range(CAP)]
        assert alone.enqueue_many(REF, jobs) == [True] * CAP
        assert alone.enqueue_many(REF, jobs) == [False] * CAP, "they are here: no room is needed"
        with pytest.raises(QueueFull):
            alone.enqueue_many(REF, [NewJob("t", id="0"), NewJob("t", id="new")])
        assert alone.get(REF.environment, "new") is None
        made.bench.enqueue("cold")
        with pytest.raises(QueueCold):
            alone.enqueue(REF, NewJob("t"))


def test_the_cold_tier_can_be_capped(any_valkey_url: str, postgres_url: str) -> None:
    with make_bench(any_valkey_url, postgres_url, limits=ColdLimits(max_items=2)) as made:
        bench = made.bench
        assert bench.enqueue(*range(CAP + 2)) == [True] * (CAP + 2)
        with pytest.raises(SpillRefused, match=r"cold\.max_items"):
            bench.enqueue(50)
        assert bench.state.depth == CAP + 2


def test_postgres_down_warm_goes_on_and_nothing_is_missing_afterwards(valkey_url: str, tmp_path: Path) -> None:
    from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
    from headrace.postgres.migrate import migrate

    server = QuickPostgres(tmp_path / "postgres", tmp_path / "log", choose_port("the test's PostgreSQL", 0, 0))
    server.start()
    try:
        server.wait_ready(READY_S)
        migrate(server.url, POSTGRES_SCHEMAS)
        with make_bench(valkey_url, server.url) as made:
            bench = made.bench
            bench.enqueue(*range(5), ref=OTHER)
            bench.enqueue(*range(100, 105))
            server.stop()
            assert bench.enqueue(6, ref=OTHER) == [True]
            with pytest.raises(SpillRefused, match="1 of 6 jobs") as refused:
                bench.enqueue(*range(105, 111))
            assert list(refused.value.accepted) == [True] * 5 + [False]
            with pytest.raises(SpillRefused):
                bench.enqueue(111)
            with pytest.raises(Exception, match="PostgreSQL"):
                bench.client.pause(REF)
            server.start()
            server.wait_ready(READY_S)
            assert bench.enqueue(110, 111) == [True, True]
            assert sorted(bench.drain()) == sorted(numbers(*range(5), 6, *range(100, 112)))
            assert bench.state.odometers["ack"] == 12
    finally:
        server.stop()


def test_settings_are_restored_when_valkey_lost_them(bench: Bench) -> None:
    bench.enqueue(*range(CAP + 5))
    bench.client.pause(REF)
    bench.client.limits(REF.environment, 7, 2.0)
    with connect(bench.valkey_url) as client:
        client.flushall()
    bench.mover.renew_leadership()
    mover = Mover(bench.tiers, UNHURRIED)
    mover.renew_leadership()
    mover.sweep(bench.shard)
    assert run_audit(bench.tiers, bench.shard).settings == 0, "the sweep restores them first"
    assert (bench.state.paused, bench.state.cold, bench.state.warm) == (True, 0, 5)
    bench.client.resume(REF)
    assert len(bench.dequeue()) == 5
    assert (bench.state.odometers["refill"], "spill" in bench.state.odometers) == (5, False)
    assert run_audit(bench.tiers, bench.shard) == NO_DRIFT


def test_drift_is_found_repaired_and_reported(bench: Bench) -> None:
    bench.enqueue(*range(CAP + 5))
    bench.sql("UPDATE cold_queues SET waiting = waiting + 3")
    bench.sql("UPDATE cold_details SET waiting = waiting - 1")
    key = keys.queue(bench.shard, REF)
    packed = bench.client.redis.hget(key, "cold")
    assert isinstance(packed, bytes)
    fields = packed.split()
    bench.client.redis.hset(key, "cold", b" ".join([*fields[:3], b"77", *fields[4:]]))
    assert bench.state.cold == 77
    drift = run_audit(bench.tiers, bench.shard)
    assert drift.rows == 4
    assert bench.state.cold == 5
    assert run_audit(bench.tiers, bench.shard) == NO_DRIFT
    told: Any = bench.client.redis.hget(keys.meta(bench.shard), "drift_rows")
    assert int(told) == 4


def test_what_waits_is_counted_by_flow_in_both_tiers(bench: Bench) -> None:
    bench.enqueue(*range(8), flow="a", flow_type="T")
    bench.enqueue(*range(10, 16), flow="b")
    bench.enqueue(*range(20, 23), flow="a", flow_type="T")
    warm, cold = read_flow_depths(bench.client.redis, 2), bench.tiers.store.list_flow_depths(REF.environment)
    rows = merge_flow_depths(warm, cold)
    assert [(row.flow, row.flow_type, row.warm, row.cold, row.total) for row in rows] == [
        ("a", "T", 8, 3, 11),
        ("b", "", 2, 4, 6),
    ]
    oldest = bench.state.oldest_ms
    assert oldest is not None
    assert int(rows[0].oldest_ms or 0) == oldest
    bench.drain()
    assert merge_flow_depths(read_flow_depths(bench.client.redis, 2), bench.tiers.store.list_flow_depths()) == []


def test_a_mover_is_woken_by_need(bench: Bench) -> None:
    from threading import Event, Thread

    bench.mover.resign()
    stop = Event()
    # So seldom that only the call of a queue that has room can be the reason.
    mover = Mover(bench.tiers, MoverOptions(every_s=3600.0, lease_s=3600.0, audit_every_s=3600.0))
    wait_until(lambda: bench.client.redis.get(keys.mover(bench.shard)) is None, "the lease is over")
    mover.run_once()
    bench.enqueue(*range(CAP + 30))
    thread = Thread(target=mover.run_forever, args=[stop])
    thread.start()
    try:
        done: list[str] = []
        while len(done) < CAP + 30:
            jobs = wait_until(bench.dequeue, "more jobs")
            done += [job.id for job in jobs]
            bench.ack(jobs)
        assert done == numbers(*range(CAP + 30))
        wait_until(lambda: not bench.state.cold_mode, "it leaves cold mode by itself")
    finally:
        stop.set()
        thread.join()


def test_the_asynchronous_client_spills_too(valkey_url: str, postgres_url: str) -> None:
    options = QueueOptions(caps=WarmCaps(items=1))

    async def scenario() -> None:
        async with Client(valkey_url, options, Tiers(valkey_url, postgres_url, options)) as client:
            assert await client.enqueue_many(REF, [NewJob("t", id="1"), NewJob("t", id="2")]) == [True, True]
            found = await client.get(REF.environment, "2")
            assert found is not None
            assert found.state == JobState.COLD
            assert await client.cancel(REF.environment, "2") == JobState.COLD

    asyncio.run(scenario())


def test_no_mover_overtakes_one_that_holds_the_lock(bench: Bench) -> None:
    """A paused mover has claimed the head; a successor that took what follows would let it overtake."""
    from threading import Thread

    bench.enqueue(*range(CAP + 3))
    bench.ack(bench.dequeue())
    queue_id = bench.tiers.store.ensure_queue_id(REF, bench.shard)
    thread = Thread(target=bench.mover.refill_queue, args=[REF])
    with bench.tiers.store.transaction() as conn:
        conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        bench.tiers.store.lock_mover(conn, queue_id)
        thread.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_until(lambda: bench.sql(waiting), "the other one waits")
        assert (bench.state.warm, bench.state.cold) == (0, 3)
    thread.join()
    assert (bench.state.warm, bench.state.cold) == (3, 0)


def test_a_row_whose_job_is_in_valkey_cannot_be_cancelled_once_more(bench: Bench) -> None:
    """A mover died after it had placed the job and before it deleted the row; the job is done by now."""
    bench.enqueue(*range(CAP + 1))
    bench.ack(bench.dequeue())
    rows = bench.sql("SELECT seq FROM cold_queue_entries")
    with bench.tiers.store.transaction() as conn:  # and nothing is deleted in it
        claimed = bench.tiers.store.claim(conn, bench.tiers.store.ensure_queue_id(REF, bench.shard), 10, 1000)
        room = bench.tiers.run(bench.stubs.read_refill_state(REF))
        token = bench.tiers.run(bench.stubs.elect(bench.shard, bench.mover.name, HOUR_MS))
        bench.tiers.run(bench.stubs.refill(REF, token, room.now_ms + SURE_MS, claimed))
    assert bench.sql("SELECT seq FROM cold_queue_entries") == rows
    bench.ack(bench.dequeue())
    assert bench.client.cancel(REF.environment, str(CAP)) is None
    assert bench.drain() == []
    assert (bench.state.odometers.get("cancel", 0), bench.state.odometers["ack"], bench.state.cold) == (0, 11, 0)
    assert run_audit(bench.tiers, bench.shard) == NO_DRIFT


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_was_lost_is_looked_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Neither refused although it is kept, nor accepted although it is not."""
    bench.enqueue(*range(CAP + 1))
    commit, lost = postgres_connect._commit, list[int]()  # pyright: ignore[reportPrivateUsage]

    def broken(conn: Connection) -> None:
        if not lost and conn.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() != (None,):
            lost.append(1)
            if committed:
                commit(conn)
            else:
                conn.rollback()
            raise CommitUnclear
        commit(conn)

    monkeypatch.setattr(postgres_connect, "_commit", broken)
    if committed:
        assert bench.enqueue("unclear") == [True]
    else:
        with pytest.raises(SpillRefused, match="1 of 1 jobs"):
            bench.enqueue("unclear")
    assert lost
    assert bench.drain() == [*numbers(*range(CAP + 1)), *(["unclear"] if committed else [])]
    assert run_audit(bench.tiers, bench.shard) == NO_DRIFT


def test_doctor_reports_the_state_of_the_tiers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.doctor_tiers.MOVER_TIMEOUT_MS", HOUR_MS)

    def run_checks() -> dict[str, tuple[bool, str]]:
        told = check_tiers(bench.valkey_url, bench.postgres_url, 2)
        return {one.check: (one.ok, one.found) for one in told}

    mover = f"mover, shard {bench.shard}"
    bench.enqueue(*range(CAP + 1))
    assert run_checks()[mover] == (False, "none, 1 queues in cold mode")
    bench.move()
    assert run_checks()[mover] == (True, f"{bench.mover.name}, 1 queues in cold mode")
    assert run_checks()["quarantine"] == (True, "empty")
    bench.sql("UPDATE cold_queue_entries SET due_ms = 'NaN'")
    bench.sql("UPDATE cold_queues SET waiting = waiting + 1")
    bench.drain()
    run_audit(bench.tiers, bench.shard)
    assert run_checks()["quarantine"] == (False, "1 jobs")
    assert run_checks()[f"counter drift, shard {bench.shard}"] == (True, "1 repaired")

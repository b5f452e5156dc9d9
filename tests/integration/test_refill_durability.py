"""A row is deleted in PostgreSQL only after its job's copy in Valkey is safe; until then the job counts once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.cold.audit import Drift
from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.tiers import Tiers
from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.job import JobState, LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import connect as connect_postgres
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import QueueState, read_states
from headrace.valkey import durability
from headrace.valkey.connect import connect, find_node
from headrace.valkey.durability import CopySafety, RefillAfter, is_waitaof_reliable
from headrace.valkey.scripts import run
from tests.audits import run_audit
from tests.conftest import READY_S, wait_until
from tests.failover import ReplicaPair

REF = QueueRef("o", "p", "e", "q")
CAP = 10
HOUR_MS = 3_600_000
NEVER_S = 3600.0


@pytest.fixture(autouse=True)
def long_lock_validity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cold.mover.LOCK_VALID_MS", 600_000.0)


@dataclass
class TwoTiers:
    """A client, its tiers and a mover for one queue of one shard."""

    valkey_url: str
    postgres_url: str
    refill_after: RefillAfter = "fsync"
    movers: int = field(default=0)

    def __enter__(self) -> TwoTiers:
        options = QueueOptions(shards=1, caps=WarmCaps(items=CAP))
        self.stubs = options.make_stubs()
        self.tiers = Tiers(self.valkey_url, self.postgres_url, options)
        self.client = SyncClient(self.valkey_url, options, self.tiers)
        self.mover = self.new_mover()
        return self

    def __exit__(self, *_: object) -> None:
        self.mover.resign()
        self.client.close()
        self.tiers.close()

    def new_mover(self) -> Mover:
        """Return a mover that leads; the lease of the one before is over."""
        self.client.redis.delete(keys.mover(0))
        mover = Mover(self.tiers, MoverOptions(lease_s=3600.0, refill_after=self.refill_after))
        mover.renew_leadership()
        return mover

    def enqueue(self, first: int, last: int, **fields: Any) -> None:
        jobs = [NewJob("t", b"12", id=str(number), **fields) for number in range(first, last + 1)]
        assert all(self.client.enqueue_many(REF, jobs))

    def dequeue(self) -> list[LeasedJob]:
        return run(self.client.redis, self.stubs.dequeue(0, 1000, HOUR_MS))

    def finish(self) -> list[str]:
        """Run every job that is in Valkey; returns their ids."""
        jobs = self.dequeue()
        run(self.client.redis, self.stubs.ack(0, [(job, 1) for job in jobs]))
        return [job.id for job in jobs]

    def drain(self) -> list[str]:
        """Run every job of both tiers, in this order."""
        done: list[str] = []

        def is_empty() -> bool:
            done.extend(self.finish())
            self.mover.sweep(0)
            state = self.state
            return not (self.rows or state.depth or state.scheduled)

        wait_until(is_empty, "both tiers are empty")
        return done

    @property
    def state(self) -> QueueState:
        return next(state for state in read_states(self.client.redis, 1) if state.ref == REF)

    @property
    def rows(self) -> int:
        with connect_postgres(self.postgres_url) as conn:
            [[count]] = conn.execute("SELECT count(*) FROM cold_queue_entries").fetchall()
        return int(count)

    @property
    def moving(self) -> int:
        return int(self.client.redis.scard(keys.moving(0, REF)))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """Append-only file, fsync every second: as `headrace up` runs it."""
    server = EmbeddedValkey(tmp_path / "valkey", tmp_path / "log")
    server.start()
    server.wait_ready(READY_S)
    yield server
    server.stop()


@pytest.fixture
def both(server: EmbeddedValkey, postgres_url: str) -> Iterator[TwoTiers]:
    with TwoTiers(server.url, postgres_url) as both:
        yield both


@pytest.fixture
def nothing_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine stands still, no fsync is waited out."""
    monkeypatch.setattr(durability, "FSYNC_WAIT_S", NEVER_S)


@pytest.mark.usefixtures("nothing_is_safe")
class TestBeforeTheCopyIsSafe:
    def test_rows_stay_and_jobs_count_once(self, both: TwoTiers) -> None:
        both.enqueue(1, 25)
        assert both.finish() == [str(number) for number in range(1, 11)]
        both.mover.refill_queue(REF)
        assert (both.rows, both.moving) == (15, 10)
        state = both.state
        assert (state.depth, state.cold, state.bytes) == (15, 5, 30)
        both.enqueue(26, 26)  # PostgreSQL reports its numbers anew, the placed rows among them
        assert (both.state.depth, both.state.cold) == (16, 6)
        assert run_audit(both.tiers, 0, lambda ref, queue_id: None) == Drift()
        assert (both.state.depth, both.state.cold) == (16, 6)

    def test_placing_goes_on_behind_them(self, both: TwoTiers) -> None:
        both.enqueue(1, 40)
        done: list[str] = []
        for _ in range(10):
            done += both.finish()
            both.mover.refill_queue(REF)
        assert done == [str(number) for number in range(1, 41)]
        assert (both.rows, both.moving) == (30, 30)
        assert (both.state.depth, both.state.cold) == (0, 0)

    def test_a_more_urgent_job_is_placed_next(self, both: TwoTiers) -> None:
        both.enqueue(1, 40)
        both.finish()
        both.mover.refill_queue(REF)
        both.enqueue(100, 100, priority=5)
        assert "100" not in both.finish()
        both.mover.refill_queue(REF)
        assert both.finish()[0] == "100"

    def test_a_mover_that_leads_anew_does_not_trust_what_it_placed_before(self, both: TwoTiers) -> None:
        both.enqueue(1, 25)
        both.finish()
        both.mover.refill_queue(REF)
        placed = both.mover._get_placed(REF)  # pyright: ignore[reportPrivateUsage]
        assert len(placed) == 10
        both.new_mover()  # its lease expires, and another mover leads meanwhile
        both.client.redis.delete(keys.mover(0))
        both.mover._renew_at = 0.0  # pyright: ignore[reportPrivateUsage]
        both.mover.renew_leadership()
        assert len(both.mover._get_placed(REF)) == 0  # pyright: ignore[reportPrivateUsage]

    def test_cold_mode_is_left(self, both: TwoTiers) -> None:
        both.enqueue(1, 12)
        both.finish()
        both.mover.refill_queue(REF)
        assert not both.state.cold_mode
        both.enqueue(13, 13)
        assert both.finish() == ["11", "12", "13"]

    def test_delayed_jobs_count_once(self, both: TwoTiers) -> None:
        both.tiers.far_ms = 1
        both.enqueue(1, 3, delay_ms=10_000)
        both.mover.refill_queue(REF)
        assert (both.rows, both.moving) == (3, 3)
        assert (both.state.depth, both.state.scheduled) == (0, 3)
        both.mover.refill_queue(REF)
        assert both.state.scheduled == 3

    def test_a_placed_job_is_cancelled_in_valkey(self, both: TwoTiers) -> None:
        both.enqueue(1, 15)
        both.finish()
        both.mover.refill_queue(REF)
        assert both.client.cancel(REF.environment, "12") is JobState.READY
        assert both.finish() == ["11", "13", "14", "15"]

    def test_no_job_is_lost_when_the_power_fails(self, both: TwoTiers, server: EmbeddedValkey) -> None:
        """What is in the append-only file before a refill is all that the disk has of it."""
        both.enqueue(1, 25)
        both.finish()
        on_disk = server.data_dir.with_name("on disk")
        shutil.copytree(server.data_dir, on_disk)
        both.mover.refill_queue(REF)
        server.child.stop(0.0)
        shutil.rmtree(server.data_dir)
        shutil.copytree(on_disk, server.data_dir)
        again = EmbeddedValkey(server.data_dir, server.data_dir.with_name("log again"), port=server.port)
        again.start()
        again.wait_ready(READY_S)
        try:
            with TwoTiers(again.url, both.postgres_url, "place") as after:
                assert [number for number in map(int, after.drain()) if number > 10] == [*range(11, 26)]
        finally:
            again.stop()

    def test_the_next_mover_does_not_delete_them_either(self, both: TwoTiers) -> None:
        both.enqueue(1, 25)
        both.finish()
        both.mover.refill_queue(REF)
        both.mover = both.new_mover()
        both.mover.sweep(0)
        run_audit(both.tiers, 0, both.mover._adopt_placed)  # pyright: ignore[reportPrivateUsage]
        assert (both.rows, both.moving) == (15, 10)
        assert (both.state.depth, both.state.cold) == (15, 5)

    def test_placing_stops_at_a_bound(self, both: TwoTiers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.cold.mover.MAX_PLACED", 5)
        both.enqueue(1, 40)
        for _ in range(3):
            both.finish()
            both.mover.refill_queue(REF)
        assert (both.rows, both.moving) == (30, 10)


class TestOnceTheCopyIsSafe:
    def test_rows_are_deleted(self, both: TwoTiers) -> None:
        both.enqueue(1, 40)
        assert both.drain() == [str(number) for number in range(1, 41)]
        assert (both.rows, both.moving) == (0, 0)
        assert both.client.redis.exists(keys.moved(0, REF)) == 0
        assert run_audit(both.tiers, 0) == Drift()
        assert (both.state.depth, both.state.cold, both.state.bytes) == (0, 0, 0)

    def test_the_next_mover_deletes_them(self, both: TwoTiers) -> None:
        both.enqueue(1, 15)
        both.finish()
        both.mover.refill_queue(REF)
        both.mover = both.new_mover()
        assert both.drain() == [str(number) for number in range(11, 16)]

    def test_under_appendfsync_always_at_once(self, both: TwoTiers) -> None:
        both.client.redis.config_set("appendfsync", "always")
        both.enqueue(1, 15)
        both.finish()
        both.mover.refill_queue(REF)
        assert (both.rows, both.moving) == (0, 0)

    def test_a_delayed_fsync_starts_the_wait_again(
        self, server: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reports = {"aof_delayed_fsync": 0}
        monkeypatch.setattr(durability, "CHECK_EVERY_S", 0.0)
        with connect(server.url) as client:
            real = client.info
            monkeypatch.setattr(client, "info", lambda: {**real(), **reports})
            safety = CopySafety(lambda: client, "key", "fsync")
            assert not safety.is_immediate()
            wait_until(lambda: safety.find_safe_time() > 0, "two seconds are over")
            reports["aof_delayed_fsync"] = 1
            monkeypatch.setattr(durability, "FSYNC_WAIT_S", NEVER_S)
            before = safety.find_safe_time()
            assert safety.find_safe_time() == before
            client.flushall()

    def test_the_bundled_server_answers_waitaof_before_the_fsync(self, server: EmbeddedValkey) -> None:
        with connect(server.url) as client:
            assert not is_waitaof_reliable(find_node(client, "key"), "key")


class TestReplicas:
    def test_rows_stay_until_a_replica_has_the_copy(self, tmp_path: Path, postgres_url: str) -> None:
        with ReplicaPair(tmp_path, ("--appendfsync", "always")) as pair:
            with TwoTiers(pair.primary_server.url, postgres_url) as both:
                both.enqueue(1, 25)
                both.finish()
                pair.catch_up()
                pair.stop_replica()
                both.mover.refill_queue(REF)
                both.mover.sweep(0)
                assert (both.rows, both.moving) == (15, 10)
                pair.kill_primary()
                pair.promote_stopped_replica()
            with TwoTiers(pair.replica_server.url, postgres_url) as after:  # it never heard of the refill
                assert [number for number in map(int, after.drain()) if number > 10] == [*range(11, 26)]

    def test_rows_are_deleted_once_a_replica_has_the_copy(self, tmp_path: Path, postgres_url: str) -> None:
        with ReplicaPair(tmp_path) as pair, TwoTiers(pair.primary_server.url, postgres_url, "replica") as both:
            both.enqueue(1, 40)
            assert both.drain() == [str(number) for number in range(1, 41)]

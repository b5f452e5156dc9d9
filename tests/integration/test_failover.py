"""Valkey fails over to a replica that misses the primary's last writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.alerts.problems import list_recent_server_events
from headrace.cli.doctor_tiers import check_server_events
from headrace.cold import valkey_losses as valkey_watch
from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.quotas import QuotaManager
from headrace.cold.settings import SettingsRestorer
from headrace.cold.status import read_server_events
from headrace.cold.tiers import Tiers
from headrace.cold.valkey_losses import ValkeyLossDetector
from headrace.errors import QuotaExceeded, SettingsNotRestored
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.model.quotas import DEFAULT_TENANT, TenantRef
from headrace.postgres.connect import open_pool, transaction
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.scripts import Stubs, WarmCaps
from headrace.queue.tasks import TaskRegistry
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests.failover import ReplicaPair

REF = QueueRef("o", "p", "e", "q")
STUBS = Stubs(1, 1_000_000)
HOUR_MS = 3_600_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicaPair]:
    with ReplicaPair(tmp_path) as pair:
        yield pair


def take_one(valkey: Valkey) -> LeasedJob:
    [job] = run(valkey, STUBS.dequeue(0, 1, HOUR_MS))
    return job


class TestLeaseTokens:
    def test_late_result_of_a_lost_lease_is_refused_after_failover(self, pair: ReplicaPair) -> None:
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        pair.catch_up()
        pair.cut_link()
        of_old_worker = take_one(pair.primary)  # the replica never learns of this lease
        pair.kill_primary()

        of_new_worker = take_one(pair.replica)
        assert run(pair.replica, STUBS.extend(0, [of_old_worker], HOUR_MS)) == [False]
        assert run(pair.replica, STUBS.ack(0, [(of_old_worker, 1)])) == [False]
        assert run(pair.replica, STUBS.ack(0, [(of_new_worker, 1)])) == [True]

    def test_limit_of_one_runs_one_after_failover(self, pair: ReplicaPair) -> None:
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="1"), NewJob("t", id="2")]))
        run(pair.primary, STUBS.configure(REF, {"limit": 1}))
        pair.catch_up()
        pair.cut_link()
        of_old_worker = take_one(pair.primary)
        pair.kill_primary()

        take_one(pair.replica)
        run(pair.replica, STUBS.ack(0, [(of_old_worker, 1)]))
        assert run(pair.replica, STUBS.dequeue(0, 1, HOUR_MS)) == []

    def test_token_issued_before_an_upgrade_stays_valid(self, valkey: Valkey) -> None:
        run(valkey, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        job = take_one(valkey)
        valkey.hset(keys.job(0, REF.environment, "1"), "delivery", "1")  # as issued by earlier versions
        old = replace(job, lease="1")
        assert run(valkey, STUBS.extend(0, [old], HOUR_MS)) == [True]
        assert run(valkey, STUBS.ack(0, [(old, 1)])) == [True]


PAUSED = QueueRef("o", "p", "e", "paused")
OPTIONS = QueueOptions(shards=1)


async def run_worker_until(url: str, last: str, keeper: SettingsRestorer | None) -> list[str]:
    """Run a worker until it has run that job; returns the ids of all that it ran."""
    done: list[str] = []
    tasks, stop = TaskRegistry(), asyncio.Event()

    @tasks.task()
    async def t(job: LeasedJob) -> None:  # pyright: ignore[reportUnusedFunction]
        done.append(job.id)
        if job.id == last:
            stop.set()

    async with Client(url, OPTIONS) as client:
        restore = None if keeper is None else keeper.restore_if_needed
        worker = Worker(client, tasks, WorkerOptions(poll_s=0.01), restore_settings=restore)
        await worker.run_forever(stop)
    return done


class TestSettings:
    def test_a_paused_queue_does_not_run_after_failover(self, pair: ReplicaPair, postgres_url: str) -> None:
        with SyncClient(
            pair.primary_server.url, OPTIONS, Tiers(pair.primary_server.url, postgres_url, OPTIONS)
        ) as client:
            client.enqueue(PAUSED, NewJob("t", id="paused"))
            pair.catch_up()
            pair.cut_link()
            client.pause(PAUSED)  # the replica never learns of it
        pair.kill_primary()

        tiers = Tiers(pair.replica_server.url, postgres_url, OPTIONS)
        with SyncClient(pair.replica_server.url, OPTIONS, tiers) as client:
            client.enqueue(REF, NewJob("t", id="last"))
            assert asyncio.run(run_worker_until(pair.replica_server.url, "last", SettingsRestorer(tiers))) == ["last"]

    def test_quotas_that_the_replica_never_had_hold_after_failover(self, pair: ReplicaPair, postgres_url: str) -> None:
        tiers = Tiers(pair.primary_server.url, postgres_url, OPTIONS)
        with SyncClient(pair.primary_server.url, OPTIONS, tiers) as client:
            client.enqueue(REF, NewJob("t", id="1"))
            pair.catch_up()
            pair.cut_link()
            QuotaManager(tiers).update(TenantRef.from_environment(REF.environment), {"warm_jobs": 1, "running": 0})
            QuotaManager(tiers).update(DEFAULT_TENANT, {"queues": 1})
        pair.kill_primary()

        tiers = Tiers(pair.replica_server.url, postgres_url, OPTIONS)
        assert SettingsRestorer(tiers).restore_if_needed(0)
        tiers.close()
        with SyncClient(pair.replica_server.url, OPTIONS) as client:
            with pytest.raises(QuotaExceeded, match="warm_jobs"):
                client.enqueue(REF, NewJob("t", id="2"))
            with pytest.raises(QuotaExceeded, match="queues"):
                client.enqueue(QueueRef("o", "p", "e", "one more"), NewJob("t", id="3"))
            assert run(client.redis, STUBS.dequeue(0, 1, HOUR_MS, look="1")) == []

    def test_a_limited_queue_does_not_run_after_valkey_lost_everything(
        self, valkey: Valkey, valkey_url: str, postgres_url: str
    ) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        with SyncClient(valkey_url, OPTIONS, tiers) as client:
            client.enqueue(PAUSED, NewJob("t", id="1"))
            client.pause(PAUSED)
            valkey.flushall()
            client.enqueue(PAUSED, NewJob("t", id="paused"))
            client.enqueue(REF, NewJob("t", id="last"))
            assert asyncio.run(run_worker_until(valkey_url, "last", SettingsRestorer(tiers))) == ["last"]

    def test_a_queue_that_valkey_lost_is_paused_before_its_first_job(
        self, valkey: Valkey, valkey_url: str, postgres_url: str
    ) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        with SyncClient(valkey_url, OPTIONS, tiers) as client:
            client.enqueue(PAUSED, NewJob("t", id="1"))
            client.pause(PAUSED)
            valkey.flushall()
            assert SettingsRestorer(tiers).restore_if_needed(0)
            client.enqueue(PAUSED, NewJob("t", id="2"))
            assert run(valkey, STUBS.dequeue(0, 1, HOUR_MS, look="1")) == []
            assert not SettingsRestorer(tiers).restore_if_needed(0)

    def test_a_worker_without_postgres_waits_for_the_mover(
        self, valkey: Valkey, valkey_url: str, postgres_url: str
    ) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        with SyncClient(valkey_url, OPTIONS, tiers) as client:
            client.enqueue(PAUSED, NewJob("t", id="1"))
            client.pause(PAUSED)
            valkey.hdel(keys.queue(0, PAUSED), "paused")
            with pytest.raises(SettingsNotRestored):
                run(valkey, STUBS.dequeue(0, 1, HOUR_MS, look="0"))
            mover = Mover(tiers, MoverOptions(lease_s=3600.0))
            mover.renew_leadership()
            mover.sweep(0)
            assert run(valkey, STUBS.dequeue(0, 1, HOUR_MS, look="0")) == []

    def test_without_any_postgres_jobs_run_at_once(self, valkey: Valkey, valkey_url: str) -> None:
        run(valkey, STUBS.enqueue(REF, [NewJob("t", id="last")]))
        valkey.set(keys.SHARDS, 1)
        assert asyncio.run(run_worker_until(valkey_url, "last", None)) == ["last"]


class TestReports:
    def test_jobs_that_a_failover_lost_are_reported_per_queue(self, pair: ReplicaPair, postgres_url: str) -> None:
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        pair.catch_up()
        pair.cut_link()
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="2"), NewJob("t", id="3")]))
        tiers = Tiers(pair.primary_server.url, postgres_url, OPTIONS)
        replica = Tiers(pair.replica_server.url, postgres_url, OPTIONS)
        watch = ValkeyLossDetector(tiers)
        watch.check(0)
        pair.kill_primary()
        watch._tiers = replica  # pyright: ignore[reportPrivateUsage]  # as Sentinel would lead it there
        watch.check(0)
        watch.check(0)
        [event] = read_server_events(replica.store)
        assert (event.server, event.kind, event.missing) == ("valkey", "went back", 2)
        assert [(loss.ref, loss.missing) for loss in event.losses] == [(REF, 2)]
        with open_pool(postgres_url) as pool, transaction(pool) as conn:
            [(name, detail)] = list_recent_server_events(conn).items()
        assert name == "valkey of shard 0 went back"
        assert "Accepted jobs missing: 2." in detail
        [finding] = check_server_events([event])
        assert not finding.ok
        assert "2 jobs missing" in finding.found
        tiers.close()
        replica.close()

    def test_a_mover_that_leads_only_after_the_failover_reports_them_once(
        self, pair: ReplicaPair, postgres_url: str
    ) -> None:
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        pair.catch_up()
        pair.cut_link()
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="2"), NewJob("t", id="3")]))
        before = Tiers(pair.primary_server.url, postgres_url, OPTIONS)
        ValkeyLossDetector(before).check(0)
        before.close()
        pair.kill_primary()
        after = Tiers(pair.replica_server.url, postgres_url, OPTIONS)
        ValkeyLossDetector(after).check(0)
        ValkeyLossDetector(after).check(0)
        [event] = read_server_events(after.store)
        assert [(loss.ref, loss.missing) for loss in event.losses] == [(REF, 2)]
        after.close()

    def test_what_is_kept_follows_every_look(self, valkey: Valkey, valkey_url: str, postgres_url: str) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        watch, other = ValkeyLossDetector(tiers), ValkeyLossDetector(tiers)
        for number in range(3):
            run(valkey, STUBS.enqueue(REF, [NewJob("t", id=str(number))]))
            run(valkey, STUBS.enqueue(replace(REF, queue=f"q{number}"), [NewJob("t", id=f"other-{number}")]))
            (watch, other)[number % 2].check(0)
            with tiers.store.transaction() as conn:
                rows = conn.execute("SELECT queue, accepted, held FROM valkey_marks WHERE shard = 0").fetchall()
            held = {(f"q{earlier}", 1, 1) for earlier in range(number + 1)}
            assert set(rows) == {(REF.queue, number + 1, number + 1), *held}
        valkey.flushall()
        watch.check(0)
        with tiers.store.transaction() as conn:
            assert conn.execute("SELECT * FROM valkey_marks").fetchall() == []
        assert [(event.kind, event.missing) for event in read_server_events(tiers.store)] == [("went back", 6)]
        tiers.close()

    def test_an_idle_shard_is_not_written_again(self, valkey: Valkey, valkey_url: str, postgres_url: str) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        run(valkey, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        versions: list[object] = []
        for watch in (first := ValkeyLossDetector(tiers), first, ValkeyLossDetector(tiers)):
            watch.check(0)
            with tiers.store.transaction() as conn:
                versions += conn.execute("SELECT version, xmin::text FROM valkey_servers").fetchall()
        assert len(versions) == 3
        assert len(set(versions)) == 1
        tiers.close()

    def test_more_queues_than_are_compared_are_no_loss(
        self, valkey: Valkey, valkey_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        watch = ValkeyLossDetector(tiers)
        run(valkey, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        watch.check(0)
        monkeypatch.setattr(valkey_watch, "MAX_QUEUES", 0)
        watch.check(0)
        assert read_server_events(tiers.store) == []
        tiers.close()

    def test_a_postgres_that_went_back_is_no_failover_of_valkey(
        self, valkey: Valkey, valkey_url: str, postgres_url: str
    ) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        watch = ValkeyLossDetector(tiers)
        run(valkey, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        watch.check(0)
        with tiers.store.transaction() as conn:
            conn.execute("UPDATE valkey_servers SET replication_id = 'of before', version = 0")
            conn.execute("UPDATE valkey_marks SET accepted = 0")
        watch.check(0)
        assert read_server_events(tiers.store) == []
        with tiers.store.transaction() as conn:
            assert conn.execute("SELECT accepted FROM valkey_marks").fetchall() == [(1,)]
        tiers.close()

    def test_a_failover_is_reported_although_postgres_went_back_to_before_the_first_sweep(
        self, pair: ReplicaPair, postgres_url: str
    ) -> None:
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        before = Tiers(pair.primary_server.url, postgres_url, OPTIONS)
        ValkeyLossDetector(before).check(0)  # its mover dies before the failover
        pair.catch_up()
        pair.cut_link()
        with before.store.transaction() as conn:
            conn.execute("DELETE FROM valkey_servers")
            conn.execute("DELETE FROM valkey_marks")
        before.close()
        pair.kill_primary()
        after = Tiers(pair.replica_server.url, postgres_url, OPTIONS)
        ValkeyLossDetector(after).check(0)
        ValkeyLossDetector(after).check(0)
        [event] = read_server_events(after.store)
        assert (event.server, event.kind, event.missing) == ("valkey", "restarted or failed over", 0)
        assert "unknown" in event.description
        after.close()

    def test_a_postgres_that_went_back_to_before_the_first_sweep_is_no_failover_of_valkey(
        self, valkey: Valkey, valkey_url: str, postgres_url: str
    ) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        run(valkey, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        ValkeyLossDetector(tiers).check(0)
        with tiers.store.transaction() as conn:
            conn.execute("DELETE FROM valkey_servers")
            conn.execute("DELETE FROM valkey_marks")
        ValkeyLossDetector(tiers).check(0)
        assert read_server_events(tiers.store) == []
        tiers.close()

    def test_a_full_valkey_is_checked(self, valkey: Valkey, valkey_url: str, postgres_url: str) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        run(valkey, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        valkey.set(keys.SHARDS, 1)
        watch = ValkeyLossDetector(tiers)
        valkey.config_set("maxmemory", 1)
        try:
            watch.check(0)
        finally:
            valkey.config_set("maxmemory", 0)
        assert valkey.hget(keys.meta(0), valkey_watch.CHECKED_SERVER) is None
        watch.check(0)
        assert valkey.hget(keys.meta(0), valkey_watch.CHECKED_SERVER) is not None
        tiers.close()

    @pytest.mark.parametrize("is_reported", [False, True])
    def test_a_mover_that_led_before_postgres_went_back_compares_with_what_others_saw_since(
        self, pair: ReplicaPair, postgres_url: str, *, is_reported: bool
    ) -> None:
        before = Tiers(pair.primary_server.url, postgres_url, OPTIONS)
        after = Tiers(pair.replica_server.url, postgres_url, OPTIONS)
        watch = ValkeyLossDetector(before)
        for number in range(3):
            run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id=str(number))]))
            watch.check(0)
        with before.store.transaction() as conn:
            conn.execute("UPDATE valkey_servers SET version = 1")
            conn.execute("UPDATE valkey_marks SET accepted = 1, held = 1")
        pair.catch_up()
        pair.cut_link()
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="4"), NewJob("t", id="5")]))
        ValkeyLossDetector(before).check(0)  # another mover leads meanwhile
        pair.kill_primary()
        if is_reported:
            ValkeyLossDetector(after).check(0)
        watch._tiers = after  # pyright: ignore[reportPrivateUsage]
        watch.check(0)
        assert [(event.kind, event.missing) for event in read_server_events(after.store)] == [("went back", 2)]
        before.close()
        after.close()

    def test_jobs_that_wait_in_postgres_are_not_reported(self, pair: ReplicaPair, postgres_url: str) -> None:
        options = replace(OPTIONS, caps=WarmCaps(items=1))
        tiers = Tiers(pair.primary_server.url, postgres_url, options)
        with SyncClient(pair.primary_server.url, options, tiers) as client:
            client.enqueue_many(REF, [NewJob("t", id="1"), NewJob("t", id="2")])
            pair.catch_up()
            pair.cut_link()
            client.enqueue_many(REF, [NewJob("t", id="3"), NewJob("t", id="4")])
            ValkeyLossDetector(tiers).check(0)
        pair.kill_primary()
        after = Tiers(pair.replica_server.url, postgres_url, options)
        ValkeyLossDetector(after).check(0)
        assert [(event.kind, event.missing) for event in read_server_events(after.store)] == [
            ("restarted or failed over", 0)
        ]
        after.close()

    def test_a_valkey_that_was_emptied_is_noticed_although_producers_went_on(
        self, valkey: Valkey, valkey_url: str, postgres_url: str
    ) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        watch = ValkeyLossDetector(tiers)
        run(valkey, STUBS.enqueue(REF, [NewJob("t", id="1"), NewJob("t", id="2")]))
        watch.check(0)
        valkey.flushall()
        run(valkey, STUBS.enqueue(replace(REF, queue="other"), [NewJob("t", id="3")]))
        watch.check(0)
        watch.check(0)
        assert [(event.kind, event.missing) for event in read_server_events(tiers.store)] == [("went back", 2)]
        tiers.close()

    def test_a_failover_while_marks_are_read_is_not_missed(
        self, pair: ReplicaPair, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="1")]))
        pair.catch_up()
        pair.cut_link()
        run(pair.primary, STUBS.enqueue(REF, [NewJob("t", id="2")]))
        before = Tiers(pair.primary_server.url, postgres_url, OPTIONS)
        after = Tiers(pair.replica_server.url, postgres_url, OPTIONS)
        watch = ValkeyLossDetector(before)
        watch.check(0)
        read_marks = ValkeyLossDetector._read_marks  # pyright: ignore[reportPrivateUsage]

        def fail_over(self: ValkeyLossDetector, shard: int) -> object:
            if self._tiers is before:  # pyright: ignore[reportPrivateUsage]
                pair.kill_primary()
                self._tiers = after  # pyright: ignore[reportPrivateUsage]
            return read_marks(self, shard)

        monkeypatch.setattr(ValkeyLossDetector, "_read_marks", fail_over)
        watch.check(0)
        assert [(event.kind, event.missing) for event in read_server_events(after.store)] == [("went back", 1)]
        before.close()
        after.close()

    def test_jobs_of_a_valkey_that_was_emptied_are_reported(
        self, valkey: Valkey, valkey_url: str, postgres_url: str
    ) -> None:
        tiers = Tiers(valkey_url, postgres_url, OPTIONS)
        mover = Mover(tiers, MoverOptions(lease_s=3600.0))
        run(valkey, STUBS.enqueue(REF, [NewJob("t", id="1"), NewJob("t", id="2")]))
        mover.renew_leadership()
        mover.sweep(0)
        valkey.flushall()
        mover.sweep(0)
        assert [(event.kind, event.missing) for event in read_server_events(tiers.store)] == [("went back", 2)]
        tiers.close()

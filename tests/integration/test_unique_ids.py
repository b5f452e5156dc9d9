"""An id is unique in its environment, in both tiers: a second job with it is not accepted while the first waits, runs
or is dead, wherever it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from headrace.cold.audit import TierAudit
from headrace.cold.store import ColdLimits, ColdStore
from headrace.cold.tiers import Tiers
from headrace.embedded.process import choose_port
from headrace.errors import IdPending, SpillRefused
from headrace.model.job import LeasedJob, NewJob, has_generated_form, make_job_id
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.queue.scripts import DeadFilter
from headrace.valkey.scripts import run
from tests.audits import run_audit
from tests.integration.test_tiers import CAP, HOUR_MS, NO_DRIFT, OTHER, REF, SURE_MS, Bench, make_bench, numbers

THIRD = replace(REF, queue="third")
STRANGER = QueueRef("stranger", REF.project, REF.env, REF.queue)
X = "chosen: 100%"


@pytest.fixture(autouse=True)
def long_lock_validity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep movers on a slow machine from concluding that they were paused and lost their lock."""
    monkeypatch.setattr("headrace.cold.mover.LOCK_VALID_MS", SURE_MS)


@pytest.fixture
def bench(any_valkey_url: str, postgres_url: str) -> Iterator[Bench]:
    with make_bench(any_valkey_url, postgres_url, keep_ms=0) as made:
        yield made.bench


def fill(bench: Bench, ref: QueueRef = REF) -> None:
    """Let new jobs of a queue wait in PostgreSQL."""
    assert all(bench.enqueue(*(f"{ref.queue} {number}" for number in range(CAP)), ref=ref))


def enqueue_cold(bench: Bench, job_id: str = X, ref: QueueRef = REF, **fields: Any) -> None:
    fill(bench, ref)
    assert bench.enqueue(job_id, ref=ref, **fields) == [True]
    assert bench.sql(f"SELECT count(*) FROM cold_queue_entries WHERE job_id = '{job_id}'") == [(1,)]


def read_registered(bench: Bench, ref: QueueRef = REF) -> dict[str, str]:
    """Return the registered ids and their states, and check what is counted with them."""
    shard, env = bench.stubs.find_shard(ref), ref.environment
    valkey: Any = bench.client.redis
    entries = {
        keys.decode(key.decode()): value.decode()
        for key, value in valkey.hgetall(keys.env_cold_ids(shard, env)).items()
    }
    size = valkey.hget(keys.env(shard, env), "cold_id_bytes")
    assert size == (str(sum(len(keys.encode(job_id)) + 64 for job_id in entries)).encode() if entries else None)
    return {job_id: entry[0] for job_id, entry in entries.items()}


def run_all(bench: Bench) -> list[str]:
    """Run every job, as if those that wait for their time were due."""
    done = bench.drain()
    while bench.sql("UPDATE cold_queue_entries SET due_ms = 1 WHERE delayed RETURNING 1"):
        done += bench.drain()
    return done


def run_job(bench: Bench, job_id: str) -> LeasedJob:
    """Run all jobs before one, and return that one, running."""
    while True:
        bench.move()
        jobs = bench.dequeue(1)
        if jobs[0].id == job_id:
            return jobs[0]
        bench.ack(jobs)


def bury(bench: Bench, job: LeasedJob) -> None:
    run(bench.client.redis, bench.stubs.bury(bench.shard, [(job, "failed")]))


def without_postgres(bench: Bench) -> SyncClient:
    """Return a client whose PostgreSQL is down."""
    tiers = Tiers(bench.valkey_url, f"postgresql://nobody@127.0.0.1:{choose_port('nothing', 0)}/none", bench.options)
    return SyncClient(bench.valkey_url, bench.options, tiers)


def forget(bench: Bench) -> None:
    """Lose the registered ids, as a server that fails over to a replica that is behind."""
    shard = bench.shard
    bench.client.redis.delete(keys.env_cold_ids(shard, REF.environment))
    bench.client.redis.hdel(keys.env(shard, REF.environment), "cold_id_bytes")


def pretend_old_release(bench: Bench) -> None:
    """Leave rows as release 0.4.0 does, which knows neither the table nor the registry."""
    bench.sql("DELETE FROM cold_ids")
    forget(bench)


def do_nothing(*_: object) -> int:
    return 0


# The rule


def test_a_cold_id_is_refused_in_every_queue(bench: Bench) -> None:
    enqueue_cold(bench)
    assert bench.enqueue(X, ref=OTHER) == [False]
    assert bench.enqueue(X) == [False]
    assert bench.enqueue(X, "free", ref=OTHER) == [False, True]
    fill(bench, THIRD)
    assert bench.enqueue(X, "also free", X, ref=THIRD) == [False, True, False]
    assert read_registered(bench) == {X: "c", "also free": "c"}
    assert run_audit(bench.tiers, bench.shard) == NO_DRIFT
    assert sorted(bench.drain()).count(X) == 1
    assert read_registered(bench) == {}


def test_the_same_id_is_free_in_another_environment(bench: Bench) -> None:
    enqueue_cold(bench)
    assert bench.enqueue(X, ref=STRANGER) == [True]


@pytest.mark.parametrize("delay_ms", [0, HOUR_MS])
def test_a_delayed_cold_id_is_refused_whatever_the_delay(bench: Bench, delay_ms: int) -> None:
    assert bench.enqueue(X, delay_ms=HOUR_MS) == [True]
    for ref in (REF, OTHER):
        assert bench.enqueue(X, ref=ref, delay_ms=delay_ms) == [False]


def test_a_warm_id_is_refused_by_the_cold_tier(bench: Bench) -> None:
    assert bench.enqueue(X, ref=OTHER) == [True]
    fill(bench)
    assert bench.enqueue(X, "new") == [False, True]
    assert read_registered(bench) == {"new": "c"}


def test_an_id_stays_in_use_when_its_job_is_refilled_and_is_free_when_it_is_done(bench: Bench) -> None:
    enqueue_cold(bench)
    job = run_job(bench, X)
    assert bench.enqueue(X, ref=OTHER) == [False]
    bench.ack([job])
    bench.move()
    assert read_registered(bench) == {}
    assert bench.enqueue(X, ref=OTHER) == [True]


def test_a_cancelled_or_expired_id_is_free_at_once(bench: Bench) -> None:
    enqueue_cold(bench)
    assert bench.client.cancel(REF.environment, X) == "cold"
    assert read_registered(bench) == {}
    assert bench.enqueue(X, ttl_ms=HOUR_MS) == [True]
    bench.sql("UPDATE cold_queue_entries SET expires_ms = 1")
    bench.move()
    assert read_registered(bench) == {}
    assert bench.enqueue(X, ref=OTHER) == [True]


def test_a_row_that_expires_in_a_refill_frees_its_id(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue_cold(bench, ttl_ms=HOUR_MS)
    bench.sql("UPDATE cold_queue_entries SET expires_ms = 1")
    monkeypatch.setattr(type(bench.mover), "_expire", do_nothing)
    bench.ack(bench.dequeue())
    bench.move()
    assert bench.sql("SELECT count(*) FROM cold_ids") == [(0,)]
    assert read_registered(bench) == {}


def test_the_id_of_a_dead_job_stays_in_use_until_it_is_removed(bench: Bench) -> None:
    assert bench.enqueue(X) == [True]
    bury(bench, run_job(bench, X))
    bench.move()
    assert bench.sql("SELECT job_id FROM dead_jobs") == [(X,)]
    assert bench.enqueue(X, ref=OTHER) == [False]
    fill(bench)
    assert bench.enqueue(X) == [False]
    assert run_audit(bench.tiers, bench.shard) == NO_DRIFT
    assert bench.enqueue(X, ref=OTHER) == [False]
    assert bench.client.remove_dead(REF) == 1
    assert read_registered(bench) == {}
    assert bench.enqueue(X, ref=OTHER) == [True]


def test_the_id_of_a_dead_job_stays_in_use_when_it_is_redriven(bench: Bench) -> None:
    enqueue_cold(bench)
    bury(bench, run_job(bench, X))
    bench.move()
    fill(bench)
    assert bench.client.redrive(REF) == 1
    assert bench.enqueue(X, ref=OTHER) == [False]
    assert bench.drain().count(X) == 1
    assert read_registered(bench) == {}
    assert bench.enqueue(X, ref=OTHER) == [True]


def test_generated_ids_are_not_registered(bench: Bench) -> None:
    fill(bench)
    generated = [NewJob("send"), NewJob("send", id=make_job_id())]
    assert bench.client.enqueue_many(REF, generated) == [True, True]
    assert bench.sql("SELECT count(*) FROM cold_ids") == [(0,)]
    assert read_registered(bench) == {}
    assert bench.client.enqueue_many(REF, generated) == [False, False]


def test_an_id_that_only_looks_generated_is_registered(bench: Bench) -> None:
    chosen = str(make_job_id())
    assert has_generated_form(chosen)
    enqueue_cold(bench, chosen)
    assert bench.enqueue(chosen, ref=OTHER) == [False]


# Races and failures


def test_one_of_two_spills_at_once_is_accepted(bench: Bench) -> None:
    for ref in (REF, OTHER):
        fill(bench, ref)
    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            calls = [pool.submit(bench.enqueue, f"x{number}", ref=ref) for ref in (REF, OTHER) * 4]
            assert sorted(call.result()[0] for call in calls) == [False] * 7 + [True]
    assert run_audit(bench.tiers, bench.shard) == NO_DRIFT
    assert set(read_registered(bench).values()) == {"c"}


def test_an_id_that_valkey_accepts_before_the_spill_is_refused_by_the_spill(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bench)
    reserve = bench.stubs.__class__.reserve_ids

    def accept_first(*args: Any) -> Any:
        monkeypatch.undo()
        assert bench.enqueue(X, ref=OTHER) == [True]
        return reserve(*args)

    monkeypatch.setattr(bench.stubs.__class__, "reserve_ids", accept_first)
    assert bench.enqueue(X, "other") == [False, True]
    assert read_registered(bench) == {"other": "c"}


def test_warm_enqueues_need_no_postgres(bench: Bench) -> None:
    enqueue_cold(bench)
    with without_postgres(bench) as client:
        assert client.enqueue_many(OTHER, [NewJob("send", id=X), NewJob("send", id="free")]) == [False, True]
    with SyncClient(bench.valkey_url, bench.options) as client:
        assert client.enqueue(OTHER, NewJob("send", id=X)) is False


def test_a_refused_spill_leaves_its_ids_free(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench)
    with without_postgres(bench) as client, pytest.raises(SpillRefused):
        client.enqueue(REF, NewJob("send", id=X))

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(ColdStore, "_update_counters", fail)
    with pytest.raises(MemoryError):
        bench.enqueue(X)
    assert read_registered(bench) == {}
    assert bench.enqueue(X, ref=OTHER) == [True]


def test_postgres_decides_about_the_id_of_a_producer_that_died(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It died before it committed: its job does not exist. Its caller repeats the call, in this or another queue."""
    env = REF.environment
    assert bench.enqueue("first", ref=OTHER) == [True]
    assert run(bench.client.redis, bench.stubs.reserve_ids(env, [X, "y", "z"], "token")) == []
    assert read_registered(bench) == {X: "p", "y": "p", "z": "p"}
    with SyncClient(bench.valkey_url, bench.options) as client, pytest.raises(IdPending):
        client.enqueue(OTHER, NewJob("send", id=X))
    with without_postgres(bench) as client:
        with pytest.raises(SpillRefused):
            client.enqueue(OTHER, NewJob("send", id=X))
        assert client.enqueue(OTHER, NewJob("send", id="unaffected")) is True
    assert bench.enqueue(X, ref=OTHER) == [True]
    assert bench.enqueue(X, ref=THIRD) == [False]
    fill(bench)
    assert bench.enqueue("y") == [True]
    run_audit(bench.tiers, bench.shard)
    assert read_registered(bench) == {X: "c", "y": "c", "z": "p"}
    monkeypatch.setattr("headrace.cold.id_audit.PENDING_MS", -1)
    run_audit(bench.tiers, bench.shard)
    assert read_registered(bench) == {X: "c", "y": "c"}
    assert bench.enqueue("z", ref=THIRD) == [True]
    assert sorted(run_all(bench)) == sorted(
        [X, "first", "unaffected", "y", "z", *(f"{REF.queue} {n}" for n in range(CAP))]
    )


def test_an_audit_confirms_the_id_of_a_producer_that_died_after_its_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Tiers, "settle_ids", do_nothing)
        enqueue_cold(bench)
    assert read_registered(bench) == {X: "p"}
    assert bench.enqueue(X, ref=OTHER) == [False]
    run_audit(bench.tiers, bench.shard)
    assert read_registered(bench) == {X: "c"}


def test_an_audit_removes_the_id_of_a_job_that_is_gone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue_cold(bench)
    with monkeypatch.context() as patch:
        patch.setattr(Tiers, "settle_ids", do_nothing)
        bench.client.cancel(REF.environment, X)
    assert bench.enqueue(X, ref=OTHER) == [False]  # the entry is outdated
    run_audit(bench.tiers, bench.shard)
    assert read_registered(bench) == {}
    assert bench.enqueue(X, ref=OTHER) == [True]


def test_an_audit_registers_the_ids_that_valkey_lost(bench: Bench) -> None:
    enqueue_cold(bench)
    bench.client.redis.hset(keys.meta(bench.shard), "cold_id_bytes", 999)
    forget(bench)
    run_audit(bench.tiers, bench.shard)
    assert read_registered(bench) == {X: "p"}
    assert bench.enqueue(X, ref=OTHER) == [False]
    run_audit(bench.tiers, bench.shard)
    assert read_registered(bench) == {X: "c"}
    assert bench.client.redis.hget(keys.meta(bench.shard), "cold_id_bytes") == str(len(keys.encode(X)) + 64).encode()
    with without_postgres(bench) as client:
        assert client.enqueue(OTHER, NewJob("send", id=X)) is False


def test_an_audit_reads_ids_and_rows_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a process of an earlier release adds later are found too; ids that may be generated are left out."""
    monkeypatch.setattr("headrace.cold.id_audit.PAGE", 2)
    monkeypatch.setattr("headrace.cold.id_audit.ROWS_PAGE", 2)
    monkeypatch.setattr("headrace.cold.id_audit.COMMIT_S", -1.0)  # what was read need not be read again
    fill(bench)
    old, later = [f"old {number}" for number in range(5)], [f"later {number}" for number in range(3)]
    audit = TierAudit(bench.tiers, do_nothing_with_placed)
    for ids in (old, [*later, str(make_job_id())]):
        assert all(bench.enqueue(*ids))
        pretend_old_release(bench)
        for _ in range(2):
            assert [*audit.run_incrementally(bench.shard)][-1] == NO_DRIFT
        assert bench.sql("SELECT count(*) FROM cold_ids") == [(len(ids) if ids is old else 3,)]
    assert read_registered(bench) == dict.fromkeys(later, "c")


def do_nothing_with_placed(ref: QueueRef, queue_id: int) -> None:
    pass


def test_an_audit_corrects_an_entry_of_another_token(bench: Bench) -> None:
    enqueue_cold(bench)
    bench.sql("UPDATE cold_ids SET token = 'another'")
    for _ in range(2):
        run_audit(bench.tiers, bench.shard)
    assert read_registered(bench) == {X: "c"}
    assert bench.client.cancel(REF.environment, X) == "cold"
    assert read_registered(bench) == {}


# Jobs of earlier releases


def test_old_duplicates_run_and_new_ones_are_refused(bench: Bench) -> None:
    enqueue_cold(bench)
    pretend_old_release(bench)
    enqueue_cold_again = bench.enqueue(*(f"{OTHER.queue} {number}" for number in range(CAP)), X, "behind", ref=OTHER)
    assert all(enqueue_cold_again)
    pretend_old_release(bench)
    for _ in range(2):
        run_audit(bench.tiers, bench.shard)
    assert read_registered(bench) == {X: "c", "behind": "c"}
    assert bench.enqueue(X, ref=THIRD) == [False]

    bench.ack(bench.dequeue())
    bench.move()
    jobs = bench.dequeue()
    assert sorted(job.id for job in jobs) == sorted([X, "behind"])  # one of the two, and it blocks no other
    bench.move()
    assert bench.dequeue() == []
    assert bench.sql("SELECT job_id, delayed FROM cold_queue_entries") == [(X, True)]
    assert bench.sql("SELECT sum(waiting), sum(delayed), sum(dead) FROM cold_queues") == [(0, 1, 0)]
    assert bench.enqueue(X, ref=THIRD) == [False]
    bench.sql("UPDATE cold_queue_entries SET due_ms = 1")
    bench.move()
    assert bench.dequeue() == []  # tried again, and still in use
    bench.ack(jobs)
    assert run_all(bench) == [X]
    assert bench.sql("SELECT count(*) FROM cold_quarantine") == [(0,)]
    for _ in range(2):
        assert run_audit(bench.tiers, bench.shard) == NO_DRIFT
    assert read_registered(bench) == {}
    assert bench.enqueue(X, ref=THIRD) == [True]


def test_rows_whose_id_is_in_use_do_not_keep_a_queue_in_cold_mode(bench: Bench) -> None:
    enqueue_cold(bench)
    pretend_old_release(bench)
    assert bench.enqueue(X, ref=OTHER) == [True]
    bench.ack([job for job in bench.dequeue() if job.queue == REF])
    for _ in range(2):
        bench.move()
    assert not bench.state.cold_mode
    assert bench.enqueue("next") == [True]
    assert [job.id for job in bench.dequeue()] == ["next"]


def test_a_redrive_of_an_id_that_is_in_use_loses_nothing(bench: Bench) -> None:
    """An earlier release freed the ids of dead jobs after a minute."""
    assert bench.enqueue(X) == [True]
    bury(bench, run_job(bench, X))
    bench.move()
    pretend_old_release(bench)
    assert bench.enqueue(X, ref=OTHER) == [True]
    assert bench.client.redrive(REF, DeadFilter()) == 1
    bench.move()
    [job] = bench.dequeue()
    assert job.queue == OTHER
    bench.ack([job])
    assert run_all(bench) == [X]


def test_a_redrive_of_a_generated_id_that_was_enqueued_again_loses_nothing(bench: Bench) -> None:
    """Ids of dead jobs that may be generated are not registered."""
    job_id = str(make_job_id())
    assert bench.enqueue(job_id) == [True]
    bury(bench, run_job(bench, job_id))
    bench.move()
    assert bench.enqueue(job_id) == [True]
    assert bench.client.redrive(REF, DeadFilter()) == 1
    assert run_all(bench) == [job_id, job_id]
    assert bench.sql("SELECT count(*) FROM cold_quarantine") == [(0,)]


# The bound


def test_chosen_ids_are_refused_when_the_registry_is_full_and_generated_ones_are_not(
    any_valkey_url: str, postgres_url: str
) -> None:
    with make_bench(any_valkey_url, postgres_url, limits=ColdLimits(max_id_bytes=3 * 70)) as made:
        bench = made.bench
        fill(bench)
        assert bench.enqueue(*numbers(100, 101, 102)) == [True] * 3
        with pytest.raises(SpillRefused, match="uniqueness could not be promised") as refused:
            bench.enqueue("103", "104")
        assert refused.value.accepted == [False, False]
        assert bench.client.enqueue_many(REF, [NewJob("send"), NewJob("send")]) == [True, True]
        assert bench.enqueue("100", "101") == [False, False]
        assert set(read_registered(bench)) == {"100", "101", "102"}
        assert bench.client.cancel(REF.environment, "100") == "cold"
        assert bench.enqueue("103") == [True]
        assert len(run_all(bench)) == CAP + 5


def test_an_environment_that_fills_the_registry_leaves_others_their_share(
    any_valkey_url: str, postgres_url: str
) -> None:
    same_shard = find_environment_of_shard(REF)
    with make_bench(any_valkey_url, postgres_url, limits=ColdLimits(max_id_bytes=10 * 100)) as made:
        bench = made.bench
        for ref in (REF, same_shard):
            fill(bench, ref)
        assert enqueue_until_refused(bench, "a", REF) == 15
        assert bench.enqueue("b", ref=same_shard) == [True]
        assert enqueue_until_refused(bench, "b", same_shard) == 0
        used: Any = bench.client.redis.hget(keys.meta(bench.shard), "cold_id_bytes")
        assert int(used) <= 1.25 * 1000


def enqueue_until_refused(bench: Bench, prefix: str, ref: QueueRef) -> int:
    for number in range(100):
        try:
            bench.enqueue(f"{prefix}{number}", ref=ref)
        except SpillRefused:
            return number
    raise AssertionError("never refused")


def find_environment_of_shard(ref: QueueRef) -> QueueRef:
    names = (replace(ref, org=f"org {number}") for number in range(100))
    return next(each for each in names if each.environment.shard(2) == ref.environment.shard(2))

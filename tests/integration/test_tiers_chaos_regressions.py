"""Bugs of the two tiers that the chaos runs found, each in its plainest form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.store import ColdStore
from headrace.cold.tiers import Tiers
from headrace.model.job import JobState, LeasedJob, NewJob
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import QueueState, read_states
from headrace.valkey.scripts import run
from tests.conftest import ODD_NAMES

REF = ODD_NAMES
CAP = 2
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def long_lock_validity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep movers on a slow machine from concluding that they were paused and lost their lock."""
    monkeypatch.setattr("headrace.cold.mover.LOCK_VALID_MS", 600_000.0)


@dataclass
class Bench:
    client: SyncClient
    tiers: Tiers
    mover: Mover

    def __post_init__(self) -> None:
        self.stubs = self.client.options.make_stubs()
        self.shard = self.stubs.find_shard(REF)
        self.mover.renew_leadership()

    @property
    def state(self) -> QueueState:
        return next(state for state in read_states(self.client.redis, 2) if state.ref == REF)

    def enqueue(self, *ids: str, **fields: Any) -> list[bool]:
        return self.client.enqueue_many(REF, [NewJob("send", b"12", id=job_id, **fields) for job_id in ids])

    def dequeue(self) -> list[LeasedJob]:
        return run(self.client.redis, self.stubs.dequeue(self.shard, 100, HOUR_MS))

    def ack(self) -> list[str]:
        jobs = self.dequeue()
        run(self.client.redis, self.stubs.ack(self.shard, [(job, 1) for job in jobs], 0))
        return [job.id for job in jobs]

    def bury(self) -> None:
        """What waits fails for good, and PostgreSQL takes it."""
        run(self.client.redis, self.stubs.bury(self.shard, [(job, "no") for job in self.dequeue()]))
        self.mover.sweep(self.shard)
        assert self.client.redis.zcard(f"hr:{{{self.shard}}}:leases") == 0


@pytest.fixture
def bench(valkey_url: str, postgres_url: str) -> Iterator[Bench]:
    options = QueueOptions(caps=WarmCaps(items=CAP))
    tiers = Tiers(valkey_url, postgres_url, options, keep_ms=HOUR_MS)
    with SyncClient(valkey_url, options, tiers) as client:
        yield Bench(client, tiers, Mover(tiers, MoverOptions(lease_s=3600.0)))


def test_a_row_that_is_in_valkey_already_does_not_expire_in_postgres(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover dies between placing the job in Valkey and deleting its row; before the next one comes the TTL is over.
    The job was counted as expired, although it was done."""
    bench.enqueue("a", "b")
    bench.enqueue("c", ttl_ms=HOUR_MS)
    assert bench.ack() == ["a", "b"]

    def die(*_: object) -> None:
        raise RuntimeError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(ColdStore, "delete", die)
        bench.mover.sweep(bench.shard)
    assert bench.ack() == ["c"]
    with bench.tiers.store.transaction() as conn:
        conn.execute("UPDATE cold_queue_entries SET expires_ms = 1")  # its TTL is over
    bench.mover.sweep(bench.shard)
    state = bench.state
    assert (state.odometers["ack"], state.odometers["refill"], state.odometers.get("expire", 0)) == (3, 1, 0)
    assert (state.depth, state.cold, state.cold_mode) == (0, 0, False)


def test_a_dead_job_that_postgres_keeps_is_not_accepted_again(bench: Bench) -> None:
    """A producer that was killed, or refused in part, retries with the same ids: dead jobs must not run again."""
    assert bench.enqueue("a") == [True]
    bench.bury()
    assert bench.enqueue("a") == [False]
    found = bench.client.get(REF.environment, "a")
    assert found is not None
    assert found.state == JobState.DEAD
    assert bench.client.cancel(REF.environment, "a") == JobState.DEAD


def test_a_dead_job_whose_id_is_still_taken_can_be_redriven(bench: Bench) -> None:
    assert bench.enqueue("a") == [True]
    bench.bury()
    assert bench.client.redrive(REF) == 1
    bench.mover.sweep(bench.shard)
    assert bench.ack() == ["a"]
    assert bench.state.dead == 0
    assert bench.enqueue("a") == [True]


def test_a_shard_that_is_idle_does_not_hold_up_another(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mover waited a quarter of a second for the idle shard's queues between any two refills of the other one."""
    monkeypatch.setattr("headrace.cold.mover.AUDIT_SLICE_S", 3600.0)  # an audit that goes on is work, too
    waits: list[float] = []
    wait = bench.tiers.valkey.bzpopmin

    def note(key: str, timeout: float) -> object:
        waits.append(timeout)
        return wait(key, timeout=timeout)

    monkeypatch.setattr(bench.tiers.valkey, "bzpopmin", note)
    bench.mover.run_once()
    assert min(waits) > 0.1
    monkeypatch.setattr("headrace.cold.mover.BUSY_S", 3600.0)  # what comes next is within it, on any machine
    bench.enqueue("a", "b", "c")
    bench.ack()
    bench.mover.run_once()
    assert bench.ack() == ["c"]
    waits.clear()
    bench.mover.run_once()
    assert max(waits) < 0.1

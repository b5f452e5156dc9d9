"""Fair turns between environments: one that drains and returns gets its share, and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count

import pytest

from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.scripts import Stubs
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run

STUBS = Stubs(1, 1_000_000)
LEASE_MS = 3_600_000
ROUNDS = 200
FIRST, LAST = (QueueRef(org, "app", "prod", "work") for org in ("a", "z"))

worker_kinds = pytest.mark.parametrize("names", [(), ("work",)], ids=["all queues", "named queue"])
name_orders = pytest.mark.parametrize(
    ("trickler", "backlogged"), [(FIRST, LAST), (LAST, FIRST)], ids=["trickler first", "trickler last"]
)


@pytest.fixture
def valkey_url(any_valkey_url: str) -> str:
    return any_valkey_url


class Shard:
    """A shard with one worker that takes jobs one at a time and finishes each at once."""

    def __init__(self, valkey: Valkey) -> None:
        self.valkey = valkey
        self._ids = map(str, count())

    def enqueue(self, ref: QueueRef, jobs: int = 1) -> None:
        new = [NewJob("task", b"", id=next(self._ids)) for _ in range(jobs)]
        assert all(run(self.valkey, STUBS.enqueue(ref, new)).accepted)

    def serve(self, names: Sequence[str] = (), n: int = 1) -> list[EnvRef]:
        jobs: list[LeasedJob] = run(self.valkey, STUBS.dequeue(0, n, LEASE_MS, names))
        assert len(jobs) == n
        run(self.valkey, STUBS.ack(0, [(job, 1) for job in jobs]))
        return [job.queue.environment for job in jobs]

    def serve_beside(self, trickler: QueueRef, names: Sequence[str], rounds: int = ROUNDS) -> Counter[EnvRef]:
        """Serve one job per round; the trickler has exactly one waiting at the beginning of each."""
        served: Counter[EnvRef] = Counter()
        for _ in range(rounds):
            if not self.valkey.zcard(keys.ready(0, trickler)):
                self.enqueue(trickler)
            served.update(self.serve(names))
        return served


@pytest.fixture
def shard(valkey: Valkey) -> Shard:
    return Shard(valkey)


@worker_kinds
@name_orders
def test_a_trickling_environment_and_a_backlogged_one_are_served_alike(
    shard: Shard, trickler: QueueRef, backlogged: QueueRef, names: Sequence[str]
) -> None:
    shard.enqueue(backlogged, 500)
    served = shard.serve_beside(trickler, names)
    assert abs(served[trickler.environment] - served[backlogged.environment]) <= 2, served


@worker_kinds
def test_several_tricklers_share_evenly_with_a_backlogged_environment(shard: Shard, names: Sequence[str]) -> None:
    tricklers = [QueueRef(org, "app", "prod", "work") for org in ("a", "c", "z")]
    backlogged = QueueRef("m", "app", "prod", "work")
    shard.enqueue(backlogged, 500)
    served: Counter[EnvRef] = Counter()
    for _ in range(ROUNDS):
        for ref in tricklers:
            if not shard.valkey.zcard(keys.ready(0, ref)):
                shard.enqueue(ref)
        served.update(shard.serve(names))
    assert max(served.values()) - min(served.values()) <= 2, served


@worker_kinds
@name_orders
def test_turns_taken_by_the_other_kind_of_worker_give_no_credit(
    shard: Shard, trickler: QueueRef, backlogged: QueueRef, names: Sequence[str]
) -> None:
    """Each kind moves the clock of its own index only; the other index must not fall behind its members for that."""
    shard.enqueue(backlogged, 500)
    other: Sequence[str] = () if names else ("work",)
    for _ in range(30):
        shard.serve(other, n=10)
    served = shard.serve_beside(trickler, names)
    assert abs(served[trickler.environment] - served[backlogged.environment]) <= 2, served


@worker_kinds
@name_orders
def test_an_environment_that_returns_waits_one_turn_at_most(
    shard: Shard, trickler: QueueRef, backlogged: QueueRef, names: Sequence[str]
) -> None:
    shard.enqueue(backlogged, 500)
    for _ in range(20):
        shard.serve(names, n=10)
    shard.enqueue(trickler)
    assert trickler.environment in (*shard.serve(names), *shard.serve(names))


@worker_kinds
def test_the_clock_of_a_queue_name_is_removed_with_its_last_job(shard: Shard, names: Sequence[str]) -> None:
    for number in range(20):
        ref = QueueRef("a", "app", "prod", f"work{number}")
        shard.enqueue(ref, 2)
        shard.serve((ref.queue,) if names else ())
        shard.serve((ref.queue,) if names else ())
    assert not [field for field in shard.valkey.hkeys(keys.meta(0)) if field.startswith(b"turn:")]  # pyright: ignore

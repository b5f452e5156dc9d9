"""A cluster whose slot moves while producers and workers go on: calls may fail, no job is lost or runs twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, cast

import pytest
import redis.exceptions

from headrace.embedded.process import LOOPBACK
from headrace.embedded.valkey import USER
from headrace.errors import QueueUnavailable
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import Stubs
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run
from tests.conftest import READY_S
from tests.valkey_cluster import EmbeddedValkeyCluster

STUBS = Stubs(1, 1_000_000)
LEASE_MS = 3_600_000
QUEUES = [QueueRef(org, "app", "prod", name) for org in ("a", "b") for name in ("x", "y")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkeyCluster]:
    folder = tmp_path_factory.mktemp("slots")
    cluster = EmbeddedValkeyCluster(folder / "data", folder / "log", nodes=2)
    cluster.start()
    try:
        cluster.wait_ready(READY_S)
        yield cluster
    finally:
        cluster.stop()


class SlotMove:
    """Moves the slot of shard 0 from its node to the other one, key by key, as `valkey-cli --cluster reshard` does."""

    def __init__(self, cluster: EmbeddedValkeyCluster) -> None:
        self.nodes = [connect(node.url) for node in cluster.nodes]
        self.slot = int(cast(Any, self.nodes[0].execute_command("CLUSTER", "KEYSLOT", keys.meta(0))))
        self.ids = [cast(Any, node.execute_command("CLUSTER", "MYID")).decode() for node in self.nodes]
        self.ports = [node.port for node in cluster.nodes]
        self._login = ("AUTH2", USER, cluster.nodes[0].passwords[USER])
        self.source = next(number for number, node in enumerate(self.nodes) if self.owns(node))

    def owns(self, node: Valkey) -> bool:
        try:
            node.get(keys.meta(0) + ":nothing")
        except redis.exceptions.ResponseError:
            return False
        return True

    @property
    def target(self) -> int:
        return 1 - self.source

    def begin(self) -> None:
        self._set_slot(self.target, "IMPORTING", self.ids[self.source])
        self._set_slot(self.source, "MIGRATING", self.ids[self.target])

    def move_some(self, at_most: int, rng: random.Random) -> int:
        """Move up to `at_most` keys, chosen at random; returns how many are left."""
        source = self.nodes[self.source]
        found: list[bytes] = cast(Any, source.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 9999))
        chosen = rng.sample(sorted(found), min(at_most, len(found)))
        if chosen:
            arguments = ("MIGRATE", LOOPBACK, self.ports[self.target], "", 0, 10_000, *self._login, "KEYS", *chosen)
            assert source.execute_command(*arguments) == b"OK"
        return len(found) - len(chosen)

    def end(self) -> None:
        for number in (self.target, self.source):
            self._set_slot(number, "NODE", self.ids[self.target])
        self.source = self.target

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def _set_slot(self, number: int, *arguments: str) -> None:
        self.nodes[number].execute_command("CLUSTER", "SETSLOT", self.slot, *arguments)


class Crowd:
    """Producers and workers of one shard. Every call may be refused for now; a refused one changes nothing."""

    def __init__(self, url: str) -> None:
        self.client = SyncClient(url, QueueOptions(shards=1))
        self.held: list[LeasedJob] = []
        self.accepted: set[str] = set()
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._numbers = count()

    def act(self) -> None:
        """Do each thing once that producers, workers and maintenance do."""
        for verb in (self.enqueue, self.dequeue, self.extend, self.ack, self.nack, self.sweep):
            self._attempt(verb)

    def _attempt(self, verb: Callable[[], Any]) -> bool:
        try:
            verb()
        except QueueUnavailable:
            self.refused[verb.__name__] += 1
            return False
        return True

    def enqueue(self) -> None:
        number = next(self._numbers)
        delay_ms, ttl_ms = (0, 50)[number % 3 == 0], (None, LEASE_MS)[number % 2]
        job = NewJob(
            "task",
            b"payload",
            id=str(number),
            delay_ms=delay_ms,
            priority=number % 2,
            ttl_ms=ttl_ms,
            max_attempts=1000,  # `nack` may hit the same job again and again, and a dead one would never be done
        )
        self.client.enqueue(QUEUES[number % len(QUEUES)], job)
        self.accepted.add(job.id)

    def dequeue(self) -> None:
        self.held += run(self.client.redis, STUBS.dequeue(0, 2, LEASE_MS))

    def extend(self) -> None:
        assert all(run(self.client.redis, STUBS.extend(0, self.held, LEASE_MS)))

    def ack(self) -> None:
        jobs = self.held[:1]
        answers = run(self.client.redis, STUBS.ack(0, [(job, 1) for job in jobs]))
        self.held = self.held[1:]
        self.done.update(job.id for job, flag in zip(jobs, answers, strict=True) if flag)

    def nack(self) -> None:
        jobs = self.held[:1]
        run(self.client.redis, STUBS.nack(0, [(job, 0, "failed") for job in jobs]))
        self.held = self.held[1:]

    def sweep(self) -> None:
        for call in (STUBS.reclaim(0, 100), STUBS.release(0, 100), STUBS.expire(0, 100)):
            run(self.client.redis, call)

    def drain(self) -> None:
        while len(self.done) < len(self.accepted):
            self.sweep()
            if not self.held:
                self.dequeue()
            self.ack()

    def close(self) -> None:
        self.client.redis.flushall()
        self.client.close()


@pytest.fixture
def crowd(cluster: EmbeddedValkeyCluster) -> Iterator[Crowd]:
    crowd = Crowd(cluster.url)
    yield crowd
    crowd.close()


@pytest.fixture
def move(cluster: EmbeddedValkeyCluster) -> Iterator[SlotMove]:
    move = SlotMove(cluster)
    yield move
    move.close()


@pytest.mark.parametrize("seed", range(3))
def test_no_job_is_lost_or_run_twice_while_a_slot_moves(crowd: Crowd, move: SlotMove, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        crowd.act()
    assert not crowd.refused
    move.begin()
    crowd.act()
    while move.move_some(3, rng):
        crowd.act()
    crowd.act()
    move.end()
    assert set(crowd.refused) >= {"enqueue", "dequeue", "sweep"}, "the slot was served while it moved"
    for _ in range(8):
        crowd.act()
    crowd.drain()
    assert crowd.done == dict.fromkeys(crowd.accepted, 1)
    for state in read_states(crowd.client.redis, 1):
        assert (state.depth, state.scheduled, state.running, state.bytes) == (0, 0, 0, 0)


def test_a_refused_call_has_written_nothing(crowd: Crowd, move: SlotMove) -> None:
    """Neither on the node that the slot leaves nor, once its first keys are there, on the other one."""
    for _ in range(8):
        crowd.act()
    move.begin()
    rng, left = random.Random(1), 1
    while left:
        before = [dump(node) for node in move.nodes]
        crowd.act()
        assert [dump(node) for node in move.nodes] == before
        left = move.move_some(7, rng)
    move.end()
    crowd.drain()


def dump(node: Valkey) -> dict[bytes, bytes]:
    found: list[bytes] = cast(Any, node.keys())
    pipeline = node.pipeline(transaction=False)
    for key in found:
        pipeline.execute_command("ASKING")
        pipeline.dump(key)
    return dict(zip(found, pipeline.execute()[1::2], strict=True))

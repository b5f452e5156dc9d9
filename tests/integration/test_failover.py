"""Valkey fails over to a replica that misses the primary's last writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.scripts import Stubs
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
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

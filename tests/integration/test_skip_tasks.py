"""A dequeue that skips tasks which its worker does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import LeasedJobs, Stubs, WarmCaps
from headrace.queue.state import read_state
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from tests.integration.test_script_failures import check_places_and_numbers

HOUR_MS = 3_600_000
CAPS = WarmCaps(items=100_000)
STUBS = Stubs(1, 1_000_000, CAPS)
REF = QueueRef("acme", "shop", "prod", "mail")
OTHER = QueueRef("acme", "shop", "prod", "sms")
FOREIGN = QueueRef("globex", "web", "prod", "mail")


@pytest.fixture
def client(valkey: Valkey, valkey_url: str) -> Iterator[SyncClient]:
    with SyncClient(valkey_url, QueueOptions(shards=1, caps=CAPS)) as client:
        yield client


def enqueue(client: SyncClient, ref: QueueRef, task: str, *ids: str, priority: int = 0, **options: Any) -> None:
    assert all(client.enqueue_many(ref, [NewJob(task, b"", each, priority=priority, **options) for each in ids]))


def dequeue(
    valkey: Valkey,
    n: int = 10,
    queues: Sequence[str] = (),
    *,
    excluded: Sequence[str] = ("gone",),
    provided: bool = False,
) -> LeasedJobs:
    """Exclude tasks that no worker has, unless `provided`."""
    return run(valkey, STUBS.dequeue(0, n, HOUR_MS, queues, excluded_tasks=dict.fromkeys(excluded, not provided)))


def ids(jobs: Sequence[LeasedJob]) -> list[str]:
    return [job.id for job in jobs]


def make_older(valkey: Valkey, ref: QueueRef, *job_ids: str, by_ms: int = 6000) -> None:
    """Make ready jobs of priority 0 eligible since a longer time."""
    key = keys.ready(0, ref)
    for job_id in job_ids:
        score = cast(float, valkey.zscore(key, job_id))
        valkey.zadd(key, {job_id: score - by_ms})


@pytest.mark.parametrize("queues", [(), ("mail",)], ids=["all queues", "by name"])
def test_excluded_tasks_stay_ready(valkey: Valkey, client: SyncClient, queues: Sequence[str]) -> None:
    enqueue(client, REF, "gone", "g1", "g2")
    enqueue(client, REF, "send", "s1")
    enqueue(client, REF, "gone", "g3")
    enqueue(client, REF, "send", "s2", "s3")
    first = dequeue(valkey, 2, queues)
    assert ids(first) == ["s1", "s2"]
    assert first.has_more
    second = dequeue(valkey, 10, queues)
    assert ids(second) == ["s3"]
    assert not second.has_more
    assert valkey.exists(keys.wake(0) if not queues else keys.wake_by_name(0, "mail"))  # for a worker that has the task
    third = dequeue(valkey, 10, queues)
    assert (ids(third), third.has_more) == ([], False)
    state = read_state(valkey, 1, REF)
    assert state is not None
    assert (state.depth, state.running, state.odometers["dequeue"]) == (3, 3, 3)
    check_places_and_numbers(valkey, "skipped")
    assert ids(dequeue(valkey, 10, queues, excluded=())) == ["g1", "g2", "g3"]


@pytest.mark.parametrize("queues", [(), ("mail", "sms")], ids=["all queues", "by name"])
def test_other_queues_and_environments_are_served(valkey: Valkey, client: SyncClient, queues: Sequence[str]) -> None:
    enqueue(client, REF, "gone", *(f"g{number}" for number in range(30)))
    enqueue(client, OTHER, "send", "o1", "o2")
    enqueue(client, FOREIGN, "gone", "g1")
    enqueue(client, FOREIGN, "send", "f1", "f2")
    jobs = dequeue(valkey, 10, queues)
    assert sorted(ids(jobs)) == ["f1", "f2", "o1", "o2"]
    assert not jobs.has_more
    check_places_and_numbers(valkey, "skipped")


@pytest.mark.parametrize("queues", [(), ("mail",)], ids=["all queues", "by name"])
@pytest.mark.parametrize("spread", ["queues", "environments"])
def test_many_excluded_jobs_do_not_hide_others_for_long(
    valkey: Valkey, client: SyncClient, queues: Sequence[str], spread: str
) -> None:
    """The search is bounded, and continues at a random place."""
    for number in range(50):
        own = QueueRef(f"acme{number}", "shop", "prod", "mail")
        if spread == "queues" and not queues:
            own = QueueRef("acme", "shop", "prod", f"q{number:02}")
        enqueue(client, own, "gone", f"g{number}")
    enqueue(client, FOREIGN, "send", "s")
    jobs = LeasedJobs()
    for _ in range(1000):
        if jobs := dequeue(valkey, 10, queues):
            break
        assert valkey.exists(keys.wake(0) if not queues else keys.wake_by_name(0, "mail"))
    assert ids(jobs) == ["s"]


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_wrong_index_neither_exceeds_a_limit_nor_hangs(valkey: Valkey, client: SyncClient, skipped: int) -> None:
    """A script that failed has stored a limit, but not removed the queue from the index."""
    enqueue(client, REF, "gone", *(f"g{number}" for number in range(skipped)))
    enqueue(client, REF, "send", *(f"s{number}" for number in range(20)))
    assert ids(dequeue(valkey, 1)) == ["s0"]
    valkey.hset(keys.queue(0, REF), "limit", 1)
    assert ids(dequeue(valkey, 5)) == []
    state = read_state(valkey, 1, REF)
    assert state is not None
    assert state.running == 1


def test_jobs_that_other_workers_can_run_are_left_to_them(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, REF, "gone", "g")
    make_older(valkey, REF, "g")
    assert ids(dequeue(valkey, provided=True)) == []
    assert ids(dequeue(valkey)) == ["g"]


def test_priorities_hold_among_the_other_jobs(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, REF, "send", "low", priority=-1)
    enqueue(client, REF, "gone", "urgent gone", priority=9)
    enqueue(client, REF, "send", "normal", "normal 2")
    enqueue(client, REF, "gone", "gone")
    enqueue(client, REF, "send", "urgent", priority=9)
    assert ids(dequeue(valkey)) == ["urgent", "normal", "normal 2", "low"]
    assert ids(dequeue(valkey, excluded=())) == ["urgent gone", "gone"]


def test_queues_are_ordered_by_the_oldest_job_that_can_run(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, REF, "gone", "g")
    enqueue(client, OTHER, "send", "o1")
    enqueue(client, REF, "send", "r1")
    enqueue(client, OTHER, "send", "o2")
    assert ids(dequeue(valkey)) == ["o1", "r1", "o2"]


def test_limits_hold(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, REF, "gone", "g")
    enqueue(client, REF, "send", "s1", "s2", "s3")
    client.limits(REF, 2)
    assert ids(dequeue(valkey)) == ["s1", "s2"]
    assert ids(dequeue(valkey)) == []
    make_older(valkey, REF, "g")
    assert ids(dequeue(valkey)) == []  # no slot for the skipped job either


def test_environments_are_served_alike(valkey: Valkey, client: SyncClient) -> None:
    for ref in (REF, FOREIGN):
        enqueue(client, ref, "gone", "g1", "g2")
        enqueue(client, ref, "send", *(f"s{number}" for number in range(20)))
    served = Counter(job.queue.org for _ in range(5) for job in dequeue(valkey, 4))
    assert served == {"acme": 10, "globex": 10}


def test_an_environment_that_could_not_be_served_saves_up_no_credit(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, REF, "gone", *(f"g{number}" for number in range(20)))
    enqueue(client, FOREIGN, "send", *(f"s{number}" for number in range(60)))
    for _ in range(10):
        assert {job.queue for job in dequeue(valkey, 4)} == {FOREIGN}
    served = Counter(job.queue.org for _ in range(10) for job in dequeue(valkey, 1, excluded=()))
    assert served["globex"] >= 4  # one share of a call less than half, at most


def test_skipped_jobs_are_leased_after_a_while_if_there_is_nothing_else(valkey: Valkey, client: SyncClient) -> None:
    old = [f"g{number:02}" for number in range(15)]
    enqueue(client, REF, "gone", *old)
    enqueue(client, REF, "gone", "young")
    make_older(valkey, REF, *old)
    enqueue(client, OTHER, "send", "s")
    assert ids(dequeue(valkey)) == ["s"]
    first = dequeue(valkey, 50)
    assert (ids(first), first.has_more) == (old[:10], False)
    assert ids(dequeue(valkey, 3)) == old[10:13]
    assert ids(dequeue(valkey)) == old[13:]
    assert ids(dequeue(valkey)) == []
    check_places_and_numbers(valkey, "overdue")


def test_the_search_is_bounded(valkey: Valkey, client: SyncClient) -> None:
    """A job behind many skipped ones is found when these were moved out of its way."""
    many = [f"g{number:03}" for number in range(250)]
    enqueue(client, REF, "gone", *many)
    enqueue(client, REF, "send", "s")
    assert ids(dequeue(valkey)) == []
    make_older(valkey, REF, *many)
    taken: list[str] = []
    for _ in range(10):
        found = ids(dequeue(valkey, 20))
        taken += found
        if "s" in found:
            break
    assert taken[-1] == "s"
    assert 50 <= len(taken) - 1 <= 60


def test_jobs_whose_ttl_is_over_expire_and_marked_ones_are_cancelled(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, REF, "gone", "g")
    enqueue(client, REF, "send", "over", ttl_ms=HOUR_MS)
    enqueue(client, REF, "send", "marked", "s")
    valkey.hset(keys.job(0, REF.environment, "over"), "expires", 1)
    valkey.hset(keys.job(0, REF.environment, "marked"), "cancel", 1)
    assert ids(dequeue(valkey)) == ["s"]
    state = read_state(valkey, 1, REF)
    assert state is not None
    assert (state.odometers["expire"], state.odometers["cancel"], state.depth) == (1, 1, 1)
    check_places_and_numbers(valkey, "expired")

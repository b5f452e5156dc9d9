"""Environments and queues that the indexes lack although they may run: maintenance finds them and puts them back."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.cold.quotas import QuotaManager
from headrace.cold.settings import SettingsRestorer
from headrace.cold.tiers import Tiers
from headrace.errors import QueueUnavailable
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.model.quotas import DEFAULT_TENANT
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.maintenance import Maintenance
from headrace.queue.quotas import pack_quotas
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from tests.model.valkey_contents import ValkeyContents, read_contents

HOUR_MS = 3_600_000
OPTIONS = QueueOptions(shards=1)
STUBS = OPTIONS.make_stubs()
EMAILS, REPORTS = (QueueRef("acme", "shop", "prod", name) for name in ("emails", "reports"))
ENV = EMAILS.environment
PART = keys.env_part(ENV)


def jobs(ref: QueueRef, count: int = 5) -> list[NewJob]:
    return [NewJob("send", b"", id=f"{ref.env}-{ref.queue}-{number}") for number in range(count)]


def dequeue(valkey: Valkey, n: int = 10, names: Sequence[str] = ()) -> list[LeasedJob]:
    return run(valkey, STUBS.dequeue(0, n, HOUR_MS, names))


def ack(valkey: Valkey, *done: LeasedJob) -> None:
    assert run(valkey, STUBS.ack(0, [(job, 1) for job in done])) == [True] * len(done)


@contextmanager
def older_scripts(valkey: Valkey) -> Generator[None]:
    """Hide the quota from scripts, as from those of releases that know none."""
    key = keys.env(0, ENV)
    quota: Any = valkey.hget(key, "quota")
    valkey.hdel(key, "quota")
    yield
    valkey.hset(key, "quota", quota)


@pytest.fixture
def maintenance(valkey_url: str) -> Maintenance:
    return Maintenance(valkey_url, STUBS, "test")


@pytest.fixture
def client(valkey: Valkey, valkey_url: str) -> Iterator[SyncClient]:
    with SyncClient(valkey_url, OPTIONS) as client:
        client.check_shards()
        yield client


@pytest.mark.parametrize("names", [(), ("emails", "reports")], ids=["all queues", "by name"])
def test_an_environment_that_older_workers_freed_runs_again(
    client: SyncClient, valkey: Valkey, maintenance: Maintenance, names: Sequence[str]
) -> None:
    for ref in (EMAILS, REPORTS):
        client.enqueue_many(ref, jobs(ref))
    run(valkey, STUBS.configure(ENV, {"quota": pack_quotas({"running": 2})}))
    with older_scripts(valkey):
        old = dequeue(valkey, 1, ["emails"])
    new = dequeue(valkey, 1, ["reports"])
    assert not dequeue(valkey, 1, names)
    assert not dequeue(valkey, 1, ["emails", "reports"]), "both names are parked"
    with older_scripts(valkey):
        ack(valkey, *old)
    ack(valkey, *new)
    assert not dequeue(valkey), "it left the index of environments, and nothing has put it back"
    maintenance.run_once()
    assert valkey.zscore(keys.envs(0), PART) is not None
    assert not valkey.exists(keys.env_blocked(0, ENV))
    for name in ("emails", "reports"):
        assert valkey.zscore(keys.queue_class(0, name), PART) is not None
    for _ in range(4):
        taken = dequeue(valkey, 10, names)
        assert len(taken) == 2
        ack(valkey, *taken)


def set_default(valkey: Valkey, running: int) -> None:
    """Store a default quota, and end before any environment is indexed for it."""
    valkey.hset(keys.meta(0), "quota", pack_quotas({"running": running}, "-"))


def test_queues_without_room_run_after_the_default_was_raised(
    client: SyncClient, valkey: Valkey, maintenance: Maintenance
) -> None:
    """Nothing runs, so no ack looks at them again."""
    set_default(valkey, 0)
    for ref in (EMAILS, REPORTS):
        client.enqueue_many(ref, jobs(ref))
    set_default(valkey, 4)
    assert not dequeue(valkey)
    maintenance.run_once()
    assert len(dequeue(valkey)) == 4


@pytest.mark.parametrize("lost", ["envs", "class", "queues"])
def test_an_entry_that_is_missing_comes_back(
    client: SyncClient, valkey: Valkey, maintenance: Maintenance, lost: str
) -> None:
    client.enqueue_many(EMAILS, jobs(EMAILS))
    before = read_contents(valkey).sorted_sets
    key = {"envs": keys.envs(0), "class": keys.queue_class(0, "emails"), "queues": keys.env_queues(0, ENV)}[lost]
    valkey.delete(key)
    maintenance.run_once()
    assert read_contents(valkey).sorted_sets == before


def test_an_entry_that_may_not_run_is_removed(client: SyncClient, valkey: Valkey, maintenance: Maintenance) -> None:
    client.enqueue_many(EMAILS, jobs(EMAILS))
    valkey.hset(keys.queue(0, EMAILS), "paused", "1")
    maintenance.run_once()
    assert not valkey.exists(keys.envs(0), keys.queue_class(0, "emails"), keys.env_queues(0, ENV))
    client.resume(EMAILS)
    assert len(dequeue(valkey)) == 5


def test_a_sound_shard_stays_as_it_is(client: SyncClient, valkey: Valkey, maintenance: Maintenance) -> None:
    """Queues that run, wait, are paused, are at their own limit or at that of their environment."""
    paused, limited, full = (QueueRef("acme", "shop", env, "emails") for env in ("paused", "limited", "full"))
    for ref in (EMAILS, REPORTS, paused, limited, full):
        client.enqueue_many(ref, jobs(ref))
    client.pause(paused)
    client.limits(limited, 1)
    client.limits(full.environment, 1)
    assert len(dequeue(valkey, 6)) == 6
    assert not any(dequeue(valkey, 1, ["no such name"]))

    def read() -> ValkeyContents:
        contents = read_contents(valkey)
        del contents.hashes[keys.meta(0)]
        return contents

    before = read()
    for _ in range(3):
        maintenance.run_once()
    assert read() == before


def test_environments_that_older_clients_made_are_listed(
    client: SyncClient, valkey: Valkey, maintenance: Maintenance
) -> None:
    refs = [QueueRef("acme", "shop", f"env {number}", "q") for number in range(300)]
    for ref in refs:
        client.enqueue_many(ref, jobs(ref, 1))
    valkey.delete(keys.environments(0))
    for _ in range(len(refs)):  # a set may return fewer members than requested, but not none for long
        maintenance.run_once()
        if valkey.scard(keys.environments(0)) == len(refs):
            break
    assert valkey.smembers(keys.environments(0)) == {keys.env_part(ref.environment).encode() for ref in refs}


@pytest.fixture
def tiers(valkey_url: str, postgres_url: str) -> Iterator[Tiers]:
    tiers = Tiers(valkey_url, postgres_url, OPTIONS)
    yield tiers
    tiers.close()


def test_a_default_that_was_stored_half_is_stored_by_the_next_attempt(
    client: SyncClient, valkey: Valkey, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt ends between the default and the environments: the server is away."""
    keeper = QuotaManager(tiers)
    keeper.update(DEFAULT_TENANT, {"running": 0})
    for ref in (EMAILS, REPORTS):
        client.enqueue_many(ref, jobs(ref))

    def fail(*_: Any) -> Any:
        raise QueueUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(type(tiers.stubs), "configure", fail)
        with pytest.raises(QueueUnavailable):
            keeper.update(DEFAULT_TENANT, {"running": 3})
    assert not dequeue(valkey)
    keeper.update(DEFAULT_TENANT, {"running": 3})
    assert len(dequeue(valkey)) == 3


def test_a_default_that_an_older_release_stored_is_known(client: SyncClient, valkey: Valkey, tiers: Tiers) -> None:
    keeper = QuotaManager(tiers)
    keeper.update(DEFAULT_TENANT, {"running": 3})
    client.enqueue_many(EMAILS, jobs(EMAILS))
    set_default(valkey, 0)
    run(valkey, STUBS.configure(ENV, {"": None}))  # which that release does, without a note
    assert not dequeue(valkey)
    SettingsRestorer(tiers).restore_shared_quotas(0)
    assert len(dequeue(valkey)) == 3

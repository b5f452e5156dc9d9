"""Maintenance of shards: what time demands happens whether or not a worker runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue import maintenance as maintenance_module
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.maintenance import Maintenance
from headrace.queue.scripts import MaintainResult, Stubs
from headrace.queue.state import QueueState, read_states
from headrace.runtime.prometheus import build_registry
from headrace.valkey.connect import Valkey, connect, find_node
from headrace.valkey.scripts import run
from tests.conftest import READY_S, wait_until
from tests.model.clock import HOUR_MS, server_ms
from tests.model.fold import read_events
from tests.processes import START_S, Process, value
from tests.streams import STREAM, publish
from tests.valkey_cluster import EmbeddedValkeyCluster

SHARDS = 2
REFS = {ref.environment.shard(SHARDS): ref for ref in (QueueRef(f"org {n}", "p", "e", "q") for n in range(9))}
"""A queue in each shard."""
NOT_THERE = "http://127.0.0.1:1"

TYPES = """
[[worker]]
name = "other"
queues = ["no such queue"]
app = "tests.processes:tasks"
"""

COMMANDS = {
    "mover": ("mover",),
    "snapshot": ("snapshot", "run"),
    "alerts": ("alerts", "run"),
    "autoscale": ("autoscale", "run"),
    "streams": ("streams", "watch", "--stream", STREAM),
    "api": ("api",),
}


def leave_work(valkey: Valkey, url: str) -> None:
    """In each shard: a job that is due, one whose lease has ended, and one whose TTL has ended."""
    stubs = QueueOptions(SHARDS).make_stubs()
    with SyncClient(url) as client:
        for shard, ref in REFS.items():
            client.enqueue(ref, NewJob("t", id="leased"))
            assert len(run(valkey, stubs.dequeue(shard, 1, lease_ms=1))) == 1
            client.enqueue_many(ref, [NewJob("t", id="due", delay_ms=1), NewJob("t", id="overdue", ttl_ms=1)])


def is_maintained(valkey: Valkey) -> bool:
    """The work of `leave_work` is done, and each shard has ticked."""
    states = read_states(valkey, SHARDS)
    counts = [{op: state.odometers.get(op, 0) for op in ("release", "reclaim", "expire")} for state in states]
    ticked = all(any(event.op == "tick" for event in read_events(valkey, shard)) for shard in range(SHARDS))
    return ticked and counts == [{"release": 1, "reclaim": 1, "expire": 1}] * SHARDS


def settings_for(valkey_url: str, postgres_url: str, folder: Path) -> dict[str, str]:
    types = folder / "types.toml"
    types.write_text(TYPES)
    servers = {"REDIS_URL": valkey_url, "POSTGRES_URL": postgres_url, "CLICKHOUSE_URL": NOT_THERE}
    return {**servers, "AUTOSCALE_TYPES": str(types), "API_PORT": "0"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_long_running_command_maintains_the_queue(
    valkey: Valkey, valkey_url: str, postgres_url: str, tmp_path: Path, name: str
) -> None:
    """No worker runs, and ClickHouse does not answer."""
    publish(valkey, NewJob("t"))
    valkey.xgroup_create(STREAM, "workers", id="0")
    leave_work(valkey, valkey_url)
    env = settings_for(valkey_url, postgres_url, tmp_path)
    process = Process(tmp_path, env, *COMMANDS[name], port=None if name == "api" else 0)

    def maintains() -> bool:
        assert process.child.poll() is None, process.read_log()
        return is_maintained(valkey)

    try:
        wait_until(maintains, "the shards are maintained", START_S)
    finally:
        process.child.kill()
        process.child.wait()


def owner_pid(valkey: Valkey, shard: int = 0) -> int | None:
    """The process id in the name of a shard's maintenance owner."""
    found = cast("bytes | None", valkey.hget(keys.meta(shard), "maintainer"))
    return None if found is None else int(found.decode().rsplit("-", 2)[1])


@pytest.mark.usefixtures("own_pauses")
def test_another_process_takes_over_from_an_owner_that_stands_still(
    valkey: Valkey, valkey_url: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, second = (Process(folder, {"REDIS_URL": valkey_url}, "snapshot", "run") for folder in folders)
    with first, second:
        for process in (first, second):
            wait_until(
                lambda process=process: "headrace_maintenance_shards" in process.read_metrics(), "it runs", START_S
            )
        pids = {process.child.pid for process in (first, second)}
        stopped = wait_until(lambda: owner_pid(valkey), "a shard has an owner", START_S)
        os.kill(stopped, signal.SIGSTOP)
        try:
            leave_work(valkey, valkey_url)
            wait_until(lambda: is_maintained(valkey), "the other process maintains the shards", START_S)
            assert {owner_pid(valkey, shard) for shard in range(SHARDS)} == pids - {stopped}
            [other] = [process for process in (first, second) if process.child.pid != stopped]
            wait_until(
                lambda: value(other.read_metrics(), "headrace_maintenance_shards") == SHARDS, "it owns all shards"
            )
            assert value(other.read_metrics(), "headrace_maintenance_jobs_total", op="release") == SHARDS
        finally:
            os.kill(stopped, signal.SIGCONT)


class Shard:
    """One shard, and the maintenance call on it."""

    def __init__(self, valkey: Valkey, url: str) -> None:
        self.valkey = valkey
        self.ref = REFS[0]
        self.client = SyncClient(url, QueueOptions(1))
        self.stubs = Stubs(1, 1_000_000)

    def maintain(self, caller: str = "a", at_most: int = 1000, ownership_ms: int = HOUR_MS) -> MaintainResult:
        return run(self.valkey, self.stubs.maintain(0, caller, ownership_ms, at_most, 2 * HOUR_MS))

    def set_end_of_ownership(self, after_ms: float) -> None:
        self.valkey.hset(keys.meta(0), "maintainer_until", int(server_ms(self.valkey) + after_ms))


@pytest.fixture
def shard(any_valkey_url: str) -> Iterator[Shard]:
    with connect(any_valkey_url) as valkey:
        found = Shard(valkey, any_valkey_url)
        yield found
        found.client.close()


def test_a_shard_has_one_owner_at_a_time(shard: Shard) -> None:
    shard.client.enqueue(shard.ref, NewJob("t", delay_ms=1))
    wait_until(lambda: shard.maintain("a").released, "the job is due")
    shard.client.enqueue(shard.ref, NewJob("t", ttl_ms=1))
    answer = shard.maintain("b")
    assert not answer.is_owner
    assert 0 < answer.next_call_ms <= HOUR_MS
    assert answer.expired == 0
    shard.set_end_of_ownership(-1)
    wait_until(lambda: shard.maintain("b").expired, "b owns the shard, and the TTL has ended")
    assert not shard.maintain("a").is_owner


def test_a_clock_that_was_set_back_leaves_no_owner_for_long(shard: Shard) -> None:
    assert shard.maintain("a").is_owner
    shard.set_end_of_ownership(3 * HOUR_MS)  # written two hours ahead of now
    assert shard.maintain("b").is_owner
    assert not shard.maintain("a").is_owner


def test_a_clock_that_was_adjusted_a_little_changes_no_owner(shard: Shard) -> None:
    assert shard.maintain("a").is_owner
    shard.set_end_of_ownership(HOUR_MS + 60_000)  # written a minute ahead of now
    assert not shard.maintain("b").is_owner
    assert shard.maintain("a").is_owner


def test_a_caller_with_a_shorter_ownership_does_not_take_over(shard: Shard) -> None:
    assert shard.maintain("a", ownership_ms=10 * HOUR_MS).is_owner
    answer = shard.maintain("b")
    assert not answer.is_owner
    assert 0 < answer.next_call_ms <= HOUR_MS
    assert shard.maintain("a", ownership_ms=10 * HOUR_MS).is_owner


def test_the_answer_says_when_maintenance_is_next_needed(shard: Shard) -> None:
    """The first of: half of the ownership, next tick, a due job, the end of a lease, the end of a TTL."""

    def due_ms(key: str) -> float:
        [(_, score)] = cast("list[tuple[bytes, float]]", shard.valkey.zrange(key, 0, 0, withscores=True))
        return score

    def check(next_ms: float) -> None:
        before_ms = server_ms(shard.valkey)
        answer = shard.maintain(ownership_ms=8 * HOUR_MS)
        assert next_ms - server_ms(shard.valkey) <= answer.next_call_ms <= next_ms - before_ms + 1

    first = shard.maintain(ownership_ms=8 * HOUR_MS)
    assert (first.ticked, first.next_call_ms) == (True, 2 * HOUR_MS)
    assert shard.maintain(ownership_ms=HOUR_MS).next_call_ms == HOUR_MS / 2
    shard.client.enqueue(shard.ref, NewJob("t", delay_ms=HOUR_MS))
    check(due_ms(keys.scheduled(0)))
    shard.client.enqueue(shard.ref, NewJob("t", ttl_ms=HOUR_MS // 2))
    check(due_ms(keys.expiries(0)))
    assert run(shard.valkey, shard.stubs.dequeue(0, 1, HOUR_MS // 4))
    check(due_ms(keys.leases(0)))
    assert not shard.maintain().ticked


def test_more_jobs_than_one_call_handles_need_the_next_at_once(shard: Shard) -> None:
    shard.client.enqueue_many(shard.ref, [NewJob("t", ttl_ms=1) for _ in range(3)])
    wait_until(lambda: server_ms(shard.valkey) > last_expiry(shard.valkey), "all TTLs have ended")
    first, second = shard.maintain(at_most=2), shard.maintain(at_most=2)
    assert (first.expired, first.next_call_ms) == (2, 0)
    assert second.expired == 1
    assert second.next_call_ms > 0


def last_expiry(valkey: Valkey) -> float:
    return cast("list[tuple[bytes, float]]", valkey.zrange(keys.expiries(0), -1, -1, withscores=True))[0][1]


def test_a_job_whose_lease_and_ttl_have_ended_is_removed(shard: Shard) -> None:
    """By the call after the one that returns it."""
    shard.client.enqueue(shard.ref, NewJob("t", id="1", ttl_ms=HOUR_MS))
    assert run(shard.valkey, shard.stubs.dequeue(0, 1, lease_ms=1))
    shard.valkey.hset(keys.job(0, shard.ref.environment, "1"), "expires", 1)
    answers = [wait_until(lambda: answer if (answer := shard.maintain()).reclaimed else None, "the lease ends")]
    answers.append(shard.maintain())
    assert [(answer.reclaimed, answer.expired) for answer in answers] == [(1, 0), (0, 1)]
    assert answers[0].next_call_ms == 0
    [state] = read_states(shard.valkey, 1)
    assert (state.depth, state.scheduled, state.running) == (0, 0, 0)
    assert not list(shard.valkey.scan_iter("hr:{0}:q:*:ready"))


def test_a_due_job_whose_ttl_has_ended_is_removed_and_not_counted_as_released(shard: Shard) -> None:
    """Beside one that is released, in calls that handle one job of each kind."""
    gone, due = (NewJob("t", id=job_id, delay_ms=HOUR_MS, ttl_ms=HOUR_MS) for job_id in ("gone", "due"))
    shard.client.enqueue_many(shard.ref, [gone, due])
    env = shard.ref.environment
    shard.valkey.zadd(keys.scheduled(0), {keys.job_part(env, "gone"): 1, keys.job_part(env, "due"): 2})
    shard.valkey.zadd(keys.expiries(0), {keys.job_part(env, "gone"): 1})
    shard.valkey.hset(keys.job(0, env, "gone"), "expires", 1)
    answer = shard.maintain(at_most=1)
    assert (answer.expired, answer.released) == (1, 1)
    [state] = read_states(shard.valkey, 1)
    assert (state.depth, state.scheduled) == (1, 0)


class Samples:
    """The metrics of maintenance as they are served."""

    def __init__(self, maintenance: Maintenance) -> None:
        self._registry = build_registry(maintenance.families)

    def __call__(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(f"headrace_maintenance_{name}", labels) or 0.0


def test_a_shard_that_fails_does_not_hold_up_another(valkey: Valkey, valkey_url: str) -> None:
    leave_work(valkey, valkey_url)
    valkey.rename(keys.expiries(0), "kept")
    valkey.set(keys.expiries(0), "no sorted set")
    maintenance = Maintenance(valkey_url, QueueOptions(SHARDS).make_stubs())
    read = Samples(maintenance)
    with maintenance.run_in_background():
        wait_until(lambda: read("failures_total", shard="0") >= 2, "shard 0 fails twice")
        wait_until(lambda: states_by_shard(valkey)[1].odometers.get("release"), "shard 1 is maintained")
        wait_until(lambda: read("shards") == 1, "shard 1 is owned")
        assert read("failures_total", shard="1") == 0
        valkey.delete(keys.expiries(0))
        valkey.rename("kept", keys.expiries(0))
        wait_until(lambda: is_maintained(valkey), "shard 0 is maintained as well")
        wait_until(lambda: read("shards") == SHARDS, "both are owned")


@pytest.mark.slow
@pytest.mark.parametrize("any_valkey_url", ["cluster"], indirect=True)
def test_a_server_that_hangs_does_not_hold_up_the_shards_of_another(any_valkey_url: str) -> None:
    url = any_valkey_url
    with connect(url) as client, SyncClient(url) as producer:
        producer.check_shards()
        hanging, other = (find_node(client, keys.meta(shard)) for shard in range(SHARDS))
        assert hanging.connection_pool.connection_kwargs != other.connection_pool.connection_kwargs
        maintenance = Maintenance(url, QueueOptions(SHARDS).make_stubs())
        read = Samples(maintenance)
        with maintenance.run_in_background():
            wait_until(lambda: read("shards") == SHARDS, "both shards are owned")
            hanging.client_pause(HOUR_MS, all=False)
            try:
                producer.enqueue(REFS[1], NewJob("t", delay_ms=1))
                wait_until(lambda: released(client) == 1, "the job of the other shard is ready")
                wait_until(lambda: read("failures_total", shard="0") > 0, "the hanging server is noticed")
            finally:
                hanging.client_unpause()
            wait_until(lambda: read("shards") == SHARDS, "both shards are owned again")


@pytest.mark.slow
@pytest.mark.usefixtures("own_pauses")
def test_a_process_that_starts_while_a_server_hangs_maintains_the_shards_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stopped server holds a shard and the number of shards. If a call to it were repeated as often as by default,
    the others would have to wait for longer than this test does."""
    monkeypatch.setattr(maintenance_module, "TIMEOUT_S", 12.0)
    cluster = EmbeddedValkeyCluster(tmp_path / "data", tmp_path / "log")
    cluster.start()
    try:
        cluster.wait_ready(READY_S)
        check_that_others_are_maintained(cluster, shards=4)
    finally:
        cluster.stop()


def check_that_others_are_maintained(cluster: EmbeddedValkeyCluster, shards: int) -> None:
    with SyncClient(cluster.url, QueueOptions(shards)) as producer:
        client = producer.redis
        client.config_set("cluster-require-full-coverage", "no", target_nodes="all")  # pyright: ignore[reportCallIssue]
        producer.check_shards()
        port = port_of(client, keys.SHARDS)
        [hanging] = [node for node in cluster.nodes if node.port == port]
        others = [shard for shard in range(shards) if port_of(client, keys.meta(shard)) != port]
        assert 0 < len(others) < shards
        user, _, _ = cluster.url.rpartition("@")
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes if node is not hanging)
        maintenance = Maintenance(f"{user}@{hosts}", QueueOptions(shards).make_stubs())
        os.kill(hanging.child.pid, signal.SIGSTOP)
        try:
            with maintenance.run_in_background():
                wait_until(
                    lambda: all(client.hexists(keys.meta(shard), "maintainer") for shard in others),
                    "the shards of the other servers are maintained",
                )
                os.kill(hanging.child.pid, signal.SIGCONT)
                wait_until(lambda: Samples(maintenance)("shards") == shards, "all shards are owned")
        finally:
            os.kill(hanging.child.pid, signal.SIGCONT)


def port_of(client: Valkey, key: str) -> int:
    """Return the port of the server that holds a key."""
    return find_node(client, key).connection_pool.connection_kwargs["port"]


def released(valkey: Valkey) -> int:
    return sum(state.odometers.get("release", 0) for state in read_states(valkey, SHARDS))


def states_by_shard(valkey: Valkey) -> dict[int, QueueState]:
    return {state.ref.environment.shard(SHARDS): state for state in read_states(valkey, SHARDS)}


def test_all_shards_are_maintained_that_the_server_holds(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, QueueOptions(5)) as client:
        client.check_shards()
    Maintenance(valkey_url, QueueOptions(SHARDS).make_stubs()).run_once()
    assert [valkey.hexists(keys.meta(shard), "maintainer") for shard in range(6)] == [True] * 5 + [False]

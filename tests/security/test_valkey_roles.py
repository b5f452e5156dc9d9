"""Each Valkey role can do its work with its own user, and is refused everything else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from headrace.cli import main
from headrace.cli.valkey_roles import ProducerScope, ValkeyRole, build_acl_words, build_producer_role, build_roles
from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.quotas import QuotaManager
from headrace.cold.settings import SettingsRestorer
from headrace.cold.shares import ShareAllocator
from headrace.cold.tiers import Tiers
from headrace.embedded.process import find_free_port
from headrace.errors import NotPermitted, QuotaExceeded
from headrace.model.job import AttemptRecord, JobState, LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.model.quotas import DEFAULT_TENANT, TenantRef
from headrace.pipeline.lease import PipelineLease
from headrace.pipeline.positions import read_group_offsets, read_newest_offsets, read_shard_count
from headrace.queue import keys
from headrace.queue import scripts as queue_scripts
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.maintenance import REFUSED_PAUSE_S, Maintenance
from headrace.queue.registry import WorkerRegistration, read_workers
from headrace.queue.resync import resync_shard
from headrace.queue.scripts import DeadFilter, Stubs, WarmCaps
from headrace.queue.state import read_states
from headrace.queue.tasks import TaskRegistry
from headrace.snapshot.store import SnapshotStore
from headrace.valkey import streams
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests.conftest import ODD_NAMES, READY_S, Servers
from tests.security.acl_server import PASSWORD, AclCluster, AclValkey
from tests.security.servers import started
from tests.valkey_cluster import BUS_OFFSET, form

REF = QueueRef("acme", "shop", "prod", "mail")
OTHER = QueueRef("rival", "shop", "prod", "mail")
FAST = WorkerOptions(concurrency=4, poll_s=0.01, retry_base_s=0.001, lease_s=600.0, grace_s=60.0)
SECRET = b"card number 4000 1234"
HOUR_MS = 3_600_000


@pytest.fixture
def server(acl_server: AclValkey) -> AclValkey:
    return acl_server


@pytest.fixture
def admin(server: AclValkey) -> Iterator[Valkey]:
    with connect(server.url) as client:
        yield client


def role_url(server: AclValkey, name: str) -> str:
    return server.create_user(build_roles()[name])


def enqueue_as_admin(server: AclValkey, *jobs: NewJob, ref: QueueRef = REF) -> None:
    with SyncClient(server.url) as client:
        client.enqueue_many(ref, jobs)


def is_denied(client: Valkey, *command: str | int) -> bool:
    try:
        client.execute_command(*command)
    except NoPermissionError:
        return True
    except ResponseError as error:
        return "NOPERM" in str(error) or "ACL failure" in str(error)
    return False


# The work of each role


class TestProducer:
    def test_sends_jobs_of_all_kinds(self, server: AclValkey, admin: Valkey) -> None:
        enqueue_as_admin(server, NewJob("send"))
        with SyncClient(role_url(server, "producer")) as client:
            jobs = [
                NewJob("send", SECRET, id="a"),
                NewJob("send", id="b", delay_ms=HOUR_MS, ttl_ms=HOUR_MS, priority=3),
            ]
            assert client.enqueue_many(REF, jobs) == [True, True]
            assert client.enqueue_many(REF, jobs) == [False, False]
            assert client.enqueue(ODD_NAMES, NewJob("send", id="a"))
        assert server.read_denials() == []
        assert sum(state.depth for state in read_states(admin, 2)) == 3

    def test_sends_a_job_again_whose_id_is_kept_after_its_end(self, server: AclValkey, admin: Valkey) -> None:
        enqueue_as_admin(server, NewJob("send", SECRET, id="a"))
        stubs = Stubs(2, 1000)
        shard = stubs.find_shard(REF)
        [job] = run(admin, stubs.dequeue(shard, 1, HOUR_MS))
        run(admin, stubs.ack(shard, [(job, 1)], HOUR_MS))
        with SyncClient(role_url(server, "producer")) as client:
            assert client.enqueue(REF, NewJob("send", id="a")) is False
        assert server.read_denials() == []

    def test_sends_jobs_with_the_rules_of_a_release_that_woke_no_workers(self, server: AclValkey) -> None:
        enqueue_as_admin(server, NewJob("send"))
        role = build_producer_role()
        older = [pattern for pattern in role.patterns if not pattern.endswith(("}:wake", "}:wake:*", "}:due"))]
        assert len(older) == len(role.patterns) - 3
        with SyncClient(server.create_user(replace(role, patterns=older))) as client:
            jobs = [NewJob("send"), NewJob("send", delay_ms=1)]
            assert client.enqueue_many(OTHER, jobs) == [True, True]

    def test_spills_what_does_not_fit(self, server: AclValkey, postgres_url: str) -> None:
        enqueue_as_admin(server, NewJob("send"))
        url, options = role_url(server, "producer"), QueueOptions(caps=WarmCaps(items=2))
        with SyncClient(url, options, Tiers(url, postgres_url, options)) as client:
            assert all(client.enqueue_many(REF, [NewJob("send") for _ in range(5)]))
        assert server.read_denials() == []

    def test_reads_no_payload(self, server: AclValkey, admin: Valkey) -> None:
        enqueue_as_admin(server, NewJob("send", SECRET, id="a"))
        body = keys.body(REF.environment.shard(2), REF.environment, "a")
        assert SECRET in (admin.get(body) or b"")  # pyright: ignore[reportOperatorIssue]
        with connect(role_url(server, "producer")) as client:
            for script in ("return redis.call('GET', KEYS[1])", "return redis.call('GETRANGE', KEYS[1], 0, -1)"):
                assert is_denied(client, "EVAL", script, 1, body)
            copy = "return redis.call('SET', 'x', redis.call('DUMP', ARGV[1]))"
            assert is_denied(client, "EVAL", copy, 0, body)
            assert is_denied(client, "GET", body)
            assert is_denied(client, "COPY", body, "hr:{0}:q:x")
            assert is_denied(client, "SET", body, "x", "GET")
        with SyncClient(role_url(server, "producer")) as client, pytest.raises(NotPermitted):
            client.get(REF.environment, "a")

    def test_of_a_tenant_reads_only_its_own_records(self, server: AclValkey, admin: Valkey) -> None:
        stubs = Stubs(2, 1000)
        for ref in (REF, OTHER):
            enqueue_as_admin(server, NewJob("send", id="a"), ref=ref)
            shard = stubs.find_shard(ref)
            [job] = run(admin, stubs.dequeue(shard, 1, HOUR_MS))
            run(admin, stubs.ack(shard, [(job, 1)], 0, {job.lease: AttemptRecord(SECRET, HOUR_MS)}))
        url = server.create_user(build_producer_role(ProducerScope(REF.org)))
        with SyncClient(url) as client:
            assert client.read_attempts(REF.environment, "a") == [SECRET]
            assert server.read_denials() == []
            with pytest.raises(NotPermitted):
                client.read_attempts(OTHER.environment, "a")
            server.read_denials()
        with connect(url) as client:
            records = keys.attempts(stubs.find_shard(REF), REF.environment, "a")
            assert is_denied(client, "EVAL", "return redis.call('RPUSH', ARGV[1], 'x')", 0, records)
        server.read_denials()

    def test_of_a_tenant_reaches_no_other(self, server: AclValkey, admin: Valkey) -> None:
        enqueue_as_admin(server, NewJob("send", SECRET, id="a"), ref=OTHER)
        environment = ProducerScope(REF.org, REF.project, REF.env)
        for tenants in (ProducerScope(REF.org), ProducerScope(REF.org, REF.project), environment):
            url = server.create_user(build_producer_role(tenants))
            with SyncClient(url) as client:
                assert client.enqueue(REF, NewJob("send", SECRET))
                assert server.read_denials() == []
                with pytest.raises(NotPermitted):
                    client.enqueue(OTHER, NewJob("send"))
                beside = QueueRef(REF.org, REF.project, f"{REF.env}2", REF.queue)
                if tenants == environment:
                    with pytest.raises(NotPermitted):
                        client.enqueue(beside, NewJob("send"))
            with connect(url) as client:
                shard = OTHER.environment.shard(2)
                for key in (keys.queue(shard, OTHER), keys.job(shard, OTHER.environment, "a")):
                    assert is_denied(client, "EVAL", "return redis.call('HGETALL', KEYS[1])", 1, key)
                    assert is_denied(client, "EVAL", "return redis.call('HSET', KEYS[1], 'a', 1)", 1, key)
            server.read_denials()

    def test_of_a_tenant_with_odd_names(self, server: AclValkey) -> None:
        enqueue_as_admin(server, NewJob("send"))
        url = server.create_user(build_producer_role(ProducerScope(ODD_NAMES.org, ODD_NAMES.project, ODD_NAMES.env)))
        with SyncClient(url) as client:
            assert client.enqueue(ODD_NAMES, NewJob("send"))
        assert server.read_denials() == []


def test_worker_runs_jobs_reports_and_maintains(server: AclValkey, admin: Valkey) -> None:
    url = role_url(server, "worker")

    async def scenario() -> None:
        finished, tasks, done = asyncio.Event(), TaskRegistry(), list[str]()

        @tasks.task()
        async def flaky(job: LeasedJob) -> None:
            if job.attempt == 1:
                raise ValueError("first time")
            done.append(job.id)
            if len(done) == 10:
                finished.set()

        assert flaky
        stop = asyncio.Event()
        async with Client(url) as client:
            registry = WorkerRegistration(client.redis)
            await registry.report(tasks, [])
            worker = Worker(client, tasks, FAST, registry)
            running = asyncio.create_task(worker.run_forever(stop))
            await asyncio.wait_for(finished.wait(), 60)
            await registry.find_provided(["unknown"])
            stop.set()
            await asyncio.wait_for(running, 120)
            await registry.deregister()

    # One is buried, and one deferred: the worker does not have its task.
    enqueue_as_admin(server, NewJob("flaky", max_attempts=1), NewJob("unknown"), *(NewJob("flaky") for _ in range(10)))
    asyncio.run(scenario())
    assert server.read_denials() == []
    [state] = read_states(admin, 2)
    assert (state.odometers["ack"], state.odometers["nack"], state.dead) == (10, 10, 1)
    assert state.odometers["defer"] >= 1


@pytest.mark.parametrize("role", ["worker", "mover", "api"])
def test_maintenance(server: AclValkey, admin: Valkey, role: str) -> None:
    """There is work of every kind: an expired delay, TTL and lease, and a queue to repair."""
    stubs, shard = Stubs(2, 1000), REF.environment.shard(2)
    enqueue_as_admin(
        server, NewJob("send", id="lapsed"), NewJob("send", id="late", delay_ms=1), NewJob("send", ttl_ms=1)
    )
    run(admin, stubs.dequeue(shard, 1, 1))
    admin.hset(keys.repair(shard), keys.queue_part(REF), "lapsed:")
    maintenance = Maintenance(role_url(server, role), stubs)
    maintenance.run_once()
    maintenance.run_once()
    assert server.read_denials() == []
    assert not admin.exists(keys.repair(shard))
    assert maintenance._client is not None  # pyright: ignore[reportPrivateUsage]
    maintenance._client.close()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("role", ["worker", "mover", "api"])
def test_moving_between_the_tiers(server: AclValkey, postgres_url: str, role: str) -> None:
    url, options = role_url(server, role), QueueOptions(shards=2, caps=WarmCaps(items=3))
    tiers = Tiers(url, postgres_url, options)
    stubs, shard = options.make_stubs(), REF.environment.shard(2)
    mover = Mover(tiers, MoverOptions(lease_s=3600.0))
    with SyncClient(server.url, options, Tiers(server.url, postgres_url, options)) as client:
        client.enqueue_many(REF, [NewJob("send", SECRET, max_attempts=1) for _ in range(8)])
        mover.renew_leadership()
        SettingsRestorer(tiers).restore_if_needed(shard)
        moved = 0
        while moved < 8:
            jobs = run(client.redis, stubs.dequeue(shard, 10, HOUR_MS))
            run(client.redis, stubs.nack(shard, [(job, 0, "failed") for job in jobs]))
            moved += len(jobs)
            mover.sweep(shard)
        mover.sweep(shard)
        assert client.remove_dead(REF, DeadFilter()) == 8
    tiers.close()
    assert without_config_get(server.read_denials()) == []


@pytest.mark.parametrize("role", ["worker", "mover", "api"])
def test_quotas_are_stored_shared_out_and_obeyed(server: AclValkey, postgres_url: str, role: str) -> None:
    options = QueueOptions(shards=2)
    tiers = Tiers(role_url(server, role), postgres_url, options)
    keeper = QuotaManager(tiers)
    keeper.update(DEFAULT_TENANT, {"running": 3})
    keeper.update(TenantRef.from_environment(REF.environment), {"queues": 9, "enqueue_rate": 1000})
    keeper.update(TenantRef(REF.org), {"warm_jobs": 5, "running": 2})
    with SyncClient(role_url(server, "producer"), options) as client:
        with pytest.raises(QuotaExceeded):
            client.enqueue_many(REF, [NewJob("send", id="1")])
        ShareAllocator(tiers).run_round()
        client.enqueue_many(REF, [NewJob("send", id=str(number)) for number in range(5)])
        with pytest.raises(QuotaExceeded):
            client.enqueue_many(REF, [NewJob("send", id="9")])
    ShareAllocator(tiers).run_round()
    keeper.update(TenantRef(REF.org), {}, ["warm_jobs", "running"])
    tiers.close()
    assert server.read_denials() == []


def without_config_get(denials: Sequence[str]) -> list[str]:
    """Remove CONFIG GET: movers read `appendfsync`, and continue if it is denied."""
    return [denial for denial in denials if not denial.endswith("command config|get")]


def test_pipeline_reads_trims_and_leads_its_group(server: AclValkey, admin: Valkey) -> None:
    enqueue_as_admin(server, *(NewJob("send", SECRET) for _ in range(5)))
    shard = REF.environment.shard(2)
    stream = keys.metrics(shard)
    with connect(role_url(server, "pipeline")) as client:
        lease = PipelineLease(client, "me")
        assert lease.acquire()
        lease.record_reader()
        assert lease.find_other_reader() is None
        assert read_shard_count(client) == 2
        newest = read_newest_offsets(client, 2)[str(shard)]
        assert len(streams.read_entries_between(client, stream, "0-0", newest["id"], 100)) > 0
        streams.set_group_position(client, stream, "history", newest["id"], 1)
        streams.set_group_position(client, stream, "history", newest["id"], 1)
        assert read_group_offsets(client, "history", 2)[str(shard)]["id"] == newest["id"]
        streams.trim_before(client, stream, newest["id"])
        assert resync_shard(client, Stubs(2, 1000), shard) == 1
        lease.release()
    assert server.read_denials() == []
    assert admin.xlen(stream) == 2  # the newest one, and the one that the queue wrote on request


def test_reader_reads_states_workers_and_snapshots(server: AclValkey) -> None:
    enqueue_as_admin(server, NewJob("send", SECRET))
    with connect(role_url(server, "reader")) as client:
        assert [state.depth for state in read_states(client, 2)] == [1]
        assert read_workers(client).running == []
        assert SnapshotStore(client).read_status().version == 0
        assert SnapshotStore(client).list_versions() == []
        for shard in range(2):
            client.info()
            client.xlen(keys.metrics(shard))
    assert server.read_denials() == []


def test_reader_passes_over_workers_that_are_gone(server: AclValkey, admin: Valkey) -> None:
    """Other processes remove them."""
    admin.zadd(keys.WORKERS, {"gone": 1})
    with connect(role_url(server, "reader")) as client:
        assert read_workers(client).running == []
    assert admin.zcard(keys.WORKERS) == 1


def test_api_operates_queues(server: AclValkey) -> None:
    url = role_url(server, "api")
    with SyncClient(url) as client:
        client.enqueue_many(REF, [NewJob("send", SECRET, id="a"), NewJob("send", id="b")])
        found = client.get(REF.environment, "a")
        assert found is not None
        assert found.payload == SECRET
        assert client.cancel(REF.environment, "b") is JobState.READY
        client.pause(REF)
        client.resume(REF)
        client.limits(REF, 3)
        client.limits(REF.environment, 3, 2.0)
        client.caps(REF, 10, None)
        assert client.redrive(REF) == 0
        assert client.remove_dead(REF) == 0
        store = SnapshotStore(client.redis)
        lease = store.create_lease("me")
        assert lease.acquire()
        assert lease.renew()
        store.record_failure("me", lease.claim.number, "a test", 5)
        lease.release()
        read_workers(client.redis)
    assert server.read_denials() == []


def test_on_a_cluster(servers: Servers) -> None:
    """Scripts first check whether their slot is moving, and clients request the list of nodes."""
    port = find_free_port(BUS_OFFSET)
    with started(AclCluster(servers.folder / AclCluster.name, servers.folder / "log", port)) as server:
        form([server.url], time.monotonic() + READY_S)
        with SyncClient(role_url(server, "worker")) as client:
            client.check_shards()
        with SyncClient(role_url(server, "producer")) as client:
            assert client.enqueue(REF, NewJob("send"))
        with SyncClient(role_url(server, "worker")) as client:
            assert len(run(client.redis, Stubs(2, 1000).dequeue(REF.environment.shard(2), 1, HOUR_MS))) == 1
        with SyncClient(role_url(server, "api")) as client:
            client.pause(REF)
        with connect(role_url(server, "pipeline")) as client:
            assert resync_shard(client, Stubs(2, 1000), REF.environment.shard(2)) == 1
        with connect(role_url(server, "reader")) as client:
            assert [state.running for state in read_states(client, 2)] == [1]
        assert server.read_denials() == []


def test_a_command_says_what_its_user_lacks(server: AclValkey) -> None:
    enqueue_as_admin(server, NewJob("send", id="a"))
    environ = {"HEADRACE_REDIS_URL": role_url(server, "reader")}
    result = CliRunner().invoke(main.headrace, ["pause", REF.org, REF.project, REF.env, REF.queue], env=environ)
    assert result.exit_code == NotPermitted.exit_code
    assert "headrace acl" in result.output


# What they must not do

DESTRUCTIVE = [
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "dir", "/"),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("RANDOMKEY",),
    ("DEBUG", "SLEEP", "0"),
    ("MODULE", "LIST"),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("MIGRATE", "127.0.0.1", "1", "hr:shards", "0", "1"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "x", "on"),
    ("MONITOR",),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "LIST"),
    ("SAVE",),
    ("DUMP", "hr:shards"),
    ("RESTORE", "hr:shards", "0", "x"),
    ("RENAME", "hr:shards", "x"),
    ("SUBSCRIBE", "x"),
    ("PUBLISH", "x", "y"),
]


@pytest.mark.parametrize("role", build_roles())
def test_no_role_administrates_or_leaves_its_prefix(server: AclValkey, admin: Valkey, role: str) -> None:
    admin.set("session:1", "of another application")
    with connect(role_url(server, role)) as client:
        assert [command for command in DESTRUCTIVE if not is_denied(client, *command)] == []
        assert is_denied(client, "EVAL", "return redis.call('GET', 'session:1')", 0)
        assert is_denied(client, "EVAL", "return redis.call('SET', 'session:1', 'x')", 0)
        assert is_denied(client, "EVAL", "return redis.call('FLUSHALL')", 0)
        assert is_denied(client, "GET", "session:1")
    assert admin.get("session:1") == b"of another application"


@pytest.mark.parametrize("role", ["pipeline", "reader"])
def test_neither_pipeline_nor_reader_reaches_jobs(server: AclValkey, admin: Valkey, role: str) -> None:
    enqueue_as_admin(server, NewJob("send", SECRET, id="a"))
    shard = REF.environment.shard(2)
    before = admin.hgetall(keys.queue(shard, REF))
    with connect(role_url(server, role)) as client:
        for key in (keys.body(shard, REF.environment, "a"), keys.job(shard, REF.environment, "a")):
            for read in ("GET", "HGETALL", "DUMP"):
                assert is_denied(client, "EVAL", f"return redis.call('{read}', ARGV[1])", 0, key)
        for write in ("'HSET', ARGV[1], 'ready', 0", "'DEL', ARGV[1]"):
            assert is_denied(client, "EVAL", f"return redis.call({write})", 0, keys.queue(shard, REF))
        assert is_denied(client, "EVAL", "return redis.call('SET', 'hr:shards', 7)", 0)
    assert admin.hgetall(keys.queue(shard, REF)) == before


def list_commands(admin: Valkey, category: str) -> set[str]:
    found: Any = admin.execute_command("ACL", "CAT", category)
    return {name.decode() for name in found}


def test_reader_has_no_command_that_writes(admin: Valkey) -> None:
    """This holds for all keys that a script may name."""
    assert set(build_roles()["reader"].list_commands()) & list_commands(admin, "write") == set()


def test_a_process_that_may_not_maintain_leaves_it_to_others(server: AclValkey, admin: Valkey) -> None:
    enqueue_as_admin(server, NewJob("send", id="late", delay_ms=1))
    stubs, shard = Stubs(2, 1000), REF.environment.shard(2)
    refused, permitted = (Maintenance(role_url(server, name), stubs, name) for name in ("pipeline", "worker"))
    assert refused.maintain(shard) == REFUSED_PAUSE_S
    assert not any(value for _, values in refused.families() for value in values.values())
    assert admin.hget(keys.meta(shard), "maintainer") is None
    permitted.run_once()
    assert admin.hget(keys.meta(shard), "maintainer") == b"worker"
    for maintenance in (refused, permitted):
        assert maintenance._client is not None  # pyright: ignore[reportPrivateUsage]
        maintenance._client.close()  # pyright: ignore[reportPrivateUsage]


def test_no_one_signs_in_before_a_password_is_set(server: AclValkey, admin: Valkey) -> None:
    for role in build_roles().values():
        admin.execute_command("ACL", "SETUSER", *build_acl_words(role, role.name, None))
        for password in ("", role.name, "nopass"):
            with (
                pytest.raises(AuthenticationError),
                connect(f"redis://{role.name}:{password}@127.0.0.1:{server.port}/0") as client,
            ):
                client.ping()


def run_acl(*arguments: str) -> list[str]:
    result = CliRunner().invoke(main.headrace, ["acl", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.mark.parametrize("as_file", [True, False], ids=["file", "commands"])
def test_valkey_takes_what_the_command_prints(server: AclValkey, tmp_path: Path, as_file: bool) -> None:
    """Both as an ACL file and as commands; valkey-cli splits a line like the server splits an inline command."""
    enqueue_as_admin(server, NewJob("send"))
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    names = ["--org", ODD_NAMES.org, "--project", ODD_NAMES.project, "--env", ODD_NAMES.env]
    form = ["--file"] * as_file
    lines = run_acl("--password-file", str(password), *form)
    lines += run_acl("producer", "--user", "odd", "--password-file", str(password), *names, *form)
    assert PASSWORD not in "".join(lines)
    if as_file:
        server.load_users(lines)
    else:
        server.send_lines(lines)
    for user in ("headrace-producer", "odd"):
        with SyncClient(f"redis://{user}:{PASSWORD}@127.0.0.1:{server.port}/0") as client:
            assert client.enqueue(ODD_NAMES, NewJob("send"))
    with connect(f"redis://headrace-reader:{PASSWORD}@127.0.0.1:{server.port}/0") as client:
        assert len(read_states(client, 2)) == 2
        assert is_denied(client, "SET", "hr:shards", 3)
    assert server.read_denials() == ["headrace-reader: command set"]


def test_the_command_refuses_what_has_no_meaning() -> None:
    for arguments in (["worker", "--org", "acme"], ["producer", "--project", "shop"], ["--user", "me"], ["nobody"]):
        assert CliRunner().invoke(main.headrace, ["acl", *arguments]).exit_code == 2


def test_every_script_belongs_to_a_role() -> None:
    known = {script.name for role in build_roles().values() for script in role.scripts}
    assert set(queue_scripts.SCRIPTS) <= known


@pytest.mark.parametrize("role", build_roles().values(), ids=list(build_roles()))
def test_no_role_has_dangerous_commands(admin: Valkey, role: ValkeyRole) -> None:
    """INFO is an exception: scripts and movers read the server's replication id from it."""
    assert set(role.list_commands()) & list_commands(admin, "dangerous") <= {"info"}

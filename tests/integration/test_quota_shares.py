"""Quotas of projects and organisations: shared out to their environments, which together never pass them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.quotas import QuotaManager
from headrace.cold.share_plan import RunningDemand, SharedQuota, plan_running, plan_shares, raise_within
from headrace.cold.shares import ShareAllocator
from headrace.cold.tiers import Tiers
from headrace.errors import EnqueueRateExceeded, QuotaExceeded
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.model.quotas import DEFAULT_TENANT, TenantRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.quotas import read_warm_usage
from headrace.valkey.scripts import run
from tests.conftest import wait_until

HOUR_MS = 3_600_000
SHARDS = 4
OPTIONS = QueueOptions(shards=SHARDS)
STUBS = OPTIONS.make_stubs()
ENVS = [EnvRef("acme", "shop", f"env{number}") for number in range(5)]
ELSEWHERE = EnvRef("acme", "blog", "prod")
PROJECT, ORGANISATION = TenantRef("acme", "shop"), TenantRef("acme")


def queue_of(env: EnvRef, name: str = "q") -> QueueRef:
    return QueueRef(env.org, env.project, env.env, name)


@dataclass
class Bench:
    tiers: Tiers
    client: SyncClient  # without PostgreSQL: what does not fit is refused

    def __post_init__(self) -> None:
        self.keeper, self.shares = QuotaManager(self.tiers), ShareAllocator(self.tiers)

    def enqueue(self, env: EnvRef, *ids: object, size: int = 1) -> int:
        """Returns how many were accepted before a quota refused one."""
        for number, job_id in enumerate(ids):
            try:
                self.client.enqueue(queue_of(env), NewJob("send", bytes(size), id=str(job_id)))
            except QuotaExceeded:
                return number
        return len(ids)

    def held(self, *envs: EnvRef) -> int:
        return sum(use.used["warm_jobs"] for use in read_warm_usage(self.client.redis, SHARDS, envs))

    def shares_of(self, name: str, *envs: EnvRef) -> list[int]:
        return [use.share.get(name, 0) for use in read_warm_usage(self.client.redis, SHARDS, envs)]

    def finish(self, env: EnvRef, count: int) -> None:
        shard = STUBS.find_shard(env)
        leased = [
            job for job in run(self.client.redis, STUBS.dequeue(shard, 1000, HOUR_MS)) if job.queue.env == env.env
        ]
        run(self.client.redis, STUBS.ack(shard, [(job, 1) for job in leased[:count]]))
        run(self.client.redis, STUBS.requeue(shard, leased[count:]))


@pytest.fixture
def bench(any_valkey_url: str, postgres_url: str) -> Iterator[Bench]:
    tiers = Tiers(any_valkey_url, postgres_url, OPTIONS)
    with SyncClient(any_valkey_url, OPTIONS) as client:
        client.check_shards()
        yield Bench(tiers, client)
    tiers.close()


def test_a_new_environment_has_no_share_until_the_next_round(bench: Bench) -> None:
    bench.keeper.update(PROJECT, {"warm_jobs": 10})
    assert bench.enqueue(ENVS[0], 1) == 0
    bench.shares.run_round()
    assert bench.enqueue(ENVS[0], *range(20)) == 10
    assert bench.enqueue(ENVS[1], 1) == 0
    bench.shares.run_round()
    assert bench.enqueue(ENVS[1], 1) == 0, "the other uses all of it"
    bench.finish(ENVS[0], 6)
    bench.shares.run_round()
    bench.shares.run_round()
    assert bench.enqueue(ENVS[1], *range(20)) > 0
    assert bench.held(*ENVS) <= 10


def test_environments_that_were_there_before_the_quota_keep_what_they_have(bench: Bench) -> None:
    bench.enqueue(ENVS[0], *range(8))
    bench.enqueue(ENVS[1], *range(4))
    bench.keeper.update(PROJECT, {"warm_jobs": 10})
    assert (bench.enqueue(ENVS[0], "a"), bench.enqueue(ENVS[1], "b")) == (0, 0)
    bench.finish(ENVS[0], 5)
    bench.shares.run_round()
    assert bench.enqueue(ENVS[0], *"abcdefgh") + bench.enqueue(ENVS[1], *"abcdefgh") <= 3
    bench.keeper.update(PROJECT, {}, ["warm_jobs"])
    assert bench.enqueue(ENVS[0], *range(100, 120)) == 20
    assert not any(bench.shares_of("warm_jobs", *ENVS))


def unlist(bench: Bench, *envs: EnvRef) -> None:
    """Leave environments as clients of 0.1.0 make them: their queues are known, they themselves are in no list."""
    for env in envs:
        bench.client.redis.srem(keys.environments(STUBS.find_shard(env)), keys.env_part(env))


def count_runnable(bench: Bench) -> int:
    return sum(len(run(bench.client.redis, STUBS.dequeue(shard, 1000, HOUR_MS))) for shard in range(SHARDS))


def test_environments_of_older_clients_get_a_share_when_a_quota_is_set(bench: Bench) -> None:
    for env in ENVS:
        bench.enqueue(env, 1)
    unlist(bench, *ENVS)
    for shard in range(SHARDS):  # that older ones were listed once does not count
        bench.client.redis.hset(keys.meta(shard), "listed", "1")
    bench.keeper.update(ORGANISATION, {"running": 10})
    assert bench.shares_of("running", *ENVS) == [2] * 5
    assert count_runnable(bench) == len(ENVS)


def test_environments_of_older_clients_get_a_share_of_a_quota_that_was_set_before(bench: Bench) -> None:
    bench.keeper.update(ORGANISATION, {"running": 10})
    for env in ENVS:
        bench.enqueue(env, 1)
    unlist(bench, *ENVS)
    for shard in range(SHARDS):
        bench.client.redis.hdel(keys.meta(shard), "listed")
    bench.shares.run_round()
    assert bench.shares_of("running", *ENVS) == [2] * 5


def test_a_default_of_running_holds_for_environments_of_older_clients(bench: Bench) -> None:
    bench.keeper.update(DEFAULT_TENANT, {"running": 0})
    for env in ENVS:
        bench.enqueue(env, 1)
    unlist(bench, *ENVS)
    bench.keeper.update(DEFAULT_TENANT, {"running": 1})
    assert count_runnable(bench) == len(ENVS)


def test_together_they_never_pass_the_quota_however_shares_move(bench: Bench) -> None:
    """Producers in six environments on several shards, jobs that end, and rounds, all at the same time."""
    most, everywhere = 60, (*ENVS, ELSEWHERE)
    bench.keeper.update(PROJECT, {"warm_jobs": most})
    bench.keeper.update(ORGANISATION, {"warm_jobs": most + 5})
    for env in everywhere:
        bench.enqueue(env, "first")

    def produce(number: int, phase: int) -> None:
        for call in range(12):
            bench.enqueue(everywhere[number], *(f"{phase}-{call}-{n}" for n in range(5)))
            if call % 7 == number:
                bench.finish(everywhere[number], 9)

    def read_recorded() -> int:
        with bench.tiers.store.transaction() as conn:
            query = "SELECT sum(value)::bigint FROM quota_shares WHERE project = 'shop' AND name = 'warm_jobs'"
            [recorded] = conn.execute(query).fetchone() or (0,)
            return recorded or 0

    def give(stop: Event) -> int:
        highest = 0
        while not stop.is_set():
            bench.shares.run_round()
            highest = max(highest, read_recorded())
        return highest

    with ThreadPoolExecutor(8) as pool:
        for phase in range(5):
            stop = Event()
            rounds = [pool.submit(give, stop) for _ in range(2)]  # two movers that both believe to lead
            for each in [pool.submit(produce, number, phase) for number in range(6)]:
                each.result()
            assert bench.held(*ENVS) <= most  # no job comes or goes any more
            assert bench.held(*everywhere) <= most + 5
            stop.set()
            assert max(each.result() for each in rounds) <= most
            assert sum(bench.shares_of("warm_jobs", *ENVS)) <= most
    for env in everywhere:  # what is left can be used
        for _ in range(20):
            bench.enqueue(env, *(f"last-{n}" for n in range(100)))
            bench.shares.run_round()
    assert bench.held(*everywhere) == most + 5
    assert bench.held(*ENVS) <= most


def test_a_late_step_of_a_round_before_is_refused(bench: Bench) -> None:
    bench.keeper.update(PROJECT, {"warm_jobs": 10})
    bench.enqueue(ENVS[0], 1)
    bench.shares.run_round()
    with bench.tiers.store.transaction() as conn:
        [number] = conn.execute("SELECT round FROM quota_rounds").fetchone() or (0,)
    late = STUBS.share(ENVS[0], number - 1, ["100", "-", "-", "-", "-", "-"])
    assert run(bench.client.redis, late) is None
    assert bench.shares_of("warm_jobs", ENVS[0]) == [10]


def give_nothing(*_: object) -> None:
    """Do nothing, like a process that dies before it calls Valkey."""


def test_a_crash_between_the_record_and_valkey_gives_out_too_little_never_too_much(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.keeper.update(PROJECT, {"warm_jobs": 10})
    bench.enqueue(ENVS[0], 1)
    with monkeypatch.context() as patch:
        patch.setattr(ShareAllocator, "_set_shares", give_nothing)
        bench.shares.run_round()
    assert bench.shares_of("warm_jobs", ENVS[0]) == [0]
    bench.enqueue(ENVS[1], 1)
    bench.shares.run_round()
    assert sum(bench.shares_of("warm_jobs", *ENVS)) <= 10
    assert bench.enqueue(ENVS[0], 1) == 1


def test_a_valkey_that_went_back_is_corrected_in_the_next_round(bench: Bench) -> None:
    bench.keeper.update(PROJECT, {"warm_jobs": 10})
    for env in ENVS[:2]:
        bench.enqueue(env, 1)
    bench.shares.run_round()
    for env in ENVS[:2]:  # both have all of it, as a replica that was behind may say
        bench.client.redis.hset(keys.env(STUBS.find_shard(env), env), "share", "10 - - - - - 1")
    bench.shares.run_round()
    assert sum(bench.shares_of("warm_jobs", *ENVS)) <= 10


def test_rounds_go_on_after_postgres_was_restored(bench: Bench) -> None:
    bench.enqueue(ENVS[0], 1)
    bench.keeper.update(PROJECT, {"warm_jobs": 10})
    for _ in range(3):
        bench.shares.run_round()
    with bench.tiers.store.transaction() as conn:
        conn.execute("UPDATE quota_rounds SET round = 1")
        conn.execute("DELETE FROM quota_shares")
    assert bench.enqueue(ENVS[1], 1) == 0
    for _ in range(2):
        bench.shares.run_round()
    assert bench.enqueue(ENVS[1], 1) == 1
    assert sum(bench.shares_of("warm_jobs", *ENVS)) <= 10


def test_bytes_queues_and_running_jobs_are_shared_as_well(bench: Bench) -> None:
    for env in ENVS[:2]:
        bench.enqueue(env, 1, size=10)
    bench.keeper.update(PROJECT, {"warm_bytes": 100, "queues": 3, "running": 3})
    assert sum(bench.shares_of("warm_bytes", *ENVS)) <= 100
    made = 0
    for number in range(6):
        try:
            made += bench.client.enqueue(queue_of(ENVS[0], f"new{number}"), NewJob("send", b"", id=f"new{number}"))
        except QuotaExceeded:
            bench.shares.run_round()
    assert made == 1
    for number in range(10):
        bench.enqueue(ENVS[number % 2], f"more{number}", size=0)
    leased = 0
    for _ in range(5):
        leased += sum(len(run(bench.client.redis, STUBS.dequeue(shard, 100, HOUR_MS))) for shard in range(SHARDS))
        bench.shares.run_round()
    assert leased == 3


def test_the_rate_of_an_organisation_is_divided(bench: Bench) -> None:
    bench.keeper.update(ORGANISATION, {"enqueue_rate": 100, "enqueue_burst": 200})
    refused = 0
    for env in (*ENVS, ELSEWHERE):
        try:
            bench.client.enqueue(queue_of(env), NewJob("send", id="1"))
        except EnqueueRateExceeded:
            refused += 1
    assert refused == 6
    bench.shares.run_round()
    assert 90 <= sum(bench.shares_of("enqueue_rate", *ENVS, ELSEWHERE)) <= 100
    assert sum(bench.shares_of("enqueue_burst", *ENVS, ELSEWHERE)) <= 200
    assert all(bench.enqueue(env, 1) for env in (*ENVS, ELSEWHERE))


def test_the_mover_shares_out(bench: Bench) -> None:
    bench.keeper.update(PROJECT, {"warm_jobs": 10})
    stop, mover = Event(), Mover(bench.tiers, MoverOptions(lease_s=3600.0))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(mover.run_forever, stop)
        try:
            wait_until(lambda: bench.enqueue(ENVS[0], 1) == 1, "the environment has a share")
        finally:
            stop.set()
            running.result()


def test_an_environment_with_a_backlog_leaves_its_part_to_others_as_its_jobs_end(bench: Bench) -> None:
    batch, prod = ENVS[:2]
    bench.keeper.update(PROJECT, {"running": 6})

    def start(env: EnvRef) -> list[LeasedJob]:
        leased = run(bench.client.redis, STUBS.dequeue(STUBS.find_shard(env), 100, HOUR_MS))
        others = [job for job in leased if job.queue.env != env.env]
        run(bench.client.redis, STUBS.requeue(STUBS.find_shard(env), others))
        return [job for job in leased if job.queue.env == env.env]

    bench.enqueue(batch, *range(50))
    of_batch: list[LeasedJob] = []
    for _ in range(4):
        bench.shares.run_round()
        of_batch += start(batch)
    assert len(of_batch) == 6, "no other environment has jobs"
    bench.enqueue(prod, *range(50))
    of_prod: list[LeasedJob] = []
    for _ in range(5):
        bench.shares.run_round()
        of_prod += start(prod)
        assert len(of_batch) + len(of_prod) <= 6
        job, *of_batch = of_batch
        run(bench.client.redis, STUBS.ack(STUBS.find_shard(batch), [(job, 1)]))
        of_batch += start(batch)  # at once, before the next round
    assert (len(of_batch), len(of_prod)) == (3, 3)


def test_a_job_larger_than_the_usual_share_comes_back_from_postgres(bench: Bench, any_valkey_url: str) -> None:
    for env in ENVS:
        bench.enqueue(env, "first")
    bench.keeper.update(PROJECT, {"warm_bytes": 1000})
    mover = Mover(bench.tiers, MoverOptions(lease_s=3600.0))
    with SyncClient(any_valkey_url, OPTIONS, bench.tiers) as client:
        with pytest.raises(QuotaExceeded):
            client.enqueue(queue_of(ENVS[0]), NewJob("send", bytes(1001), id="too large for all of it"))
        client.enqueue(queue_of(ENVS[0]), NewJob("send", bytes(800), id="large"))
        assert bench.held(ENVS[0]) == 1
        mover.renew_leadership()
        for _ in range(3):
            bench.shares.run_round()
            mover.sweep(STUBS.find_shard(ENVS[0]))
        assert bench.held(ENVS[0]) == 2
    mover.resign()


def test_a_late_share_of_a_quota_that_is_gone_is_refused(bench: Bench) -> None:
    bench.enqueue(ENVS[0], 1)
    bench.keeper.update(PROJECT, {"warm_jobs": 10})
    with bench.tiers.store.transaction() as conn:
        [number] = conn.execute("SELECT round FROM quota_rounds").fetchone() or (0,)
    bench.keeper.update(PROJECT, {}, ["warm_jobs"])
    late = STUBS.share(ENVS[0], number, ["7", "-", "-", "-", "-", "-"])
    assert run(bench.client.redis, late) is None
    assert bench.enqueue(ENVS[0], *range(2, 20)) == 18


def test_the_burst_of_an_organisation_does_not_lift_that_of_an_environment(bench: Bench) -> None:
    bench.enqueue(ENVS[0], 1)
    bench.keeper.update(TenantRef.from_environment(ENVS[0]), {"enqueue_rate": 10})
    bench.keeper.update(ORGANISATION, {"enqueue_rate": 1000, "enqueue_burst": 1000})
    with pytest.raises(EnqueueRateExceeded):
        bench.client.enqueue_many(queue_of(ENVS[0]), [NewJob("send", id=f"many{number}") for number in range(100)])


NAMES = st.sampled_from([*ENVS, ELSEWHERE])
NUMBERS = st.dictionaries(NAMES, st.integers(0, 50))
EVERYWHERE = sorted([*ENVS, ELSEWHERE])
TURNS = st.integers(0, 10**9)


@settings(deadline=None)
@given(value=st.integers(0, 200), used=NUMBERS, shares=NUMBERS, asking=st.frozensets(NAMES), needs=NUMBERS, turn=TURNS)
def test_a_plan_gives_out_the_quota_and_no_more(
    value: int,
    used: dict[EnvRef, int],
    shares: dict[EnvRef, int],
    asking: frozenset[EnvRef],
    needs: dict[EnvRef, int],
    turn: int,
) -> None:
    plan = plan_shares(SharedQuota(value, EVERYWHERE), used, shares, asking, needs, turn)
    assert all(plan[env] >= used.get(env, 0) for env in EVERYWHERE)
    assert sum(plan.values()) == max(value, sum(used.values()))


RUNNING = st.builds(RunningDemand, st.integers(0, 20), st.integers(0, 50), st.integers(0, 20))


@settings(deadline=None)
@given(value=st.integers(0, 100), jobs=st.dictionaries(NAMES, RUNNING), turn=TURNS)
def test_a_plan_of_running_jobs_is_fair(value: int, jobs: dict[EnvRef, RunningDemand], turn: int) -> None:
    plan = plan_running(SharedQuota(value, EVERYWHERE), jobs, turn)
    assert sum(plan.values()) == value
    for env, own in jobs.items():
        if plan[env] < own.demand:
            assert max(plan.values()) <= plan[env] + 1, f"{env} is denied what others have"


def test_a_quota_smaller_than_the_number_of_environments_reaches_each_in_turn() -> None:
    envs = [EnvRef("acme", "shop", f"env{number:02}") for number in range(50)]
    quota = SharedQuota(10, envs)
    backlogs = {env: RunningDemand(0, 5, 0) for env in envs}
    for plans in (
        [plan_running(quota, backlogs, turn) for turn in range(50)],
        [plan_shares(quota, {}, {}, frozenset(envs), {}, turn) for turn in range(50)],
    ):
        assert {env for plan in plans for env, value in plan.items() if value} == set(envs)


def test_shares_of_environments_that_need_nothing_stay() -> None:
    envs = [EnvRef("acme", "shop", f"env{number:02}") for number in range(50)]
    quota = SharedQuota(10, envs)
    assert plan_shares(quota, {}, {}, frozenset(), {}, 1) == plan_shares(quota, {}, {}, frozenset(), {}, 2)
    assert plan_running(quota, {}, 1) == plan_running(quota, {}, 2)


def test_jobs_that_do_not_start_keep_one_place() -> None:
    share = 10
    for _ in range(10):
        share = RunningDemand(0, 1000, share).demand
    assert share == 1


@settings(deadline=None)
@given(values=st.tuples(st.integers(0, 100), st.integers(0, 100)), wanted=NUMBERS, shares=NUMBERS, turn=TURNS)
def test_raising_passes_no_quota(
    values: tuple[int, int], wanted: dict[EnvRef, int], shares: dict[EnvRef, int], turn: int
) -> None:
    quotas = [SharedQuota(values[0], ENVS), SharedQuota(values[1], EVERYWHERE)]
    raised = raise_within(wanted, shares, quotas, turn)
    for quota in quotas:
        before = sum(shares.get(env, 0) for env in quota.members)
        assert sum(raised.get(env, 0) for env in quota.members) <= max(quota.value, before)
    assert all(raised[env] >= share for env, share in shares.items())

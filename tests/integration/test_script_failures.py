"""Every script, failing at every one of its commands: no job is lost, stuck or run twice, and all numbers are right
again once maintenance has run and the caller has repeated the call.

Lua does not roll back, so a failing script leaves the first part of its writes. Two kinds of failure are tried: one
command fails (the script can still report it), and one command and all that follow fail (it cannot)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headrace.model.job import AttemptRecord, LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.maintenance import Maintenance
from headrace.queue.quotas import pack_quotas
from headrace.queue.scripts import (
    SCRIPTS,
    ColdCounters,
    ColdRow,
    DeadFilter,
    Deferral,
    EnqueueResult,
    IdChange,
    Records,
    Stubs,
)
from headrace.queue.state import read_states
from headrace.valkey.connect import ScriptError, Valkey, translate_errors
from headrace.valkey.scripts import ScriptCall, run
from tests.model.valkey_contents import check_jobs_are_in_one_place, read_contents

STUBS = Stubs(1, 1_000_000)
HOUR_MS = 3_600_000
PAST = 1_000
REFS = X, Y, B, NEW, BACKLOG = [
    QueueRef(org, "app", "prod", name)
    for org, name in (("a", "x"), ("a", "y"), ("b", "x"), ("c", "new"), ("d", "backlog"))
]

INJECT = """
local server, calls = redis, 0
local redis = setmetatable({}, { __index = server })
local function fails() calls = calls + 1; return calls == %(at)d or (%(rest)s and calls > %(at)d) end
function redis.call(...)
  if fails() then error('INJECTED failure') end
  return server.call(...)
end
function redis.pcall(...)
  if fails() then return { err = 'INJECTED failure' } end
  return server.pcall(...)
end
"""


class Injected(Exception):
    pass


def run_failing(valkey: Valkey, call: ScriptCall[Any], at: int, *, rest: bool) -> Any:
    """Run a call whose command number `at` fails, and with `rest` all after it."""
    shebang, _, source = call.script.source.partition("\n")
    text = "\n".join([shebang, INJECT % {"at": at, "rest": str(rest).lower()}, source])
    try:
        with translate_errors():
            answer = valkey.execute_command("EVAL", text, len(call.keys), *call.keys, *call.args)
    except ScriptError as error:
        if "INJECTED" in str(error):
            raise Injected from error
        raise
    return call.parse(answer)


@dataclass
class World:
    """A shard with jobs in every state, and what their producers and workers know."""

    valkey: Valkey
    held: dict[str, LeasedJob] = field(default_factory=dict[str, LeasedJob])  # by id: in the hands of a worker
    accepted: set[str] = field(default_factory=set[str])
    done: Counter[str] = field(default_factory=Counter[str])
    removed: set[str] = field(default_factory=set[str])  # cancelled or expired, or may be
    token: int = 0

    def run(self, call: ScriptCall[Any]) -> Any:
        return run(self.valkey, call)

    def enqueue(self, ref: QueueRef, *jobs: NewJob) -> None:
        assert all(self.run(STUBS.enqueue(ref, jobs)).accepted)
        self.accepted |= {job.id for job in jobs}

    def dequeue(self, n: int = 1, names: Sequence[str] = ()) -> list[str]:
        return self.hold(self.run(STUBS.dequeue(0, n, HOUR_MS, names)))

    def hold(self, jobs: Iterable[LeasedJob]) -> list[str]:
        ids: list[str] = []
        for job in jobs:
            assert job.id not in self.held, f"{job.id} runs twice"
            assert not self.done[job.id], f"{job.id} runs again after it was done"
            self.held[job.id] = job
            ids.append(job.id)
        return ids

    def ack(self, *ids: str) -> None:
        jobs = [self.held[job_id] for job_id in ids]
        self.acked(jobs, self.run(STUBS.ack(0, [(job, 1) for job in jobs])))

    def acked(self, jobs: Sequence[LeasedJob], answers: Sequence[bool]) -> None:
        """A job that is gone although its ack was refused is done: the same ack had failed after it was removed."""
        for job, applied in zip(jobs, answers, strict=True):
            self.held.pop(job.id, None)
            self.done[job.id] += applied or not self.valkey.exists(keys.job(0, job.queue.environment, job.id))

    # Time passes

    def end_leases(self, *ids: str) -> None:
        for job_id in ids:
            job = self.held.pop(job_id)
            self.valkey.zadd(keys.leases(0), {keys.job_part(job.queue.environment, job_id): PAST})

    def make_due(self, ref: QueueRef, job_id: str) -> None:
        self.valkey.zadd(keys.scheduled(0), {keys.job_part(ref.environment, job_id): PAST})
        self.valkey.hset(keys.job(0, ref.environment, job_id), "due", PAST)

    def end_ttl(self, ref: QueueRef, job_id: str) -> None:
        self.valkey.zadd(keys.expiries(0), {keys.job_part(ref.environment, job_id): PAST})
        self.valkey.hset(keys.job(0, ref.environment, job_id), "expires", PAST)
        self.removed.add(job_id)

    # The end

    def maintain(self) -> None:
        maintenance = Maintenance("", STUBS, "test")
        maintenance._client = self.valkey  # pyright: ignore[reportPrivateUsage]
        for _ in range(2):
            maintenance.maintain(0)

    def drain(self) -> None:
        """Every lease ends, every delay is over, workers run what there is."""
        self.ack(*self.held)
        for _ in range(2):
            for key in (keys.leases(0), keys.scheduled(0)):
                if members := cast(Any, self.valkey.zrange(key, 0, -1)):
                    self.valkey.zadd(key, dict.fromkeys(members, PAST))
            self.maintain()
            while ids := self.dequeue(50):
                self.ack(*ids)


def job(job_id: str, *, delay_ms: int = 0, priority: int = 0, ttl_ms: int | None = None, attempts: int = 3) -> NewJob:
    return NewJob("task", b"payload", job_id, delay_ms, priority, ttl_ms, attempts)


@dataclass(frozen=True)
class Prepared:
    """What `prepare` has built once, to begin from again and again."""

    world: World
    keys: dict[bytes, bytes]

    @classmethod
    def build(cls, valkey: Valkey) -> Prepared:
        world = prepare(valkey)
        found: list[bytes] = cast(Any, valkey.keys())
        pipeline = valkey.pipeline(transaction=False)
        for key in found:
            pipeline.dump(key)
        return cls(world, dict(zip(found, pipeline.execute(), strict=True)))

    def begin(self) -> World:
        valkey = self.world.valkey
        pipeline = valkey.pipeline(transaction=False)
        pipeline.flushall()
        for key, value in self.keys.items():
            pipeline.restore(key, 0, value)
        pipeline.execute()
        world = self.world
        return World(
            valkey, dict(world.held), set(world.accepted), Counter(world.done), set(world.removed), world.token
        )


def prepare(valkey: Valkey) -> World:
    """Four jobs of each queue run or ran; the others wait, are scheduled or dead. b is at its limit."""
    valkey.flushall()
    world = World(valkey)
    world.enqueue(X, *(job(f"r{n}", attempts=1 if n == 3 else 3, ttl_ms=HOUR_MS if n == 2 else None) for n in range(4)))
    world.enqueue(B, job("b0"), job("b1"), job("b2"))
    assert len(world.dequeue(6)) == 6  # r0 to r2, or more, and jobs of b
    world.ack(*[job_id for job_id in world.held if job_id.startswith("b")][:1])
    world.enqueue(X, *(job(f"x{n}") for n in range(4)), job("urgent", priority=5), job("ttl", ttl_ms=HOUR_MS))
    world.enqueue(X, job("over", ttl_ms=HOUR_MS), job("later", delay_ms=HOUR_MS), job("due", delay_ms=HOUR_MS))
    world.enqueue(Y, job("y0"), job("y1", priority=-3), job("later over", delay_ms=HOUR_MS, ttl_ms=HOUR_MS))
    while "x0" not in world.held:
        world.dequeue(1, ["x"])
    for number in range(2):
        world.enqueue(Y, job(f"d{number}", priority=50))
        [dead] = world.dequeue(1, ["y"])
        world.run(STUBS.bury(0, [(world.held.pop(dead), "failed")]))
    world.run(STUBS.configure(B.environment, {"limit": 1}))
    quotas = {"warm_jobs": 1000, "warm_bytes": 10_000, "queues": 10, "enqueue_rate": 1000, "running": 1000}
    world.run(STUBS.configure(X.environment, {"quota": pack_quotas(quotas)}))
    world.enqueue(BACKLOG, job("p0"), job("p1"))
    world.token = world.run(STUBS.elect(0, "mover", HOUR_MS))
    return world


@dataclass
class Scenario:
    """A call that is tried, and what its caller knows when it was answered."""

    script: str
    call: Callable[[World], ScriptCall[Any]]
    answered: Callable[[World, Any], Any] = lambda world, answer: None
    arrange: Callable[[World], Any] = lambda world: None


def new_jobs() -> list[NewJob]:
    return [job("n0"), job("n1", priority=7, ttl_ms=HOUR_MS), job("n2", delay_ms=HOUR_MS, ttl_ms=HOUR_MS), job("n0")]


def enqueued(world: World, answer: Any) -> None:
    world.accepted |= {new.id for new in new_jobs()}


def spilled_one(world: World, answer: Any) -> None:
    """The first id may belong to a job in PostgreSQL."""
    assert answer.answers[0] == EnqueueResult.SPILL
    world.accepted |= {"n1", "n2"}


def plain_jobs(count: int) -> list[NewJob]:
    return [job(f"n{number}") for number in range(count)]


def plain_enqueued(world: World, answer: Any) -> None:
    world.accepted |= {new.id for new in plain_jobs(len(answer.answers))}


def some_held(world: World) -> list[LeasedJob]:
    """One of b, which is at its limit, one at its last attempt, one with a TTL."""
    [of_b] = [held for held in world.held.values() if held.queue == B][:1]
    return [of_b, *(world.held[job_id] for job_id in ("r3", "r2", "x0") if job_id in world.held)]


def let_go(world: World, answer: Any) -> None:
    for held in some_held(world):
        del world.held[held.id]


def make_records(world: World) -> Records:
    return {held.lease: AttemptRecord(f"of {held.id}".encode(), HOUR_MS) for held in some_held(world)}


def keep_earlier_records(world: World) -> None:
    """Leave records of earlier attempts, of earlier jobs with the same id, and a full list."""
    for number, held in enumerate(some_held(world)):
        env = held.queue.environment
        enqueued = cast(Any, world.valkey.hget(keys.job(0, env, held.id), "enqueued")).decode()
        count = 20 if number == 0 else 1
        for index in range(count):
            head = f"{'1' if number == 1 else enqueued}\tearlier\t{keys.encode(held.queue.queue)}\t{(index + 1) * 263}"
            world.valkey.rpush(keys.attempts(0, env, held.id), f"{head}\nearlier")
        for key in (keys.queue(0, held.queue), keys.meta(0)):
            world.valkey.hincrby(key, "result_bytes", count * 263)
        world.valkey.zadd(keys.attempt_expiries(0), {keys.job_part(env, held.id): 1e15})


def age_records(world: World) -> None:
    keep_earlier_records(world)
    members: Any = world.valkey.zrange(keys.attempt_expiries(0), 0, -1)
    world.valkey.zadd(keys.attempt_expiries(0), dict.fromkeys(members, PAST))


def check_records(world: World, answer: Any) -> None:
    """Every record is there once, although the call was repeated."""
    for held in some_held(world):
        bodies = world.run(STUBS.read_attempts(held.queue.environment, held.id))
        assert bodies.count(f"of {held.id}".encode()) == 1, (held.id, bodies)


def acked_with_records(world: World, answer: Any) -> None:
    check_records(world, answer)
    world.acked(some_held(world), answer)


def let_go_with_records(world: World, answer: Any) -> None:
    check_records(world, answer)
    let_go(world, answer)


def defer(world: World, delay_ms: int) -> ScriptCall[Any]:
    return STUBS.defer(0, [Deferral(held, delay_ms, delay_ms, "no", HOUR_MS, "task") for held in some_held(world)])


def defer_long_ago(world: World) -> None:
    for held in some_held(world):
        world.valkey.hset(keys.job(0, held.queue.environment, held.id), "deferred_since", PAST)


def cancel_running(world: World) -> None:
    for held in some_held(world):
        world.run(STUBS.cancel(held.queue.environment, held.id, running=True))
        world.removed.add(held.id)


def age_cancelled(world: World) -> None:
    cancel_running(world)
    age(world)


def add_other_tasks(world: World) -> None:
    """Put jobs of a task that a worker does not have in front of others."""
    for ref, prefix in ((X, "ox"), (Y, "oy"), (NEW, "on")):
        world.enqueue(ref, *(NewJob("other", b"payload", f"{prefix}{number}", max_attempts=3) for number in range(2)))
        world.valkey.zadd(keys.ready(0, ref), {f"{prefix}{number}": PAST for number in range(2)})


def mark_waiting(world: World) -> None:
    """As a worker of an older release leaves a job that was to be cancelled."""
    world.valkey.hset(keys.job(0, X.environment, "x3"), "cancel", "1")
    world.removed.add("x3")


def age(world: World) -> None:
    world.end_leases(*(held.id for held in some_held(world)))
    world.make_due(X, "due")
    world.end_ttl(X, "over")
    world.end_ttl(Y, "later over")


def lose_entries(world: World) -> None:
    """Leave indexes that lack what may run, hold what may not, and environments that are in no list."""
    world.valkey.delete(keys.envs(0), keys.environments(0), keys.queue_class(0, "y"))
    world.valkey.hset(keys.queue(0, X), "paused", "1")
    world.valkey.hset(keys.queue(0, Y), "indexed", "")


def rows() -> list[ColdRow]:
    def row(number: int, job_id: str, due_ms: float) -> ColdRow:
        return ColdRow(
            seq=number,
            job_id=job_id,
            task="task",
            flow="",
            flow_type="",
            payload=b"payload",
            size=7,
            priority=0,
            max_attempts=3,
            enqueued_ms=1,
            due_ms=due_ms,
            expires_ms=None,
            delayed=False,
        )

    return [row(1, "c1", 2.0), row(2, "c2", 3.0)]


def refilled(world: World, answer: Any) -> None:
    world.accepted |= {"c1", "c2"}


def break_a_queue(world: World) -> None:
    """Leave something to repair: an enqueue that fails when its jobs are in and their numbers are not."""
    call = STUBS.enqueue(X, new_jobs())
    with pytest.raises(Injected):
        run_failing(world.valkey, call, 14, rest=False)
    world.removed |= {"n0", "n1", "n2"}


def numbers(epoch: int, waiting: int) -> ColdCounters:
    return ColdCounters(epoch, 5, 1, waiting, 0, 7 * waiting, 0, waiting, 0, 0, 0, 2.0 if waiting else None)


def settle(world: World, waiting: int) -> ScriptCall[Any]:
    return STUBS.sync_cold(X, numbers(int(cast(Any, world.valkey.hget(keys.queue(0, X), "epoch"))), waiting))


def forget(world: World) -> ScriptCall[Any]:
    dead = run(world.valkey, STUBS.list_dead(Y, 10))
    return STUBS.drop_dead(Y, dead, HOUR_MS)


def forgotten(world: World, answer: Any) -> None:
    world.removed |= {"d0", "d1"}  # PostgreSQL has them


def register(world: World) -> None:
    """Register ids of each state: one that PostgreSQL has, and one that it may have."""
    world.run(STUBS.reserve_ids(X.environment, ["c1", "n0"], "token"))
    world.run(STUBS.settle_ids(X.environment, [IdChange("c1", "token", "confirm")]))


def settle_registered() -> ScriptCall[Any]:
    changes = [IdChange("c1", "token", "remove"), IdChange("n0", "token", "remove"), IdChange("c2", "new", "set")]
    return STUBS.settle_ids(X.environment, changes)


SCENARIOS = {
    "enqueue with registered ids": Scenario(
        "enqueue", lambda world: STUBS.enqueue(X, new_jobs(), HOUR_MS * 2), spilled_one, arrange=register
    ),
    "enqueue beside registered ids": Scenario(
        "enqueue",
        lambda world: STUBS.enqueue(BACKLOG, plain_jobs(2), HOUR_MS),
        plain_enqueued,
        arrange=lambda world: world.run(STUBS.reserve_ids(BACKLOG.environment, ["other"], "token")),
    ),
    "reserve_ids": Scenario("reserve_ids", lambda world: STUBS.reserve_ids(X.environment, ["c1", "c2"], "token")),
    "reserve_ids again": Scenario(
        "reserve_ids", lambda world: STUBS.reserve_ids(X.environment, ["c1", "c2"], "new"), arrange=register
    ),
    "settle_ids": Scenario("settle_ids", lambda world: settle_registered(), arrange=register),
    "settle_ids, the last one": Scenario(
        "settle_ids",
        lambda world: STUBS.settle_ids(X.environment, [IdChange("c1", "token", "remove")]),
        arrange=lambda world: world.run(STUBS.reserve_ids(X.environment, ["c1"], "token")),
    ),
    "enqueue": Scenario("enqueue", lambda world: STUBS.enqueue(X, new_jobs()), enqueued),
    "enqueue into a new queue": Scenario("enqueue", lambda world: STUBS.enqueue(NEW, new_jobs()), enqueued),
    "enqueue with overflow": Scenario("enqueue", lambda world: STUBS.enqueue(X, new_jobs(), HOUR_MS * 2), enqueued),
    "enqueue into a backlog": Scenario("enqueue", lambda world: STUBS.enqueue(BACKLOG, plain_jobs(1)), plain_enqueued),
    "enqueue some into a backlog": Scenario(
        "enqueue", lambda world: STUBS.enqueue(BACKLOG, plain_jobs(3), HOUR_MS), plain_enqueued
    ),
    "dequeue": Scenario("dequeue", lambda world: STUBS.dequeue(0, 7, HOUR_MS), World.hold),
    "dequeue one": Scenario("dequeue", lambda world: STUBS.dequeue(0, 1, HOUR_MS), World.hold),
    "dequeue by name": Scenario("dequeue", lambda world: STUBS.dequeue(0, 4, HOUR_MS, ["x", "y"]), World.hold),
    "dequeue an expired job": Scenario(
        "dequeue", lambda world: STUBS.dequeue(0, 20, HOUR_MS), World.hold, lambda world: world.end_ttl(X, "over")
    ),
    "dequeue without some tasks": Scenario(
        "dequeue",
        lambda world: STUBS.dequeue(0, 7, HOUR_MS, excluded_tasks={"other": True}),
        World.hold,
        arrange=add_other_tasks,
    ),
    "dequeue by name without some tasks": Scenario(
        "dequeue",
        lambda world: STUBS.dequeue(0, 4, HOUR_MS, ["x", "new"], excluded_tasks={"other": True}),
        World.hold,
        arrange=add_other_tasks,
    ),
    "dequeue skipped jobs": Scenario(
        "dequeue",
        lambda world: STUBS.dequeue(0, 4, HOUR_MS, excluded_tasks={"other": True, "task": True}),
        World.hold,
        arrange=add_other_tasks,
    ),
    "begin": Scenario("begin", lambda world: STUBS.begin(0, some_held(world))),
    "extend": Scenario("extend", lambda world: STUBS.extend(0, some_held(world), HOUR_MS)),
    "ack": Scenario(
        "ack",
        lambda world: STUBS.ack(0, [(held, 1) for held in some_held(world)]),
        lambda world, answer: world.acked(some_held(world), answer),
    ),
    "ack and keep the id": Scenario(
        "ack",
        lambda world: STUBS.ack(0, [(held, 1) for held in some_held(world)], HOUR_MS),
        lambda world, answer: world.acked(some_held(world), answer),
    ),
    "nack": Scenario("nack", lambda world: STUBS.nack(0, [(held, 0, "no") for held in some_held(world)]), let_go),
    "nack with a delay": Scenario(
        "nack", lambda world: STUBS.nack(0, [(held, HOUR_MS, "no") for held in some_held(world)]), let_go
    ),
    "bury": Scenario("bury", lambda world: STUBS.bury(0, [(held, "no") for held in some_held(world)]), let_go),
    "ack with records": Scenario(
        "ack",
        lambda world: STUBS.ack(0, [(held, 1) for held in some_held(world)], HOUR_MS, make_records(world)),
        acked_with_records,
        arrange=keep_earlier_records,
    ),
    "nack with records": Scenario(
        "nack",
        lambda world: STUBS.nack(0, [(held, 0, "no") for held in some_held(world)], make_records(world)),
        let_go_with_records,
        arrange=keep_earlier_records,
    ),
    "bury with records": Scenario(
        "bury",
        lambda world: STUBS.bury(0, [(held, "no") for held in some_held(world)], make_records(world)),
        let_go_with_records,
    ),
    "extend with progress": Scenario(
        "extend",
        lambda world: STUBS.extend(0, some_held(world), HOUR_MS, {held.lease: "10 %" for held in some_held(world)}),
    ),
    "read_attempts": Scenario("read_attempts", lambda world: STUBS.read_attempts(X.environment, "x0")),
    "delete old records": Scenario("maintain", lambda world: STUBS.maintain(0, "me", 1, 100, 0), arrange=age_records),
    "requeue": Scenario("requeue", lambda world: STUBS.requeue(0, some_held(world)), let_go),
    "defer": Scenario("defer", lambda world: defer(world, 0), let_go),
    "defer with a delay": Scenario("defer", lambda world: defer(world, HOUR_MS), let_go),
    "defer for too long": Scenario("defer", lambda world: defer(world, HOUR_MS), let_go, arrange=defer_long_ago),
    "nack deferred jobs": Scenario(
        "nack",
        lambda world: STUBS.nack(0, [(held, 0, "no") for held in some_held(world)]),
        let_go,
        arrange=defer_long_ago,
    ),
    "maintain": Scenario("maintain", lambda world: STUBS.maintain(0, "me", 1, 100, 0), arrange=age),
    "maintain indexes": Scenario("maintain", lambda world: STUBS.maintain(0, "me", 1, 100, 0), arrange=lose_entries),
    "reclaim": Scenario("reclaim", lambda world: STUBS.reclaim(0, 100), arrange=age),
    "release": Scenario("release", lambda world: STUBS.release(0, 100), arrange=age),
    "expire": Scenario("expire", lambda world: STUBS.expire(0, 100), arrange=age),
    "cancel a ready job": Scenario(
        "cancel", lambda world: STUBS.cancel(X.environment, "x3"), arrange=lambda world: world.removed.add("x3")
    ),
    "cancel an urgent job": Scenario(
        "cancel", lambda world: STUBS.cancel(Y.environment, "y1"), arrange=lambda world: world.removed.add("y1")
    ),
    "cancel a scheduled job": Scenario(
        "cancel", lambda world: STUBS.cancel(X.environment, "later"), arrange=lambda world: world.removed.add("later")
    ),
    "cancel a running job": Scenario(
        "cancel",
        lambda world: STUBS.cancel(X.environment, "x0", running=True),
        arrange=lambda world: world.removed.add("x0"),
    ),
    "extend cancelled jobs": Scenario(
        "extend", lambda world: STUBS.extend(0, some_held(world), HOUR_MS), arrange=cancel_running
    ),
    "nack cancelled jobs": Scenario(
        "nack",
        lambda world: STUBS.nack(0, [(held, 0, "no") for held in some_held(world)]),
        let_go,
        arrange=cancel_running,
    ),
    "defer cancelled jobs": Scenario("defer", lambda world: defer(world, 0), let_go, arrange=cancel_running),
    "requeue cancelled jobs": Scenario(
        "requeue", lambda world: STUBS.requeue(0, some_held(world)), let_go, arrange=cancel_running
    ),
    "reclaim cancelled jobs": Scenario("reclaim", lambda world: STUBS.reclaim(0, 100), arrange=age_cancelled),
    "dequeue a cancelled job": Scenario(
        "dequeue", lambda world: STUBS.dequeue(0, 20, HOUR_MS), World.hold, arrange=mark_waiting
    ),
    "redrive": Scenario("redrive", lambda world: STUBS.redrive(Y, DeadFilter(), 100)),
    "pause": Scenario("configure", lambda world: STUBS.configure(X, {"paused": "1"})),
    "set quotas": Scenario("configure", lambda world: STUBS.configure(B.environment, {"quota": "1 1 1 1 1 1"})),
    "share": Scenario("share", lambda world: STUBS.share(B.environment, 1, ["5", "100", "3", "-", "-", "2"])),
    "limit an environment": Scenario("configure", lambda world: STUBS.configure(X.environment, {"limit": 2})),
    "lift a limit": Scenario("configure", lambda world: STUBS.configure(B.environment, {"limit": None})),
    "restore a setting": Scenario("restore_setting", lambda world: STUBS.restore_setting(X, "paused", "1")),
    "restore a queue": Scenario("restore_setting", lambda world: STUBS.restore_setting(NEW, "limit", "3")),
    "sync_settings_state": Scenario("sync_settings_state", lambda world: STUBS.sync_settings_state(0, "life")),
    "tick": Scenario("tick", lambda world: STUBS.tick(0, 0)),
    "resync": Scenario("resync", lambda world: STUBS.resync(0, 0, 100)),
    "elect": Scenario(
        "elect",
        lambda world: STUBS.elect(0, "other", HOUR_MS),
        arrange=lambda w: w.valkey.delete(keys.mover(0)),
    ),
    "read_refill_state": Scenario("read_refill_state", lambda world: STUBS.read_refill_state(X)),
    "get": Scenario("get", lambda world: STUBS.get(X.environment, "x3")),
    "sync_cold": Scenario("sync_cold", lambda world: settle(world, 2)),
    "leave_cold": Scenario(
        "leave_cold", lambda world: STUBS.leave_cold(X, world.token, 1, 2), arrange=lambda w: w.run(settle(w, 2))
    ),
    "refill": Scenario("refill", lambda world: STUBS.refill(X, world.token, 1e15, rows()), refilled),
    "list_dead": Scenario("list_dead", lambda world: STUBS.list_dead(Y, 10)),
    "drop_dead": Scenario("drop_dead", forget, forgotten, arrange=lambda world: forgotten(world, None)),
    "remove dead jobs": Scenario(
        "remove_dead",
        lambda world: STUBS.remove_dead(Y, DeadFilter(), 100),
        arrange=lambda world: forgotten(world, None),
    ),
    "repair": Scenario("repair", lambda world: STUBS.repair(0), arrange=break_a_queue),
}


def test_every_script_is_tried() -> None:
    assert {scenario.script for scenario in SCENARIOS.values()} == set(SCRIPTS)


@pytest.mark.parametrize(
    ("rest", "repeat_first"),
    [(False, True), (False, False), (True, True)],
    ids=["one command, repeated at once", "one command, repeated after maintenance", "all commands from one on"],
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_half_change_does_harm(valkey: Valkey, name: str, rest: bool, repeat_first: bool) -> None:
    scenario, prepared = SCENARIOS[name], Prepared.build(valkey)
    at = 1
    while not attempt(prepared, scenario, at, rest=rest, repeat_first=repeat_first):
        at += 1
    assert at > 1, "no command of the script failed"


def attempt(prepared: Prepared, scenario: Scenario, at: int, *, rest: bool, repeat_first: bool) -> bool:
    """Let command number `at` of the script fail, and see the shard recover. Returns True if it has no such command."""
    world = prepared.begin()
    valkey = world.valkey
    scenario.arrange(world)
    call = scenario.call(world)
    try:
        scenario.answered(world, run_failing(valkey, call, at, rest=rest))
        failed = False
    except Injected:
        failed = True
    if failed and repeat_first:
        scenario.answered(world, world.run(call))
    world.maintain()
    where = f"command {at}"
    if not rest:
        check_places_and_numbers(valkey, where)
    if failed and not repeat_first:
        scenario.answered(world, world.run(call))
        world.maintain()
    for ref in REFS:
        world.run(STUBS.configure(ref, {"paused": None}))
        world.run(STUBS.configure(ref.environment, {"limit": None, "quota": None}))
        world.run(STUBS.share(ref.environment, 2, ["-"] * 6))
    world.drain()
    check_ends(world, where)
    if not rest:
        check_places_and_numbers(valkey, where)
        assert not valkey.exists(keys.repair(0)), where
    check_registered_ids(valkey, where)
    return not failed


def check_ends(world: World, where: str) -> None:
    """Every job that was accepted has ended once."""
    dead = {member.decode() for ref in REFS for member in cast(Any, world.valkey.zrange(keys.dead(0, ref), 0, -1))}
    for job_id in sorted(world.accepted):
        ends = world.done[job_id] + (job_id in dead)
        assert ends == 1 or (ends == 0 and job_id in world.removed), f"{where}: {job_id} ended {ends} times"
    for key in (keys.leases(0), keys.scheduled(0), keys.envs(0)):
        assert not world.valkey.zcard(key), (where, key)
    for ref in REFS:
        for priority in (0, 5, -3, 7, 50):
            assert not world.valkey.zcard(keys.ready(0, ref, priority)), (where, ref, priority)


def check_registered_ids(valkey: Valkey, where: str) -> None:
    """Scripts read registered ids only if the environment has the field."""
    for ref in REFS:
        if valkey.exists(keys.env_cold_ids(0, ref.environment)):
            assert valkey.hexists(keys.env(0, ref.environment), "cold_id_bytes"), where


def check_places_and_numbers(valkey: Valkey, where: str) -> None:
    """Every job is where its state says and nowhere else, and every number is that of the jobs."""
    contents = read_contents(valkey)
    check_jobs_are_in_one_place(contents)
    jobs = {name.partition(":job:")[2]: fields for name, fields in contents.hashes.items() if ":job:" in name}
    envs: dict[EnvRef, Counter[str]] = {}
    total = total_of_records = 0
    for state in read_states(valkey, 1):
        own = [
            fields
            for name, fields in jobs.items()
            if name.startswith(keys.env_part(state.ref.environment) + ":") and fields["Q"] == state.ref.queue
        ]
        states = Counter(fields["state"] for fields in own)
        size = sum(int(fields["size"]) for fields in own if fields["state"] != "dead")
        found = (state.warm, state.running, state.dead, state.bytes - state.cold_bytes)
        assert found == (states["ready"], states["running"], states["dead"], size), (where, state.ref)
        assert state.scheduled == states["scheduled"], (where, state.ref)
        assert state.result_bytes == sum_record_bytes(valkey, state.ref), (where, state.ref)
        total_of_records += state.result_bytes
        total += size
        env = envs.setdefault(state.ref.environment, Counter())
        env["depth"] += state.depth
        env["running"] += state.running
        env["jobs"] += state.warm + state.running + states["scheduled"]
        env["bytes"] += size
        details = [
            set(members)
            for name, members in contents.sorted_sets.items()
            if name.startswith(keys.queue(0, state.ref) + ":detail:")
        ]
        assert sum(map(len, details)) == states["ready"], (where, state.ref)
    for env, expected in envs.items():
        own_fields = contents.hashes[keys.env(0, env)]
        assert (int(own_fields["depth"]), int(own_fields["running"])) == (expected["depth"], expected["running"]), (
            where,
            env,
        )
        for name in ("jobs", "bytes"):
            assert int(own_fields[name]) == expected[name], (where, env, name)
    assert int(contents.hashes[keys.meta(0)]["bytes"]) == total, where
    assert int(contents.hashes[keys.meta(0)].get("result_bytes", 0)) == total_of_records, where


def sum_record_bytes(valkey: Valkey, ref: QueueRef) -> int:
    """Return the bytes of the records of a queue, as the lists themselves say."""
    total = 0
    for key in cast("list[bytes]", valkey.keys(f"hr:{{0}}:attempts:{keys.env_part(ref)}:*")):
        assert valkey.zscore(keys.attempt_expiries(0), key.decode().partition(":attempts:")[2]) is not None, key
        last: Any = valkey.lindex(key.decode(), -1)
        _, _, queue, size = last.partition(b"\n")[0].split(b"\t")
        total += int(size) if queue.decode() == keys.encode(ref.queue) else 0
    return total

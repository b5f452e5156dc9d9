"""A state machine that drives every verb, from several clients, and compares each step with the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import HeadraceError, QueueClosed, QueueFull
from headrace.model.job import AttemptRecord, JobInfo, JobState, LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.scripts import DEFAULT_CAPS, DeadFilter, Deferral, MaintainResult, RedriveResult, Stubs, WarmCaps
from headrace.queue.state import read_states
from headrace.valkey.connect import connect
from headrace.valkey.scripts import Arg, ScriptCall, run
from tests.conftest import ODD_NAMES
from tests.model.clock import HOUR_MS, Ageing, server_ms
from tests.model.fold import Fold, differences, read_envs, read_events
from tests.model.truth import Environment, Job, Truth, delivery_number
from tests.model.valkey_contents import check

T = TypeVar("T")

SHARDS = 2
CLIENTS = 3
FAR_MS = HOUR_MS  # a lease, a delay, a TTL: never over by itself while a test runs
EPSILON_MS = 0.001  # the clock's microseconds do not all fit a double

QUEUES = (
    ODD_NAMES,
    QueueRef(ODD_NAMES.org, ODD_NAMES.project, ODD_NAMES.env, "b:dead"),
    *(QueueRef("job:q", "class", "env", name) for name in (ODD_NAMES.queue, "b:dead", "ready")),
    *(QueueRef("job:q", "class", env, "b:dead") for env in ("e:queues", "3")),
)
"""One environment in the first shard, three in the second; few enough that clients meet."""

ENVS = tuple(dict.fromkeys(ref.environment for ref in QUEUES))
QUEUE_NAMES = tuple(dict.fromkeys(ref.queue for ref in QUEUES))
IDS = ("1", "2", "3", "a:b", "%3A", "ü🎈")
ERRORS = ("boom", "Traceback: a\nlong story", "")
COUNTS = st.integers(1, 6)

environments = st.sampled_from(ENVS)
queues = st.sampled_from(QUEUES)
limits = st.sampled_from([None, None, None, 0, 1, 2, 3])
all_caps = st.sampled_from(
    [
        *(DEFAULT_CAPS, DEFAULT_CAPS, WarmCaps(items=3), WarmCaps(bytes=20)),
        *(WarmCaps(items=4, bytes=30, shard_bytes=40), WarmCaps(bytes=1060), WarmCaps(bytes=1100, shard_bytes=1600)),
    ]
)
own_caps = st.sampled_from([None, None, (1, 100), (3, 10), (100, 5)])
records = st.sampled_from([None, None, b"", b"done", b"a\nlonger\tone"])
rarely = st.sampled_from([False, False, False, True])
shards = st.integers(0, SHARDS - 1)
clients = st.integers(0, CLIENTS - 1)
new_jobs = st.builds(
    NewJob,
    task=st.sampled_from(["send", "se nd", "ü"]),
    payload=st.binary(max_size=12),
    id=st.sampled_from(IDS),
    delay_ms=st.sampled_from([0, 0, 0, FAR_MS]),
    priority=st.sampled_from([0, 0, 0, 1, -1, 7]),
    ttl_ms=st.sampled_from([None, None, FAR_MS]),
    max_attempts=st.integers(1, 3),
    flow=st.sampled_from(["", "", "f:1", "f\u00fc"]),
    flow_type=st.sampled_from(["", "t:levels"]),
)


class Lost(Enum):
    ANSWER = "the command ran, but its reply was lost"


class QueueMachine(RuleBasedStateMachine):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.valkey = connect(url)
        self.valkey.flushall()
        self.connections = [connect(url) for _ in range(CLIENTS)]
        self.leases: list[list[LeasedJob]] = [[] for _ in range(CLIENTS)]  # of each client, lost ones included
        self.stubs = Stubs(SHARDS, 1_000_000)
        self.loses: set[int] = set()  # clients that will not see the answer to their next command
        self.again: list[Callable[[], None]] = [lambda: None] * CLIENTS  # what a client does if it retries
        self.truth = Truth(SHARDS)
        self.ageing = Ageing(self.valkey, self.truth)
        self.owners: dict[int, int] = {}  # shard → client that owns its maintenance
        self.ticked: set[int] = set()  # shards

    def teardown(self) -> None:
        self.check_fold()
        for connection in (self.valkey, *self.connections):
            connection.close()

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        check(self.valkey, self.truth)

    # Producers

    @initialize(caps=all_caps)
    def begin_with_caps(self, caps: WarmCaps) -> None:
        self.stubs = Stubs(SHARDS, 1_000_000, caps)
        self.truth.caps = caps

    @initialize(limit=st.sampled_from([None, 1, 2, 2]), burst=st.sampled_from([None, 1.5, 2.0]), job=new_jobs)
    def begin_crowded(self, limit: int | None, burst: float | None, job: NewJob) -> None:
        """Limits of an environment matter when several of its queues have jobs, which chance alone rarely brings."""
        crowded = QUEUES[2:5]
        self.configure_env(0, crowded[0].environment, limit, burst)
        for number, ref in enumerate(crowded):
            ids = IDS[2 * number : 2 * number + 2]
            self.enqueue(0, ref, [replace(job, id=job_id, delay_ms=0) for job_id in ids])

    @rule(client=clients, ref=queues, jobs=st.lists(new_jobs, min_size=1, max_size=5))
    def enqueue(self, client: int, ref: QueueRef, jobs: list[NewJob]) -> None:
        self.again[client] = lambda: self.enqueue(client, ref, jobs)
        call = self.stubs.enqueue(ref, jobs)
        before = self.now()
        if ref in self.truth.queues and self.truth.queues[ref].closed:
            return self.refused(client, call, QueueClosed)
        if not self.truth.fit(ref, jobs):
            return self.refused(client, call, QueueFull)
        answer = self.run(client, call)
        expected = self.truth.enqueue(ref, jobs)
        assert isinstance(answer, Lost) or answer.accepted == expected
        accepted = [job for job, is_new in zip(jobs, expected, strict=True) if is_new]
        self.learn_times([self.truth.jobs[ref.environment, job.id] for job in accepted], before)
        self.truth.settle(self.shard(ref))

    def refused(self, client: int, call: ScriptCall[Any], error: type[HeadraceError]) -> None:
        """All jobs of the call, and nothing of them is written."""
        with nullcontext() if client in self.loses else pytest.raises(error):
            self.run(client, call)

    @rule(client=clients, env=environments, job_id=st.sampled_from(IDS), running=st.booleans())
    def cancel(self, client: int, env: EnvRef, job_id: str, running: bool) -> None:
        answer = self.run(client, self.stubs.cancel(env, job_id, running=running))
        expected = self.truth.cancel(env, job_id, running=running)
        assert answer in (expected, Lost.ANSWER)
        self.truth.settle(self.stubs.find_shard(env))

    @rule(env=environments, job_id=st.sampled_from(IDS))
    def get(self, env: EnvRef, job_id: str) -> None:
        info = run(self.valkey, self.stubs.get(env, job_id))
        job = self.truth.jobs.get((env, job_id))
        if job:
            assert info == expected_info(job)
        else:
            assert info == (JobInfo(env, job_id, JobState.DONE) if (env, job_id) in self.truth.kept else None)

    @rule(env=environments, job_id=st.sampled_from(IDS))
    def read_attempts(self, env: EnvRef, job_id: str) -> None:
        assert run(self.valkey, self.stubs.read_attempts(env, job_id)) == self.truth.read_attempts(env, job_id)

    # Workers

    @rule(client=clients, shard=shards, n=COUNTS)
    def dequeue_any(self, client: int, shard: int, n: int) -> None:
        self.dequeue(client, shard, n, ())

    @rule(
        client=clients,
        shard=shards,
        n=st.one_of(COUNTS, st.just(50)),
        names=st.one_of(st.just(()), st.lists(st.sampled_from([*QUEUE_NAMES, "nobody"]), max_size=3, unique=True)),
        excluded=st.sampled_from([(), (), ("send",), ("se nd", "other"), ("send", "ü"), ("send", "se nd", "ü")]),
    )
    def dequeue(self, client: int, shard: int, n: int, names: Sequence[str], excluded: Sequence[str] = ()) -> None:
        last = self.last_lease(shard)
        jobs = self.run(
            client, self.stubs.dequeue(shard, n, FAR_MS, names, excluded_tasks=dict.fromkeys(excluded, True))
        )
        if isinstance(jobs, Lost):  # the jobs are leased nevertheless, without a worker
            self.apply_dequeue(shard, n, names, self.leased_since(shard, last), excluded)
            return
        self.leases[client] = (self.leases[client] + jobs)[-20:]
        now = self.now()
        got = [(job.queue.environment, job.id, job.lease) for job in jobs]
        due = {key: job.due_ms for key, job in self.truth.jobs.items()}
        self.apply_dequeue(shard, n, names, got, excluded)
        for job in jobs:
            truth = self.truth.jobs[job.queue.environment, job.id]
            assert (job.queue, job.task, job.payload) == (truth.queue, truth.new.task, truth.new.payload)
            assert (job.attempt, job.max_attempts) == (truth.attempts, truth.new.max_attempts)
            assert job.enqueued_at_ms == truth.enqueued_ms
            assert 0 <= job.waited_ms <= now - due[truth.key] + 1

    def apply_dequeue(
        self,
        shard: int,
        n: int,
        names: Sequence[str],
        got: Sequence[tuple[EnvRef, str, str]],
        excluded: Sequence[str] = (),
    ) -> None:
        def gone(job: Job) -> bool:
            return not self.valkey.exists(keys.job(shard, *job.key))

        clock = int(cast("bytes | None", self.valkey.hget(keys.meta(shard), "turn")) or 0)
        self.truth.dequeue(shard, n, names, got, self.now(), gone, clock, excluded)

    def some_client_has_leases(self) -> bool:
        return any(self.leases)

    def some_leases(self, data: st.DataObject) -> tuple[int, int, list[LeasedJob]]:
        """A client, a shard, and leases that the client has or had there; the same one twice is possible."""
        client = data.draw(st.sampled_from([client for client in range(CLIENTS) if self.leases[client]]), "client")
        first = data.draw(st.sampled_from(self.leases[client][::-1]), "lease")
        shard = self.shard(first.queue)
        others = [job for job in self.leases[client] if self.shard(job.queue) == shard]
        return client, shard, [first, *data.draw(st.lists(st.sampled_from(others), max_size=3), "more")]

    @precondition(some_client_has_leases)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        client, shard, jobs = self.some_leases(data)
        answer = self.run(client, self.stubs.begin(shard, jobs))
        expected = [self.truth.begin(job) for job in jobs]
        assert answer in (expected, Lost.ANSWER)

    @precondition(some_client_has_leases)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        client, shard, jobs = self.some_leases(data)
        answer = self.run(client, self.stubs.extend(shard, jobs, FAR_MS))
        expected = [self.truth.extend(job) for job in jobs]
        assert answer in (expected, Lost.ANSWER)

    @precondition(some_client_has_leases)
    @rule(data=st.data(), keep=st.booleans(), record=records)
    def ack(self, data: st.DataObject, keep: bool, record: bytes | None) -> None:
        client, shard, jobs = self.some_leases(data)
        self.report_done(client, shard, jobs, keep=keep, record=record)

    def report_done(
        self, client: int, shard: int, jobs: Sequence[LeasedJob], *, keep: bool, record: bytes | None
    ) -> None:
        self.again[client] = lambda: self.report_done(client, shard, jobs, keep=keep, record=record)
        done = [(job, 3) for job in jobs]
        call = self.stubs.ack(shard, done, FAR_MS if keep else 0, make_records(jobs, record))
        answer = self.run(client, call)
        expected = [self.truth.ack(job, keep=keep, record=record) for job in jobs]
        assert answer in (expected, Lost.ANSWER)
        self.truth.settle(shard)

    @precondition(some_client_has_leases)
    @rule(data=st.data(), delay_ms=st.sampled_from([0, FAR_MS]), error=st.sampled_from(ERRORS), record=records)
    def nack(self, data: st.DataObject, delay_ms: int, error: str, record: bytes | None) -> None:
        client, shard, jobs = self.some_leases(data)
        held = self.held(jobs)
        before = self.now()
        failed = [(job, delay_ms, error) for job in jobs]
        answer = self.run(client, self.stubs.nack(shard, failed, make_records(jobs, record)))
        expected = [self.truth.nack(job, delay_ms, error, record) for job in jobs]
        assert answer in (expected, Lost.ANSWER)
        self.learn_times([job for job in held if job.waits], before, delay_ms)
        self.learn_burials([job for job in held if job.state is JobState.DEAD], before)
        self.truth.settle(shard)

    @precondition(some_client_has_leases)
    @rule(data=st.data(), error=st.sampled_from(ERRORS), record=records)
    def bury(self, data: st.DataObject, error: str, record: bytes | None) -> None:
        client, shard, jobs = self.some_leases(data)
        held = self.held(jobs)
        before = self.now()
        buried = [(job, error) for job in jobs]
        answer = self.run(client, self.stubs.bury(shard, buried, make_records(jobs, record)))
        expected = [self.truth.bury(job, error, record) for job in jobs]
        assert answer in (expected, Lost.ANSWER)
        self.learn_burials(held, before)
        self.truth.settle(shard)

    @precondition(some_client_has_leases)
    @rule(data=st.data())
    def giveback(self, data: st.DataObject) -> None:
        client, shard, jobs = self.some_leases(data)
        answer = self.run(client, self.stubs.requeue(shard, jobs))
        expected = [self.truth.giveback(job) for job in jobs]
        assert answer in (expected, Lost.ANSWER)
        self.truth.settle(shard)

    @precondition(some_client_has_leases)
    @rule(
        data=st.data(),
        delay_ms=st.sampled_from([0, FAR_MS]),
        bury_after_ms=st.sampled_from([0, FAR_MS]),
        error=st.sampled_from(ERRORS),
    )
    def defer(self, data: st.DataObject, delay_ms: int, bury_after_ms: int, error: str) -> None:
        client, shard, jobs = self.some_leases(data)
        held = self.held(jobs)
        before = self.now()
        deferrals = [Deferral(job, delay_ms, delay_ms, error, bury_after_ms) for job in jobs]
        answer = self.run(client, self.stubs.defer(shard, deferrals))
        expected = [self.truth.defer(job, delay_ms, bury_after_ms, error, int(before)) for job in jobs]
        assert answer in (expected, Lost.ANSWER)
        waiting = [job for job in held if job.waits]
        self.learn_times(waiting, before, delay_ms)
        self.learn_deferrals(waiting, int(before))
        self.learn_burials([job for job in held if job.state is JobState.DEAD], before)
        self.truth.settle(shard)

    # Time passes, and the sweeper

    @precondition(lambda self: any(job.deferred_ms is not None for job in self.truth.jobs.values()))
    @rule(data=st.data())
    def a_job_has_been_deferred_for_long(self, data: st.DataObject) -> None:
        for job in self.some_jobs(data, lambda job: job.deferred_ms is not None):
            self.ageing.begin_deferrals_long_ago(job)

    @precondition(lambda self: any(job.state is JobState.RUNNING for job in self.truth.jobs.values()))
    @rule(data=st.data())
    def a_lease_ends(self, data: st.DataObject) -> None:
        for job in self.some_jobs(data, lambda job: job.state is JobState.RUNNING):
            self.ageing.end_lease(job)

    @precondition(lambda self: any(job.state is JobState.SCHEDULED for job in self.truth.jobs.values()))
    @rule(data=st.data())
    def a_job_becomes_due(self, data: st.DataObject) -> None:
        for job in self.some_jobs(data, lambda job: job.state is JobState.SCHEDULED):
            self.ageing.make_due(job)

    @precondition(lambda self: any(map(has_ttl, self.truth.jobs.values())))
    @rule(data=st.data())
    def a_ttl_ends(self, data: st.DataObject) -> None:
        for job in self.some_jobs(data, has_ttl):
            self.ageing.end_ttl(job)

    @precondition(lambda self: self.truth.records)
    @rule(data=st.data())
    def records_become_old(self, data: st.DataObject) -> None:
        self.ageing.end_records(data.draw(st.sampled_from(sorted(self.truth.records))))

    @precondition(lambda self: self.truth.kept)
    @rule(data=st.data())
    def a_done_job_is_forgotten(self, data: st.DataObject) -> None:
        self.ageing.free_id(data.draw(st.sampled_from(sorted(self.truth.kept))))

    def some_jobs(self, data: st.DataObject, which: Callable[[Job], bool]) -> list[Job]:
        keys = sorted(job.key for job in self.truth.jobs.values() if which(job))
        drawn = data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=6, unique=True), "jobs")
        return [self.truth.jobs[key] for key in drawn]

    @rule(client=clients, shard=shards, at_most=st.one_of(COUNTS, st.just(1000)))
    def reclaim(self, client: int, shard: int, at_most: int) -> None:
        running = self.truth.list_shard_jobs(shard, JobState.RUNNING)
        before = self.now()
        answer = self.run(client, self.stubs.reclaim(shard, at_most))
        expected = self.truth.reclaim(shard, at_most)
        assert answer in (expected, Lost.ANSWER)
        self.learn_burials([job for job in running if job.state is JobState.DEAD], before)
        self.truth.settle(shard)

    @rule(client=clients, shard=shards, at_most=st.one_of(COUNTS, st.just(1000)))
    def release(self, client: int, shard: int, at_most: int) -> None:
        answer = self.run(client, self.stubs.release(shard, at_most))
        expected = self.truth.release(shard, at_most, self.now())
        assert answer in (expected, Lost.ANSWER)
        self.truth.settle(shard)

    @rule(client=clients, shard=shards, at_most=st.one_of(COUNTS, st.just(1000)))
    def expire(self, client: int, shard: int, at_most: int) -> None:
        answer = self.run(client, self.stubs.expire(shard, at_most))
        expected = self.truth.expire(shard, at_most, self.now())
        assert answer in (expected, Lost.ANSWER)
        self.truth.settle(shard)

    @rule(client=clients, shard=shards)
    def tick(self, client: int, shard: int) -> None:
        assert self.run(client, self.stubs.tick(shard, 0)) in (True, Lost.ANSWER)
        self.ticked.add(shard)

    @rule(client=clients, shard=shards, at_most=st.one_of(COUNTS, st.just(1000)))
    def maintain(self, client: int, shard: int, at_most: int) -> None:
        """All of the above in one call, by the owner of the shard alone."""
        running = self.truth.list_shard_jobs(shard, JobState.RUNNING)
        before = self.now()
        answer = self.run(client, self.stubs.maintain(shard, f"client {client}", FAR_MS, at_most, FAR_MS))
        if self.owners.setdefault(shard, client) != client:
            assert isinstance(answer, Lost) or answer == MaintainResult(False, answer.next_call_ms)
            assert isinstance(answer, Lost) or 0 < answer.next_call_ms <= FAR_MS
            return
        now = self.now()
        expired, reclaimed = self.truth.expire(shard, at_most, now), self.truth.reclaim(shard, at_most)
        released = self.truth.release(shard, at_most, now)
        drops_at_most = min(100, at_most)
        has_dropped_all = self.truth.drop_records(shard, drops_at_most) < drops_at_most
        if not isinstance(answer, Lost):
            ticked = shard not in self.ticked
            assert answer == MaintainResult(True, answer.next_call_ms, expired, reclaimed, released, ticked)
            is_done = has_dropped_all and not self.truth.needs_maintenance(shard, now)
            assert (answer.next_call_ms > 0) == is_done
        self.ticked.add(shard)
        self.learn_burials([job for job in running if job.state is JobState.DEAD], before)
        self.truth.settle(shard)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def an_ownership_ends(self, data: st.DataObject) -> None:
        shard = data.draw(st.sampled_from(sorted(self.owners)), "shard")
        self.valkey.hset(keys.meta(shard), "maintainer_until", 1)
        del self.owners[shard]

    # Operators

    @rule(client=clients, shard=shards)
    def resync(self, client: int, shard: int) -> None:
        page = self.run(client, self.stubs.resync(shard, 0, 1000))
        mine = [ref for ref in self.truth.queues if self.shard(ref) == shard]
        assert page == Lost.ANSWER or (page.cursor, page.events) == (0, len(mine))
        self.truth.settle(shard)

    @rule(client=clients, data=st.data(), at_most=COUNTS, skip=st.sampled_from([0, 0, 1]))
    def redrive(self, client: int, data: st.DataObject, at_most: int, skip: int) -> None:
        with_dead = sorted({job.queue for job in self.truth.jobs.values() if job.state is JobState.DEAD})
        ref = data.draw(st.sampled_from([*with_dead, *with_dead, *QUEUES]), "queue")
        times = st.sampled_from([None, None, *(int(job.buried_ms) for job in self.truth.dead(ref))])
        narrow = DeadFilter(
            ids=data.draw(st.one_of(st.just(()), st.lists(st.sampled_from(IDS), max_size=4)), "ids"),
            task=data.draw(st.sampled_from(["", "", "send"]), "task"),
            error=data.draw(st.sampled_from(["", "", "boom", "%w*"]), "error"),
            buried_from_ms=data.draw(times, "from"),
            buried_until_ms=data.draw(times, "until"),
        )
        which = data.draw(st.sampled_from([DeadFilter(), narrow]), "filter")
        before = self.now()
        answer = self.run(client, self.stubs.redrive(ref, which, at_most, skip))
        moved, looked_at, remaining = self.truth.redrive(ref, which, at_most, skip)
        expected = RedriveResult(len(moved), len(looked_at), remaining) if ref in self.truth.queues else None
        assert answer in (expected, Lost.ANSWER)
        self.learn_times(moved, before, 0)
        self.truth.settle(self.shard(ref))

    @rule(client=clients, ref=queues, paused=rarely, closed=rarely, limit=limits)
    def configure_queue(self, client: int, ref: QueueRef, paused: bool, closed: bool, limit: int | None) -> None:
        fields = {"paused": 1 if paused else None, "closed": 1 if closed else None, "limit": limit}
        answer = self.run(client, self.stubs.configure(ref, fields))
        assert answer in (ref in self.truth.queues, Lost.ANSWER)
        if queue := self.truth.queues.get(ref):
            queue.paused, queue.closed, queue.limit = paused, closed, limit
        self.truth.settle(self.shard(ref))

    @rule(client=clients, ref=queues, caps=own_caps)
    def configure_caps(self, client: int, ref: QueueRef, caps: tuple[int, int] | None) -> None:
        answer = self.run(client, self.stubs.configure(ref, {"caps": "{} {}".format(*caps) if caps else None}))
        assert answer in (ref in self.truth.queues, Lost.ANSWER)
        if queue := self.truth.queues.get(ref):
            queue.caps = caps
        self.truth.settle(self.shard(ref))

    @rule(client=clients, env=environments, limit=limits, burst=st.sampled_from([None, 1.0, 1.5, 2.0]))
    def configure_env(self, client: int, env: EnvRef, limit: int | None, burst: float | None) -> None:
        fields: dict[str, Arg | None] = {"limit": limit, "burst": None if burst is None else f"{burst:g}"}
        assert self.run(client, self.stubs.configure(env, fields)) in (True, Lost.ANSWER)
        settings = self.truth.envs.setdefault(env, Environment())
        settings.limit, settings.burst = limit, burst
        self.truth.settle(self.stubs.find_shard(env))

    # Running and learning

    def run(self, client: int, call: ScriptCall[T]) -> T | Lost:
        """What the client sees."""
        return run(self.connections[client], call)

    def now(self) -> float:
        return server_ms(self.valkey)

    def shard(self, ref: QueueRef) -> int:
        return self.stubs.find_shard(ref)

    def held(self, leases: Sequence[LeasedJob]) -> list[Job]:
        found = {job.key: job for leased in leases if (job := self.truth.held(leased))}
        return list(found.values())

    def learn_times(self, jobs: Sequence[Job], before_ms: float, delay_ms: int | None = None) -> None:
        """When jobs that just began to wait are due, by the server. Jobs of one enqueue or redrive keep their order."""
        after_ms, last = self.now(), 0.0
        for number, job in enumerate(jobs):
            fields = cast("dict[bytes, bytes]", self.valkey.hgetall(keys.job(self.truth.find_shard(job), *job.key)))
            delay = job.new.delay_ms if delay_ms is None else delay_ms
            job.due_ms = float(fields[b"due"])
            assert before_ms - EPSILON_MS <= job.due_ms - delay <= after_ms + number / 4096 + EPSILON_MS
            if delay_ms is None:
                job.enqueued_ms = int(fields[b"enqueued"])
                assert int(before_ms) <= job.enqueued_ms <= after_ms
                job.expires_ms = None if job.new.ttl_ms is None else job.enqueued_ms + job.new.ttl_ms
            assert job.due_ms - delay >= last
            last = job.due_ms - delay

    def learn_deferrals(self, jobs: Sequence[Job], before_ms: int) -> None:
        """Since when jobs are deferred, by the server, if that was not known before."""
        after_ms = self.now()
        for job in jobs:
            since = self.valkey.hget(keys.job(self.truth.find_shard(job), *job.key), "deferred_since")
            if job.deferred_ms == before_ms:
                job.deferred_ms = int(cast("bytes", since))
                assert before_ms <= job.deferred_ms <= after_ms

    def learn_burials(self, jobs: Sequence[Job], before_ms: float) -> None:
        after_ms = self.now()
        for job in jobs:
            found = self.valkey.zscore(keys.dead(self.truth.find_shard(job), job.queue), job.member)
            assert found is not None
            assert int(before_ms) <= found <= after_ms + 1
            job.buried_ms = found

    def last_lease(self, shard: int) -> int:
        return int(cast("bytes | None", self.valkey.hget(keys.meta(shard), "delivery")) or 0)

    def leased_since(self, shard: int, lease: int) -> list[tuple[EnvRef, str, str]]:
        """Return the jobs that were leased after that delivery, in order: read from the keys, since the reply was
        lost."""
        found: list[tuple[int, EnvRef, str, str]] = []
        for job in self.truth.list_shard_jobs(shard, *JobState):
            token = cast("bytes | None", self.valkey.hget(keys.job(shard, *job.key), "delivery"))
            if token is not None and (number := delivery_number(token.decode())) > lease:
                found.append((number, *job.key, token.decode()))
        return [(env, job_id, token) for _, env, job_id, token in sorted(found)]

    def check_fold(self) -> None:
        """Check that the metric stream agrees with the model: no gaps, all counts, the final gauges."""
        states = read_states(self.valkey, SHARDS)
        for shard in range(SHARDS):
            fold = Fold().add(read_events(self.valkey, shard))
            own = [state for state in states if self.shard(state.ref) == shard]
            envs = read_envs(self.valkey, shard, [env for env in self.truth.envs if env.shard(SHARDS) == shard])
            assert differences(fold, own, envs) == []


def make_records(jobs: Sequence[LeasedJob], body: bytes | None) -> dict[str, AttemptRecord]:
    return {} if body is None else {job.lease: AttemptRecord(body, FAR_MS) for job in jobs}


def has_ttl(job: Job) -> bool:
    return job.expires_ms is not None and job.state is not JobState.DEAD


def expected_info(job: Job) -> JobInfo:
    new = job.new
    return JobInfo(
        job.queue.environment, new.id, job.state, job.queue.queue, new.task, new.payload, new.flow, new.flow_type,
        new.priority, job.attempts, new.max_attempts, job.enqueued_ms, int(job.due_ms), job.expires_ms, job.error,
        job.cancelled and job.state is not JobState.DEAD,
    )  # fmt: skip

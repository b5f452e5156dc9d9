"""Both tiers on real servers, step by step: producers, workers, movers and operators that stop and die anywhere.

Every operation that takes more than one step can be killed between any two of them, or held there while others go on
(a mover that lost its lease, a producer that commits late). Time passes only when the machine says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace.cold.audit import Drift
from headrace.cold.mover import Mover, MoverOptions
from headrace.errors import DatabaseUnavailable, SpillRefused, UnknownQueue
from headrace.model.event import Op
from headrace.model.job import JobState, LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import Connection, Pool
from headrace.queue import keys
from headrace.queue.client import QueueOptions
from headrace.queue.scripts import IdChange, WarmCaps
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import connect
from headrace.valkey.scripts import run
from tests.audits import run_audit
from tests.conftest import ODD_NAMES, wait_until
from tests.model.clock import HOUR_MS, server_ms
from tests.model.fold import Fold, differences, read_envs, read_events
from tests.model.stepping import NOWHERE, LateSync, SteppedClient, SteppedTiers, Stop, Walk
from tests.model.tiers_contents import Row, World, check_postgres, check_warm, read_both
from tests.model.tiers_truth import Call, Job, JobStatus, TiersTruth

NEAR_MS = HOUR_MS // 2  # waits in Valkey if there is room
FAR_MS = HOUR_MS  # does not
LEASE_S = 3600.0  # of movers: ends when the machine says so
LOCK_MS = 30  # how long a process stopped in a transaction blocks others before they are refused
TABLES = "cold_queues, cold_movers, cold_queue_entries, cold_details, cold_spills, cold_quarantine, dead_jobs, cold_ids"

END_SESSIONS = (
    "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
)

REFS = (
    ODD_NAMES,
    QueueRef(ODD_NAMES.org, ODD_NAMES.project, ODD_NAMES.env, "b:moving"),
    QueueRef("o", "p", "e", "cold"),
)
IDS = 8  # of each queue: so few that producers ask for the same one
ENVS = [REFS[0].environment, REFS[2].environment]


def make_id(ref: QueueRef, number: int) -> str:
    """Return an id. The two queues of one environment share half of theirs."""
    return f"{ENVS.index(ref.environment)}:{number + REFS.index(ref) * IDS // 2}"


refs = st.sampled_from([REFS[0], REFS[0], *REFS])
slots = st.integers(0, 1)
all_caps = st.builds(
    WarmCaps,
    items=st.sampled_from([1, 2, 3, 5, 10]),
    bytes=st.sampled_from([60, 1000, 2**20]),
    shard_bytes=st.sampled_from([0, 0, 120]),
)
stops = st.one_of(
    st.just(NOWHERE),
    st.just(NOWHERE),
    st.builds(Stop, after=st.integers(1, 30), crash=st.booleans(), syncs_late=st.booleans()),
    st.builds(Stop, after=st.integers(1, 8), crash=st.booleans()),
    st.just(Stop(syncs_late=True)),
)


@dataclass(frozen=True)
class JobSpec:
    """A job that a producer is about to enqueue."""

    id: int
    padding: int
    delay_ms: int
    priority: int
    ttl_ms: int | None
    max_attempts: int
    flow: str

    def job(self, ref: QueueRef, number: int) -> NewJob:
        payload = f"{number}.".encode() + b"x" * self.padding
        return NewJob(
            "send",
            payload,
            make_id(ref, self.id),
            self.delay_ms,
            self.priority,
            self.ttl_ms,
            self.max_attempts,
            flow=self.flow,
        )


job_specs = st.builds(
    JobSpec,
    id=st.integers(1, IDS),
    padding=st.sampled_from([0, 0, 10, 70]),
    delay_ms=st.sampled_from([0, 0, 0, 0, 0, NEAR_MS, FAR_MS]),
    priority=st.sampled_from([0, 0, 0, 0, 2]),
    ttl_ms=st.sampled_from([None, None, HOUR_MS]),
    max_attempts=st.integers(1, 2),
    flow=st.sampled_from(["", "f:1"]),
)


Act = tuple[str, int]
acts = st.tuples(
    st.sampled_from(["work", "work", "visit", "visit", "take over", "ask", "ask", "ask for many", "cancel", "redrive"]),
    st.integers(1, IDS),
)
rarely = st.sampled_from([False, False, False, True])


class Complaints(logging.Handler):
    """A mover goes on when one queue fails, so what failed is only in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == "mover_failed":
            self.heard.append(self.format(record))


class TiersMachine(RuleBasedStateMachine):
    def __init__(self, valkey_url: str, pools: Sequence[Pool], observer: Connection) -> None:
        """`pools`: of the two movers and the client."""
        super().__init__()
        self.valkey_url = valkey_url
        self.pools = pools
        self.observer = observer
        observer.execute(f"TRUNCATE {TABLES}")
        self.valkey = connect(valkey_url)
        self.valkey.flushall()
        self.complaints = Complaints()
        logging.getLogger("headrace.cold.mover").addHandler(self.complaints)
        self.paused: list[tuple[Walk, Callable[[Walk], None]]] = []
        self.late: list[LateSync] = []
        self.leases: list[LeasedJob] = []
        self.names = self.leader = 0
        self.tiers: list[SteppedTiers] = []

    @initialize(caps=all_caps, batch=st.sampled_from([1, 2, 500]), first=job_specs)
    def begin(self, caps: WarmCaps, batch: int, first: JobSpec) -> None:
        """More jobs than fit, in one queue: chance alone takes long to bring that."""
        self.options = QueueOptions(shards=1, caps=caps)
        self.stubs = self.options.make_stubs()
        self.mover_options = MoverOptions(lease_s=LEASE_S, batch=batch)
        self.truth = TiersTruth(caps)
        self.tiers = [SteppedTiers(self.valkey_url, pool, self.options, FAR_MS) for pool in self.pools]
        self.client = SteppedClient(self.valkey_url, self.options, self.tiers[2])
        self.movers = [self.new_mover(slot) for slot in range(2)]
        self.see()
        self.take_over(0)
        many = [
            JobSpec(number + 1, first.padding, 0, 0, None, 1, first.flow) for number in range(min(IDS, caps.items + 3))
        ]
        self.enqueue(REFS[0], many, NOWHERE)

    def teardown(self) -> None:
        try:
            if self.tiers:
                self.drain()
        finally:
            for walk, _ in self.paused:
                walk.go(Stop(1, crash=True))
            logging.getLogger("headrace.cold.mover").removeHandler(self.complaints)
            for tiers in self.tiers:
                tiers.close()
            if self.tiers:
                self.client.close()
            self.valkey.close()

    # Operations that walk

    def walk(self, name: str, do: Callable[[], Any], stop: Stop, end: Callable[[Walk], None]) -> None:
        """Resume an operation until it ends or stops; `end` is called with its result, now or later."""
        self.go_on(Walk(name, do), stop, end)

    def go_on(self, walk: Walk, stop: Stop, end: Callable[[Walk], None]) -> None:
        self.last_walk = walk.go(stop)
        self.late += walk.late
        walk.late.clear()
        self.see()
        if not walk.ended:
            self.paused.append((walk, end))
            return
        if not walk.crashed and isinstance(walk.error, DatabaseUnavailable | SpillRefused):
            assert self.paused or walk.paused, f"{walk.name}: {walk.error}"
        elif walk.error and not walk.crashed and not isinstance(walk.error, UnknownQueue):
            raise walk.error
        end(walk)

    @precondition(lambda self: self.paused)
    @rule(data=st.data(), stop=stops)
    def go_on_with_a_paused_one(self, data: st.DataObject, stop: Stop) -> None:
        walk, end = self.paused.pop(data.draw(st.integers(0, len(self.paused) - 1), "which"))
        self.go_on(walk, stop, end)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def late_sync_arrives(self, data: st.DataObject) -> None:
        self.arrive(self.late.pop(data.draw(st.integers(0, len(self.late) - 1), "which")))
        self.see()

    def arrive(self, sync: LateSync) -> None:
        run(self.valkey, self.stubs.sync_cold(sync.ref, sync.numbers, sync.gone))
        freed = [IdChange(job_id, token, "remove") for job_id, token in sync.numbers.freed_ids]
        run(self.valkey, self.stubs.settle_ids(sync.ref.environment, freed))

    # Producers

    @rule(ref=refs, wanted=st.lists(job_specs, min_size=1, max_size=6), stop=stops)
    def enqueue(self, ref: QueueRef, wanted: list[JobSpec], stop: Stop) -> None:
        jobs = [spec.job(ref, next(self.truth.numbers)) for spec in wanted]
        call, before = self.truth.begin_enqueue(ref, jobs), self.world
        self.walk(
            "enqueue",
            lambda: self.client.enqueue_many(ref, jobs),
            stop,
            lambda walk: self.finish_enqueue(walk, call, before),
        )

    def finish_enqueue(self, walk: Walk, call: Call, before: World) -> None:
        if walk.crashed:
            return self.truth.give_up(call)
        refused = isinstance(walk.error, SpillRefused)
        accepted = walk.error.accepted if isinstance(walk.error, SpillRefused) else walk.answer
        if not walk.paused and not refused:
            self.check_answers(call, accepted, before)
        self.truth.answer(call, accepted)

    def check_answers(self, call: Call, accepted: Sequence[bool], before: World) -> None:
        """The same id twice in an environment is one job. (Ids of jobs that were moved to Valkey, or are gone, may
        still be registered: their process died before it freed them.)"""
        env, named = call.ref.environment, set[str]()
        rows = [row for row in before.rows.values() if row.ref.environment == env]
        used = {row.job_id for row in rows if row.seq not in before.moving} | before.list_used_ids(env)
        used |= {row.job_id for row in before.dead.values() if row.ref.environment == env}
        unclear = {row.job_id for row in rows} | before.list_registered_ids(env)
        for job, was_accepted in zip(call.jobs, accepted, strict=True):
            if job.new.id in named | used:
                assert not was_accepted, f"{job} was there already"
            elif job.new.id not in unclear:
                assert was_accepted, f"{job} was refused"
            named.add(job.new.id)

    @rule(ref=refs, number=st.integers(1, IDS), stop=stops)
    def cancel(self, ref: QueueRef, number: int, stop: Stop) -> None:
        job_id = make_id(ref, number)
        if any(job.overdue and job.new.id == job_id for job in self.truth.list_with_status(JobStatus.WAITING)):
            return  # the reason of its end is unknown
        self.truth.cancelling[job_id] += 1
        before = self.world

        def end(walk: Walk) -> None:
            self.truth.cancelling[job_id] -= 1
            if not walk.error and not walk.paused:
                assert walk.answer in self.cancel_answers(ref, job_id, before)

        self.walk("cancel", lambda: self.client.cancel(ref.environment, job_id), stop, end)

    def cancel_answers(self, ref: QueueRef, job_id: str, before: World) -> list[JobState | None]:
        if warm := next((job for job in before.warm.values() if job.job_id == job_id), None):
            return [JobState(warm.state)]
        row = next((row for row in before.rows.values() if row.job_id == job_id), None)
        if row and row.seq not in before.moving:
            return [JobState.SCHEDULED if row.delayed else JobState.COLD]
        dead = any(row.job_id == job_id for row in before.dead.values())
        return [None, JobState.DEAD] if dead and row else [JobState.DEAD if dead else None]

    @rule(ref=refs, number=st.integers(1, IDS))
    def get(self, ref: QueueRef, number: int) -> None:
        job_id = make_id(ref, number)
        found, world = self.client.get(ref.environment, job_id), self.world
        if any(row.job_id == job_id and row.seq in world.moving for row in world.rows.values()):
            return  # a row that is about to be deleted may still be seen
        expected = [state for state in self.cancel_answers(ref, job_id, world) if state]
        if not expected and world.is_done(ref.environment, job_id):
            expected = [JobState.DONE]
        assert [found.state] == expected if found else not expected

    # Workers

    @rule(n=st.sampled_from([1, 2, 50]))
    def dequeue(self, n: int) -> None:
        jobs = run(self.valkey, self.stubs.dequeue(0, n, HOUR_MS))
        for job in jobs:
            self.truth.start(job)
        self.leases = (self.leases + jobs)[-30:]
        self.see()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), keep=st.booleans())
    def ack(self, data: st.DataObject, keep: bool) -> None:
        self.report_done(self.some_leases(data), keep=keep)

    def report_done(self, jobs: Sequence[LeasedJob], *, keep: bool) -> None:
        held = [self.truth.held(job) for job in jobs]
        answer = run(self.valkey, self.stubs.ack(0, [(job, 1) for job in jobs], HOUR_MS if keep else 0))
        assert answer == [job is not None for job in held]
        for job in filter(None, held):
            self.truth.done(job)
        self.see()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, HOUR_MS]))
    def nack(self, data: st.DataObject, delay_ms: int) -> None:
        jobs = self.some_leases(data)
        held = [self.truth.held(job) for job in jobs]
        answer = run(self.valkey, self.stubs.nack(0, [(job, delay_ms, "boom") for job in jobs]))
        for job in filter(None, held):
            self.truth.failed(job)
        assert answer == [0 if job is None else 2 if job.status is JobStatus.DEAD else 1 for job in held]
        self.see()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        jobs = self.some_leases(data)
        held = [self.truth.held(job) for job in jobs]
        assert run(self.valkey, self.stubs.bury(0, [(job, "") for job in jobs])) == [job is not None for job in held]
        for job in filter(None, held):
            self.truth.failed(job, buried=True)
        self.see()

    def some_leases(self, data: st.DataObject) -> list[LeasedJob]:
        numbers = st.integers(0, len(self.leases) - 1)
        return [self.leases[i] for i in data.draw(st.lists(numbers, min_size=1, max_size=4, unique=True), "leases")]

    # The sweeper

    @rule()
    def sweeper_turns(self) -> None:
        now = server_ms(self.valkey)
        scheduled = [job for job in self.world.warm.values() if job.state == "scheduled"]
        due = [self.truth.jobs[job.number] for job in scheduled if float(job.fields["due"]) <= now]
        assert run(self.valkey, self.stubs.release(0, 1000)) == len(due)
        for job in due:
            self.truth.released(job)
        run(self.valkey, self.stubs.expire(0, 1000))
        self.see()

    @precondition(lambda self: self.truth.list_with_status(JobStatus.RUNNING))
    @rule(data=st.data())
    def workers_die(self, data: st.DataObject) -> None:
        running = self.truth.list_with_status(JobStatus.RUNNING)
        self.lose_leases(data.draw(st.lists(st.sampled_from(running), min_size=1, unique_by=id), "jobs"))

    def lose_leases(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.valkey.hdel(keys.job(0, job.ref.environment, job.new.id), "unbegun")  # their workers had begun them
            self.valkey.zadd(keys.leases(0), {keys.job_part(job.ref.environment, job.new.id): 1})
        assert run(self.valkey, self.stubs.reclaim(0, 1000)) == len(jobs)
        for job in jobs:
            self.truth.lost_its_worker(job)
        self.see()

    # Time passes, but not while an operation is in progress: it would use an older time.

    @precondition(lambda self: not self.paused)
    @rule(data=st.data())
    def a_job_becomes_due(self, data: st.DataObject) -> None:
        if delayed := self.delayed_jobs():
            self.make_due([data.draw(st.sampled_from(delayed), "job")])
            self.see()

    def delayed_jobs(self) -> list[Job]:
        now = server_ms(self.valkey)
        warm = {job.number for job in self.world.warm.values() if job.state == "scheduled"}
        cold = {row.number for row in self.world.rows.values() if row.values["due_ms"] > now}
        return [self.truth.jobs[number] for number in sorted(warm | cold)]

    def make_due(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            due = int(server_ms(self.valkey)) - 1000.0
            self.observer.execute("UPDATE cold_queue_entries SET due_ms = %s WHERE seq = %s", [due, job.row])
            warm = self.world.warm.get(job.number)
            if warm and warm.state == "scheduled":
                self.valkey.zadd(keys.scheduled(0), {keys.job_part(job.ref.environment, job.new.id): due})
                self.valkey.hset(keys.job(0, job.ref.environment, job.new.id), "due", str(due))

    @precondition(lambda self: not self.paused)
    @rule(data=st.data())
    def a_ttl_ends(self, data: st.DataObject) -> None:
        if mortal := [job for job in self.truth.list_with_status(JobStatus.WAITING, JobStatus.RUNNING) if job.has_ttl]:
            job = data.draw(st.sampled_from(mortal), "job")
            self.observer.execute("UPDATE cold_queue_entries SET expires_ms = 1 WHERE seq = %s", [job.row])
            if job.number in self.world.warm:
                self.valkey.hset(keys.job(0, job.ref.environment, job.new.id), "expires", 1)
                if job.status is JobStatus.WAITING:
                    self.valkey.zadd(keys.expiries(0), {keys.job_part(job.ref.environment, job.new.id): 1})
            job.overdue = True
            self.see()

    # Movers

    def new_mover(self, slot: int) -> Mover:
        self.names += 1
        return Mover(self.tiers[slot], self.mover_options, f"mover {self.names}")

    @rule(slot=slots)
    def take_over(self, slot: int) -> None:
        """Expire the leader's lease and let a new mover acquire it. The old mover has not noticed; if it was in a
        transaction, PostgreSQL has ended that before."""
        wait_until(lambda: not self.observer.execute(END_SESSIONS).fetchall(), "it has ended", every_s=0.001)
        self.valkey.delete(keys.mover(0))
        self.movers[slot] = self.new_mover(slot)
        self.movers[slot].renew_leadership()
        self.leader = slot

    @rule(slot=slots, ref=refs, stop=stops)
    def visit(self, slot: int, ref: QueueRef, stop: Stop) -> None:
        mover = self.movers[slot]
        self.walk("visit", lambda: mover.refill_queue(ref), stop, lambda walk: self.moved(walk, slot, mover))

    @rule(slot=slots, stop=stops)
    def sweep(self, slot: int, stop: Stop) -> None:
        mover = self.movers[slot]
        self.walk("sweep", lambda: mover.sweep(0), stop, lambda walk: self.moved(walk, slot, mover))

    def moved(self, walk: Walk, slot: int, mover: Mover) -> None:
        if walk.crashed and self.movers[slot] is mover:
            self.movers[slot] = self.new_mover(slot)
        assert self.complaints.heard == []

    @rule(slot=slots, stop=stops)
    def audit(self, slot: int, stop: Stop) -> None:
        self.walk("audit", lambda: run_audit(self.tiers[slot], 0), stop, self.audited)

    def audited(self, walk: Walk) -> None:
        """Counters change together with what they count: nothing is ever off."""
        assert walk.error or walk.answer == Drift()

    # Operators

    @rule(ref=refs, stop=stops)
    def redrive(self, ref: QueueRef, stop: Stop) -> None:
        self.truth.redriving[ref] += 1

        def end(walk: Walk) -> None:
            self.truth.redriving[ref] -= 1

        self.walk("redrive", lambda: self.client.redrive(ref), stop, end)

    # Stories: what chance alone rarely brings together

    @rule(
        first=st.sampled_from(["visit", "visit", "ask", "redrive"]),
        stop=st.builds(Stop, after=st.integers(1, 20), crash=st.booleans(), syncs_late=rarely),
        then=st.lists(acts, min_size=1, max_size=5),
        end=st.builds(Stop, syncs_late=st.booleans()),
        last=st.lists(acts, min_size=1, max_size=4),
    )
    def meanwhile(self, first: str, stop: Stop, then: list[Act], end: Stop, last: list[Act]) -> None:
        """A process is killed or stopped within an operation while others continue."""
        self.work()
        self.tell_story(first, stop, then, end, last)

    def tell_story(self, first: str, stop: Stop, then: list[Act], end: Stop, last: list[Act]) -> bool:
        """Whether the first one had as many steps as `stop` says."""
        paused = [*self.paused]
        self.act((first, 1), stop)
        stopped = self.last_walk.crashed or not self.last_walk.ended
        for one in then:
            self.act(one, NOWHERE)
        for walk in [walk for walk in self.paused if walk not in paused]:
            self.paused.remove(walk)
            self.go_on(walk[0], end, walk[1])
        for one in last:
            self.act(one, NOWHERE)
        return stopped

    def act(self, act: Act, stop: Stop) -> None:
        what, number = act
        ref = REFS[0]
        if what == "work":
            self.work()
        elif what == "visit":
            self.visit(self.leader, ref, stop)
        elif what == "take over":
            self.take_over(1 - self.leader)
            self.visit(self.leader, ref, stop)
        elif what == "ask":
            self.enqueue(ref, [JobSpec(number, 0, 0, 0, None, 1, "")], stop)
        elif what == "ask for many":
            self.enqueue(ref, [JobSpec(number, 0, 0, 0, None, 1, "") for number in range(1, IDS + 1)], stop)
        elif what == "cancel":
            self.cancel(ref, number, stop)
        else:
            self.redrive(ref, stop)

    def work(self) -> None:
        """Everything that is ready is done, so there is room."""
        self.dequeue(50)
        if held := [job for job in self.leases if self.truth.held(job)]:
            self.report_done(held, keep=False)

    # Checks

    def see(self) -> None:
        self.world = read_both(self.valkey, self.observer, {ref.environment for ref in REFS})
        if self.tiers:
            self.truth.see(self.world)
            check_warm(self.world, [*REFS])
            check_postgres(self.world)

    @rule()
    def recover(self) -> None:
        """Let all operations end and the leader run: then every counter must be exact."""
        while self.paused:
            walk, end = self.paused.pop()
            self.go_on(walk, NOWHERE, end)
        self.take_over(0)
        self.sweep(0, NOWHERE)
        self.check_what_waits()
        self.audit(0, NOWHERE)
        self.check_states()
        while self.late:  # its counters were correct once
            self.arrive(self.late.pop())
            self.see()
        self.check_states()
        self.audit(1, NOWHERE)
        self.check_states()
        assert not self.world.moving

    def check_what_waits(self) -> None:
        """After a mover's turn only those wait in PostgreSQL that are not due or find no room."""
        now, caps = server_ms(self.valkey), self.truth.caps
        for ref in REFS:
            rows = [row for row in self.world.waiting_rows().values() if row.ref == ref]
            for row in rows:
                assert row.delayed == (row.values["due_ms"] > now), row
            held = [job for job in self.world.list_jobs(ref) if job.state != "dead"]
            of_shard = sum(job.size for job in self.world.warm.values() if job.state != "dead")
            fullness = [len(held) / caps.items, sum(job.size for job in held) / caps.bytes]
            fullness += [of_shard / caps.shard_bytes] if caps.shard_bytes else []
            refilled = max(fullness) < 0.9 or not held  # the share of its environment may allow more
            waiting = sorted((row for row in rows if not row.delayed), key=rank)
            if not waiting:
                if max(fullness) <= 0.8:
                    assert not self.world.contents.sets.get(keys.cold(0), set()) & {keys.queue_part(ref).encode()}
            elif refilled:
                size, own = waiting[0].values["size"], sum(job.size for job in held)
                fits = own + size <= caps.bytes
                shard_fits = not caps.shard_bytes or of_shard + size <= caps.shard_bytes
                assert held, f"{ref} is empty and can take {waiting[0]}"
                assert not (fits and shard_fits), f"{waiting[0]} could be in Valkey"

    def check_states(self) -> None:
        states = {state.ref: state for state in read_states(self.valkey, 1)}
        for ref, state in states.items():
            self.check_state(ref, state)
        for env in {ref.environment for ref in states}:
            depth = sum(state.depth for ref, state in states.items() if ref.environment == env)
            assert read_envs(self.valkey, 0, [env])[env]["depth"] == depth
        envs = read_envs(self.valkey, 0, {ref.environment for ref in states})
        assert differences(Fold().add(read_events(self.valkey, 0)), states.values(), envs) == []

    def check_state(self, ref: QueueRef, state: QueueState) -> None:
        warm, truth = self.world.list_jobs(ref), self.truth
        rows = [row for row in self.world.waiting_rows().values() if row.ref == ref]
        ready = [float(job.fields["due"]) for job in warm if job.state == "ready"]
        cold = [row.values["due_ms"] for row in rows if not row.delayed]
        expected = {
            "depth": len(ready) + len(cold),
            "warm": len(ready),
            "cold": len(cold),
            "scheduled": len(truth.list_jobs(ref, JobStatus.WAITING)) - len(ready) - len(cold),
            "running": len(truth.list_jobs(ref, JobStatus.RUNNING)),
            "bytes": sum(job.size for job in truth.list_jobs(ref, JobStatus.WAITING, JobStatus.RUNNING)),
            "cold_bytes": sum(row.values["size"] for row in rows),
            "dead": len(truth.list_jobs(ref, JobStatus.DEAD)),
            "oldest_ms": min(map(int, ready + cold), default=None),
            "odometers": {op.value: total for op, total in truth.counts.get(ref, {}).items() if total},
        }
        assert {name: getattr(state, name) for name in expected} == expected, ref

    def drain(self) -> None:
        """Work until nothing waits. Every job that was accepted has come to one end."""
        self.recover()
        for _ in range(3 * len(self.truth.jobs) + 3):
            if not (alive := self.truth.list_with_status(JobStatus.WAITING, JobStatus.RUNNING)):
                break
            self.make_due(self.delayed_jobs())
            self.see()
            self.sweeper_turns()
            if running := [job for job in alive if job.status is JobStatus.RUNNING]:
                self.lose_leases(running)
            self.leases = []
            self.dequeue(50)
            if self.leases:
                self.report_done(self.leases, keep=False)
            self.sweep(0, NOWHERE)
        assert not self.truth.list_with_status(JobStatus.WAITING, JobStatus.RUNNING), "stranded"
        self.recover()
        assert not self.world.rows
        for state in read_states(self.valkey, 1):
            total = {op: state.odometers.get(op, 0) for op in Op}
            dead = total[Op.BURY] - total[Op.REDRIVE]
            assert (state.depth, state.scheduled, state.running, state.cold_mode) == (0, 0, 0, False)
            assert total[Op.ENQUEUE] == total[Op.ACK] + dead + total[Op.EXPIRE] + total[Op.CANCEL]


def rank(row: Row) -> tuple[int, float, int]:
    return -row.values["priority"], row.values["due_ms"], row.seq

"""plain_enqueue.lua, the short way through the enqueue script, does exactly what the other parts of the script do.

Two databases get the same calls at the same times, one without the short way. Replies, keys and events must be equal
after every call."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import count
from typing import Any, Literal, cast

import pytest

from headrace.errors import HeadraceError
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.bounds import StoredBounds, pack_bounds
from headrace.queue.quotas import pack_quotas
from headrace.queue.scripts import ColdCounters, IdChange, Stubs, WarmCaps
from headrace.valkey.connect import ScriptError, Valkey, connect
from headrace.valkey.scripts import Script, ScriptCall, run
from tests.model.valkey_contents import ValkeyContents, read_contents

PLAIN = (files("headrace.queue") / "lua" / "plain_enqueue.lua").read_text("utf-8")
COUNT_PLAIN = "if reply then redis.call('INCR', 'plain') return reply end"
TAKEN = "if reply then return reply end"
FIXED_TIME = """
local server = redis
local redis = setmetatable({}, { __index = server })
function redis.call(command, ...)
  if command ~= 'TIME' then return server.call(command, ...) end
  local seconds, micros = server.call('GET', 'now'):match('(%d+) (%d+)')
  return { seconds, micros }
end
"""
STUBS = Stubs(1, 1_000_000, WarmCaps(items=40, bytes=2000, shard_bytes=4000))
HOUR_MS = 3_600_000
REFS = [QueueRef("a", "app", "prod", "x"), QueueRef("a", "app", "prod", "y"), QueueRef("b", "app", "prod", "x")]


@dataclass
class Twins:
    """Two databases; `other` has no short way."""

    own: Valkey
    other: Valkey
    micros: int = 1_700_000_000_000_000
    running: list[LeasedJob] = field(default_factory=list[LeasedJob])

    def run(self, call: ScriptCall[Any]) -> Any:
        self.micros += 317
        answers: list[Any] = []
        for valkey, way in ((self.own, PLAIN.replace(TAKEN, COUNT_PLAIN)), (self.other, "")):
            valkey.set("now", f"{self.micros // 10**6} {self.micros % 10**6}")
            shebang, _, source = call.script.source.replace(PLAIN, way).partition("\n")
            script = Script(call.script.name, "\n".join([shebang, FIXED_TIME, source]), "")
            try:
                answers.append(run(valkey, replace(call, script=script, parse=keep_raw)))
            except (HeadraceError, ScriptError) as error:
                answers.append(str(error))
        assert answers[0] == answers[1]
        self.compare()
        return None if isinstance(answers[0], str) else call.parse(answers[0])

    def write(self, key: str, field: str, value: str | None) -> None:
        for valkey in (self.own, self.other):
            valkey.hset(key, field, value) if value is not None else valkey.hdel(key, field)

    def compare(self) -> None:
        own, other = read_contents(self.own), read_contents(self.other)
        own.strings.pop("plain", None)
        assert own == other
        assert read_events(self.own) == read_events(self.other)

    @property
    def taken(self) -> int:
        """Calls that took the short way."""
        return int(cast(Any, self.own.get("plain")) or 0)

    @property
    def contents(self) -> ValkeyContents:
        return read_contents(self.own)


def keep_raw(answer: Any) -> Any:
    return answer


def read_events(valkey: Valkey) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in cast(Any, valkey.xrange(keys.metrics(0)))]


@pytest.fixture
def twins(valkey: Valkey, valkey_url: str) -> Any:
    with connect(f"{valkey_url.removesuffix('/0')}/1") as other:
        yield Twins(valkey, other)


def test_the_short_way_is_part_of_the_script() -> None:
    source = STUBS.enqueue(REFS[0], []).script.source
    assert PLAIN in source
    assert TAKEN in PLAIN


def test_jobs_that_join_a_backlog_take_the_short_way(twins: Twins) -> None:
    for number in range(5):
        twins.run(STUBS.enqueue(REFS[0], [NewJob("t", b"body")] * (number % 2 + 1)))
    assert twins.taken == 2  # not the first call, which creates the queue, nor those with an id twice
    reply = twins.run(STUBS.enqueue(REFS[0], [NewJob("t", b"body"), NewJob("t", b"body")], 60_000))
    assert reply.accepted == [True, True]
    assert twins.taken == 3


@pytest.mark.parametrize(
    "job",
    [
        NewJob("t", delay_ms=1),
        NewJob("t", ttl_ms=HOUR_MS),
        NewJob("t", priority=1),
        NewJob("u"),
        NewJob("t", flow="f"),
        NewJob("t", b"x" * 2001),
        NewJob("t", id="known"),
    ],
)
def test_other_jobs_take_the_long_way(twins: Twins, job: NewJob) -> None:
    twins.run(STUBS.enqueue(REFS[0], [NewJob("t", id="known"), NewJob("t")]))
    twins.run(STUBS.enqueue(REFS[0], [job]))
    twins.run(STUBS.enqueue(REFS[0], [NewJob("t"), job]))
    assert twins.taken == 0


@pytest.mark.parametrize("change", ["pend", "set"])
def test_a_registered_id_takes_the_long_way(twins: Twins, change: Any) -> None:
    twins.run(STUBS.enqueue(REFS[0], [NewJob("t")]))
    twins.run(STUBS.settle_ids(REFS[0].environment, [IdChange("registered", "token", change)]))
    twins.run(STUBS.enqueue(REFS[0], [NewJob("t", id="free")]))
    assert twins.taken == 1
    for ids in (["registered"], ["also free", "registered"]):
        twins.run(STUBS.enqueue(REFS[0], [NewJob("t", id=job_id) for job_id in ids], 60_000))
    assert twins.taken == 1


SETTINGS: list[tuple[str, str, list[str | None]]] = [
    ("queue", "limit", [None, "1", "100"]),
    ("queue", "paused", [None, "1"]),
    ("queue", "closed", [None, "1"]),
    ("queue", "caps", [None, "10 1000", "1 1"]),
    ("env", "limit", [None, "1", "100"]),
    ("env", "burst", [None, "1.5"]),
    ("env", "quota", [None, pack_quotas({"warm_jobs": 5}), pack_quotas({"enqueue_rate": 1})]),
]


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_do_the_same_on_both_ways(twins: Twins, seed: int) -> None:
    """Of each seed at least some calls take the short way."""
    draw, ids = random.Random(seed), map(str, count())

    def make_job() -> NewJob:
        job = NewJob(draw.choice("ttttu"), b"x" * draw.choice([0, 1, 20, 100]), next(ids))
        odd = draw.random()
        if odd < 0.06:
            return replace(job, id=str(draw.randrange(30)))
        if odd < 0.1:
            return replace(job, delay_ms=1000)
        if odd < 0.14:
            return replace(job, ttl_ms=HOUR_MS)
        return replace(job, priority=5) if odd < 0.18 else job

    def enqueue() -> None:
        jobs = [make_job() for _ in range(draw.choice([1, 1, 1, 2, 5]))]
        far_ms = draw.choice([None, None, None, 60_000, 60_000, 0])
        twins.run(STUBS.enqueue(draw.choice(REFS), jobs, far_ms, with_bodies=draw.random() < 0.9))

    def dequeue() -> None:
        twins.running += twins.run(STUBS.dequeue(0, draw.randint(1, 6), HOUR_MS))

    def finish() -> None:
        draw.shuffle(twins.running)
        done, twins.running = twins.running[:4], twins.running[4:]
        if done and draw.random() < 0.3:
            twins.run(STUBS.bury(0, [(job, "no") for job in done]))
        elif done:
            twins.run(STUBS.ack(0, [(job, 1) for job in done]))

    def configure() -> None:
        kind, name, values = draw.choice(SETTINGS)
        ref = draw.choice(REFS)
        twins.run(STUBS.configure(ref if kind == "queue" else ref.environment, {name: draw.choice(values)}))

    def reset() -> None:
        for ref in REFS:
            twins.run(STUBS.configure(ref, dict.fromkeys(("limit", "paused", "closed", "caps"))))
            twins.run(STUBS.configure(ref.environment, dict.fromkeys(("limit", "burst", "quota"))))
            twins.write(keys.queue(0, ref), "cold", None)  # as if all cold jobs had been moved back

    def change_shard() -> None:
        bounds = pack_bounds(StoredBounds(*(draw.choice([None, 100, 3000]) for _ in range(4))))
        twins.write(keys.meta(0), "bounds", draw.choice([None, bounds, "malformed"]))
        enabled = draw.choice("01111")
        for valkey in (twins.own, twins.other):
            valkey.set(keys.metrics_enabled(0), enabled)

    def sync_cold() -> None:
        ref = draw.choice(REFS)
        epoch = twins.own.hget(keys.queue(0, ref), "epoch")
        if epoch:
            waiting = draw.choice([0, 0, 2])
            version = twins.micros
            counters = ColdCounters(int(cast(Any, epoch)), version, 1, waiting, 0, waiting * 9, 0, version, 0, 0, 0)
            twins.run(STUBS.sync_cold(ref, counters))

    def register() -> None:
        env, ids = draw.choice(REFS).environment, [str(draw.randrange(400)) for _ in range(3)]
        twins.run(STUBS.reserve_ids(env, ids, "token"))
        change: Literal["confirm", "remove"] = "confirm" if draw.random() < 0.7 else "remove"
        twins.run(STUBS.settle_ids(env, [IdChange(job_id, "token", change) for job_id in ids[1:]]))

    def move_clock() -> None:
        twins.micros += draw.choice([-2_000_000, 5_000_000, 60_000_000])

    steps = {
        enqueue: 60,
        dequeue: 12,
        finish: 12,
        configure: 4,
        reset: 6,
        change_shard: 1,
        sync_cold: 2,
        move_clock: 2,
        register: 3,
    }
    for step in draw.choices(list(steps), list(steps.values()), k=200):
        step()
    assert twins.taken >= 5
    assert twins.contents.hashes

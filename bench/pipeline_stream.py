"""Create stored metric streams of any length, for any number of queues.

The real queue runs a few hundred jobs of one queue, through Lua, from empty to empty. The events that it emitted are
then repeated under other names, with the event numbers, odometers and times that the queue would have used.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from bench.server import Bench
from headrace.model.event import COLUMNS, FIELD, SEPARATOR, VERSION
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import Stubs
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run

SHARDS = 2
EVENTS_PER_S = 5000  # rate of the events in a stored stream
WRITE = 10_000  # entries sent together
LEASE_MS = 60_000
NAMES = [column.name for column in COLUMNS]
AFTER_EPOCH = NAMES[NAMES.index("epoch") + 1 : NAMES.index("oldest_ms")]
AFTER_OLDEST = NAMES[NAMES.index("oldest_ms") + 1 :]


@dataclass(frozen=True)
class Step:
    """An event of the pattern, without the parts that depend on time and queue."""

    op: str
    n: int
    counted: int  # odometer within the pattern, including this event
    gauges: str
    age_ms: int | None  # age of the oldest waiting job
    rest: str


@dataclass(frozen=True)
class Pattern:
    steps: list[Step]
    totals: Counter[str]  # per verb, of one pass

    def packed(self, number: int, seq: int, names: str, epoch: int, at_ms: int) -> str:
        """Return the event of a queue's step: the pattern repeats, and odometers continue."""
        times, place = divmod(number, len(self.steps))
        step = self.steps[place]
        odometer = times * self.totals[step.op] + step.counted
        oldest = "" if step.age_ms is None else at_ms - step.age_ms
        head = f"{VERSION}\t{seq}\t{names}\t{step.op}\t{step.n}\t{odometer}\t{epoch}"
        return f"{head}\t{step.gauges}\t{oldest}\t{step.rest}"


def record_pattern(bench: Bench, db: int) -> Pattern:
    """Record the events of jobs enqueued one by one and in bulk, dequeued one and several at a time; one fails once."""
    ref = QueueRef("org", "project", "env", "queue")
    with SyncClient(bench.url(db), QueueOptions(shards=SHARDS)) as client:
        stubs = client.options.make_stubs()
        for bulk in (1, 5, 20):
            for _ in range(10):
                client.enqueue(ref, NewJob("send", b"x" * 200))
            client.enqueue_many(ref, [NewJob("send", b"x" * 200) for _ in range(bulk)])
            for count in (1, 1, 1, 1, 2, 3, 5, 10, 20):
                _work(client.redis, stubs, ref, count)
            while _work(client.redis, stubs, ref, 10):
                pass
        stream = keys.metrics(stubs.find_shard(ref))
        entries: Any = client.redis.xrange(stream)
        client.redis.flushdb()
    totals: Counter[str] = Counter()
    steps: list[Step] = []
    for entry_id, fields in entries:
        values = dict(zip(NAMES, fields[FIELD.encode()].decode().split(SEPARATOR), strict=True))
        totals[values["op"]] += int(values["n"])
        steps.append(
            Step(
                op=values["op"],
                n=int(values["n"]),
                counted=totals[values["op"]],
                gauges=SEPARATOR.join(values[name] for name in AFTER_EPOCH),
                age_ms=int(entry_id.split(b"-")[0]) - int(values["oldest_ms"]) if values["oldest_ms"] else None,
                rest=SEPARATOR.join(values[name] for name in AFTER_OLDEST),
            )
        )
    return Pattern(steps, totals)


def _work(redis: Valkey, stubs: Stubs, ref: QueueRef, most: int) -> int:
    shard = stubs.find_shard(ref)
    jobs = run(redis, stubs.dequeue(shard, most, LEASE_MS))
    failed = [job for job in jobs[:1] if most == 5 and job.attempt == 1]
    if failed:
        run(redis, stubs.nack(shard, [(job, 0, "fails once") for job in failed]))
    if done := [(job, 3) for job in jobs if job not in failed]:
        run(redis, stubs.ack(shard, done))
    return len(jobs)


@dataclass
class Queues:
    """Queues that emit events in turn; each in its own environment, so that the environment's values are those of the
    queue."""

    kind: str
    count: int
    epoch: int
    names: list[list[str]] = field(init=False)  # per shard
    turns: list[int] = field(default_factory=lambda: [0] * SHARDS)

    def __post_init__(self) -> None:
        self.names = [[] for _ in range(SHARDS)]
        for number in count():
            env = EnvRef(self.kind, "shop", f"env-{number}")
            own = self.names[env.shard(SHARDS)]
            if len(own) < self.count // SHARDS:
                own.append(SEPARATOR.join((env.org, env.project, env.env, "emails")))
            if all(len(own) == self.count // SHARDS for own in self.names):
                return


@dataclass(frozen=True)
class Segment:
    """Entries added to the streams: the positions they follow, and their number."""

    after: list[str]  # per shard
    events: int
    counts: Counter[str]  # per verb


class Stream:
    """Streams of both shards, as a queue would have written them since `start_ms`."""

    def __init__(self, redis: Valkey, pattern: Pattern, start_ms: int) -> None:
        self._redis = redis
        self._pattern = pattern
        self._seq = [0] * SHARDS
        self._last = ["0-0"] * SHARDS
        self._at_ms = start_ms

    def write(self, queues: Queues, events: int) -> Segment:
        """Add events at the rate EVENTS_PER_S. Earlier entries are removed, except for the last."""
        for shard in range(SHARDS):
            self._redis.xtrim(keys.metrics(shard), minid=self._last[shard], approximate=False)
        segment = Segment(list(self._last), events // SHARDS * SHARDS, Counter())
        for shard in range(SHARDS):
            self._send(self._commands(shard, queues, events // SHARDS, segment.counts))
        self._at_ms += events * 1000 // EVENTS_PER_S + 1
        return segment

    def write_now(self, queues: Queues, events: int) -> None:
        """Add events with the server's time."""
        at_ms = time.time_ns() // 1_000_000
        for shard in range(SHARDS):
            self._send(_xadd(shard, "*", self._next(shard, queues, at_ms, Counter())) for _ in range(events // SHARDS))

    def copy_to(self, db: int) -> None:
        """Copy both streams to another database atomically, replacing those there."""
        pipeline = self._redis.pipeline(transaction=True)
        for shard in range(SHARDS):
            pipeline.copy(keys.metrics(shard), keys.metrics(shard), destination_db=str(db), replace=True)
        pipeline.execute()

    def _commands(self, shard: int, queues: Queues, events: int, counts: Counter[str]) -> Iterator[bytes]:
        before, in_ms, per_s = 0, 0, EVENTS_PER_S // SHARDS
        for number in range(events):
            at_ms = self._at_ms + number * 1000 // per_s
            in_ms = in_ms + 1 if at_ms == before else 0
            before = at_ms
            self._last[shard] = f"{at_ms}-{in_ms}"
            yield _xadd(shard, self._last[shard], self._next(shard, queues, at_ms, counts))

    def _next(self, shard: int, queues: Queues, at_ms: int, counts: Counter[str]) -> str:
        names = queues.names[shard]
        number, turn = divmod(queues.turns[shard], len(names))
        queues.turns[shard] += 1
        self._seq[shard] += 1
        step = self._pattern.steps[number % len(self._pattern.steps)]
        counts[step.op] += step.n
        return self._pattern.packed(number, self._seq[shard], names[turn], queues.epoch, at_ms)

    def _send(self, commands: Iterator[bytes]) -> None:
        """Send packed commands without redis-py's packing, which would take most of the time."""
        pool = self._redis.connection_pool
        connection: Any = pool.get_connection()
        try:
            while chunk := list(islice(commands, WRITE)):
                connection.send_packed_command([b"".join(chunk)])
                for _ in chunk:
                    connection.read_response()
        finally:
            pool.release(connection)


def _xadd(shard: int, entry_id: str, packed: str) -> bytes:
    key = keys.metrics(shard)
    parts = ("XADD", key, entry_id, FIELD, packed)
    return "".join(["*5\r\n", *(f"${len(part)}\r\n{part}\r\n" for part in parts)]).encode("ascii")

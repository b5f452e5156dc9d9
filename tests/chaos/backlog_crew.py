"""The processes of the backlog run: python -m tests.chaos.backlog_crew ROLE NUMBER PLACES, the last as JSON.

Each prints its result as one line of JSON when it ends: producers when their jobs are accepted, the consumer when all
jobs are done, the others when they are stopped.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from headrace.cold.mover import Mover
from headrace.cold.tiers import Tiers
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.maintenance import TICK_MS
from headrace.queue.scripts import WarmCaps
from headrace.valkey.connect import connect
from headrace.valkey.scripts import run
from headrace.worker.options import WorkerOptions
from tests.model.fold import Fold, parse

REF = QueueRef("org", "project", "env", "backlog")
SHARDS = 2
SHARD = REF.environment.shard(SHARDS)
PAYLOAD_BYTES = 200
ENQUEUE = 2000  # jobs in one call
TAKE = 500  # jobs in one dequeue
SLOW_TAKE, SLOW_PAUSE_S = 10, 0.05
SAMPLE_EVERY_S = 0.003
MEMORY_EVERY_S = 0.1
FOLD_EVERY_S = 0.2
STUCK_S = 300.0
SLOW_SHARE = 10  # at most one in this many jobs is done before the consumer speeds up: the others are a backlog


@dataclass(frozen=True)
class Places:
    valkey: str
    postgres: str
    folder: str
    jobs: int
    cap: int
    producers: int

    @property
    def options(self) -> QueueOptions:
        return QueueOptions(shards=SHARDS, stream_maxlen=100_000_000, caps=WarmCaps(items=self.cap))

    def share(self, producer: int) -> int:
        return self.jobs // self.producers + (producer < self.jobs % self.producers)

    @property
    def fast(self) -> Path:
        """Once this file is there the consumer hurries."""
        return Path(self.folder) / "fast"


def stop_event() -> Event:
    stop = Event()

    def on_signal(*_: object) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    return stop


def produce(number: int, places: Places) -> dict[str, Any]:
    tiers = Tiers(places.valkey, places.postgres, places.options)
    wanted, began, refused = places.share(number), time.monotonic(), 0
    with SyncClient(places.valkey, places.options, tiers) as client:
        for start in range(0, wanted, ENQUEUE):
            numbers = range(start, min(start + ENQUEUE, wanted))
            payload = b"x" * PAYLOAD_BYTES
            accepted = client.enqueue_many(REF, [NewJob("send", payload, id=f"{number}-{n:07d}") for n in numbers])
            refused += accepted.count(False)
    return {"accepted": wanted - refused, "seconds": time.monotonic() - began}


def move(number: int, places: Places) -> dict[str, Any]:
    stop = stop_event()
    Mover(Tiers(places.valkey, places.postgres, places.options), name=f"mover-{number}").run_forever(stop)
    return {}


@dataclass
class Order:
    """The next job of each producer is the one after its last."""

    expected: list[int]
    done: int = 0
    out_of_order: int = 0

    def check(self, job: LeasedJob) -> None:
        producer, _, number = job.id.partition("-")
        self.out_of_order += self.expected[int(producer)] != int(number)
        self.expected[int(producer)] = int(number) + 1
        self.done += 1


def consume(_: int, places: Places) -> dict[str, Any]:
    """One worker, from the queue's point of view: it leases, then reports."""
    order, stubs, options = Order([0] * places.producers), places.options.make_stubs(), WorkerOptions()
    fast_since, slow_jobs, lost = None, 0, 0
    last = time.monotonic()
    with connect(places.valkey) as valkey:
        while order.done < places.jobs and time.monotonic() < last + STUCK_S:
            if fast_since is None and places.fast.exists():
                fast_since, slow_jobs = time.monotonic(), order.done
            if fast_since is None and order.done >= places.jobs // SLOW_SHARE:
                last = time.monotonic()
                time.sleep(SLOW_PAUSE_S)
                continue
            jobs = run(valkey, stubs.dequeue(SHARD, SLOW_TAKE if fast_since is None else TAKE, options.lease_ms))
            for job in jobs:
                order.check(job)
            if jobs:
                done = run(valkey, stubs.ack(SHARD, [(job, 0) for job in jobs], int(options.keep_done_s * 1000)))
                lost += done.count(False)
                last = time.monotonic()
                run(valkey, stubs.tick(SHARD, TICK_MS))
            if fast_since is None or not jobs:
                time.sleep(SLOW_PAUSE_S if fast_since is None else 0.002)
    seconds = time.monotonic() - (fast_since or last)
    return {
        "done": order.done,
        "out_of_order": order.out_of_order,
        "lost_leases": lost,
        "fast_jobs": order.done - slow_jobs,
        "fast_seconds": seconds,
    }


def sample(_: int, places: Places) -> dict[str, Any]:
    stop, key = stop_event(), keys.queue(SHARD, REF)
    samples = most = memory = 0
    next_memory = 0.0
    with connect(places.valkey) as valkey:
        while not stop.wait(SAMPLE_EVERY_S):
            numbers: Any = valkey.hmget(key, "ready", "warm_scheduled", "running")
            most = max(most, sum(int(number or 0) for number in numbers))
            samples += 1
            if time.monotonic() >= next_memory:
                next_memory = time.monotonic() + MEMORY_EVERY_S
                info: Any = valkey.info("memory")
                memory = max(memory, info["used_memory"])
    return {"samples": samples, "max_held": most, "peak_used_memory": memory}


def fold(_: int, places: Places) -> dict[str, Any]:
    """Reads the metric stream as it grows, and trims what it has read: memory is measured too."""
    stop, stream, folded = stop_event(), keys.metrics(SHARD), Fold()
    after = "-"
    with connect(places.valkey) as valkey:
        while True:
            stopping = stop.is_set()
            page: Any = valkey.xrange(stream, after, count=1000)
            for _, fields in page:
                folded.add([parse(fields[b"e"].decode())])
            if page:
                last = page[-1][0].decode()
                valkey.xtrim(stream, minid=last, approximate=False)
                after = f"({last}"
            elif stopping:
                break
            else:
                stop.wait(FOLD_EVERY_S)
    gauges = ("depth", "scheduled", "running", "bytes", "cold_depth")
    last_event = folded.last.get(REF)
    return {
        "counts": dict(folded.counts[REF]),
        "events": folded.events,
        "broken": folded.gaps + folded.odometer_breaks + folded.samples_missing,
        "last": {name: last_event[name] for name in gauges} if last_event else {},
    }


ROLES = {"producer": produce, "mover": move, "consumer": consume, "sampler": sample, "fold": fold}

if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    role, own_number, given = sys.argv[1:]
    where = Places(**json.loads(given))
    result = ROLES[role](int(own_number), where)
    (Path(where.folder) / f"{role}-{own_number}.json").write_text(json.dumps(result))

"""The chaos run itself, in any size: `streams.py` is its command, `test_streams_short.py` a small one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from headrace.embedded.process import GuardedProcess
from headrace.model.event import Op
from headrace.model.job import NewJob
from headrace.streams.broker import Broker, BrokerOptions
from headrace.streams.dead_letters import count_dead
from headrace.streams.depth import read_depth
from headrace.streams.watcher import WatchedGroup, make_watched_group
from headrace.valkey.connect import Valkey, connect
from tests.chaos.children import kill, stop_all
from tests.chaos.queue_processes import ROOT, started_valkey
from tests.chaos.queue_run import POLL_S
from tests.chaos.queue_tasks import EXECUTIONS, notes_url
from tests.model.fold import Fold, read_events

GROUP = "workers"
STREAMS = ("jobs", "browser:jobs")
GROUPS = tuple(make_watched_group(stream, GROUP, "default", "default", "streams") for stream in STREAMS)
MAX_ATTEMPTS = 1000  # a kill costs a delivery, and no job may be buried for that
BATCH = 100
PUBLISH_EVERY_S = 0.25
TELL_S = 240.0
LEAST_KILLS = 2

# Of every hundred jobs; the rest are notes.
LONG, SHAKY, HOPELESS, BROKEN = range(2), range(2, 12), range(12, 14), range(14, 15)


@dataclass(frozen=True)
class Report:
    jobs: int
    done: int  # jobs that were run to their end at least once, by the tasks' own notes
    executions: int  # such runs in all; a killed worker's jobs run again
    kills: int
    dead: int
    seconds: float
    lost: int  # published, and neither run nor a dead letter
    stuck: int  # not done with at the end
    wrongly_dead: int  # dead letters more, or fewer, than jobs that cannot be done
    doubled: int  # runs of one delivery more than one, and runs more than jobs and deliveries taken back explain
    count_differences: int  # between the events of the watcher, which is killed too, and the truth
    details: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        return not (self.lost or self.stuck or self.wrongly_dead or self.doubled or self.count_differences)


class Crew:
    """Worker processes and a watcher; those at the head of the row are killed now and then."""

    def __init__(self, workers: int, url: str, folder: Path) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._env = {
            "PYTHONPATH": path,
            "HEADRACE_REDIS_URL": url,
            "HEADRACE_STREAMS_LEASE": "2s",
            "HEADRACE_STREAMS_WATCH": ",".join(f"{stream}/{GROUP}" for stream in STREAMS),
            "HEADRACE_STREAMS_EVERY": "500ms",
            "HEADRACE_WORKER_HEARTBEAT": "500ms",
            "HEADRACE_WORKER_POLL": "50ms",
        }
        self._folder = folder
        self._started = 0
        self.kills = 0
        self._workers = [self._worker() for _ in range(workers)]
        self._watcher = self._watch()

    def _worker(self) -> GuardedProcess:
        options = [word for stream in STREAMS for word in ("--stream", stream)]
        return self._start("worker", "worker", "tests.chaos.streams_tasks:tasks", "--group", GROUP, *options)

    def _watch(self) -> GuardedProcess:
        return self._start("watcher", "streams", "watch")

    def _start(self, kind: str, *arguments: str) -> GuardedProcess:
        self._started += 1
        name = f"{kind}-{self._started}"
        command = [sys.executable, "-m", "headrace", *arguments]
        child = GuardedProcess(name, command, log_file=self._folder / f"{name}.log", env=self._env)
        child.start()
        return child

    def kill_one(self) -> None:
        kill(self._workers.pop(0))
        self._workers.append(self._worker())
        self.kills += 1
        if self.kills % 5 == 0:
            kill(self._watcher)
            self._watcher = self._watch()

    def stop_workers(self) -> None:
        stop_all(self._workers)
        self._workers = []

    def stop(self) -> None:
        stop_all([*self._workers, self._watcher])


class Producer:
    """Publishes jobs that are the same every time."""

    def __init__(self, client: Valkey) -> None:
        self._client = client
        self._broker = Broker(client, BrokerOptions(maxlen=1000))
        self.published: Counter[str] = Counter()
        self.jobs: list[str] = []

    def publish(self) -> None:
        """A hundred jobs, to the streams in turn; some are no jobs at all."""
        stream = STREAMS[len(self.jobs) // BATCH % len(STREAMS)]
        new = [self._job(number) for number in range(BATCH) if number not in BROKEN]
        self._broker.publish_many(stream, new)
        for _ in BROKEN:
            self._client.xadd(stream, {"json": "{broken"})
        self.jobs += [job.id for job in new] + [""] * len(BROKEN)
        self.published[stream] += BATCH

    def _job(self, number: int) -> NewJob:
        task = (
            "long" if number in LONG else "shaky" if number in SHAKY else "hopeless" if number in HOPELESS else "note"
        )
        return NewJob(task, b"x" * 100, id=f"{task}-{len(self.jobs)}-{number}", max_attempts=MAX_ATTEMPTS)

    @property
    def hopeless(self) -> int:
        return len(self.jobs) // BATCH * (len(HOPELESS) + len(BROKEN))


def run_chaos(
    seconds: float, workers: int, folder: Path, *, kill_every_s: float = 1.0, give_up_s: float = 300.0
) -> Report:
    with started_valkey(folder) as server, connect(url := server.url) as client:
        for stream in STREAMS:
            client.xgroup_create(stream, GROUP, id="0", mkstream=True)
        crew, producer = Crew(workers, url, folder), Producer(client)
        try:
            if not _wait(lambda: all(_is_reported(client, group) for group in GROUPS), TELL_S):
                raise RuntimeError("The watcher emits nothing; see its log.")  # counts begin with nothing
            began = time.monotonic()
            _disturb(client, producer, crew, seconds, kill_every_s, give_up_s)
            _wait(lambda: all(_load(client, group) == 0 for group in GROUPS), give_up_s)
            crew.stop_workers()
            _wait(lambda: not _differences(client, producer), TELL_S)
        finally:
            crew.stop()
        return _judge(client, url, producer, crew.kills, time.monotonic() - began)


def _disturb(
    client: Valkey, producer: Producer, crew: Crew, seconds: float, kill_every_s: float, give_up_s: float
) -> None:
    """Jobs come, and workers are killed while they do, until the time is over and enough were. No worker is killed
    before some job was done since the last one was: on a slow machine none would ever be."""
    began = time.monotonic()
    next_publish, next_kill, done = began, began + kill_every_s, 0
    while (now := time.monotonic()) < began + seconds or (crew.kills < LEAST_KILLS and now < began + give_up_s):
        if now >= next_publish:
            producer.publish()
            next_publish = now + PUBLISH_EVERY_S
        if now >= next_kill and (done_now := _counted(client, Op.ACK)) > done:
            crew.kill_one()
            done, next_kill = done_now, time.monotonic() + kill_every_s
        time.sleep(POLL_S)


def _wait(condition: Callable[[], bool], at_most_s: float) -> bool:
    deadline = time.monotonic() + at_most_s
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return met


def _counted(client: Valkey, op: Op) -> int:
    """By workers, of all groups."""
    found = [cast("bytes | None", client.hget(group.keys.list_all()[2], f"o:{op}")) for group in GROUPS]
    return sum(int(number or 0) for number in found)


def _load(client: Valkey, group: WatchedGroup) -> int | None:
    return read_depth(client, group.keys.stream, group.keys.group).load


def _folds(client: Valkey) -> list[Fold]:
    return [Fold().add(read_events(client, shard)) for shard in range(2)]


def _is_reported(client: Valkey, group: WatchedGroup) -> bool:
    return any(group.ref in fold.last for fold in _folds(client))


def _differences(client: Valkey, producer: Producer) -> list[str]:
    """What the events say, against what was published and what workers counted."""
    folds, found = _folds(client), list[str]()
    for group in GROUPS:
        counts = sum((fold.counts[group.ref] for fold in folds), Counter[str]())
        stats = cast("dict[bytes, bytes]", client.hgetall(group.keys.list_all()[2]))
        truth = {Op.ENQUEUE: producer.published[group.keys.stream]}
        truth |= {
            op: int(stats.get(f"o:{op}".encode(), 0)) for op in (Op.DEQUEUE, Op.ACK, Op.NACK, Op.BURY, Op.RECLAIM)
        }
        found += [f"{group.ref.queue} {op}: {counts[op]} told of {n}" for op, n in truth.items() if counts[op] != n]
    found += [f"shard {n}: {f.gaps} gaps, {f.odometer_breaks} breaks" for n, f in enumerate(folds) if f.odometer_breaks]
    return found


def _judge(client: Valkey, url: str, producer: Producer, kills: int, seconds: float) -> Report:
    with connect(notes_url(url)) as notes:
        noted = cast("dict[bytes, bytes]", notes.hgetall(EXECUTIONS))
    runs = {name.decode(): int(times) for name, times in noted.items()}  # by job and delivery
    executed = {name.rpartition("#")[0] for name in runs}
    jobs = [job for job in producer.jobs if job]
    dead = sum(count_dead(client, group.keys) for group in GROUPS)
    # What ran to its end runs again only if it was taken from its worker, which was killed or silent for too long.
    again = sum(runs.values()) - len(executed)
    doubled = sum(times - 1 for times in runs.values()) + max(0, again - _counted(client, Op.RECLAIM))
    details = _differences(client, producer)
    return Report(
        jobs=len(producer.jobs),
        done=len(executed),
        executions=sum(runs.values()),
        kills=kills,
        dead=dead,
        seconds=round(seconds, 1),
        lost=len(set(jobs) - executed),
        stuck=sum(load if (load := _load(client, group)) is not None else 1 for group in GROUPS),
        wrongly_dead=abs(dead - producer.hopeless),
        doubled=doubled,
        count_differences=len(details),
        details=details[:20],
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr chaos streams")
    parser.add_argument("--json", action="store_true", help="one line of JSON (the default, and all there is)")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder:
        report = run_chaos(given.seconds, given.workers, Path(folder))
    print(json.dumps(asdict(report)))
    sys.exit(0 if report.holds else 1)

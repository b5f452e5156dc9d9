"""The contenders of `./hr bench peers`: how their workers are started, and with which settings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

CONCURRENCY = "10"
PRODUCER = "bench.peer_programs.produce"
HEADRACE, HEADRACE_RAW, DRAMATIQ, BULLMQ = "headrace", "headrace-raw", "dramatiq", "bullmq"
OWN = (HEADRACE, HEADRACE_RAW)

Runtime = Literal["repository", "peers", "peers-redis6", "peers-redis5", "node"]
"""The environment in which a contender runs. Some Python peers require an older redis-py than the others."""

PYTHON_PEERS: Collection[Runtime] = ("peers", "peers-redis6", "peers-redis5")


@dataclass(frozen=True)
class Mode:
    """One way in which a worker runs tasks. `expected_per_s` only decides how many jobs a measurement takes."""

    name: str
    expected_per_s: int
    options: tuple[str, ...] = ()  # of the worker's command
    task: str = "count"


@dataclass(frozen=True)
class Contender:
    """One job queue. The first mode is its usual one: it is also measured idle and with tasks that burn CPU time.

    `processes` is the option of the worker's command that sets the number of processes; None: there is none, and the
    command is started once per process. `{number}` in the command is the number of that start.
    """

    name: str
    package: str
    module: str
    worker: tuple[str, ...]
    modes: tuple[Mode, ...]
    settings: str
    processes: str | None = None
    runtime: Runtime = "peers"
    acknowledges: bool = True

    def list_commands(self, mode: Mode, processes: int) -> list[list[str]]:
        """Return the worker commands, without the interpreter, that run a number of processes."""
        command = [*self.worker, *mode.options]
        if self.processes is not None:
            return [[*command, self.processes, str(processes)]]
        return [[part.format(number=number) for part in command] for number in range(processes)]


def _program(module: str) -> str:
    return f"bench.peer_programs.{module}"


CONTENDERS: Sequence[Contender] = (
    Contender(
        HEADRACE,
        "headrace",
        "headrace_app",
        ("-m", "headrace", "worker", f"{_program('headrace_app')}:app", "--concurrency", CONCURRENCY),
        (Mode("async", 16_000), Mode("threads", 6_000, task="count_sync")),
        "defaults, metric stream on; typed tasks, whose arguments are checked at enqueue and in the worker",
        runtime="repository",
        processes="--processes",
    ),
    Contender(
        HEADRACE_RAW,
        "headrace",
        "headrace_raw_app",
        ("-m", "headrace", "worker", f"{_program('headrace_raw_app')}:tasks", "--concurrency", CONCURRENCY),
        (Mode("async", 16_000), Mode("threads", 6_000, task="count_sync")),
        "the same without arguments: tasks take a `LeasedJob`; enqueues with `SyncClient` or `Client`",
        runtime="repository",
        processes="--processes",
    ),
    Contender(
        DRAMATIQ,
        "dramatiq",
        "dramatiq_app",
        ("-m", "dramatiq", _program("dramatiq_app"), "--threads", CONCURRENCY),
        (Mode("threads", 2_500),),
        "defaults",
        processes="--processes",
    ),
    Contender(
        "taskiq",
        "taskiq",
        "taskiq_app",
        (
            *("-m", "taskiq", "worker", f"{_program('taskiq_app')}:broker", "--log-level", "WARNING"),
            *("--max-async-tasks", CONCURRENCY, "--max-threadpool-threads", CONCURRENCY),
        ),
        (Mode("async", 3_000), Mode("threads", 2_000, task="count_sync")),
        "`RedisStreamBroker`, uvloop, no result backend",
        processes="--workers",
    ),
    Contender(
        "saq",
        "saq",
        "saq_app",
        ("-m", "saq", f"{_program('saq_app')}.settings"),
        (Mode("async", 2_300), Mode("threads", 1_500, task="count_sync")),
        "uvloop; plain functions in its pool of default size (processors + 4 threads)",
        processes="--workers",
        runtime="peers-redis6",
    ),
    Contender(
        "huey",
        "huey",
        "huey_app",
        ("-m", "huey.bin.huey_consumer", f"{_program('huey_app')}.huey", "--workers", CONCURRENCY, "--quiet"),
        (Mode("threads", 2_500, ("--worker-type", "thread")), Mode("greenlets", 2_800, ("--worker-type", "greenlet"))),
        "results off; blocking pop",
        acknowledges=False,
    ),
    Contender(
        "celery",
        "celery",
        "celery_app",
        (
            *("-m", "celery", "--app", _program("celery_app"), "worker", "--concurrency", CONCURRENCY),
            *("--loglevel", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"),
            *("--hostname", "worker{number}@localhost"),
        ),
        (Mode("threads", 800, ("--pool", "threads")), Mode("prefork", 900, ("--pool", "prefork"))),
        "results ignored; no gossip, mingle or heartbeats; prefork has 10 processes",
        runtime="peers-redis6",
    ),
    Contender(
        "arq",
        "arq",
        "arq_app",
        ("-m", "arq", f"{_program('arq_app')}.WorkerSettings"),
        (Mode("async", 1_000),),
        "uvloop, results off, `poll_delay` 0: polls without a pause",
        runtime="peers-redis5",
    ),
    Contender(
        "streaq",
        "streaq",
        "streaq_app",
        ("-m", _program("streaq_app")),
        (Mode("async", 1_200), Mode("threads", 1_000, task="count_sync")),
        "uvloop, results off",
    ),
    Contender(
        "rq",
        "rq",
        "rq_app",
        ("-m", "rq.cli", "worker", "--quiet"),
        (Mode("single", 400, ("--worker-class", "rq.worker.SimpleWorker")), Mode("fork", 60)),
        "results off; one job at a time: in the worker's process (`SimpleWorker`), or a fork per job, its default",
    ),
    Contender(
        BULLMQ,
        "bullmq",
        "bullmq",
        ("worker.cjs",),
        (Mode("async", 9_000),),
        "Node.js; `removeOnComplete`",
        runtime="node",
    ),
)

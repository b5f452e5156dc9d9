"""Measure one contender of `./hr bench peers` on an empty server: its producer, its workers, and both when idle."""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import time
from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.peer_contenders import PRODUCER, Contender, Mode
from bench.peer_environment import NODE_PROGRAMS, PeerRuntime
from bench.peer_programs import meter
from bench.report import percentile
from bench.server import ROOT, Bench
from headrace.embedded.process import GuardedProcess

POLL_S = 0.01
STUCK_S = 20.0
START_S = 30.0
STOP_S = 5.0
REPLY_S = 180.0
SETTLE_S = 1.0
IDLE_POLL_S = 0.5
BURN_TASK, TIMED_TASK = "burn", "timed"
PICKUP_GAP_S = (0.02, 0.05)
DB = 0


class ContenderFailed(Exception):
    """A contender cannot be measured; the message is the reason."""


@dataclass(frozen=True)
class Size:
    rounds: int = 2
    singles: int = 3000  # jobs enqueued one by one
    concurrent: int = 8000  # jobs enqueued concurrently
    bulk: int = 10_000  # jobs enqueued in bulk
    process_s: float = 3.0  # how long a worker is expected to process jobs
    burns: int = 1500  # jobs of 1 ms per worker process
    pickups: int = 150
    idle_s: float = 10.0


QUICK = Size(rounds=1, singles=1200, concurrent=3000, bulk=4000, process_s=1.2, burns=500, pickups=60, idle_s=3.0)


@dataclass(frozen=True)
class Processing:
    """Jobs per second, and CPU time per job in microseconds."""

    per_s: float
    worker_us: float
    server_us: float


class JobMeter:
    """Files in which the workers of one measurement count their jobs and record when they started."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        with (folder / meter.COUNTS).open("w+b") as file:
            file.truncate(meter.SLOTS * meter.SLOT_BYTES)
            self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def count_jobs(self) -> int:
        return sum(self._counts)

    def count_processes(self) -> int:
        """Return the number of processes that have run a job."""
        return sum(1 for jobs in self._counts if jobs)

    def read_pickups_ms(self) -> list[float]:
        starts = self.folder / meter.STARTS
        return [int(line) / 1e6 for line in starts.read_text("ascii").splitlines()] if starts.exists() else []


class Producer:
    """A process that sends the jobs of a contender."""

    def __init__(self, process: subprocess.Popen[bytes], log_file: Path) -> None:
        self._process = process
        self._log_file = log_file

    def request(self, do: str, task: str, jobs: int, **options: Any) -> dict[str, float]:
        """Run a command of `bench/peer_programs/produce.py` and return its reply. Raises ContenderFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"do": do, "task": task, "jobs": jobs, **options}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderFailed(f"the producer ended: {find_error(self._log_file)}") from None
        ready, _, _ = select.select([self._process.stdout], [], [], REPLY_S)
        reply = self._process.stdout.readline() if ready else b""
        if not reply:
            problem = "ended" if ready else f"did not {do} {jobs} jobs within {REPLY_S:g} s"
            raise ContenderFailed(f"the producer {problem}: {find_error(self._log_file)}")
        return json.loads(reply)


@dataclass(frozen=True)
class ContenderBench:
    """One contender on the server of a benchmark. `folder` takes its logs and counts."""

    bench: Bench
    contender: Contender
    runtime: PeerRuntime
    folder: Path

    def measure(self, size: Size, number: int, figures: dict[str, float]) -> None:
        """Run one round and add its results to `figures`, each as soon as it is known. Raises ContenderFailed."""
        self.bench.redis.flushall()
        usual, *others = self.contender.modes
        with self._produce() as producer:
            self._measure_enqueue(producer, usual, size, figures)
        self.bench.redis.flushall()  # a slow worker would need minutes for these jobs
        with self._produce() as producer:
            self._measure_usual_mode(producer, usual, size, number, figures)
            for mode in others:
                jobs = round(size.process_s * mode.expected_per_s)
                figures[f"process_{mode.name}_per_s"] = self._measure_run(producer, mode, mode.task, jobs, 1)
            for processes in (1, 2):
                jobs = size.burns * processes
                figures[f"burn_{processes}_per_s"] = self._measure_run(producer, usual, BURN_TASK, jobs, processes)

    def _measure_enqueue(self, producer: Producer, mode: Mode, size: Size, figures: dict[str, float]) -> None:
        for do, jobs in (("single", size.singles), ("concurrent", size.concurrent), ("bulk", size.bulk)):
            rates = producer.request(do, mode.task, jobs)
            figures.update({f"enqueue_{way}_per_s": rate for way, rate in rates.items()})

    def _measure_usual_mode(
        self, producer: Producer, mode: Mode, size: Size, number: int, figures: dict[str, float]
    ) -> None:
        """Measure processing, then the same worker when idle, then how fast it starts jobs."""
        jobs = round(size.process_s * mode.expected_per_s)
        producer.request("fill", mode.task, jobs)
        known = self._list_clients().keys()
        with self._work(mode, 1) as (workers, counts):
            done = self._wait_done(workers, counts, jobs, 1)
            figures[f"process_{mode.name}_per_s"] = done.per_s
            figures["worker_cpu_us"], figures["server_cpu_us"] = done.worker_us, done.server_us
            time.sleep(SETTLE_S)
            if number == 0:  # needs seconds, and varies little
                figures["idle_calls_per_s"] = self._measure_idle(size.idle_s, known)
            producer.request("pickup", TIMED_TASK, size.pickups, gap_s=PICKUP_GAP_S, seed=number)
            pickups = self._wait_pickups(workers, counts, size.pickups)
        figures["pickup_p50_ms"] = percentile(pickups, 0.5)
        figures["pickup_p95_ms"] = percentile(pickups, 0.95)

    def _measure_run(self, producer: Producer, mode: Mode, task: str, jobs: int, processes: int) -> float:
        """Enqueue jobs, then start workers, and return the jobs per second."""
        producer.request("fill", task, jobs)
        with self._work(mode, processes) as (workers, counts):
            return self._wait_done(workers, counts, jobs, processes).per_s

    @contextmanager
    def _produce(self) -> Generator[Producer]:
        node = self.contender.runtime == "node"
        program = [str(NODE_PROGRAMS / "produce.cjs")] if node else ["-m", PRODUCER, self.contender.module]
        log_file = self.folder / "producer.log"
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                [*self.runtime.command, *program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env={**os.environ, **self._make_env()},
                cwd=self.folder,
            )
        try:
            yield Producer(process, log_file)
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def _work(self, mode: Mode, processes: int) -> Generator[tuple[list[GuardedProcess], JobMeter]]:
        """Run workers. They end with the context, or with this process."""
        folder = self.folder / f"run-{time.monotonic_ns()}"
        counts = JobMeter(folder)
        env = {**self._make_env(), meter.FOLDER: str(folder)}
        with ExitStack() as stack:
            workers: list[GuardedProcess] = []
            for number, arguments in enumerate(self.contender.list_commands(mode, processes)):
                program = [str(NODE_PROGRAMS / arguments[0])] if self.contender.runtime == "node" else arguments
                worker = GuardedProcess(
                    f"{self.contender.name} worker",
                    [*self.runtime.command, *program],
                    log_file=folder / f"worker-{number}.log",
                    env=env,
                    cwd=folder,
                )
                worker.start()
                stack.callback(worker.stop, STOP_S)
                workers.append(worker)
            stack.callback(lambda: [worker.request_stop() for worker in workers])
            yield workers, counts

    def _make_env(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        url = self.bench.url(DB)
        return {"PYTHONPATH": path, meter.URL: url, "HEADRACE_REDIS_URL": url, "RQ_REDIS_URL": url, **self.runtime.env}

    def _wait_done(self, workers: Sequence[GuardedProcess], counts: JobMeter, total: int, processes: int) -> Processing:
        """Wait until all jobs ran, and measure from the moment at which every worker process had run one."""
        server = psutil.Process(self.bench.server.child.pid)
        first: tuple[float, int, float, float] | None = None
        everyone = False
        seen, seen_at = 0, time.perf_counter()
        while True:
            jobs, now = counts.count_jobs(), time.perf_counter()
            if jobs and not everyone and jobs < total:
                everyone = counts.count_processes() >= processes
                if first is None or everyone:
                    first = now, jobs, read_cpu_s(workers), read_process_cpu_s(server)
            if jobs >= total:
                if first is None:
                    raise ContenderFailed(f"{total} jobs are too few to measure")
                done = jobs - first[1]
                worker_s, server_s = read_cpu_s(workers) - first[2], read_process_cpu_s(server) - first[3]
                return Processing(done / (now - first[0]), worker_s / done * 1e6, server_s / done * 1e6)
            if jobs != seen:
                seen, seen_at = jobs, now
            limit = STUCK_S if jobs else START_S
            raise_if_stuck(workers, now - seen_at > limit, f"{jobs} of {total} jobs")
            time.sleep(POLL_S)

    def _wait_pickups(self, workers: Sequence[GuardedProcess], counts: JobMeter, total: int) -> list[float]:
        """Wait until all timed jobs started, and return their pick-up times in ms."""
        started = time.perf_counter()
        while len(pickups := counts.read_pickups_ms()) < total:
            late = time.perf_counter() - started > STUCK_S
            raise_if_stuck(workers, late, f"{len(pickups)} of {total} timed jobs")
            time.sleep(POLL_S)
        return pickups

    def _measure_idle(self, seconds: float, known: Collection[int]) -> float:
        """Return the commands per second of all connections except the known ones and this one.

        The server also counts the commands that scripts call. Connections that are closed count until they were last
        seen.
        """
        own = self.bench.redis.client_id()
        started = time.perf_counter()
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        initial = self._list_clients()
        while (passed := time.perf_counter() - started) < seconds:
            time.sleep(min(IDLE_POLL_S, seconds - passed))
            for client, commands in self._list_clients().items():
                if client not in known and client != own:
                    first.setdefault(client, initial.get(client, 0))
                    last[client] = commands
        return sum(last[client] - first[client] for client in last) / (time.perf_counter() - started)

    def _list_clients(self) -> dict[int, int]:
        """Return the number of commands that each connection of the server has sent."""
        clients: list[dict[str, str]] = self.bench.redis.client_list()
        return {int(client["id"]): int(client["tot-cmds"]) for client in clients}


def raise_if_stuck(workers: Sequence[GuardedProcess], late: bool, progress: str) -> None:
    for worker in workers:
        if late or worker.exit_code() is not None:
            problem = "made no progress" if late else f"ended with exit code {worker.exit_code()}"
            raise ContenderFailed(f"the {worker.name} {problem} after {progress}: {find_error(worker.log_file)}")


def find_error(log_file: Path) -> str:
    """Return the last line of a log that names an error, otherwise its last line."""
    lines = log_file.read_text("utf-8", errors="replace").strip().splitlines()
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["no output"])[-1].strip()


def read_cpu_s(workers: Sequence[GuardedProcess]) -> float:
    """Return the CPU time of workers and their child processes, including ended ones, in seconds.

    Raises ContenderFailed if a worker has ended.
    """
    total = 0.0
    for worker in workers:
        try:
            parent = psutil.Process(worker.pid)
        except (OSError, ValueError, psutil.NoSuchProcess):
            raise ContenderFailed(f"the {worker.name} ended: {find_error(worker.log_file)}") from None
        for process in (parent, *parent.children(recursive=True)):
            try:
                total += read_process_cpu_s(process)
            except psutil.NoSuchProcess:
                pass  # it ended in between, and its parent has its time
    return total


def read_process_cpu_s(process: psutil.Process) -> float:
    times: Any = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system

"""Options of a worker."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.queue.tasks import RegisteredTask
from headrace.runtime.backoff import Backoff


@dataclass(frozen=True)
class WorkerOptions:
    concurrency: int = 10
    prefetch: int = 100  # maximum number of prefetched jobs; see PREFETCH_S of core.py
    queues: tuple[str, ...] = ()  # names of the queues to serve, in every environment; empty: all
    poll_s: float = 5.0  # an idle worker dequeues after this long even if it was not woken
    lease_s: float = 30.0
    heartbeat_s: float = 5.0
    grace_s: float = 30.0  # how long running jobs may take to finish after a stop
    keep_done_s: float = 60.0
    retry_base_s: float = 1.0
    retry_max_s: float = 300.0
    max_hung_threads: int = 10  # with more threads beyond their time limit the worker finishes its jobs and ends
    process_memory: int | None = None  # bytes that a task of the process pool may allocate; None: no limit
    max_jobs: int | None = None  # the worker ends after this many jobs; None: never
    max_memory: int | None = None  # the worker ends when its process has more bytes in memory than this; None: never
    unknown_for_s: float = 3600.0  # a job whose task no worker has is deferred for this long, then buried

    @property
    def lease_ms(self) -> int:
        return int(self.lease_s * 1000)

    def retry_delay_ms(self, task: RegisteredTask, attempt: int) -> int:
        """Return the delay before a retry: exponential with full jitter, so that jobs that failed together are not
        retried together."""
        base = self.retry_base_s if task.retry_base_s is None else task.retry_base_s
        longest = self.retry_max_s if task.retry_max_s is None else task.retry_max_s
        return int(random.uniform(0, Backoff(base, longest_s=longest).full_delay_s(attempt)) * 1000)

"""Where a task's function runs: on the event loop, in a thread, or in a child process."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Awaitable
from functools import partial
from typing import cast

from headrace.model.job import CancelReason, LeasedJob
from headrace.queue.tasks import PROCESS, RegisteredTask, Tasks
from headrace.worker.failures import TaskRaisedExit, TimeLimitExceeded
from headrace.worker.processes import ProcessExecutor, check_handler
from headrace.worker.threads import ThreadExecutor

log = logging.getLogger(__name__)

MAX_ERROR_CHARS = 8000
MAX_REASON_CHARS = 300  # in the log; the whole error is stored with the job
CLOSE_S = 3.0  # how long child processes of a stopping worker have to end; its supervisor waits for the grace plus 5 s


class TaskRunner:
    """Runs up to `concurrency` functions outside of the event loop in each pool. Raises ValueError if a task of the
    process pool cannot be imported by its name."""

    def __init__(self, tasks: Tasks, concurrency: int, max_hung_threads: int, process_memory: int | None) -> None:
        for task in tasks.list_tasks():
            if task.pool == PROCESS:
                check_handler(task.handler)
        self._concurrency = concurrency
        self._process_memory = process_memory
        self._threads = ThreadExecutor(concurrency, max_hung_threads)
        self._processes: ProcessExecutor | None = None  # created when it is needed

    def describe_exhaustion(self) -> str:
        """Return why the worker should finish its jobs and exit, because too many threads hang; empty: it need not."""
        if not self._threads.is_exhausted:
            return ""
        return f"{self._threads.abandoned} threads exceeded their time limit and still run"

    async def run(self, task: RegisteredTask, job: LeasedJob) -> None:
        """Run a task's function. Raises what it raises, and TimeoutError if it takes longer than the task's time limit,
        which starts with the function."""
        if task.pool == PROCESS:
            if self._processes is None:
                self._processes = ProcessExecutor(self._concurrency, self._process_memory)
            await self._processes.run(task.handler, job, task.timeout_s)
        elif not task.is_async:
            try:
                await self._threads.run(partial(task.handler, job), task.timeout_s, f"task {task.name}, job {job.id}")
            except TimeLimitExceeded:
                job.cancel(CancelReason.TIMEOUT)  # its thread goes on and may call `check`
                raise
        else:
            await self._run_async(task, job)

    async def _run_async(self, task: RegisteredTask, job: LeasedJob) -> None:
        try:
            if task.timeout_s is None:
                await cast(Awaitable[None], task.handler(job))
            else:
                async with asyncio.timeout(task.timeout_s):
                    await cast(Awaitable[None], task.handler(job))
        except SystemExit as error:  # would end the event loop
            raise TaskRaisedExit(f"The task raised SystemExit: {error}") from error

    def can_cancel(self, task: RegisteredTask) -> bool:
        """Return whether cancelling `run` ends the task's function: not if it runs in a thread."""
        return task.is_async or task.pool == PROCESS

    async def close(self) -> None:
        """End child processes and idle threads. Threads whose function still runs end with the program."""
        self._threads.close()
        if self._processes is not None:
            await self._processes.close(CLOSE_S)


def log_failed_job(job: LeasedJob, error: BaseException, delay_ms: int | None) -> None:
    """Log one line for a failed job. `delay_ms`: until its retry; None: it is buried."""
    outcome = "it is buried" if delay_ms is None else f"retry in {delay_ms / 1000:.1f} s"
    reason = " ".join("".join(traceback.format_exception_only(error)).split())
    log.warning(
        "job %s failed (task %s, queue %s, attempt %d of %d); %s: %s",
        *(job.id, job.task, job.queue.queue, job.attempt, job.max_attempts, outcome, reason[:MAX_REASON_CHARS]),
        extra={"action": "job_failed"},
    )


def format_short_traceback() -> str:
    """Return the last MAX_ERROR_CHARS of the current traceback, which contain the reason. Lone surrogates are escaped,
    because no server accepts them."""
    error = sys.exc_info()[1]
    try:
        text = traceback.format_exc()
    except Exception:  # CPython 3.11 may fail while another thread formats one (python/cpython#106905)
        text = "".join(traceback.format_exception_only(error))
    return text[-MAX_ERROR_CHARS:].encode(errors="backslashreplace").decode()

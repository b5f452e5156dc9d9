"""Where a task's function runs: on the event loop, in a thread, or in a child process."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable
from functools import partial
from typing import cast

from headrace.model.job import AttemptRecord, CancelReason, LeasedJob
from headrace.queue.tasks import PROCESS, RegisteredTask, TaskRegistry
from headrace.runtime.loop import is_loop_running
from headrace.worker.failures import TaskRaisedExit, TimeLimitExceeded, format_traceback
from headrace.worker.processes import ProcessExecutor, check_handler
from headrace.worker.threads import ThreadExecutor

log = logging.getLogger(__name__)

MAX_ERROR_CHARS = 8000
MAX_REASON_CHARS = 300  # in the log; the whole error is stored with the job
CLOSE_S = 3.0  # how long child processes of a stopping worker have to end; its supervisor waits for the grace plus 5 s


class TaskRunner:
    """Runs up to `concurrency` functions outside of the event loop in each pool. Raises ValueError if a task of the
    process pool cannot be imported by its name."""

    def __init__(
        self, tasks: TaskRegistry, concurrency: int, max_hung_threads: int, process_memory: int | None
    ) -> None:
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

    async def run(self, task: RegisteredTask, job: LeasedJob) -> AttemptRecord | None:
        """Run a task's function, within `task.around` if there is one. Return the record that it returned; None for any
        other value. Raises what it raises, and TimeoutError if the function takes longer than the task's time limit,
        which starts with the function."""
        try:
            if task.around is None:
                result = await self._call(task, job)
            else:
                result = await task.around(job, partial(self._call, task, job))
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit would end the event loop, any other leave the job without a result
            if is_loop_running():  # else the event loop has ended and the coroutine is closed: GeneratorExit
                raise TaskRaisedExit(f"The task raised {type(error).__name__}: {error}") from error
            raise
        return result if isinstance(result, AttemptRecord) else None

    async def _call(self, task: RegisteredTask, job: LeasedJob) -> object:
        """Call a task's function where it belongs, under its time limit, and return its result. The result of a child
        process is an AttemptRecord or None."""
        if task.pool == PROCESS:
            if self._processes is None:
                self._processes = ProcessExecutor(self._concurrency, self._process_memory)
            return await self._processes.run(task.handler, job, task.timeout_s)
        if not task.is_async:
            try:
                label = f"task {task.name}, job {job.id}"
                return await self._threads.run(partial(task.handler, job), task.timeout_s, label)
            except TimeLimitExceeded:
                job.cancel(CancelReason.TIMEOUT)  # its thread goes on and may call `check`
                raise
        if task.timeout_s is None:
            return await cast(Awaitable[object], task.handler(job))
        async with asyncio.timeout(task.timeout_s):
            return await cast(Awaitable[object], task.handler(job))

    def can_cancel(self, task: RegisteredTask) -> bool:
        """Return whether cancelling `run` ends the task's function: not if it runs in a thread."""
        return task.is_async or task.pool == PROCESS

    async def close(self) -> None:
        """End child processes and idle threads. Threads whose function still runs end with the program."""
        self._threads.close()
        if self._processes is not None:
            await self._processes.close(CLOSE_S)


def log_failed_job(job: LeasedJob, error: BaseException, delay_ms: int | None) -> None:
    """Log one line for a failed job. `delay_ms`: until its retry; None: it is dead."""
    outcome = "it is dead" if delay_ms is None else f"retry in {delay_ms / 1000:.1f} s"
    reason = " ".join("".join(traceback.format_exception_only(error)).split())
    log.warning(
        "job %s failed (task %s, queue %s, attempt %d of %d); %s: %s",
        *(job.id, job.task, job.queue.queue, job.attempt, job.max_attempts, outcome, reason[:MAX_REASON_CHARS]),
        extra={"action": "job_failed"},
    )


def format_short_traceback(error: BaseException) -> str:
    """Return the last MAX_ERROR_CHARS of the traceback of `error`, which contain the reason. Lone surrogates are
    escaped, because no server accepts them."""
    text = format_traceback(error)
    return text[-MAX_ERROR_CHARS:].encode(errors="backslashreplace").decode()

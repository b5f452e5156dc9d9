"""Tasks of worker processes that show in which process a job ran."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from headrace import Tasks
from headrace.model.job import LeasedJob

tasks = Tasks()


@tasks.task()
def write_pid(job: LeasedJob) -> None:
    """Append the process id to the file that the payload names."""
    with Path(job.payload.decode()).open("a") as file:
        file.write(f"{os.getpid()}\n")


@tasks.task(retry_base_s=600)
def fail(job: LeasedJob) -> None:
    logging.getLogger("app").warning("about to fail")
    raise ValueError("no such address")


@tasks.task(pool="process")
def log_in_child(job: LeasedJob) -> None:
    """Log lines of two levels in a child process."""
    logging.getLogger("app").debug("hidden in %d", os.getpid())
    logging.getLogger("app").info("shown in %d", os.getpid())


@tasks.task(pool="process")
async def log_in_child_async(job: LeasedJob) -> None:
    log_in_child(job)

"""Tasks of a worker process whose threads hang."""

from __future__ import annotations

import threading

from headrace import Tasks
from headrace.model.job import LeasedJob

tasks = Tasks()


@tasks.task(timeout_s=0.05)
def hang(job: LeasedJob) -> None:
    threading.Event().wait(1000)

"""The worker's side of the tutorial: an `app.py` as anybody would write it."""

import json

from headrace import LeasedJob, Tasks

tasks = Tasks()


@tasks.task()
async def send_email(job: LeasedJob) -> None:  # an ordinary `def` runs in a thread
    print("to", json.loads(job.payload)["to"], "attempt", job.attempt)

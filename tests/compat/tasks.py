"""Tasks for the jobs in the archives (see tools/compat_tasks.py). All of them succeed if the payload is intact."""

from __future__ import annotations

from headrace import LeasedJob, Tasks

NAMES = ("succeed", "fail_once", "bury", "run_forever")

tasks = Tasks(plugin="compat")


def check_payload(job: LeasedJob) -> None:
    assert job.payload.decode() == f"{job.task} ü"


for name in NAMES:
    tasks.task(name)(check_payload)

"""huey without stored results. It pops jobs without acknowledgement: a job that runs during a crash is lost."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os

from huey import RedisHuey

from bench.peer_programs import meter

huey = RedisHuey("bench", url=os.environ[meter.URL], results=False)


@huey.task()
def count(payload: str) -> None:
    meter.count()


@huey.task()
def burn(payload: str) -> None:
    meter.burn()


@huey.task()
def timed(payload: str) -> None:
    meter.record_start(payload)


TASKS = {"count": count, "burn": burn, "timed": timed}


def send(task: str, payload: str) -> None:
    TASKS[task](payload)

"""Celery without stored results, otherwise at defaults."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os

from celery import Celery

from bench.peer_programs import meter

app = Celery("bench", broker=os.environ[meter.URL])
app.conf.task_ignore_result = True


@app.task(name="count")
def count(payload: str) -> None:
    meter.count()


@app.task(name="burn")
def burn(payload: str) -> None:
    meter.burn()


@app.task(name="timed")
def timed(payload: str) -> None:
    meter.record_start(payload)


TASKS = {"count": count, "burn": burn, "timed": timed}


def send(task: str, payload: str) -> None:
    TASKS[task].delay(payload)

"""RQ without stored results. A worker runs one job at a time, in a forked process or (SimpleWorker) in its own."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os

from redis import Redis
from rq import Queue

from bench.peer_programs import meter

queue = Queue(connection=Redis.from_url(os.environ[meter.URL]))


def count(payload: str) -> None:
    meter.count()


def burn(payload: str) -> None:
    meter.burn()


def timed(payload: str) -> None:
    meter.record_start(payload)


TASKS = {"count": count, "burn": burn, "timed": timed}


def send(task: str, payload: str) -> None:
    queue.enqueue(TASKS[task], payload, result_ttl=0)


def send_many(task: str, payloads: list[str]) -> None:
    queue.enqueue_many([Queue.prepare_data(TASKS[task], (payload,), result_ttl=0) for payload in payloads])

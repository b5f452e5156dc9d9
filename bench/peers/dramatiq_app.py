"""dramatiq with its default settings: one actor that does nothing."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

URL = "BENCH_DRAMATIQ_URL"

dramatiq.set_broker(RedisBroker(url=os.environ[URL]))


@dramatiq.actor
def noop(payload: str) -> None:
    pass

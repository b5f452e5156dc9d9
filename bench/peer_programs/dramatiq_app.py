"""dramatiq with its default settings: plain functions in threads. It has no call for many messages."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peer_programs import meter

dramatiq.set_broker(RedisBroker(url=os.environ[meter.URL]))


@dramatiq.actor
def noop(payload: str) -> None:
    """Do nothing, for `./hr bench queue`."""


@dramatiq.actor
def count(payload: str) -> None:
    meter.count()


@dramatiq.actor
def burn(payload: str) -> None:
    meter.burn()


@dramatiq.actor
def timed(payload: str) -> None:
    meter.record_start(payload)


ACTORS = {"count": count, "burn": burn, "timed": timed}


def send(task: str, payload: str) -> None:
    ACTORS[task].send(payload)

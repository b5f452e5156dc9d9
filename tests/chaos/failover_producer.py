"""A producer of the failover run: python -m tests.chaos.failover_producer NUMBER VALKEY POSTGRES FOLDER"""

from __future__ import annotations

import logging
import random
import signal
import sys
import time
from pathlib import Path
from threading import Event

from headrace.cold.tiers import Tiers
from headrace.errors import HeadraceError
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from tests.chaos.failover_plan import CAP, SHARDS, STREAM_MAXLEN, call_number, producer_file
from tests.chaos.tiers_notes import Notes

PAUSE_S = 0.02  # between two calls, at most
RETRY_S = 0.1

OPTIONS = QueueOptions(shards=SHARDS, stream_maxlen=STREAM_MAXLEN, caps=WarmCaps(items=CAP))


def produce(producer: int, client: SyncClient, notes: Notes, stop: Event) -> None:
    """Repeat each call under the same ids until it is answered, then note when it was accepted."""
    dice = random.Random()
    number = 0
    while not stop.is_set():
        ref, jobs = call_number(producer, number)
        try:
            client.enqueue_many(ref, jobs)
        except HeadraceError as error:
            logging.info("call %d: %s", number, error)
            stop.wait(RETRY_S)
            continue
        notes.write(number, time.time_ns() // 1_000_000)
        number += 1
        stop.wait(dice.uniform(0, PAUSE_S))


def main() -> None:
    producer, valkey, postgres, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
    stop = Event()

    def on_signal(*_: object) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    tiers = Tiers(valkey, postgres, OPTIONS) if postgres != "-" else None
    with SyncClient(valkey, OPTIONS, tiers) as client:
        produce(producer, client, Notes(producer_file(folder, producer)), stop)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    main()

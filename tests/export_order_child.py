"""A process that sends the records of a spool with several workers into a log file, until it is killed.

The order in the log is the order of arrival: a line is written by one system call, before the send returns. Sends take
random times and fail at random, before or after their line was written.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.export.destination import RetryableSendError, SendBatch, SendOrder
from headrace.export.exporter import Exporter, ExporterOptions
from headrace.runtime.backoff import Backoff
from headrace.spool.options import SpoolOptions
from headrace.spool.record import NewRecord, SpoolRecord
from headrace.spool.spool import Spool

WORKERS = 8
OPTIONS = ExporterOptions(
    workers=WORKERS, preparers=3, channel_size=16, backoff=Backoff(0.005, 2.0, 0.02), breaker_reset_s=0.01
)
REPORT = "report"


def build_batch(number: int) -> list[NewRecord]:
    """Return the records of a batch as the pipeline stores them: rows, then a report."""
    tokens = [f"{number}/rows/{part}" for part in range(number % 4)] + [f"{number}/{REPORT}"]
    return [NewRecord(token.encode(), token) for token in tokens]


class LogDestination:
    name = "log"
    dedup_window_blocks = 10_000

    def __init__(self, path: Path, failing: float = 0.2) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._failing = failing

    def get_order(self, record: SpoolRecord) -> SendOrder:
        if not record.token.endswith(REPORT):
            return SendOrder.ANY
        return SendOrder.IN_SEQUENCE if int(record.token.partition("/")[0]) % 5 == 0 else SendOrder.AFTER_EARLIER

    def prepare(self, record: SpoolRecord) -> Sequence[SendBatch]:
        return [SendBatch(record.payload, record.token)]

    def send(self, batch: SendBatch) -> None:
        time.sleep(random.random() * 0.004)
        if random.random() < self._failing / 2:
            raise RetryableSendError("refused", refused=True)
        os.write(self._handle, batch.token.encode() + b"\n")
        if random.random() < self._failing / 2:
            raise RetryableSendError("no response", outcome_unknown=True, refused=True)

    def split(self, record: SpoolRecord, batches: Sequence[SendBatch], refused: int) -> Sequence[NewRecord]:
        return ()

    def close(self) -> None:
        os.close(self._handle)


def main() -> None:
    folder = Path(sys.argv[1])
    with Spool.open(SpoolOptions(folder / "spool", segment_size=8192, meta_sync=0.1)) as spool:
        exporter = Exporter(spool, LogDestination(folder / "log"), OPTIONS)
        exporter.start()
        stop = threading.Event()
        while spool.stats().size and not stop.wait(0.01):
            pass
        exporter.stop()


if __name__ == "__main__":
    main()

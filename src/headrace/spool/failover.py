"""In-memory buffer for non-durable puts while the spool's disk cannot be written.

A durable put writes to the disk or raises an error. It never uses the buffer, because a record there is lost if the
process dies. Non-durable puts may use it: their callers prefer losing a record to waiting.

The buffer is bounded by records and bytes; the oldest records are evicted for new ones, and every loss is counted by
reason. Buffered records move to the spool a few at a time as soon as the disk can be written again. Records that were
put directly to the spool by then precede them, so order is not kept across a disk outage. With `keep_order`, a put that
finds buffered records first moves them to the spool, or joins them.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import SpoolDiskFull, SpoolError, SpoolWriteFailed
from headrace.spool.record import NO_PAIRS, NewRecord
from headrace.spool.spool import Spool

log = logging.getLogger(__name__)

DRAIN_EVERY_S = 5.0
DRAIN_RECORDS = 10  # per round, so that a disk that has just recovered is not flooded


@dataclass(frozen=True)
class FailoverStats:
    records: int
    bytes: int
    accepted: int
    drained: int
    lost: Mapping[str, int]  # by reason


class Failover:
    """Puts into a spool, or into memory if the disk fails and the put is not durable."""

    def __init__(
        self, spool: Spool, max_records: int = 1000, max_bytes: int = 256 * 2**20, *, keep_order: bool = False
    ) -> None:
        self._spool = spool
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._keep_order = keep_order
        self._lock = threading.Lock()
        self._order = threading.Lock()  # held while a record is on its way into the spool; taken before `_lock`
        self._waiting: deque[NewRecord] = deque()
        self._bytes = 0
        self._accepted = 0
        self._drained = 0
        self._lost: Counter[str] = Counter()

    def put(
        self,
        payload: bytes,
        *,
        token: str = "",
        meta: Mapping[str, str] = NO_PAIRS,
        marks: Mapping[str, str] = NO_PAIRS,
        durable: bool = True,
    ) -> int | None:
        """Put a record. Return its id; None if it is buffered in memory."""
        if durable:
            return self._spool.put(payload, token=token, meta=meta, marks=marks, durable=True)
        if marks:
            # A mark states that everything up to it is safe, which only the disk guarantees.
            raise ValueError("marks require a durable put")
        record = NewRecord(payload, token, meta)
        if not self._keep_order:
            return self._put_or_keep(record)
        with self._order:
            while self._drain_one():
                pass
            if self.stats().records:  # the disk still fails
                self._keep(record)
                return None
            return self._put_or_keep(record)

    def drain_once(self) -> int:
        """Move up to DRAIN_RECORDS buffered records into the spool. Return how many it accepted."""
        for drained in range(DRAIN_RECORDS):
            with self._order:
                if not self._drain_one():
                    return drained
        return DRAIN_RECORDS

    def run_forever(self, stop: threading.Event) -> None:
        while not stop.wait(DRAIN_EVERY_S):
            self.drain_once()

    def close(self) -> int:
        """Try once more to move every record into the spool. Return the number of records lost."""
        with self._order:
            while self._drain_one():
                pass
        with self._lock:
            lost = len(self._waiting)
            self._drop_oldest(lost, "shutdown")
        return lost

    def stats(self) -> FailoverStats:
        with self._lock:
            return FailoverStats(len(self._waiting), self._bytes, self._accepted, self._drained, dict(self._lost))

    def _put_or_keep(self, record: NewRecord) -> int | None:
        try:
            return self._spool.put(record.payload, token=record.token, meta=record.meta, durable=False)
        except (SpoolDiskFull, SpoolWriteFailed) as error:
            if len(record.payload) > self._max_bytes:
                raise
            self._keep(record)
            log.warning("keeping a record in memory until the disk recovers: %s", error, extra={"action": "failover"})
            return None

    def _keep(self, record: NewRecord) -> None:
        with self._lock:
            self._accepted += 1
            self._waiting.append(record)
            self._bytes += len(record.payload)
            self._make_room()

    def _drain_one(self) -> bool:
        with self._lock:
            if not self._waiting:
                return False
            record = self._waiting.popleft()
            self._bytes -= len(record.payload)
        try:
            self._spool.put(record.payload, token=record.token, meta=record.meta, durable=False)
        except SpoolError:
            self._requeue_first(record)
            return False
        with self._lock:
            self._drained += 1
        return True

    def _requeue_first(self, record: NewRecord) -> None:
        with self._lock:
            self._waiting.appendleft(record)
            self._bytes += len(record.payload)
            self._make_room()

    def _make_room(self) -> None:
        while len(self._waiting) > self._max_records or self._bytes > self._max_bytes:
            self._drop_oldest(1, "evicted")

    def _drop_oldest(self, count: int, reason: str) -> None:
        for _ in range(count):
            self._bytes -= len(self._waiting.popleft().payload)
        if count:
            self._lost[reason] += count
            log.error("lost %d records from failover memory (%s)", count, reason, extra={"action": "data_loss"})

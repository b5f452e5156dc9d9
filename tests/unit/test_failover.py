"""The memory failover, on a real spool whose disk fails on command."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import SpoolDiskFull, SpoolError, SpoolWriteFailed
from headrace.spool.failover import DRAIN_RECORDS, Failover
from headrace.spool.files import Files
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool


class BadDisk(Files):
    """`Files` whose writes fail with this error, if one is set."""

    error: int | None = None

    def write(self, handle: int, data: bytes) -> None:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        super().write(handle, data)


@pytest.fixture
def disk() -> BadDisk:
    return BadDisk()


@pytest.fixture
def spool(tmp_path: Path, disk: BadDisk) -> Iterator[Spool]:
    options = SpoolOptions(path=tmp_path / "spool", inmemory_blocks=0, block_timeout=0.0)  # every put needs the disk
    spool = Spool.open(options, files=disk)
    yield spool
    disk.error = None
    spool.close()


def payloads(spool: Spool) -> list[bytes]:
    found: list[bytes] = []
    while record := spool.lease():
        found.append(record.payload)
        spool.ack(record.id)
    return found


def names(count: int) -> list[bytes]:
    return [f"{number:02}".encode() for number in range(count)]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_put_that_need_not_be_durable_waits_in_memory_for_the_disk(spool: Spool, disk: BadDisk, error: int) -> None:
    failover = Failover(spool)
    disk.error = error
    for name in names(3):
        assert failover.put(name, token="t", meta={"a": "b"}, durable=False) is None
    assert failover.drain_once() == 0
    assert (failover.stats().records, failover.stats().bytes, failover.stats().lost) == (3, 6, {})
    disk.error = None
    assert failover.drain_once() == 3
    record = spool.lease()
    assert record is not None
    assert (record.payload, record.token, record.meta) == (b"00", "t", {"a": "b"})
    spool.release(record.id)
    assert payloads(spool) == names(3)
    assert (failover.stats().records, failover.stats().bytes) == (0, 0)
    assert (failover.stats().accepted, failover.stats().drained) == (3, 3)


@pytest.mark.parametrize(("error", "raised"), [(errno.ENOSPC, SpoolDiskFull), (errno.EIO, SpoolWriteFailed)])
def test_a_durable_put_never_does(spool: Spool, disk: BadDisk, error: int, raised: type[SpoolError]) -> None:
    failover = Failover(spool)
    disk.error = error
    with pytest.raises(raised):
        failover.put(b"x", durable=True)
    with pytest.raises(raised):
        failover.put(b"x")  # durable by default
    assert failover.stats().accepted == 0


def test_marks_are_for_durable_puts(spool: Spool) -> None:
    with pytest.raises(ValueError, match="durable"):
        Failover(spool).put(b"x", marks={"shard": "1-0"}, durable=False)


def test_the_oldest_make_room_and_are_counted(spool: Spool, disk: BadDisk) -> None:
    disk.error = errno.ENOSPC
    by_count, by_bytes = Failover(spool, max_records=4), Failover(spool, max_bytes=8)
    for name in names(10):
        by_count.put(name, durable=False)
        by_bytes.put(name, durable=False)
    assert by_count.stats().lost == by_bytes.stats().lost == {"evicted": 6}
    assert by_bytes.stats().bytes == 8
    with pytest.raises(SpoolDiskFull):
        by_bytes.put(b"larger than all of it", durable=False)
    disk.error = None
    by_count.close()
    assert payloads(spool) == names(10)[6:]


def test_a_disk_that_came_back_gets_a_few_at_a_time(spool: Spool, disk: BadDisk) -> None:
    failover = Failover(spool)
    disk.error = errno.ENOSPC
    for name in names(DRAIN_RECORDS + 5):
        failover.put(name, durable=False)
    disk.error = None
    assert [failover.drain_once(), failover.drain_once(), failover.drain_once()] == [DRAIN_RECORDS, 5, 0]
    assert payloads(spool) == names(DRAIN_RECORDS + 5)


def test_what_is_left_at_the_end_is_lost_and_counted(spool: Spool, disk: BadDisk) -> None:
    failover = Failover(spool)
    disk.error = errno.ENOSPC
    for name in names(3):
        failover.put(name, durable=False)
    assert failover.close() == 3
    assert failover.stats().lost == {"shutdown": 3}


def test_with_a_good_disk_nothing_goes_through_memory(spool: Spool) -> None:
    failover = Failover(spool)
    assert failover.put(b"x", durable=False)
    assert failover.stats().accepted == 0


def test_order_is_kept_across_a_disk_outage_if_asked_for(spool: Spool, disk: BadDisk) -> None:
    failover = Failover(spool, keep_order=True)
    first, *middle, late, last = names(6)
    failover.put(first, durable=False)
    disk.error = errno.EIO
    for name in middle:
        assert failover.put(name, durable=False) is None
    disk.error = None
    assert failover.put(late, durable=False)  # moves the others into the spool first
    assert failover.put(last, durable=False)
    assert payloads(spool) == names(6)
    assert (failover.stats().records, failover.stats().drained) == (0, 3)


def test_the_newest_records_survive_an_outage_that_outlasts_the_memory(spool: Spool, disk: BadDisk) -> None:
    failover = Failover(spool, max_records=2, keep_order=True)
    disk.error = errno.ENOSPC
    for name in names(5):
        failover.put(name, durable=False)
    disk.error = None
    failover.drain_once()
    assert payloads(spool) == names(5)[3:]
    assert failover.stats().lost == {"evicted": 3}

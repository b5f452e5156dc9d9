"""Measure the spool against the limit of the disk and other disk queues, the cost of a backlog, and how fast several
workers drain it.

The limit is a program that only compresses, checksums and appends to one file, and reads it back. Contenders alternate
in one run, several rounds each, on the same payloads (rows of JSON that snappy shrinks by a third to a half), with an
fsync every 100 records; persist-queue and diskcache have no such setting and run with their defaults. Rates are medians
over the rounds, ratios are medians of the ratios of each round.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.pop(0)  # this folder contains files named like modules of the standard library
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import json
import os
import shutil
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

import diskcache
import google_crc32c
import persistqueue
import psutil
from cramjam import snappy

from bench.report import Bar, finish, median_ratio, note, percentile
from headrace.export.destination import SendBatch, SendOrder
from headrace.export.exporter import Exporter, ExporterOptions
from headrace.spool.options import SpoolOptions
from headrace.spool.record import NewRecord, SpoolRecord
from headrace.spool.spool import Spool

SYNC_EVERY = 100
SMALL, LARGE = 1024, 65536
VARIETY = 64  # number of different payloads
BACKLOG_BYTES = 200
DRAIN_LATENCY_S = 0.05
DRAIN_WORKERS = 8

BARS = (
    Bar("put_ratio_vs_persist_queue", ">=", 8),
    Bar("put_ratio_vs_limit", ">=", 0.5),
    Bar("get_ratio_vs_limit", ">=", 0.5),
    Bar("put_64k_ratio_vs_limit", ">=", 0.5),
    Bar("get_64k_ratio_vs_limit", ">=", 0.5),
    Bar("backlog_growth_ratio", "<=", 1.5),
    Bar("drain_8_workers_vs_1", ">=", 6),
)


@dataclass(frozen=True)
class Size:
    rounds: int = 5
    small: int = 30_000  # records of 1 KiB
    large: int = 3000  # of 64 KiB
    peers: int = 3000  # of both sizes, for the slower contenders
    ram: int = 2000
    recovery_bytes: int = 2**29
    deep: int = 1_000_000
    bursts: int = 150
    drained: int = 400  # records per worker


QUICK = Size(rounds=2, small=10_000, large=600, peers=600, recovery_bytes=2**26, deep=100_000, bursts=50, drained=60)


@dataclass(frozen=True)
class Rates:
    """Records per second of one contender in one round."""

    put: float
    get: float
    get_one: float = 0.0


def payloads(size: int) -> list[bytes]:
    random = Random(size)
    return [rows(random, size) for _ in range(VARIETY)]


def rows(random: Random, size: int) -> bytes:
    lines: list[str] = []
    length = 0
    while length < size:
        row = {"queue": f"q{random.randrange(50)}", "at": 1_794_000_000_000 + random.randrange(10**6)}
        row |= {"depth": random.randrange(1000), "p50": random.random() * 100, "p99": random.random() * 1000}
        lines.append(json.dumps(row))
        length += len(lines[-1]) + 1
    return "\n".join(lines).encode()[:size]


@contextmanager
def folder() -> Generator[Path]:
    path = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def rate(count: int, do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return count / (time.perf_counter() - began)


# Contenders


def limit_rates(path: Path, given: Sequence[bytes], count: int) -> Rates:
    frame = struct.Struct("<II")
    file = path / "limit"

    def put() -> None:
        with file.open("wb") as out:
            for number in range(count):
                data = bytes(snappy.compress_raw(given[number % VARIETY]))
                out.write(frame.pack(len(data), google_crc32c.value(data)))
                out.write(data)
                if number % SYNC_EVERY == SYNC_EVERY - 1:
                    out.flush()
                    os.fdatasync(out.fileno())

    def get() -> None:
        with file.open("rb") as source:
            while head := source.read(frame.size):
                length, crc = frame.unpack(head)
                data = source.read(length)
                if google_crc32c.value(data) != crc:
                    raise ValueError("checksum")
                bytes(snappy.decompress_raw(data))

    return Rates(rate(count, put), rate(count, get))


def spool_options(path: Path, **others: Any) -> SpoolOptions:
    return SpoolOptions(path=path, max_size=10**8, max_bytes=2**40, **others)


def spool_rates(path: Path, given: Sequence[bytes], count: int) -> Rates:
    options = spool_options(path / "spool")
    spool = Spool.open(options)

    def put() -> None:
        for number in range(count):
            spool.put(given[number % VARIETY], durable=False)
            if number % SYNC_EVERY == SYNC_EVERY - 1:
                spool.flush()

    put_rate = rate(count, put)
    spool.close()
    half = count // 2
    with Spool.open(options) as spool:  # the memory layer is empty after reopening
        many = rate(half, lambda: drain(spool, half))
        one = rate(half, lambda: drain_one_by_one(spool, half))
        if spool.stats().size:
            raise AssertionError("records remain")
    return Rates(put_rate, many, one)


def drain(spool: Spool, count: int) -> None:
    left = count
    while left:
        records = spool.lease_many(min(SYNC_EVERY, left))
        spool.ack_many([record.id for record in records])
        left -= len(records)


def drain_one_by_one(spool: Spool, count: int) -> None:
    for _ in range(count):
        record = spool.lease()
        if record is None:
            raise AssertionError("the spool ran empty too early")
        spool.ack(record.id)


def persist_queue_rates(path: Path, given: Sequence[bytes], count: int) -> Rates:
    """Measure the file queue of persist-queue with its defaults."""
    queue: Any = persistqueue.Queue(str(path / "persist-queue"))

    def put() -> None:
        for number in range(count):
            queue.put(given[number % VARIETY])

    def get() -> None:
        for _ in range(count):
            queue.get()
            queue.task_done()

    return Rates(rate(count, put), rate(count, get))


def diskcache_rates(path: Path, given: Sequence[bytes], count: int) -> Rates:
    """Measure the Deque of diskcache with its defaults."""
    queue: Any = diskcache.Deque(directory=str(path / "diskcache"))

    def put() -> None:
        for number in range(count):
            queue.append(given[number % VARIETY])

    def get() -> None:
        for _ in range(count):
            queue.popleft()

    found = Rates(rate(count, put), rate(count, get))
    queue.cache.close()
    return found


def throughput(size: Size, record_bytes: int, count: int, suffix: str) -> dict[str, float]:
    contenders = {
        "limit": (limit_rates, count),
        "spool": (spool_rates, count),
        "persist_queue": (persist_queue_rates, size.peers),
        "diskcache": (diskcache_rates, size.peers),
    }
    given = payloads(record_bytes)
    found: defaultdict[str, list[Rates]] = defaultdict(list)
    for number in range(size.rounds):
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            run, records = contenders[name]
            with folder() as path:
                found[name].append(run(path, given, records))
            note(f"round {number + 1} of {size.rounds}, {record_bytes} bytes: {name} {found[name][-1]}")

    def of(name: str, verb: str) -> list[float]:
        return [getattr(rates, verb) for rates in found[name]]

    results = {f"{name}_{verb}{suffix}_per_s": median(of(name, verb)) for name in found for verb in ("put", "get")}
    results[f"spool_get_one{suffix}_per_s"] = median(of("spool", "get_one"))
    for other in ("limit", "persist_queue", "diskcache"):
        for verb in ("put", "get"):
            results[f"{verb}{suffix}_ratio_vs_{other}"] = median_ratio(of("spool", verb), of(other, verb))
    results[f"get_one{suffix}_ratio_vs_limit"] = median_ratio(of("spool", "get_one"), of("limit", "get"))
    return results


# Memory, recovery, backlog


def ram_put(size: Size) -> dict[str, float]:
    """Measure a put that is not durable and fits into memory."""
    payload = payloads(SMALL)[0]
    found: list[float] = []
    for _ in range(10):
        with folder() as path, Spool.open(spool_options(path / "spool")) as spool:
            spool.put(payload, durable=False)  # reserves sequence numbers

            def put(spool: Spool = spool) -> None:
                for _ in range(size.ram):
                    spool.put(payload, durable=False)

            found.append(1e6 / rate(size.ram, put))
    return {"ram_put_us": median(found)}


def recovery(size: Size) -> dict[str, float]:
    """Measure opening a directory that was not closed: everything in it is read and checked."""
    results: dict[str, float] = {}
    for record_bytes, suffix in ((SMALL, ""), (LARGE, "_64k")):
        given = payloads(record_bytes)
        with folder() as path:
            options = spool_options(path / "spool")
            with Spool.open(options) as spool:
                while spool.stats().disk_bytes < size.recovery_bytes:
                    spool.put_many([NewRecord(payload) for payload in given], durable=False)
                    spool.flush()
                stored = spool.stats().disk_bytes
            began = time.perf_counter()
            Spool.open(options).close()
            results[f"recovery{suffix}_s_per_gib"] = (time.perf_counter() - began) * 2**30 / stored
        note(f"recovery of {record_bytes} bytes: {results}")
    return results


def backlog(size: Size) -> dict[str, float]:
    """Measure alternating bursts of put, lease and ack on a spool with few and one with many waiting records. The
    memory layer is smaller than both backlogs, so that both read from disk."""
    payload = payloads(SMALL)[0][:BACKLOG_BYTES]
    with folder() as path:
        before = psutil.Process().memory_info().rss
        spools = {
            "small": Spool.open(spool_options(path / "small", inmemory_blocks=500)),
            "large": Spool.open(spool_options(path / "large", inmemory_blocks=500)),
        }
        for name, waiting in (("small", 1000), ("large", size.deep)):
            for _ in range(waiting // 1000):
                spools[name].put_many([NewRecord(payload)] * 1000)
        grown = psutil.Process().memory_info().rss - before
        note(f"{size.deep} records wait")
        costs: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(size.bursts):
            for name, spool in spools.items():
                costs[name].append(burst(spool, payload))
        for spool in spools.values():
            spool.close()
    # Other processes only ever add time to a burst.
    small, large = (percentile(costs[name], 0.1) for name in ("small", "large"))
    return {
        "backlog_small_us": small,
        "backlog_large_us": large,
        "backlog_growth_ratio": large / small,
        "backlog_bytes_of_memory_per_record": grown / size.deep,
    }


def burst(spool: Spool, payload: bytes) -> float:
    """Return the µs per record of put, flush, lease and ack."""
    began = time.perf_counter()
    for _ in range(SYNC_EVERY):
        spool.put(payload, durable=False)
    spool.flush()
    for _ in range(SYNC_EVERY):
        record = spool.lease()
        if record is not None:
            spool.ack(record.id)
    return (time.perf_counter() - began) / SYNC_EVERY * 1e6


# Draining with several workers


class SlowDestination:
    """Takes 50 ms per record. Every second record follows the earlier ones, as the pipeline's batches do."""

    name = "slow"
    dedup_window_blocks = 10_000

    def get_order(self, record: SpoolRecord) -> SendOrder:
        return SendOrder.ANY if record.id % 2 else SendOrder.AFTER_EARLIER

    def prepare(self, record: SpoolRecord) -> Sequence[SendBatch]:
        return [SendBatch(record.payload, str(record.id))]

    def send(self, batch: SendBatch) -> None:
        time.sleep(DRAIN_LATENCY_S)

    def split(self, record: SpoolRecord, batches: Sequence[SendBatch], refused: int) -> Sequence[NewRecord]:
        return ()

    def close(self) -> None:
        pass


def workers(size: Size) -> dict[str, float]:
    """Measure how fast one and eight workers drain a spool to a slow destination, in records per second."""
    found: dict[int, list[float]] = {1: [], DRAIN_WORKERS: []}
    for number in range(size.rounds):
        for count in list(found)[:: -1 if number % 2 else 1]:
            found[count].append(drain_rate(count, size.drained * count))
    results = {f"drain_{count}_workers_per_s": median(rates) for count, rates in found.items()}
    note(f"draining: {results}")
    return results | {"drain_8_workers_vs_1": median_ratio(found[DRAIN_WORKERS], found[1])}


def drain_rate(count: int, records: int) -> float:
    payload = payloads(SMALL)[0]
    with folder() as path, Spool.open(spool_options(path / "spool")) as spool:
        spool.put_many([NewRecord(payload)] * records)
        exporter = Exporter(spool, SlowDestination(), ExporterOptions(workers=count))

        def empty() -> None:
            exporter.start()
            while spool.stats().size:
                time.sleep(DRAIN_LATENCY_S / 10)

        try:
            return rate(records, empty)
        finally:
            exporter.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench spool", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="run a smaller benchmark, about a minute; write no record")
    given = parser.parse_args()
    size = QUICK if given.quick else Size()
    waiting = backlog(size)  # first, because it measures how much the process grows
    results = throughput(size, SMALL, size.small, "")
    results |= throughput(size, LARGE, size.large, "_64k")
    results |= ram_put(size)
    results |= recovery(size)
    results |= waiting
    results |= workers(size)
    finish("spool", results, BARS, json_only=given.json, record=not given.quick)


if __name__ == "__main__":
    main()

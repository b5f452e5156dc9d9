"""Scrapers that keep their connection and request compressed OpenMetrics, as Prometheus does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

REQUEST = (
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\n"
    b"Accept-Encoding: gzip\r\n\r\n"
)
LENGTH = b"content-length: "


def scrape(port: int, scrapers: int, rounds: int) -> list[float]:
    """Return the milliseconds of each scrape; in a round all scrapers send their request at once."""
    return asyncio.run(_scrape(port, scrapers, rounds))


async def _scrape(port: int, scrapers: int, rounds: int) -> list[float]:
    opened = [await asyncio.open_connection("127.0.0.1", port, limit=2**24) for _ in range(scrapers)]
    times_ms: list[float] = []
    for _ in range(rounds):
        times_ms += await asyncio.gather(*(_one(reader, writer) for reader, writer in opened))
    for _, writer in opened:
        writer.close()
    return times_ms


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    began = time.perf_counter()
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    lines: Sequence[bytes] = head.lower().split(b"\r\n")
    assert b" 200 " in lines[0], head
    [length] = [int(line.removeprefix(LENGTH)) for line in lines if line.startswith(LENGTH)]
    await reader.readexactly(length)
    return (time.perf_counter() - began) * 1000

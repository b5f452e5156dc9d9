"""Memory of the Valkey servers: what is used, what the limits are, and when they will be reached.

The forecast needs the growth over a window, which no single process measures: every reader of the memory adds a sample
to a list in each shard (at most one per SAMPLE_EVERY_MS), so that all have the same window, also a command that runs
for a second. Two limits are compared, and the one that is reached first is reported:

- `maxmemory` of the server, against the memory it uses. A server that reaches it accepts no new jobs.
- `shard_max_bytes`, the cap of Headrace on the payloads of a shard (queue.shard_max_bytes, or the stored bound). A
  shard that reaches it stores further jobs in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headrace.errors import NotPermitted
from headrace.queue import keys
from headrace.queue.bounds import parse_bounds
from headrace.queue.scripts import DEFAULT_CAPS, WarmCaps
from headrace.valkey.connect import Valkey, find_node, read_server_time_ms, translate_errors
from headrace.valkey.lease import script
from headrace.valkey.scripts import ScriptCall, run

SAMPLE_EVERY_MS = 30_000
MAX_SAMPLES = 120
WINDOW_MS = SAMPLE_EVERY_MS * MAX_SAMPLES
MIN_WINDOW_MS = 120_000
MIN_SAMPLES = 3
HORIZON_S = 30 * 24 * 3600.0
"""A limit that is further away than this counts as not approached: the growth is noise."""

MemoryLimit: TypeAlias = Literal["maxmemory", "shard_max_bytes"]
Unknown: TypeAlias = Literal["no limit", "short window", "no growth"]


@dataclass(frozen=True)
class MemorySample:
    at_ms: int  # by the server's clock
    used_bytes: int  # of the server
    payload_bytes: int  # of the shard


@dataclass(frozen=True)
class MemoryForecast:
    """When memory is full if it grows as it did over the window, and why this is unknown. The limit is the one that is
    reached first; if the time is unknown, the one that applies; None: there is none."""

    limit: MemoryLimit | None
    full_in_s: float | None = None
    growth_bytes_per_s: float | None = None  # of what the limit bounds; None: the window is too short
    unknown: Unknown | None = None


@dataclass(frozen=True)
class ShardPayloads:
    shard: int
    payload_bytes: int
    max_bytes: int | None  # None: no cap


@dataclass(frozen=True)
class ServerMemory:
    """Memory of one server, and of the shards that it holds."""

    shards: Sequence[ShardPayloads]
    used_bytes: int | None  # None: the server does not report it
    max_bytes: int | None  # None: no limit, or not reported
    forecast: MemoryForecast

    @property
    def name(self) -> str:
        """The shards that the server holds, for example `0-3,6`. Addresses are internal, and change in a failover."""
        return format_ranges([each.shard for each in self.shards])


def read_server_memory(client: Valkey, shards: int, caps: WarmCaps = DEFAULT_CAPS) -> list[ServerMemory]:
    """Read the memory of each server that holds a shard, and add a sample if one is due. `caps` apply to bounds that
    are not stored in Valkey. Raises QueueUnavailable."""
    with translate_errors():
        nodes = [find_node(client, keys.meta(shard)) for shard in range(shards)]
        by_server: dict[int, list[int]] = {}
        for shard, node in enumerate(nodes):
            by_server.setdefault(id(node), []).append(shard)
        return [_read_server(client, nodes[held[0]], held, caps) for held in by_server.values()]


def _read_server(client: Valkey, node: Valkey, held: Sequence[int], caps: WarmCaps) -> ServerMemory:
    info: Any = node.info("memory")
    used = _parse_bytes(info.get("used_memory"))
    most = _parse_bytes(info.get("maxmemory")) or None
    now_ms = read_server_time_ms(client, keys.meta(held[0]))
    shards: list[ShardPayloads] = []
    windows: list[list[MemorySample]] = []
    for shard in held:
        payloads = _read_payloads(client, shard, caps)
        shards.append(payloads)
        now = MemorySample(now_ms, used or 0, payloads.payload_bytes)
        windows.append([now, *read_samples(client, shard, now_ms)])
        if used is not None:
            _add_sample(client, shard, now)
    return ServerMemory(shards, used, most, forecast_server(shards, most if used is not None else None, windows))


def _read_payloads(client: Valkey, shard: int, caps: WarmCaps) -> ShardPayloads:
    fields: Any = client.hmget(keys.meta(shard), ["bytes", "bounds"])
    cap = parse_bounds(fields[1]).resolve_caps(caps).shard_bytes
    return ShardPayloads(shard, int(fields[0] or 0), cap or None)


def _add_sample(client: Valkey, shard: int, sample: MemorySample) -> None:
    text = f"{sample.used_bytes} {sample.payload_bytes}"
    call = ScriptCall(script("add_sample"), [keys.memory(shard)], [text, SAMPLE_EVERY_MS, MAX_SAMPLES, WINDOW_MS], bool)
    with suppress(NotPermitted):  # to a user that may only read; another process adds samples
        run(client, call)


def read_samples(client: Valkey, shard: int, now_ms: int) -> list[MemorySample]:
    """Return the samples of a shard within WINDOW_MS, newest first. Malformed ones are skipped; there are none for a
    user whose permissions were granted for an earlier release."""
    raw: Any = []
    with suppress(NotPermitted), translate_errors():
        raw = client.lrange(keys.memory(shard), 0, MAX_SAMPLES - 1)
    samples: list[MemorySample] = []
    for line in raw:
        with suppress(ValueError):
            at_ms, used, payload = map(int, line.split())
            if now_ms - WINDOW_MS <= at_ms <= now_ms:
                samples.append(MemorySample(at_ms, used, payload))
    return samples


def forecast_server(
    shards: Sequence[ShardPayloads], max_bytes: int | None, windows: Sequence[Sequence[MemorySample]]
) -> MemoryForecast:
    """Return the forecast of the limit that a server reaches first. `windows` are the samples of each shard, newest
    first, with the current values at the front. Pure."""
    every: list[MemoryForecast] = []
    if max_bytes is not None:
        used = [(each.at_ms, each.used_bytes) for each in windows[0]]
        every.append(forecast_limit("maxmemory", max_bytes, used))
    for each, window in zip(shards, windows, strict=True):
        if each.max_bytes is not None:
            payloads = [(sample.at_ms, sample.payload_bytes) for sample in window]
            every.append(forecast_limit("shard_max_bytes", each.max_bytes, payloads))
    known = [each for each in every if each.full_in_s is not None]
    if known:
        return min(known, key=lambda each: each.full_in_s or 0.0)
    return every[0] if every else MemoryForecast(None, unknown="no limit")


def forecast_limit(limit: MemoryLimit, most: int, window: Sequence[tuple[int, int]]) -> MemoryForecast:
    """Return when a value reaches `most` if it grows as over the window of (ms, bytes), whose first entry is the
    current value. The growth is the slope of a least-squares line. Pure."""
    current = window[0][1]
    if current >= most:
        return MemoryForecast(limit, 0.0, compute_slope(window))
    times = [at_ms for at_ms, _ in window]
    if len(window) < MIN_SAMPLES or max(times) - min(times) < MIN_WINDOW_MS:
        return MemoryForecast(limit, unknown="short window")
    growth = compute_slope(window) or 0.0
    if growth <= 0 or (most - current) / growth > HORIZON_S:
        return MemoryForecast(limit, growth_bytes_per_s=growth, unknown="no growth")
    return MemoryForecast(limit, (most - current) / growth, growth)


def compute_slope(points: Sequence[tuple[int, int]]) -> float | None:
    """Return the slope of the least-squares line through (ms, value), per second; None if all times are equal."""
    count = len(points)
    mean_at = sum(at_ms for at_ms, _ in points) / count
    mean_value = sum(value for _, value in points) / count
    spread = sum((at_ms - mean_at) ** 2 for at_ms, _ in points)
    if not spread:
        return None
    return 1000 * sum((at_ms - mean_at) * (value - mean_value) for at_ms, value in points) / spread


def format_ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges: `0-3,6`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, each)) for each in ranges)


def _parse_bytes(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None

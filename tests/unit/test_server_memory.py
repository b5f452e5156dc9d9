"""The forecast of when Valkey's memory is full."""

from __future__ import annotations

import pytest

from headrace.queue.server_memory import (
    HORIZON_S,
    MemoryForecast,
    MemorySample,
    ShardPayloads,
    compute_slope,
    forecast_limit,
    forecast_server,
    format_ranges,
)

NOW = 1_800_000_000_000
MIB = 2**20


def growing(start: int, per_s: float, samples: int = 10, every_s: int = 30) -> list[tuple[int, int]]:
    """Samples that grow steadily up to now, newest first."""
    ages = [every_s * number for number in range(samples)]
    return [(NOW - age * 1000, int(start - per_s * age)) for age in ages]


def test_steady_growth_reaches_the_limit_in_time() -> None:
    found = forecast_limit("maxmemory", 200 * MIB, growing(100 * MIB, MIB))
    assert (found.limit, found.unknown) == ("maxmemory", None)
    assert found.growth_bytes_per_s == pytest.approx(MIB)
    assert found.full_in_s == pytest.approx(100)


def test_noise_around_a_growing_line_does_not_hide_it() -> None:
    line = growing(100 * MIB, MIB)
    noisy = [(at_ms, value + (MIB if number % 2 else -MIB)) for number, (at_ms, value) in enumerate(line)]
    found = forecast_limit("maxmemory", 200 * MIB, noisy)
    assert found.growth_bytes_per_s == pytest.approx(MIB, rel=0.01)


@pytest.mark.parametrize("per_s", [0, -5, 10 * MIB / HORIZON_S / 2])
def test_no_growth_or_a_negligible_one_has_no_forecast(per_s: float) -> None:
    found = forecast_limit("maxmemory", 110 * MIB, growing(100 * MIB, per_s))
    assert (found.full_in_s, found.unknown) == (None, "no growth")


@pytest.mark.parametrize("window", [growing(5, 1, samples=2, every_s=600), growing(5, 1, samples=20, every_s=2)])
def test_a_short_window_has_no_forecast(window: list[tuple[int, int]]) -> None:
    assert forecast_limit("maxmemory", 100, window) == MemoryForecast("maxmemory", unknown="short window")


def test_memory_that_is_full_is_full_now() -> None:
    assert forecast_limit("maxmemory", 100, [(NOW, 100)]).full_in_s == 0


def sample(used: list[tuple[int, int]], payloads: list[tuple[int, int]]) -> list[MemorySample]:
    return [MemorySample(at, memory, payload) for (at, memory), (_, payload) in zip(used, payloads, strict=True)]


def test_the_limit_that_is_reached_first_is_reported() -> None:
    used = growing(100 * MIB, MIB)
    windows = [sample(used, growing(10 * MIB, 0)), sample(used, growing(10 * MIB, MIB))]
    shards = [ShardPayloads(0, 10 * MIB, 11 * MIB), ShardPayloads(1, 10 * MIB, 30 * MIB)]
    by_cap = forecast_server(shards, 200 * MIB, windows)
    assert (by_cap.limit, by_cap.full_in_s) == ("shard_max_bytes", pytest.approx(20))
    by_server = forecast_server(shards, 105 * MIB, windows)
    assert (by_server.limit, by_server.full_in_s) == ("maxmemory", pytest.approx(5))


def test_without_growth_the_limit_that_applies_is_named() -> None:
    still = sample(growing(MIB, 0), growing(MIB, 0))
    capped, free = ShardPayloads(0, MIB, 2 * MIB), ShardPayloads(0, MIB, None)
    assert forecast_server([capped], None, [still]).limit == "shard_max_bytes"
    assert forecast_server([capped], 9 * MIB, [still]).limit == "maxmemory"
    assert forecast_server([free], None, [still]) == MemoryForecast(None, unknown="no limit")


def test_slope_of_one_moment_is_unknown() -> None:
    assert compute_slope([(NOW, 1), (NOW, 5)]) is None
    assert compute_slope([(NOW, 5), (NOW - 2000, 1)]) == 2


def test_shards_are_named_as_ranges() -> None:
    assert format_ranges([0]) == "0"
    assert format_ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert format_ranges([]) == ""

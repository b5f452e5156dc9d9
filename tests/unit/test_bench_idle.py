"""The arithmetic of the benchmark of idle workers."""

from __future__ import annotations

import pytest
from bench.idle import BARS, ServerUsage, list_calls, summarize
from bench.report import find_missed

BEFORE = ServerUsage(at=100.0, cpu_s=5.0, connections=11, by_command={"evalsha": (10, 1000), "get": (5, 10)})
AFTER = ServerUsage(at=110.0, cpu_s=5.4, connections=12, by_command={"evalsha": (30, 201_000), "get": (5, 10)})


def test_usage_is_per_second_and_per_worker() -> None:
    results = summarize(BEFORE, AFTER, sent_per_s=6.0, workers=4)
    assert results == pytest.approx(
        {
            "workers": 4,
            "seconds": 10.0,
            "server_cpu_percent": 4.0,
            "commands_per_s": 6.0,
            "commands_per_worker_per_s": 1.5,
            "connections": 12,
            "connections_per_worker": 3.0,
        }
    )
    assert find_missed(results, BARS) == ["server_cpu_percent"]


def test_commands_are_listed_that_were_called_since() -> None:
    assert list_calls(BEFORE, AFTER) == {"evalsha": {"per_s": 2.0, "cpu_percent": 2.0}}

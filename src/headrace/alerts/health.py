"""Headrace's own rules: can the others be evaluated at all? One incident per outage, to channels that asked for it."""

from __future__ import annotations

from collections.abc import Collection

from headrace.alerts.machine import Values
from headrace.alerts.rules import HEALTH, Rule

PREFIX = "health:"


def _own(name: str, words: str, for_s: int = 0, severity: str = "critical") -> Rule:
    return Rule(
        f"{PREFIX}{name}",
        *("", "", "", words, HEALTH),
        threshold=0.5,
        window_s=60,
        cooldown_s=300,
        for_s=for_s,
        severity=severity,
    )


HISTORY = _own("history", "Rules are not evaluated: ClickHouse does not answer, or not in time")
PIPELINE = _own("pipeline", "Rules are not evaluated: the pipeline is behind or stopped", for_s=60)
LOSS = _own("loss", "The pipeline missed metric events: what rules are compared with is too low", severity="warning")
CHANNELS = _own("channels", "A channel does not take messages", severity="warning")
EXPORT = _own("export", "An exporter cannot deliver to its destination; what it has is kept in its spool")
SERVERS = _own("servers", "A server failed over, lost data or was restored; accepted jobs may be missing")
OWN_RULES = (HISTORY, PIPELINE, LOSS, CHANNELS, EXPORT, SERVERS)

FAILING_AFTER = 3
"""Failures in a row from which on a channel counts as failing."""

LOSS_S = 600
"""How long a loss is told as one."""


def health_values(
    answers: bool,
    lag_ms: int | None,
    max_lag_ms: int,
    losses: int,
    watched_ms: int,
    failing_channels: Collection[str],
    failing_exporters: Collection[str],
    server_events: Collection[str] = (),
) -> dict[str, Values | None]:
    """By rule. Of a pipeline nothing is known while ClickHouse does not answer. One without a watermark has never
    written: it may be about to, unless the evaluator has been watching for longer than the largest lag. Each failing
    channel and exporter, and each event of a server, has an incident of its own."""
    behind = watched_ms > max_lag_ms if lag_ms is None else lag_ms > max_lag_ms
    starting = lag_ms is None and not behind
    return {
        HISTORY.id: {"": float(not answers)},
        PIPELINE.id: {"": float(behind)} if answers and not starting else None,
        LOSS.id: {"": float(losses > 0)} if answers else None,
        CHANNELS.id: dict.fromkeys(failing_channels, 1.0),
        EXPORT.id: dict.fromkeys(failing_exporters, 1.0),
        SERVERS.id: dict.fromkeys(server_events, 1.0),
    }

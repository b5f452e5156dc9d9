"""Built-in rules about Headrace itself (meta-alerts), sent to channels with `health`. One incident per outage."""

from __future__ import annotations

from collections.abc import Collection

from headrace.alerts.rules import HEALTH, Rule
from headrace.alerts.state_machine import Values

PREFIX = "health:"


def _make_meta_rule(name: str, words: str, for_s: int = 0, severity: str = "critical") -> Rule:
    return Rule(
        f"{PREFIX}{name}",
        *("", "", "", words, HEALTH),
        threshold=0.5,
        window_s=60,
        cooldown_s=300,
        for_s=for_s,
        severity=severity,
    )


HISTORY = _make_meta_rule("history", "Alert rules are not evaluated: ClickHouse is unavailable or too slow")
PIPELINE = _make_meta_rule("pipeline", "Alert rules are not evaluated: the pipeline is behind or stopped", for_s=60)
LOSS = _make_meta_rule("loss", "The pipeline lost metric events: rule values may be too low", severity="warning")
CHANNELS = _make_meta_rule("channels", "A channel does not accept messages", severity="warning")
EXPORT = _make_meta_rule("export", "An exporter cannot deliver to its destination; its records stay in the spool")
SERVERS = _make_meta_rule("servers", "A server failed over, lost data or was restored; accepted jobs may be missing")
META_RULES = (HISTORY, PIPELINE, LOSS, CHANNELS, EXPORT, SERVERS)

FAILING_AFTER = 3
"""Consecutive failures after which a channel counts as failing."""

LOSS_WINDOW_S = 600
"""How long a loss keeps the rule firing, in seconds."""


def compute_meta_rule_values(
    answers: bool,
    lag_ms: int | None,
    max_lag_ms: int,
    losses: int,
    watched_ms: int,
    failing_channels: Collection[str],
    failing_exporters: Collection[str],
    server_events: Collection[str] = (),
) -> dict[str, Values | None]:
    """Return the values of the built-in rules by rule id; None means unknown.

    Without ClickHouse the pipeline's state is unknown. Without a watermark (`lag_ms` None) the pipeline has never
    written; it counts as behind once the evaluator has run for more than `max_lag_ms`. Each failing channel, failing
    exporter and server event has an incident of its own.
    """
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

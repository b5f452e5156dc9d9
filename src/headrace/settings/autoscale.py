# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.kinds import Seconds, boolean, duration, host, optional, path, several, text
from headrace.settings.declare import METRICS_PORT, setting


@dataclass(frozen=True)
class AutoscaleSettings:
    types: Path | None = setting(None, "Worker types file (TOML); none = nothing is scaled.", optional(path()))
    every: Seconds = setting(10.0, "Interval between decisions for each worker type.", duration("100ms", "1h"))
    lease: Seconds = setting(
        15.0,
        "Lease of the autoscaler: time without a heartbeat after which another process takes over.",
        duration("1s", "10m"),
    )
    window: Seconds = setting(
        60.0, "Time window over which arrivals and service times are measured.", duration("1s", "1h")
    )
    fresh: Seconds = setting(
        60.0,
        "How long a decision is valid for KEDA and other readers; must be longer than `autoscale.every`.",
        duration("1s", "1d"),
    )
    keep: Seconds = setting(7 * 86400.0, "How long decisions are kept.", duration("1m", "3650d"))
    webhook_secret: str | None = setting(
        None,
        "Secret used to sign webhook requests of worker types.",
        optional(text("16 to 200 printable ASCII characters without spaces", r"[!-~]{16,200}")),
        secret=True,
    )
    webhook_timeout: Seconds = setting(10.0, "Timeout for one webhook request.", duration("100ms", "5m"))
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Hosts and networks that webhooks may use in addition to public addresses. Loopback, link-local, "
        "multicast and cloud metadata addresses are allowed only by their exact host or address.",
        several(host()),
    )
    allow_private: bool = setting(
        False,
        "Allow all private networks, as if they were listed in `autoscale.allowed_hosts`; loopback is not included.",
        boolean(),
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics and /healthz for `headrace autoscale run`; 0 = any free port, none = not served.",
        METRICS_PORT,
    )

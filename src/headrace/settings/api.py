# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from dataclasses import dataclass

from headrace.kinds import (
    Bytes,
    Seconds,
    boolean,
    duration,
    integer,
    network,
    number,
    optional,
    several,
    size,
    text,
    url,
)
from headrace.settings.declare import PORT, setting


@dataclass(frozen=True)
class ApiSettings:
    host: str = setting("127.0.0.1", "Address the API listens on.", text("a host name or address"))
    port: int = setting(0, "Port of the API; 0 = the previous port if it is free, otherwise any free port.", PORT)
    rate: float = setting(50.0, "Maximum requests per second for one key and one API process.", number(0.1, 100_000))
    burst: int = setting(200, "Requests a key may send at once before `api.rate` applies.", integer(1, 1_000_000))
    max_body: Bytes = setting(
        2 * 2**20, "Maximum size of a request body; larger requests are refused.", size("1KiB", "512MiB")
    )
    query_timeout: Seconds = setting(10.0, "Timeout for one ClickHouse query.", duration("100ms", "10m"))
    history_cache: Bytes = setting(
        32 * 2**20, "Memory for history responses per API process; 0B = none are kept.", size("0B", "16GiB")
    )
    session: Seconds = setting(12 * 3600.0, "How long a browser session stays valid.", duration("1m", "30d"))
    audit_keep: Seconds = setting(90 * 86400.0, "How long audit log entries are kept.", duration("1h", "3650d"))
    streams: int = setting(200, "Maximum concurrent live-state (SSE) connections per process.", integer(1, 100_000))
    streams_per_key: int = setting(
        10, "Maximum concurrent live-state (SSE) connections per key and process.", integer(1, 10_000)
    )
    metrics: bool | None = setting(
        None, "Serve /metrics on the API port; none = only if `api.host` is loopback.", optional(boolean())
    )
    cookie_secure: bool | None = setting(
        None,
        "Mark the session cookie `Secure` and send HSTS headers; none = only for requests that came over HTTPS.",
        optional(boolean()),
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted; none = no proxy.",
        several(network()),
    )
    public_url: str | None = setting(
        None,
        "Public URL of the dashboard, used for links in messages; none = relative links.",
        optional(url("http", "https")),
    )

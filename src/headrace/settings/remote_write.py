"""Settings of the remote write to Prometheus."""

# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.kinds import Bytes, Seconds, duration, integer, optional, path, several, size, text, url
from headrace.settings.declare import setting

HEADER = text("a header such as `X-Scope-OrgID: shop`", r"[A-Za-z0-9-]+: ?[!-~]([ -~]*[!-~])?")
LABEL = text(
    "a label such as `job=headrace`, other than Headrace's own",
    r"(?!(?:__|(?:org|project|env|queue|op|state|tier)=))[A-Za-z_][A-Za-z0-9_]*=\S(?:.*\S)?",
)


@dataclass(frozen=True)
class RemoteWriteSettings:
    url: str | None = setting(
        None,
        "Where the pipeline sends queue metrics by Prometheus remote write 1.0, with a user name and password if "
        "needed; none = nowhere.",
        optional(url("http", "https")),
        secret=True,
    )
    bearer_token: str | None = setting(
        None,
        "Bearer token for the receiver; none = no token.",
        optional(text("printable ASCII characters without spaces", r"[!-~]+")),
        secret=True,
    )
    headers: tuple[str, ...] = setting((), "Additional headers of each request.", several(HEADER), secret=True)
    labels: tuple[str, ...] = setting(
        ("job=headrace-pipeline",),
        "Labels added to every series, to distinguish them from scraped ones.",
        several(LABEL),
    )
    timeout: Seconds = setting(30.0, "Timeout for one request.", duration("1s", "10m"))
    max_samples: int = setting(2000, "Maximum number of samples per request.", integer(1, 100_000))
    lanes: int = setting(
        4, "Number of requests in progress at once; samples of one series stay in order.", integer(1, 64)
    )
    repeat: Seconds | None = setting(
        60.0,
        "Interval at which values of idle queues are sent again, so that their series do not go stale; none = never.",
        optional(duration("5s", "1h")),
    )
    path: Path | None = setting(
        None, "Directory of the spool for samples; none = `remote_write` in the data directory.", optional(path())
    )
    max_bytes: Bytes = setting(
        256 * 2**20, "Maximum size of the samples in the spool; the oldest are dropped.", size("1MiB", "64TiB")
    )

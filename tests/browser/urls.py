"""URLs of the demo's dashboard, timeouts, and patterns of its texts."""

from __future__ import annotations

import re
from urllib.parse import quote

ACME = "org=acme&project=shop&env=prod"
GLOBEX = "org=globex&project=media&env=prod"
INITECH = "org=initech&project=billing&env=prod"

OVERVIEW = f"?{ACME}&range=5m"
QUEUES = f"queue-metrics?{ACME}"
BY_QUEUE = f"queue-metrics?{ACME}&group=class"
EMAILS = f"queues/emails?{ACME}&range=5m"
DEAD = f"dead?{INITECH}"
ALERTS = f"alerts?{INITECH}"
RULES = f"alerts?{INITECH}&show=rules"
PIPELINE = "pipeline"

TIMEOUT_MS = 120_000
"""For steps that need only the dashboard; on an idle machine each takes less than a second."""

FIRST_DATA_TIMEOUT_MS = 300_000
"""For the first data of a queue, which has to pass the pipeline after the stack has started."""

DURATION = re.compile(r"^\d+(\.\d)? (ms|s|min|h|d)( \d+ (s|min|h))?$")
"""Texts of the dashboard's `formatDuration` for known values; on a slow machine they may be minutes."""

COUNT = re.compile(r"^\d+(\.\d)?[kMGT]?$")
"""Texts of the dashboard's `formatCount` for known values from 0; a slow machine has more waiting jobs."""


def job(tenant: str, job_id: str) -> str:
    return f"jobs/{quote(job_id, safe='')}?{tenant}"

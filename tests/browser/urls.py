"""Where things are on the demo's dashboard."""

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
"""For whatever needs the dashboard alone: none of it takes a second, on a machine that has nothing else to do."""

FIRST_DATA_TIMEOUT_MS = 300_000
"""The stack is up when a test begins, but the first points of a queue still have to pass the pipeline."""

DURATION = re.compile(r"^\d+(\.\d)? (ms|s|min|h|d)( \d+ (s|min|h))?$")
"""Any text of the dashboard's `formatDuration` except the dash of an unknown value: a slow machine shows minutes."""

COUNT = re.compile(r"^\d+(\.\d)?[kMGT]?$")
"""Any text of the dashboard's `formatCount` for a known value of 0 or more: a slow machine has more jobs waiting."""


def job(tenant: str, job_id: str) -> str:
    return f"jobs/{quote(job_id, safe='')}?{tenant}"

"""An app with tasks that run in child processes, which import this module. Tests use `import_process_app`."""

from __future__ import annotations

import json
from pathlib import Path

import structlog

from headrace import Headrace, Retry
from headrace.contrib.structlog import Structlog

app = Headrace(env="acme/shop/prod", middleware=[Structlog(carry=("request",))])


@app.task(pool="process", retry=Retry(attempts=1))
def fail() -> None:
    raise ValueError("failed")


@app.task(pool="process")
def write_fields(file: str) -> None:
    """Write the fields that structlog adds to log lines."""
    Path(file).write_text(json.dumps(structlog.contextvars.get_contextvars()))

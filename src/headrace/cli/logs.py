"""Configures the log of long-running commands, on standard error."""

from __future__ import annotations

import json
import logging
import time

from headrace.queue.job_context import read_job_fields
from headrace.settings import LogSettings


class JobFilter(logging.Filter):
    """Adds the running job to records that its task logs: `job_fields`, empty outside of tasks."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.job_fields = read_job_fields()
        return True


class TextLogFormatter(logging.Formatter):
    """Formats a record as a line of text, followed by the running job."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "job_fields", {})
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        return f"{super().formatMessage(record)} [{text}]" if text else super().formatMessage(record)


class JsonLogFormatter(logging.Formatter):
    """Formats a record as one JSON object per line; `action` is the stable name of the event."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (action := getattr(record, "action", None)) is not None:
            line["action"] = action
        line |= getattr(record, "job_fields", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logs(settings: LogSettings) -> None:
    handler = logging.StreamHandler()
    handler.addFilter(JobFilter())
    handler.setFormatter(JsonLogFormatter() if settings.format == "json" else TextLogFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)

"""Configures the log of long-running commands, on standard error."""

from __future__ import annotations

import json
import logging
import time

from headrace.settings import LogSettings


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
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logs(settings: LogSettings) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLogFormatter() if settings.format == "json" else text)
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)

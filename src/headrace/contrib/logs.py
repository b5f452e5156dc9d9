"""Fields of the running job in log lines of the standard library."""

from __future__ import annotations

import logging

from headrace.queue.job_context import read_job_fields

FIELDS = ("job_id", "task", "queue", "org", "project", "env", "attempt")


class JobFields(logging.Filter):
    """Adds attributes of the running job to log records: `%(job_id)s` and the other names of FIELDS, empty outside of
    jobs. Add it to handlers: filters of loggers do not see records of other loggers. An attribute that a record has
    already, for example from `extra`, is kept."""

    def filter(self, record: logging.LogRecord) -> bool:
        fields = read_job_fields()
        for name in FIELDS:
            record.__dict__.setdefault(name, fields.get(name, ""))
        return True

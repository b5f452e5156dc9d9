"""Report an unhealthy exporter as a problem for alerts.

The report is repeated while the problem lasts and withdrawn when a send succeeds. If the process ends before that, its
report becomes stale because it is not repeated.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from headrace.errors import HeadraceError
from headrace.export.exporter import Exporter
from headrace.runtime.loop import run_in_thread

log = logging.getLogger(__name__)

POLL_S = 0.5
REPEAT_S = 30.0
RETRY_S = 5.0

ReportProblem = Callable[[str | None], None]
"""Called with a description of the problem; with None when it is over."""


def report_problems(exporter: Exporter, report: ReportProblem | None) -> AbstractContextManager[None]:
    """Report the exporter's health inside this context."""
    if report is None:
        return nullcontext()
    return run_in_thread(partial(_run, exporter, report), "report-problems", RETRY_S)


def _run(exporter: Exporter, report: ReportProblem, stop: threading.Event) -> None:
    was_failing: bool | None = None  # None: not reported yet
    due = 0.0
    while not stop.wait(POLL_S):
        problem = exporter.problem
        if problem is None and not exporter.stats().sent:
            continue  # nothing was sent yet, so nothing is known
        is_failing, now = problem is not None, time.monotonic()
        if now < due and is_failing == was_failing:
            continue
        was_failing, due = is_failing, now + RETRY_S
        try:
            report(problem)
            due = now + REPEAT_S if is_failing else float("inf")
        except HeadraceError as error:
            log.warning("could not report the exporter's health: %s", error, extra={"action": "report_failed"})
        except Exception:
            log.exception("could not report the exporter's health", extra={"action": "report_failed"})

"""Tests of applications without servers: `app.testing()` records jobs and runs them on request, `run_job` runs one.

Arguments, codecs, middleware, dependencies, tenancy and the decisions after errors are those of producers and workers.
The package imports the application API and the worker. The exported names are imported on first use, because every run
of pytest imports `plugin.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testing.attempt import Outcome
    from headrace.testing.recorder import RecordedJob, Recorder
    from headrace.testing.single import run_job

__all__ = ["Outcome", "RecordedJob", "Recorder", "run_job"]

_MODULES = {"Outcome": "attempt", "RecordedJob": "recorder", "Recorder": "recorder", "run_job": "single"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

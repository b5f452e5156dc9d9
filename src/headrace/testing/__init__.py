"""Tests of applications without servers: `app.testing()` records jobs and runs them on request, `run_job` runs one.

Arguments, codecs, middleware, dependencies, tenancy and the decisions after errors are those of producers and workers.
The package imports the application API and the worker. `plugin.py` is a plugin of pytest.
"""

from __future__ import annotations

from headrace.testing.attempt import Outcome
from headrace.testing.recorder import RecordedJob, Recorder
from headrace.testing.single import run_job

__all__ = ["Outcome", "RecordedJob", "Recorder", "run_job"]

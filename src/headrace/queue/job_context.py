"""The job that runs in the current context: an asyncio task, a thread or a child process."""

from __future__ import annotations

from contextvars import ContextVar

from headrace.model.job import LeasedJob

running_job: ContextVar[LeasedJob | None] = ContextVar("running_job", default=None)

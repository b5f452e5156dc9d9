"""Headrace: a multi-tenant job queue with bounded memory and exact metrics.

The exported names are imported on first use, so that `headrace --help` does not import redis-py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.cold.tiers import Tiers
    from headrace.model.job import JobInfo, JobState, LeasedJob, NewJob
    from headrace.model.names import EnvRef, QueueRef
    from headrace.queue.client import Client, QueueOptions, SyncClient
    from headrace.queue.scripts import DeadFilter
    from headrace.queue.tasks import Bury, RetryLater, Snooze, Tasks

__all__ = [
    "Bury",
    "Client",
    "DeadFilter",
    "EnvRef",
    "JobInfo",
    "JobState",
    "LeasedJob",
    "NewJob",
    "QueueOptions",
    "QueueRef",
    "RetryLater",
    "Snooze",
    "SyncClient",
    "Tasks",
    "Tiers",
]

_MODULES = {
    "Bury": "headrace.queue.tasks",
    "DeadFilter": "headrace.queue.scripts",
    "EnvRef": "headrace.model.names",
    "JobInfo": "headrace.model.job",
    "JobState": "headrace.model.job",
    "Client": "headrace.queue.client",
    "LeasedJob": "headrace.model.job",
    "NewJob": "headrace.model.job",
    "QueueOptions": "headrace.queue.client",
    "QueueRef": "headrace.model.names",
    "RetryLater": "headrace.queue.tasks",
    "Snooze": "headrace.queue.tasks",
    "SyncClient": "headrace.queue.client",
    "Tasks": "headrace.queue.tasks",
    "Tiers": "headrace.cold.tiers",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)

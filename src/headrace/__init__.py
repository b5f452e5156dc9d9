"""Headrace: a multi-tenant job queue with bounded memory and exact metrics.

The exported names are imported on first use, so that `headrace --help` does not import redis-py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.app.codec import Codec, Json
    from headrace.app.context import RunningJob, current_env, current_job
    from headrace.app.dependencies import Depends, Shared
    from headrace.app.handle import JobHandle
    from headrace.app.headrace import Headrace
    from headrace.app.middleware import Middleware, Outgoing
    from headrace.app.retry import Retry
    from headrace.app.signature import Renamed
    from headrace.app.task import AsyncTask, JobSpec, SyncTask, Task
    from headrace.app.tasks import Tasks
    from headrace.app.unique import unique_id
    from headrace.cold.tiers import Tiers
    from headrace.model.job import JobCancelled, JobInfo, JobState, LeasedJob, NewJob
    from headrace.model.names import EnvRef, QueueRef
    from headrace.queue.client import Client, QueueOptions, SyncClient
    from headrace.queue.scripts import DeadFilter
    from headrace.queue.tasks import Bury, RetryLater, Snooze

__all__ = [
    "AsyncTask",
    "Bury",
    "Client",
    "Codec",
    "DeadFilter",
    "Depends",
    "EnvRef",
    "Headrace",
    "JobCancelled",
    "JobHandle",
    "JobInfo",
    "JobSpec",
    "JobState",
    "Json",
    "LeasedJob",
    "Middleware",
    "NewJob",
    "Outgoing",
    "QueueOptions",
    "QueueRef",
    "Renamed",
    "Retry",
    "RetryLater",
    "RunningJob",
    "Shared",
    "Snooze",
    "SyncClient",
    "SyncTask",
    "Task",
    "Tasks",
    "Tiers",
    "current_env",
    "current_job",
    "unique_id",
]

_MODULES = {
    "AsyncTask": "headrace.app.task",
    "Bury": "headrace.queue.tasks",
    "Client": "headrace.queue.client",
    "Codec": "headrace.app.codec",
    "DeadFilter": "headrace.queue.scripts",
    "Depends": "headrace.app.dependencies",
    "EnvRef": "headrace.model.names",
    "Headrace": "headrace.app.headrace",
    "JobCancelled": "headrace.model.job",
    "JobHandle": "headrace.app.handle",
    "JobInfo": "headrace.model.job",
    "JobSpec": "headrace.app.task",
    "JobState": "headrace.model.job",
    "Json": "headrace.app.codec",
    "LeasedJob": "headrace.model.job",
    "Middleware": "headrace.app.middleware",
    "NewJob": "headrace.model.job",
    "Outgoing": "headrace.app.middleware",
    "QueueOptions": "headrace.queue.client",
    "QueueRef": "headrace.model.names",
    "Renamed": "headrace.app.signature",
    "Retry": "headrace.app.retry",
    "RetryLater": "headrace.queue.tasks",
    "RunningJob": "headrace.app.context",
    "Shared": "headrace.app.dependencies",
    "Snooze": "headrace.queue.tasks",
    "SyncClient": "headrace.queue.client",
    "SyncTask": "headrace.app.task",
    "Task": "headrace.app.task",
    "Tasks": "headrace.app.tasks",
    "Tiers": "headrace.cold.tiers",
    "current_env": "headrace.app.context",
    "current_job": "headrace.app.context",
    "unique_id": "headrace.app.unique",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)

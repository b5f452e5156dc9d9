"""Keeps attempt records in lists of Valkey, for a queue whose scripts do not keep them."""

from __future__ import annotations

from typing import Any

from headrace.model.names import EnvRef
from headrace.queue.client import Client, SyncClient
from headrace.worker.queue_source import QueueShard


def _key(env: EnvRef, job_id: str) -> str:
    return f"test:attempts:{env.org}/{env.project}/{env.env}:{job_id}"


def install() -> None:
    if hasattr(SyncClient, "read_attempts"):
        return
    for name in ("ack", "nack", "bury"):
        _wrap(name)

    def read(self: Any, env: EnvRef, job_id: str) -> Any:
        return self.redis.lrange(_key(env, job_id), 0, -1)

    SyncClient.read_attempts = Client.read_attempts = read  # type: ignore


def _wrap(name: str) -> None:
    original = getattr(QueueShard, name)

    async def apply(self: Any, results: Any, records: Any) -> Any:
        for job, *_ in results:  # before the result: whoever sees the job done finds its record
            if job.lease in records:
                await self._client.redis.rpush(_key(job.queue.environment, job.id), records[job.lease].body)
        return await original(self, results, records)

    setattr(QueueShard, name, apply)

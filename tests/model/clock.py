"""The server's clock, which a test cannot set: so jobs are made older instead.

`Ageing` moves the times of one job into the past, in Valkey and in the model alike, exactly as if a long time had
passed for that job. Delays, TTLs and leases of the tests are hours long, so nothing happens by itself.
"""

from __future__ import annotations

from itertools import count

from headrace.model.names import EnvRef
from headrace.queue import keys
from headrace.valkey.connect import Valkey
from tests.model.truth import Job, Truth

HOUR_MS = 3_600_000


def server_ms(client: Valkey) -> float:
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) / 1000


class Ageing:
    def __init__(self, client: Valkey, truth: Truth) -> None:
        self._client = client
        self._truth = truth
        self._past = count(1)  # each aged time is one of its own, so that their order is known

    def end_lease(self, job: Job) -> None:
        """Its worker has been silent for too long."""
        job.lease_ends_ms = next(self._past)
        self._client.zadd(keys.leases(self._truth.find_shard(job)), {job.shard_member: job.lease_ends_ms})

    def make_due(self, job: Job) -> None:
        """Its delay is over."""
        shard = self._truth.find_shard(job)
        job.due_ms = 1_000_000.0 + next(self._past)
        self._client.zadd(keys.scheduled(shard), {job.shard_member: job.due_ms})
        self._client.hset(keys.job(shard, *job.key), "due", str(job.due_ms))

    def end_ttl(self, job: Job) -> None:
        shard = self._truth.find_shard(job)
        job.expires_ms = next(self._past)
        self._client.hset(keys.job(shard, *job.key), "expires", job.expires_ms)
        if job.waits:
            self._client.zadd(keys.expiries(shard), {job.shard_member: job.expires_ms})

    def begin_deferrals_long_ago(self, job: Job) -> None:
        job.deferred_ms = next(self._past)
        self._client.hset(keys.job(self._truth.find_shard(job), *job.key), "deferred_since", job.deferred_ms)

    def end_records(self, key: tuple[EnvRef, str]) -> None:
        """What is kept of a job's attempts has been kept long enough."""
        records = self._truth.records[key]
        records.expires_ms = next(self._past)
        shard = key[0].shard(self._truth.shards)
        self._client.zadd(keys.attempt_expiries(shard), {keys.job_part(*key): records.expires_ms})

    def free_id(self, key: tuple[object, str]) -> None:
        """A done job is no longer known: its id may be used again."""
        env, job_id = next(kept for kept in self._truth.kept if kept == key)
        self._client.delete(keys.body(env.shard(self._truth.shards), env, job_id))
        self._truth.kept.remove((env, job_id))

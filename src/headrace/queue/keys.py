"""Every key Headrace keeps in Valkey for jobs, in one place. `lua/keys.lua` is its twin.

All keys of an environment carry the hash tag of its shard, so that one script can change them
together on a cluster. `{0}` stands for the shard's number.

    hr:shards                  string  number of shards, written once
    hr:{0}:meta                hash    seq (event number), delivery (lease number)
    hr:{0}:metrics             stream  metric events, one field `e` (see model/event.py)
    hr:{0}:metrics:enabled     string  "0" stops the XADD; odometers and seq go on
    hr:{0}:envs                zset    environment → virtual time, those with ready jobs only
    hr:{0}:queues              set     every queue that was ever used (its part of the key)
    hr:{0}:leases              zset    job → when its lease ends
    hr:{0}:scheduled           zset    job → when it is due
    hr:{0}:env:E               hash    depth, running, limit
    hr:{0}:env:E:queues        zset    queue → eligible time of its head, those with ready jobs only
    hr:{0}:q:E:Q               hash    names, epoch, running, scheduled, limit, bytes, o:<op> odometers
    hr:{0}:q:E:Q:ready         zset    job id → when it became eligible
    hr:{0}:q:E:Q:dead          zset    job id → when it was buried
    hr:{0}:job:E:J             hash    one job; gone when it is done

E is org:project:env, Q the queue, J the job id; in each part `%` and `:` are percent-encoded, so
that parts cannot run into each other. A job in `leases` and `scheduled` is written E:J.
"""

from __future__ import annotations

from headrace.model.names import EnvRef, QueueRef

SHARDS = "hr:shards"


def encode(name: str) -> str:
    return name.replace("%", "%25").replace(":", "%3A")


def decode(part: str) -> str:
    return part.replace("%3A", ":").replace("%25", "%")


def prefix(shard: int) -> str:
    return f"hr:{{{shard}}}:"


def meta(shard: int) -> str:
    return prefix(shard) + "meta"


def metrics(shard: int) -> str:
    return prefix(shard) + "metrics"


def metrics_enabled(shard: int) -> str:
    return prefix(shard) + "metrics:enabled"


def envs(shard: int) -> str:
    return prefix(shard) + "envs"


def queues(shard: int) -> str:
    return prefix(shard) + "queues"


def leases(shard: int) -> str:
    return prefix(shard) + "leases"


def scheduled(shard: int) -> str:
    return prefix(shard) + "scheduled"


def env_part(ref: EnvRef) -> str:
    return ":".join(map(encode, (ref.org, ref.project, ref.env)))


def queue_part(ref: QueueRef) -> str:
    return f"{env_part(ref.environment)}:{encode(ref.queue)}"


def env(shard: int, ref: EnvRef) -> str:
    return f"{prefix(shard)}env:{env_part(ref)}"


def env_queues(shard: int, ref: EnvRef) -> str:
    return env(shard, ref) + ":queues"


def queue(shard: int, ref: QueueRef) -> str:
    return f"{prefix(shard)}q:{queue_part(ref)}"


def ready(shard: int, ref: QueueRef) -> str:
    return queue(shard, ref) + ":ready"


def dead(shard: int, ref: QueueRef) -> str:
    return queue(shard, ref) + ":dead"


def job_part(ref: EnvRef, job_id: str) -> str:
    return f"{env_part(ref)}:{encode(job_id)}"


def job(shard: int, ref: EnvRef, job_id: str) -> str:
    return f"{prefix(shard)}job:{job_part(ref, job_id)}"

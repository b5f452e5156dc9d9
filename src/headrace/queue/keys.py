"""Every key Headrace keeps in Valkey for jobs, in one place. `lua/keys.lua` is its twin.

All keys of an environment carry the hash tag of its shard, so that one script can change them
together on a cluster. `{0}` stands for the shard's number.

    hr:shards                  string  number of shards, written once
    hr:{0}:meta                hash    seq (event number), delivery (last lease number), bytes (payloads of all jobs
                                       that wait or run), bounds (see bounds.py), quota, shared and shared:… (see
                                       quotas.py), quota_indexed (see cold/settings.py), listed (the environments of
                                       all queues are in `environments`), mover_token (fencing), mover_* (its
                                       last report), turn and turn:Q (clocks of the fair indexes, see
                                       lua/fair_index.lua), ticked (when), maintainer, maintainer_until, maintainer_ms
                                       (maintenance owner, when its ownership ends, for how long it was written),
                                       checked (where it goes on to look for queues that are miscounted or not indexed)
    hr:{0}:metrics             stream  metric events, one field `e` (see model/event.py)
    hr:{0}:metrics:enabled     string  "0" stops the XADD; odometers and seq go on
    hr:{0}:envs                zset    environment → turns taken; only those with something that may run
    hr:{0}:class:Q             zset    the same for one queue name, for workers that serve some queues only
    hr:{0}:queues              set     every queue that was ever used (its part of the key)
    hr:{0}:environments        set     every environment that has a queue (clients of 0.1.0 add none: maintenance does)
    hr:{0}:asking              set     environments that an enqueue was refused to because their share of a quota of
                                       their project or organisation is used up, 1000 at most (cold/shares.py)
    hr:{0}:leases              zset    job → when its lease ends
    hr:{0}:scheduled           zset    job → when it is due
    hr:{0}:expiries            zset    waiting job → when its TTL is over
    hr:{0}:cold                set     queues in cold mode: their new jobs wait in PostgreSQL
    hr:{0}:hungry              zset    queues in cold mode that have room → since when; movers wait for it
    hr:{0}:buried              set     queues with dead jobs that PostgreSQL does not have yet
    hr:{0}:losses              hash    queue → accepted jobs that a restored PostgreSQL does not have, to be reported
    hr:{0}:repair              hash    queues that a failed script left half changed → jobs it was adding or leasing
                                       (lua/failure.lua); maintenance counts them again
    hr:{0}:quarantine          zset    malformed entries that were taken out of an index, with the reason → when; the
                                       newest 1000 (`quarantined` in meta counts all)
    hr:{0}:mover               string  who moves jobs between the tiers; ends with its lease
    hr:{0}:env:E               hash    depth, running, limit, burst, bytes and jobs (that wait or run), counted (when
                                       bytes and jobs were last summed up from its queues), quota, share, rate_at and
                                       refused:… (see quotas.py), share_indexed (lua/share.lua)
    hr:{0}:env:E:queues        zset    queue → since when its oldest job waits; only those that may run
    hr:{0}:env:E:names         set     every queue of the environment
    hr:{0}:env:E:parked        set     queues that were left out of their class while the environment was full
    hr:{0}:q:E:Q               hash    names, epoch, ready, running, warm_scheduled, warm_bytes, limit, paused, closed,
                                       caps, levels, oldest, indexed, known_detail, dead_bytes (of its dead jobs here),
                                       cold (see lua/cold_field.lua), placed (see lua/placed.lua), o:<op>
    hr:{0}:q:E:Q:ready         zset    job id → when it became eligible (priority 0)
    hr:{0}:q:E:Q:ready:P       zset    the same for priority P
    hr:{0}:q:E:Q:levels        zset    priorities other than 0 that have jobs
    hr:{0}:q:E:Q:dead          zset    job id → when it was buried
    hr:{0}:q:E:Q:details       set     (task, flow, flow type) that have ready jobs, separated by tabs
    hr:{0}:q:E:Q:detail:D      zset    ready jobs of one of them → when they became eligible
    hr:{0}:q:E:Q:moving        set     numbers of rows that are here and whose removal PostgreSQL has not confirmed
    hr:{0}:q:E:Q:moved         hash    the same → whether it was delayed, bytes, job id (see lua/placed.lua)
    hr:{0}:job:E:J             hash    where one job stands: small fields only, so that it stays compact
                                       (unbegun: delivery at the last attempt that no worker has begun)
    hr:{0}:body:E:J            string  what it is: tab-separated header, newline, payload; empty for a while after it
                                       is done, `dead` after it went to PostgreSQL dead: its id stays taken
    hr:metrics:enabled         string  the flag behind the copies above, for shards yet to come
    hr:pipeline:lease          string  who reads the metric streams; ends with its lease (pipeline/lease.py)
    hr:pipeline:last           string  who read them last
    hr:workers                 zset    worker → when it last reported
    hr:worker:W                string  what a worker runs, and for which environments it ran tasks (JSON)

E is org:project:env, Q the queue, J the job id; in each part `%` and `:` are percent-encoded, so
that parts cannot run into each other. A job in `leases`, `scheduled` and `expiries` is written E:J.
"""

from __future__ import annotations

from headrace.model.names import EnvRef, QueueRef

SHARDS = "hr:shards"
METRICS_ENABLED = "hr:metrics:enabled"
WORKERS = "hr:workers"


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


def environments(shard: int) -> str:
    return prefix(shard) + "environments"


def asking(shard: int) -> str:
    return prefix(shard) + "asking"


def leases(shard: int) -> str:
    return prefix(shard) + "leases"


def scheduled(shard: int) -> str:
    return prefix(shard) + "scheduled"


def expiries(shard: int) -> str:
    return prefix(shard) + "expiries"


def cold(shard: int) -> str:
    return prefix(shard) + "cold"


def hungry(shard: int) -> str:
    return prefix(shard) + "hungry"


def buried(shard: int) -> str:
    return prefix(shard) + "buried"


def losses(shard: int) -> str:
    return prefix(shard) + "losses"


def repair(shard: int) -> str:
    return prefix(shard) + "repair"


def quarantine(shard: int) -> str:
    return prefix(shard) + "quarantine"


def mover(shard: int) -> str:
    return prefix(shard) + "mover"


def env_part(ref: EnvRef) -> str:
    return ":".join(map(encode, (ref.org, ref.project, ref.env)))


def queue_part(ref: QueueRef) -> str:
    return f"{env_part(ref.environment)}:{encode(ref.queue)}"


def part_prefix(org: str | None, project: str | None) -> str:
    """Return how the parts of all queues of an organisation or a project begin; '' for those of everything."""
    names = [] if org is None else [org] if project is None else [org, project]
    return "".join(f"{encode(name)}:" for name in names)


def env(shard: int, ref: EnvRef) -> str:
    return f"{prefix(shard)}env:{env_part(ref)}"


def env_queues(shard: int, ref: EnvRef) -> str:
    return env(shard, ref) + ":queues"


def env_names(shard: int, ref: EnvRef) -> str:
    return env(shard, ref) + ":names"


def env_parked(shard: int, ref: EnvRef) -> str:
    return env(shard, ref) + ":parked"


def queue_class(shard: int, queue_name: str) -> str:
    return f"{prefix(shard)}class:{encode(queue_name)}"


def queue(shard: int, ref: QueueRef) -> str:
    return f"{prefix(shard)}q:{queue_part(ref)}"


def ready(shard: int, ref: QueueRef, priority: int = 0) -> str:
    return queue(shard, ref) + (f":ready:{priority}" if priority else ":ready")


def levels(shard: int, ref: QueueRef) -> str:
    return queue(shard, ref) + ":levels"


def dead(shard: int, ref: QueueRef) -> str:
    return queue(shard, ref) + ":dead"


def details(shard: int, ref: QueueRef) -> str:
    return queue(shard, ref) + ":details"


def detail(shard: int, ref: QueueRef, packed: str) -> str:
    return f"{queue(shard, ref)}:detail:{packed}"


def moving(shard: int, ref: QueueRef) -> str:
    return queue(shard, ref) + ":moving"


def moved(shard: int, ref: QueueRef) -> str:
    return queue(shard, ref) + ":moved"


def job_part(ref: EnvRef, job_id: str) -> str:
    return f"{env_part(ref)}:{encode(job_id)}"


def job(shard: int, ref: EnvRef, job_id: str) -> str:
    return f"{prefix(shard)}job:{job_part(ref, job_id)}"


def body(shard: int, ref: EnvRef, job_id: str) -> str:
    return f"{prefix(shard)}body:{job_part(ref, job_id)}"


def queue_of_part(part: str) -> QueueRef:
    """The queue whose `queue_part` this is."""
    return QueueRef(*map(decode, part.split(":")))


def worker(worker_id: str) -> str:
    return f"hr:worker:{encode(worker_id)}"

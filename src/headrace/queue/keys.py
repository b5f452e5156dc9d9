"""Every Valkey key that Headrace uses for jobs. `lua/keys.lua` builds the same keys.

All keys of an environment have the hash tag of its shard, so that one script can change them together on a cluster.
`{0}` stands for the shard number.

    hr:shards                  string  number of shards, written once
    hr:{0}:meta                hash    seq (event number), delivery (last lease number), bytes (payloads of all waiting
                                       and running jobs), result_bytes (records of attempts), bounds (see bounds.py),
                                       quota, shared and shared:… (see quotas.py), quota_indexed (see
                                       cold/settings.py), listed (`environments` is complete), mover_token (fencing),
                                       mover_* (status of the mover), losses_checked_for (see cold/valkey_losses.py),
                                       turn and turn:Q (clocks of the fair indexes, see lua/fair_index.lua), ticked
                                       (last tick), maintainer, maintainer_until, maintainer_ms (maintenance owner,
                                       when its ownership ends, its duration), maintain_at (when it runs next), checked
                                       (cursor of the search for queues that are miscounted or not indexed),
                                       cold_id_bytes (sum of its environments)
    hr:{0}:metrics             stream  metric events, one field `e` (see model/event.py)
    hr:{0}:metrics:enabled     string  "0" stops writing events; odometers and seq still advance
    hr:{0}:envs                zset    fair index: environment → turns served; only environments with jobs that may run
    hr:{0}:class:Q             zset    the same for one queue name, for workers that serve some queues only
    hr:{0}:wake                zset    one member while jobs may run and no worker was notified; idle workers block on
                                       it (lua/wake.lua)
    hr:{0}:wake:Q              zset    the same for one queue name
    hr:{0}:due                 zset    one member if a job is due before the maintenance owner runs next; the owner
                                       blocks on it
    hr:{0}:queues              set     every queue that was ever used (its part of the key)
    hr:{0}:environments        set     every environment that has a queue (clients of 0.1.0 add none: maintenance does)
    hr:{0}:asking              set     environments whose enqueues were refused because their share of a quota of their
                                       project or organisation is used up, 1000 at most (cold/shares.py)
    hr:{0}:leases              zset    job → when its lease ends
    hr:{0}:scheduled           zset    job → when it is due
    hr:{0}:expiries            zset    waiting job → when its TTL ends
    hr:{0}:attempt_expiries    zset    job with records of attempts → when they are deleted
    hr:{0}:cold                set     queues in cold mode: their new jobs wait in PostgreSQL
    hr:{0}:hungry              zset    refill requests: queue in cold mode that has room → since when  (words: allow)
    hr:{0}:buried              set     queues with dead jobs that are not yet in PostgreSQL
    hr:{0}:losses              hash    queue → accepted jobs that a restored PostgreSQL does not have, to be reported
    hr:{0}:repair              hash    queues that a failed script left half changed → jobs it was adding or leasing
                                       (lua/failure.lua); maintenance repairs their counters
    hr:{0}:quarantine          zset    malformed entries removed from an index, with the reason → when; the newest 1000
                                       (`quarantined` in meta counts all)
    hr:{0}:missing             hash    queue, tab, task that a worker did not have → first and last deferral (ms),
                                       number of deferrals; 300 at most (lua/missing_tasks.lua)
    hr:{0}:mover               string  name of the mover; expires with its lease
    hr:{0}:memory              list    samples of the server's memory and the shard's payloads, newest first; expires
                                       (queue/server_memory.py)
    hr:{0}:env:E               hash    depth, running, limit, burst, bytes and jobs (waiting or running), counted (when
                                       bytes and jobs were last summed from its queues), quota, share, rate_at and
                                       refused:… (see quotas.py), share_indexed (lua/share.lua), cold_id_bytes (size of
                                       cold_ids, missing while it is empty)
    hr:{0}:env:E:queues        zset    queue → since when its oldest job waits; only queues that may run
    hr:{0}:env:E:names         set     every queue of the environment
    hr:{0}:env:E:cold_ids      hash    id that its caller chose, of a job that waits or is dead in PostgreSQL → whether
                                       that is certain, and a token (lua/cold_ids.lua)
    hr:{0}:env:E:parked        set     queues left out of `class` while the environment is blocked by its limit
    hr:{0}:q:E:Q               hash    names, epoch, ready, running, warm_scheduled, warm_bytes, limit, paused, closed,
                                       caps, levels, oldest, indexed, known_detail, dead_bytes (dead jobs in Valkey),
                                       result_bytes (records of attempts), results_dropped (records that were not
                                       kept), cold (see lua/cold_field.lua), placed (see lua/placed.lua), o:<op>
    hr:{0}:q:E:Q:ready         zset    job id → when it became eligible (priority 0)
    hr:{0}:q:E:Q:ready:P       zset    the same for priority P
    hr:{0}:q:E:Q:levels        zset    priorities other than 0 that have jobs
    hr:{0}:q:E:Q:dead          zset    job id → when it was buried
    hr:{0}:q:E:Q:details       set     (task, flow, flow type) of ready jobs, separated by tabs
    hr:{0}:q:E:Q:detail:D      zset    ready jobs of one such flow → when they became eligible
    hr:{0}:q:E:Q:moving        set     numbers of rows placed in Valkey and not yet confirmed as deleted in PostgreSQL
    hr:{0}:q:E:Q:moved         hash    the same → whether it was delayed, bytes, job id (see lua/placed.lua)
    hr:{0}:job:E:J             hash    state of one job: small fields only, so that it stays compact
                                       (unbegun: delivery of the last attempt that no worker has begun; deferred_since:
                                       time of the first of its deferrals without another result in between; cancel: it
                                       is removed instead of waiting again; progress: lease, newline, last text of
                                       its task)
    hr:{0}:body:E:J            string  tab-separated header, newline, payload. Empty for queue.keep_done after the job
                                       is done, `dead` after it moved to PostgreSQL as dead: its id stays reserved
    hr:{0}:attempts:E:J        list    records of the ended attempts of a job, the last 20 (lua/records.lua)
    hr:metrics:enabled         string  the same flag as in each shard, for shards created later
    hr:pipeline:lease          string  holder of the pipeline lease; expires (pipeline/lease.py)
    hr:pipeline:last           string  last holder of the pipeline lease
    hr:pipeline:status         hash    last report of the pipeline process: version, at (ms), status (JSON); expires
                                       (pipeline/published_status.py)
    hr:workers                 zset    worker → when it last reported
    hr:worker:W                string  running tasks of a worker, and the environments it ran tasks for (JSON)
    hr:plugins                 hash    queue (its part of the key) → plugin of the worker that ran its jobs last

E is org:project:env, Q the queue, J the job id; in each part `%` and `:` are percent-encoded, so that the separator is
unambiguous. A job in `leases`, `scheduled` and the two sets of expiries is written E:J.
"""

from __future__ import annotations

from functools import lru_cache

from headrace.model.names import EnvRef, QueueRef

SHARDS = "hr:shards"
METRICS_ENABLED = "hr:metrics:enabled"
WORKERS = "hr:workers"
PLUGINS = "hr:plugins"


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


def share_requests(shard: int) -> str:
    return prefix(shard) + "asking"


def leases(shard: int) -> str:
    return prefix(shard) + "leases"


def scheduled(shard: int) -> str:
    return prefix(shard) + "scheduled"


def expiries(shard: int) -> str:
    return prefix(shard) + "expiries"


def attempt_expiries(shard: int) -> str:
    return prefix(shard) + "attempt_expiries"


def cold(shard: int) -> str:
    return prefix(shard) + "cold"


def refill_requests(shard: int) -> str:
    return prefix(shard) + "hungry"


def buried(shard: int) -> str:
    return prefix(shard) + "buried"


def losses(shard: int) -> str:
    return prefix(shard) + "losses"


def repair(shard: int) -> str:
    return prefix(shard) + "repair"


def quarantine(shard: int) -> str:
    return prefix(shard) + "quarantine"


def missing(shard: int) -> str:
    return prefix(shard) + "missing"


def mover(shard: int) -> str:
    return prefix(shard) + "mover"


def memory(shard: int) -> str:
    return prefix(shard) + "memory"


def env_part(ref: EnvRef | QueueRef) -> str:
    return _join_names(ref.org, ref.project, ref.env)


@lru_cache(maxsize=4096)
def _join_names(*names: str) -> str:
    return ":".join(map(encode, names))


def queue_part(ref: QueueRef) -> str:
    return f"{env_part(ref)}:{encode(ref.queue)}"


def part_prefix(org: str | None, project: str | None) -> str:
    """Return the prefix of the key parts of all queues of an organisation or a project; '' for all queues."""
    names = [] if org is None else [org] if project is None else [org, project]
    return "".join(f"{encode(name)}:" for name in names)


def env(shard: int, ref: EnvRef) -> str:
    return f"{prefix(shard)}env:{env_part(ref)}"


def env_queues(shard: int, ref: EnvRef) -> str:
    return env(shard, ref) + ":queues"


def env_names(shard: int, ref: EnvRef) -> str:
    return env(shard, ref) + ":names"


def env_cold_ids(shard: int, ref: EnvRef) -> str:
    return env(shard, ref) + ":cold_ids"


def env_blocked(shard: int, ref: EnvRef) -> str:
    return env(shard, ref) + ":parked"


def queue_class(shard: int, queue_name: str) -> str:
    return f"{prefix(shard)}class:{encode(queue_name)}"


def wake(shard: int) -> str:
    return f"{prefix(shard)}wake"


def wake_by_name(shard: int, queue_name: str) -> str:
    return f"{prefix(shard)}wake:{encode(queue_name)}"


def due(shard: int) -> str:
    return f"{prefix(shard)}due"


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


def attempts(shard: int, ref: EnvRef, job_id: str) -> str:
    return f"{prefix(shard)}attempts:{job_part(ref, job_id)}"


def parse_queue_part(part: str) -> QueueRef:
    """Return the queue of a key part, the inverse of `queue_part`."""
    return QueueRef(*map(decode, part.split(":")))


def worker(worker_id: str) -> str:
    return f"hr:worker:{encode(worker_id)}"

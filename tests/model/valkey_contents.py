"""What Valkey really holds, key by key, and the comparison with the model.

`ValkeyContents` is read in a few round trips; `expected` writes down the same keys from the model. Both must be equal,
so there is no unknown key, no job in two places and no index entry that may not run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

from headrace.model.event import Op
from headrace.model.job import JobState
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey
from tests.model.truth import NEVER, Truth

Members = dict[bytes, float]
Fields = dict[str, str]


@dataclass
class ValkeyContents:
    sorted_sets: dict[str, Members] = field(default_factory=dict[str, Members])
    sets: dict[str, set[bytes]] = field(default_factory=dict[str, set[bytes]])
    hashes: dict[str, Fields] = field(default_factory=dict[str, Fields])
    strings: dict[str, bytes] = field(default_factory=dict[str, bytes])
    lists: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])


def parse_kind(name: str) -> str:
    """`job` for `hr:{0}:job:…`, whatever names follow."""
    return name.partition("}:")[2].partition(":")[0]


def read_contents(client: Valkey) -> ValkeyContents:
    names = sorted(cast("list[bytes]", client.keys()))
    types = client.pipeline(transaction=False)
    for name in names:
        types.type(name)
    kinds = [kind.decode() for kind in cast("list[bytes]", types.execute())]
    values = client.pipeline(transaction=False)
    for name, kind in zip(names, kinds, strict=True):
        READ[kind](values, name)
    contents = ValkeyContents()
    for name, kind, value in zip(names, kinds, values.execute(), strict=True):
        _put(contents, name.decode(), kind, value)
    return contents


READ: dict[str, Any] = {
    "zset": lambda pipeline, name: pipeline.zrange(name, 0, -1, withscores=True),  # pyright: ignore
    "set": lambda pipeline, name: pipeline.smembers(name),  # pyright: ignore
    "hash": lambda pipeline, name: pipeline.hgetall(name),  # pyright: ignore
    "list": lambda pipeline, name: pipeline.lrange(name, 0, -1),  # pyright: ignore
    "string": lambda pipeline, name: pipeline.get(name),  # pyright: ignore
    "stream": lambda pipeline, name: pipeline.xlen(name),  # pyright: ignore
}


def _put(contents: ValkeyContents, name: str, kind: str, value: Any) -> None:
    if kind == "zset":
        contents.sorted_sets[name] = {member: float(score) for member, score in value}
    elif kind == "set":
        contents.sets[name] = set(value)
    elif kind == "hash":
        contents.hashes[name] = {field.decode(): text.decode() for field, text in value.items()}
    elif kind == "list":
        contents.lists[name] = value
    elif kind == "string":
        contents.strings[name] = value


def check(client: Valkey, truth: Truth) -> ValkeyContents:
    """Every invariant that holds between two commands."""
    contents = read_contents(client)
    check_jobs_are_in_one_place(contents)
    for shard in range(truth.shards):
        check_classes(contents, truth, shard)
        check_wake_keys(contents, shard)
    check_sorted_sets(contents, truth)
    check_hashes(contents, truth)
    check_strings_and_sets(contents, truth)
    check_records(contents, truth)
    check_states(client, truth)
    return contents


def check_jobs_are_in_one_place(contents: ValkeyContents) -> None:
    """Without the model: each job is in exactly one of the places, and its state names that place."""
    places: dict[str, list[JobState]] = {name: [] for name in contents.hashes if parse_kind(name) == "job"}
    for name, members in contents.sorted_sets.items():
        prefix, _, rest = name.partition("}:")
        for member in members:
            if rest == "leases":
                places[f"{prefix}}}:job:{member.decode()}"].append(JobState.RUNNING)
            elif rest == "scheduled":
                places[f"{prefix}}}:job:{member.decode()}"].append(JobState.SCHEDULED)
            elif rest.startswith("q:"):
                parts = rest.split(":")  # q, org, project, env, queue, what it holds
                job = f"{prefix}}}:job:{':'.join(parts[1:4])}:{member.decode()}"
                if parts[5] in ("dead", "ready"):
                    places[job].append(JobState(parts[5]))
    for name, found in places.items():
        assert [state.value for state in found] == [contents.hashes[name]["state"]], name


def check_classes(contents: ValkeyContents, truth: Truth, shard: int) -> None:
    """Each queue that may run is in its class, or parked while its environment is full; nothing else is."""
    prefix = keys.prefix(shard)
    classes = {
        (member.decode(), name.removeprefix(f"{prefix}class:"))
        for name, members in contents.sorted_sets.items()
        if name.startswith(f"{prefix}class:")
        for member in members
    }
    parked = {
        (name.removeprefix(f"{prefix}env:").removesuffix(":parked"), member.decode())
        for name, members in contents.sets.items()
        if name.startswith(f"{prefix}env:") and name.endswith(":parked")
        for member in members
    }
    expected: set[tuple[str, str]] = set()
    for env in [env for env in truth.envs if env.shard(truth.shards) == shard]:
        for ref in truth.runnable(env):
            expected.add((keys.env_part(env), keys.encode(ref.queue)))
            if not truth.full(env):
                assert (keys.env_part(env), keys.encode(ref.queue)) in classes, ref
    assert not classes & parked
    assert classes | parked == expected


def check_wake_keys(contents: ValkeyContents, shard: int) -> None:
    """While jobs may run, the wake keys are set, so that a worker that becomes idle takes them. That of a queue name is
    set only then; that of all queues may be left over until the next dequeue."""
    names = {name for name in contents.sorted_sets if name.startswith(keys.prefix(shard))}
    assert keys.envs(shard) not in names or keys.wake(shard) in names
    classes = {name.removeprefix(f"{keys.prefix(shard)}class:") for name in names if parse_kind(name) == "class"}
    by_name = f"{keys.prefix(shard)}wake:"
    assert {name.removeprefix(by_name) for name in names if name.startswith(by_name)} == classes


def check_sorted_sets(contents: ValkeyContents, truth: Truth) -> None:
    expected: dict[str, Members] = {}

    def add(key: str, member: bytes, score: float) -> None:
        expected.setdefault(key, {})[member] = score

    for shard, turns in enumerate(truth.turns):
        for env, taken in turns.items():
            add(keys.envs(shard), keys.env_part(env).encode(), taken)
    for ref in truth.queues:
        shard, oldest = _shard(truth, ref), truth.oldest(ref)
        if truth.may_run(ref) and oldest is not None:
            add(keys.env_queues(shard, ref.environment), keys.encode(ref.queue).encode(), oldest)
    for job in truth.jobs.values():
        ref, shard = job.queue, truth.find_shard(job)
        if job.state is JobState.READY:
            add(keys.ready(shard, ref, job.new.priority), job.member, job.due_ms)
            add(keys.detail(shard, ref, job.detail), job.member, job.due_ms)
            if job.new.priority:
                add(keys.levels(shard, ref), str(job.new.priority).encode(), -job.new.priority)
        elif job.state is JobState.SCHEDULED:
            add(keys.scheduled(shard), job.shard_member, job.due_ms)
        elif job.state is JobState.RUNNING:
            add(keys.leases(shard), job.shard_member, job.lease_ends_ms)
        else:
            add(keys.dead(shard, ref), job.member, job.buried_ms)
        if job.waits and job.expires_ms is not None:
            add(keys.expiries(shard), job.shard_member, job.expires_ms)
    for (env, job_id), records in truth.records.items():
        shard = env.shard(truth.shards)
        add(keys.attempt_expiries(shard), keys.job_part(env, job_id).encode(), records.expires_ms)
    elsewhere = ("class", "wake", "due")  # checked by check_classes and check_wake_keys
    found = {name: members for name, members in contents.sorted_sets.items() if parse_kind(name) not in elsewhere}
    for shard in range(truth.shards):
        for ends in (found.get(keys.leases(shard), {}), found.get(keys.attempt_expiries(shard), {})):
            for member, end in ends.items():  # one that ends in the far future is as good as any other
                ends[member] = NEVER if end > 1e9 else end
    assert found == expected


def check_hashes(contents: ValkeyContents, truth: Truth) -> None:
    expected: dict[str, Fields] = {}
    for env, settings in truth.envs.items():
        fields = {"depth": _count(truth, env, JobState.READY), "running": _count(truth, env, JobState.RUNNING)}
        own = [job for job in truth.alive() if job.queue.environment == env]
        fields["bytes"], fields["jobs"] = str(sum(job.size for job in own)), str(len(own))
        fields |= {} if settings.limit is None else {"limit": str(settings.limit)}
        fields |= {} if settings.burst is None else {"burst": f"{settings.burst:g}"}
        expected[keys.env(env.shard(truth.shards), env)] = fields
    for job in truth.jobs.values():
        fields = {"Q": keys.encode(job.queue.queue), "state": job.state.value, "size": str(job.size)}
        fields |= {"priority": str(job.new.priority), "attempts": str(job.attempts)}
        fields |= {"max_attempts": str(job.new.max_attempts), "enqueued": str(job.enqueued_ms)}
        fields |= {} if job.expires_ms is None else {"expires": str(job.expires_ms)}
        fields |= {} if job.error is None else {"error": job.error}
        fields |= {"delivery": job.lease} if job.lease else {}
        fields |= {"unbegun": job.unbegun} if job.unbegun else {}
        fields |= {} if job.deferred_ms is None else {"deferred_since": str(job.deferred_ms)}
        fields |= {"cancel": "1"} if job.cancelled else {}
        fields |= {"detail": job.detail}
        expected[keys.job(truth.find_shard(job), *job.key)] = fields
    found: dict[str, Fields] = {}
    for name, fields in contents.hashes.items():
        if parse_kind(name) in ("job", "env"):
            found[name] = {field: text for field, text in fields.items() if field not in ("due", "counted")}
    assert found == expected
    queues = {keys.queue(_shard(truth, ref), ref) for ref in truth.queues}
    assert {name for name in contents.hashes if parse_kind(name) == "q"} == queues
    check_queues(contents, truth)
    metas = {keys.meta(shard): shard for shard in range(truth.shards)}
    assert {name for name in contents.hashes if name not in found and name not in queues} <= set(metas)
    for meta, shard in metas.items():
        used = sum(job.size for job in truth.alive() if truth.find_shard(job) == shard)
        assert int(contents.hashes.get(meta, {}).get("bytes", 0)) == used
        assert int(contents.hashes.get(meta, {}).get("result_bytes", 0)) == truth.shard_record_bytes(shard)


def check_queues(contents: ValkeyContents, truth: Truth) -> None:
    """The numbers of each queue as they are stored; `check_states` looks at what others make of them."""
    for ref, queue in truth.queues.items():
        fields = contents.hashes[keys.queue(_shard(truth, ref), ref)]
        alive = [job for job in truth.alive() if job.queue == ref]
        expected = {name: str(len(truth.list_jobs(ref, state))) for name, state in STORED.items()}
        expected["warm_bytes"] = str(sum(job.size for job in alive))
        expected["dead_bytes"] = str(truth.dead_bytes(ref))
        assert {name: fields[name] for name in expected} == expected, ref
        assert int(fields.get("result_bytes", 0)) == truth.record_bytes(ref), ref
        assert int(fields.get("results_dropped", 0)) == queue.results_dropped, ref
        assert fields.get("caps") == ("{} {}".format(*queue.caps) if queue.caps else None)
        assert "cold" not in fields, "these clients have no PostgreSQL"


STORED = {"ready": JobState.READY, "warm_scheduled": JobState.SCHEDULED, "running": JobState.RUNNING}


def check_strings_and_sets(contents: ValkeyContents, truth: Truth) -> None:
    bodies = {keys.body(truth.find_shard(job), *job.key): job.new.payload for job in truth.jobs.values()}
    bodies |= {keys.body(env.shard(truth.shards), env, job_id): b"" for env, job_id in truth.kept}
    assert {name: body.partition(b"\n")[2] for name, body in contents.strings.items()} == bodies
    sets: dict[str, set[bytes]] = {}
    for ref in truth.queues:
        shard = _shard(truth, ref)
        sets.setdefault(keys.queues(shard), set()).add(keys.queue_part(ref).encode())
        sets.setdefault(keys.env_names(shard, ref.environment), set()).add(keys.encode(ref.queue).encode())
        sets.setdefault(keys.environments(shard), set()).add(keys.env_part(ref.environment).encode())
        for job in truth.list_jobs(ref, JobState.READY):
            sets.setdefault(keys.details(shard, ref), set()).add(job.detail.encode())
        if truth.queues[ref].counts[Op.BURY]:  # until a mover moves its dead jobs, and there is none here
            sets.setdefault(keys.buried(shard), set()).add(keys.queue_part(ref).encode())
    assert {name: members for name, members in contents.sets.items() if not name.endswith(":parked")} == sets


def check_records(contents: ValkeyContents, truth: Truth) -> None:
    found = {name: [record.partition(b"\n")[2] for record in records] for name, records in contents.lists.items()}
    assert found == {
        keys.attempts(env.shard(truth.shards), env, job_id): records.bodies
        for (env, job_id), records in truth.records.items()
    }


def check_states(client: Valkey, truth: Truth) -> None:
    """The numbers that everybody reads: depth, scheduled, running, bytes, dead, oldest, odometers."""
    states = {state.ref: state for state in read_states(client, truth.shards)}
    assert set(states) == set(truth.queues)
    for ref, queue in truth.queues.items():
        state, oldest = states[ref], truth.oldest(ref)
        alive = [job for job in truth.alive() if job.queue == ref]
        expected = {
            "warm": len(truth.list_jobs(ref, JobState.READY)),
            "cold": 0,
            "cold_bytes": 0,
            "cold_mode": False,
            "depth": len(truth.list_jobs(ref, JobState.READY)),
            "scheduled": len(truth.list_jobs(ref, JobState.SCHEDULED)),
            "running": len(truth.list_jobs(ref, JobState.RUNNING)),
            "dead": len(truth.list_jobs(ref, JobState.DEAD)),
            "bytes": sum(job.size for job in alive),
            "oldest_ms": None if oldest is None else int(oldest),
            "limit": queue.limit,
            "paused": queue.paused,
            "closed": queue.closed,
            "odometers": {op.value: total for op, total in queue.counts.items()},
        }
        assert {name: getattr(state, name) for name in expected} == expected, ref
        check_equations(state)


def check_equations(state: QueueState) -> None:
    """Those of docs/state-machine.md."""
    total = Counter(state.odometers)
    jobs = state.depth + state.scheduled + state.running + state.dead
    assert jobs == total["enqueue"] - total["ack"] - total["expire"] - total["cancel"]
    assert state.dead == total["bury"] - total["redrive"]
    ended = ("ack", "nack", "bury", "reclaim", "defer")
    assert state.running == total["dequeue"] - sum(total[op] for op in ended)


def _shard(truth: Truth, ref: QueueRef) -> int:
    return ref.environment.shard(truth.shards)


def _count(truth: Truth, env: EnvRef, state: JobState) -> str:
    return str(len(truth.list_env_jobs(env, state)))

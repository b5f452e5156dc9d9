"""What both servers really hold, job by job, as anyone can see it between two steps.

A job of these tests carries its number in its payload, so one that was accepted twice under one id is two jobs here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace.model.names import EnvRef, QueueRef
from headrace.postgres.connect import Connection, dict_row
from headrace.queue import keys
from headrace.valkey.connect import Valkey
from tests.model.valkey_contents import Fields, ValkeyContents, read_contents

QUEUES = "SELECT * FROM cold_queues"
DETAILS = "SELECT queue_id, task, flow, flow_type, waiting FROM cold_details WHERE waiting <> 0"
ROWS = "SELECT * FROM cold_queue_entries"
DEAD = "SELECT * FROM dead_jobs"
QUARANTINED = "SELECT * FROM cold_quarantine"


@dataclass(frozen=True)
class Warm:
    """A job in Valkey."""

    number: int
    ref: QueueRef
    job_id: str
    fields: Fields

    @property
    def state(self) -> str:
        return self.fields["state"]

    @property
    def size(self) -> int:
        return int(self.fields["size"])


@dataclass(frozen=True)
class Row:
    """A job in PostgreSQL."""

    number: int
    seq: int
    ref: QueueRef
    job_id: str
    values: dict[str, Any]

    @property
    def delayed(self) -> bool:
        return self.values["delayed"]


@dataclass
class World:
    contents: ValkeyContents
    warm: dict[int, Warm] = field(default_factory=dict[int, Warm])
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    dead: dict[int, Row] = field(default_factory=dict[int, Row])
    quarantined: dict[int, Row] = field(default_factory=dict[int, Row])
    moving: set[int] = field(default_factory=set[int])
    queues: dict[QueueRef, dict[str, Any]] = field(default_factory=dict[QueueRef, dict[str, Any]])
    details: Counter[tuple[Any, ...]] = field(default_factory=Counter[tuple[Any, ...]])

    def waiting_rows(self) -> dict[int, Row]:
        """Those that are in PostgreSQL only: the others are in Valkey, and their rows about to be deleted."""
        return {number: row for number, row in self.rows.items() if row.seq not in self.moving}

    def list_jobs(self, ref: QueueRef) -> list[Warm]:
        return [job for job in self.warm.values() if job.ref == ref]

    def is_done(self, env: EnvRef, job_id: str) -> bool:
        return self.contents.strings.get(keys.body(0, env, job_id)) == b""

    def buried_ms(self, job: Warm) -> int:
        return int(self.contents.sorted_sets[keys.dead(0, job.ref)][keys.encode(job.job_id).encode()])

    def list_used_ids(self, env: EnvRef) -> set[str]:
        """Those that Valkey knows, among them some that are done, or dead and moved away."""
        prefix = f"{keys.prefix(0)}body:{keys.env_part(env)}:"
        return {keys.decode(name.removeprefix(prefix)) for name in self.contents.strings if name.startswith(prefix)}

    def list_registered_ids(self, env: EnvRef) -> set[str]:
        """Return the ids that Valkey refuses because PostgreSQL has a job of them."""
        entries = self.contents.hashes.get(keys.env_cold_ids(0, env), {})
        return {keys.decode(part) for part, entry in entries.items() if entry.startswith("c")}


def parse_number(payload: bytes) -> int:
    return int(payload.partition(b".")[0])


def read_both(valkey: Valkey, conn: Connection, envs: set[EnvRef]) -> World:
    world = World(read_contents(valkey))
    _read_warm(world, envs)
    for name, members in world.contents.sets.items():
        if name.endswith(":moving"):
            world.moving |= set(map(int, members))
    with conn.pipeline():  # one round trip; no other operation runs
        answers = [
            conn.cursor(row_factory=dict_row).execute(query) for query in (QUEUES, DETAILS, ROWS, DEAD, QUARANTINED)
        ]
        queues, details, *jobs = [answer.fetchall() for answer in answers]
    for values in queues:
        world.queues[QueueRef(*(values[name] for name in ("org", "project", "env", "queue")))] = values
    refs = {values["id"]: ref for ref, values in world.queues.items()}
    for values in details:
        *names, waiting = values.values()
        world.details[tuple(names)] = waiting
    for rows, found in zip(jobs, (world.rows, world.dead, world.quarantined), strict=True):
        for values in rows:
            number = parse_number(values["payload"])
            assert number not in found, f"{number} is there twice"
            found[number] = Row(number, values["seq"], refs[values["queue_id"]], values["job_id"], values)
    return world


def _read_warm(world: World, envs: set[EnvRef]) -> None:
    for env in envs:
        prefix = f"{keys.prefix(0)}job:{keys.env_part(env)}:"
        for name, fields in world.contents.hashes.items():
            if name.startswith(prefix):
                job_id = keys.decode(name.removeprefix(prefix))
                number = parse_number(world.contents.strings[keys.body(0, env, job_id)].partition(b"\n")[2])
                ref = QueueRef(env.org, env.project, env.env, keys.decode(fields["Q"]))
                world.warm[number] = Warm(number, ref, job_id, fields)


def check_warm(world: World, refs: list[QueueRef]) -> None:
    """Valkey's own numbers and indexes agree with its jobs, at any time."""
    contents, total = world.contents, 0
    for ref in refs:
        hash_ = contents.hashes.get(keys.queue(0, ref))
        if hash_ is None:
            assert not world.list_jobs(ref)
            continue
        states = Counter(job.state for job in world.list_jobs(ref))
        size = sum(job.size for job in world.list_jobs(ref) if job.state != "dead")
        total += size
        names = {"ready": "ready", "warm_scheduled": "scheduled", "running": "running"}
        assert {name: int(hash_[name]) for name in names} == {name: states[state] for name, state in names.items()}
        assert int(hash_["warm_bytes"]) == size
        _check_ready(world, ref)
    assert int(contents.hashes.get(keys.meta(0), {}).get("bytes", 0)) == total


def check_postgres(world: World) -> None:
    """Check that PostgreSQL's counters equal its rows, and that every row that ever existed is accounted for."""
    details: Counter[tuple[Any, ...]] = Counter()
    for ref, queue in world.queues.items():
        rows = [row for row in world.rows.values() if row.ref == ref]
        waiting = [row for row in rows if not row.delayed]
        delayed = [row for row in rows if row.delayed]
        for row in waiting:
            details[queue["id"], row.values["task"], row.values["flow"], row.values["flow_type"]] += 1
        expected = {
            "waiting": len(waiting),
            "waiting_bytes": sum(row.values["size"] for row in waiting),
            "delayed": len(delayed),
            "delayed_bytes": sum(row.values["size"] for row in delayed),
            "dead": sum(row.ref == ref for row in world.dead.values()),
            "quarantined": sum(row.ref == ref for row in world.quarantined.values()),
        }
        assert {name: queue[name] for name in expected} == expected, ref
        left = queue["refilled"] + queue["expired"] + queue["cancelled"] + queue["quarantined"] + len(rows)
        assert queue["spilled"] + queue["redriven"] == left, ref
    assert world.details == details


def _check_ready(world: World, ref: QueueRef) -> None:
    """The jobs of each priority, and the same jobs by what they are part of."""
    by_priority: dict[str, dict[bytes, float]] = {}
    by_detail: dict[str, dict[bytes, float]] = {}
    for job in world.list_jobs(ref):
        if job.state == "ready":
            member, due = keys.encode(job.job_id).encode(), float(job.fields["due"])
            by_priority.setdefault(keys.ready(0, ref, int(job.fields["priority"])), {})[member] = due
            by_detail.setdefault(keys.detail(0, ref, job.fields["detail"]), {})[member] = due
    prefix = keys.queue(0, ref) + ":"
    found = {name: members for name, members in world.contents.sorted_sets.items() if name.startswith(prefix)}
    assert {name: found[name] for name in found if name.startswith(f"{prefix}ready")} == by_priority
    assert {name: found[name] for name in found if name.startswith(f"{prefix}detail:")} == by_detail
    listed = {keys.detail(0, ref, packed.decode()) for packed in world.contents.sets.get(keys.details(0, ref), set())}
    assert listed == set(by_detail)

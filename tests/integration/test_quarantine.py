"""Entries of Valkey that make no sense, as a bug or an operator may leave them: they cost the other jobs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.maintenance import QUARANTINED, Maintenance
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run

REF = QueueRef("org", "project", "env", "queue")
OPTIONS = QueueOptions(shards=1)
STUBS = OPTIONS.make_stubs()
LEASE_MS = 600_000

INDEXES = {"leases": keys.leases(0), "scheduled": keys.scheduled(0), "expiries": keys.expiries(0)}
FIELDS = {"state": "running", "Q": "queue", "size": 1, "priority": 0, "attempts": 1, "max_attempts": 5, "due": 1}
MALFORMED: dict[str, dict[str, Any]] = {
    "no queue": {name: value for name, value in FIELDS.items() if name != "Q"},
    "unknown queue": {**FIELDS, "Q": "elsewhere"},
    "no priority": {name: value for name, value in FIELDS.items() if name != "priority"},
    "odd size": {**FIELDS, "size": "large"},
}


def job_key(name: str) -> str:
    return keys.job(0, REF.environment, name)


@pytest.mark.parametrize("index", INDEXES)
def test_a_malformed_entry_is_quarantined_and_the_others_are_maintained(
    valkey: Valkey, valkey_url: str, index: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = SyncClient(valkey_url, OPTIONS)
    client.enqueue_many(REF, [NewJob("t", id="reclaimed")])
    [job] = run(valkey, STUBS.dequeue(0, 1, LEASE_MS))
    client.enqueue_many(REF, [NewJob("t", id="released", delay_ms=LEASE_MS), NewJob("t", id="old", ttl_ms=LEASE_MS)])
    part = keys.job_part(REF.environment, "")
    for name, fields in MALFORMED.items():
        valkey.hset(job_key(name), mapping={**fields, "state": "running" if index == "leases" else "scheduled"})
        valkey.zadd(INDEXES[index], {f"{part}{name}": 1})
    valkey.set(job_key("no hash"), "text")
    valkey.zadd(INDEXES[index], {f"{part}no hash": 1, "nonsense": 1})
    # Time has come for all of them.
    valkey.zadd(keys.leases(0), {f"{part}{job.id}": 2}, xx=True)
    valkey.zadd(keys.scheduled(0), {f"{part}released": 2}, xx=True)
    valkey.zadd(keys.expiries(0), {f"{part}old": 2}, xx=True)

    maintenance = Maintenance(valkey_url, STUBS)
    for _ in range(3):
        maintenance.maintain(0)
    [state] = read_states(valkey, 1)
    assert (state.depth, state.running, state.scheduled) == (2, 0, 0)
    assert (state.odometers["reclaim"], state.odometers["release"], state.odometers["expire"]) == (1, 1, 1)
    assert not valkey.zcard(INDEXES[index])
    assert valkey.hget(keys.meta(0), "quarantined") == b"6"
    noted = b"\n".join(valkey.zrange(keys.quarantine(0), 0, -1))  # pyright: ignore
    assert b"nonsense: it does not name a job" in noted
    assert b"odd size: the size of its job is not a number" in noted
    assert caplog.text.count("quarantined a malformed entry") == 6  # each once
    assert dict(maintenance.families())[QUARANTINED] == {("0",): 6}


def test_a_malformed_job_at_the_head_of_a_queue_does_not_stop_it(valkey: Valkey, valkey_url: str) -> None:
    client = SyncClient(valkey_url, OPTIONS)
    client.enqueue_many(REF, [NewJob("t", id=name) for name in ("odd", "gone", "no body", "fine")])
    valkey.hset(job_key("odd"), "attempts", "many")
    valkey.delete(job_key("gone"), keys.body(0, REF.environment, "no body"))
    jobs = [job for _ in range(3) for job in run(valkey, STUBS.dequeue(0, 10, LEASE_MS))]
    assert [job.id for job in jobs] == ["fine"]
    valkey.hset(job_key("fine"), "size", "large")
    assert run(valkey, STUBS.ack(0, [(jobs[0], 1)])) == [False]  # not an error: other results are applied
    assert valkey.hget(keys.meta(0), "quarantined") == b"1"

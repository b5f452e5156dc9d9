"""Dead jobs that are still in Valkey. With PostgreSQL they stay there for a few seconds, until the mover moves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.model.envelope import JSON_CODEC, MAX_ENVELOPE_BYTES, open_payload, split_flow_type
from headrace.model.names import MAX_NAME_BYTES, QueueRef
from headrace.queue import keys
from headrace.queue.scripts import DeadFilter, DeadRow, split_body
from headrace.valkey.connect import Valkey, translate_errors

DeadCursor = tuple[int, str]
"""Pagination cursor of a dead job: when it was buried (ms), and its id."""

HEADER_BYTES = 4 * (MAX_NAME_BYTES + 1)
_FIELDS = ("enqueued", "priority", "attempts", "max_attempts", "size", "error")


@dataclass(frozen=True, kw_only=True)
class DeadEntry(DeadRow):
    """A dead job of either tier in a list. Its flow type and payload are as they are stored until `open_entry`."""

    matches: bool  # it matches the filter; if not, only its cursor is meaningful
    payload: bytes = b""  # the first bytes, if requested
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    codec: str = JSON_CODEC
    envelope_bytes: int = 0  # part of `size`; 0 if the payload was not requested

    @property
    def cursor(self) -> DeadCursor:
        return self.buried_ms, self.job_id


def cursor_sort_key(cursor: DeadCursor) -> tuple[int, bytes]:
    """Return a sort key that orders cursors like PostgreSQL's C collation, so that both tiers can be listed as one."""
    return cursor[0], cursor[1].encode()


def open_entry(entry: DeadEntry, payload_bytes: int = 0) -> DeadEntry:
    """Return a dead job without the mark of its envelope. If `payload_bytes` of its payload are requested, and more
    than that by MAX_ENVELOPE_BYTES were read, the envelope is taken off, too."""
    flow_type, has_envelope = split_flow_type(entry.flow_type)
    opened = open_payload(entry.payload, has_envelope=has_envelope and payload_bytes > 0)
    return replace(
        entry,
        flow_type=flow_type,
        payload=opened.body[:payload_bytes],
        headers=opened.headers,
        codec=opened.codec,
        envelope_bytes=len(entry.payload) - len(opened.body),
    )


def read_dead(
    client: Valkey, shards: int, ref: QueueRef, which: DeadFilter, after: DeadCursor | None, scan: int
) -> list[DeadEntry]:
    """Return dead jobs in Valkey, newest first, after the cursor `after` (None: from the newest). At least `scan` jobs
    are returned if that many exist; those that do not match the filter have `matches=False`."""
    shard = ref.environment.shard(shards)
    key = keys.dead(shard, ref)
    until = min((at for at in (after and after[0], which.buried_until_ms) if at is not None), default="+inf")
    since = "-inf" if which.buried_from_ms is None else which.buried_from_ms
    with translate_errors():
        # Valkey orders jobs of the same millisecond by encoded id, not by cursor, so all jobs of the first and last
        # millisecond are read.
        already_listed: Any = client.zcount(key, after[0], after[0]) if after else 0
        members: Any = client.zrevrangebyscore(key, until, since, start=0, num=scan + already_listed, withscores=True)
        if members:
            members += client.zrangebyscore(key, members[-1][1], members[-1][1], withscores=True)
        cursors = {(int(at), keys.decode(name.decode())) for name, at in members}
        wanted = [cursor for cursor in cursors if after is None or cursor_sort_key(cursor) < cursor_sort_key(after)]
        newest_first = sorted(wanted, key=cursor_sort_key, reverse=True)
        entries = _read_entries(client, shard, ref, newest_first, which, payload_bytes=0)
    return [open_entry(entry) for entry in entries]


def read_dead_job(client: Valkey, shards: int, ref: QueueRef, job_id: str, payload_bytes: int) -> DeadEntry | None:
    """Return a dead job with the first `payload_bytes` of its payload, without envelope, or None if it is not in
    Valkey."""
    shard = ref.environment.shard(shards)
    with translate_errors():
        at: Any = client.zscore(keys.dead(shard, ref), keys.encode(job_id))
        cursors = [] if at is None else [(int(at), job_id)]
        entries = _read_entries(client, shard, ref, cursors, DeadFilter(), payload_bytes + MAX_ENVELOPE_BYTES)
    return open_entry(entries[0], payload_bytes) if entries else None


def _read_entries(
    client: Valkey, shard: int, ref: QueueRef, cursors: Sequence[DeadCursor], which: DeadFilter, payload_bytes: int
) -> list[DeadEntry]:
    pipeline = client.pipeline(transaction=False)
    for _, job_id in cursors:
        pipeline.hmget(keys.job(shard, ref.environment, job_id), *_FIELDS)
        pipeline.getrange(keys.body(shard, ref.environment, job_id), 0, HEADER_BYTES + payload_bytes - 1)
    answers: list[Any] = pipeline.execute()
    return [
        _parse_entry(place, fields, body, which, payload_bytes)
        for place, fields, body in zip(cursors, answers[::2], answers[1::2], strict=True)
        if fields[0] is not None  # else it is no longer in Valkey
    ]


def _parse_entry(
    cursor: DeadCursor, fields: Sequence[bytes | None], body: bytes, which: DeadFilter, payload_bytes: int
) -> DeadEntry:
    (_, task, flow, flow_type), payload = split_body(body)
    enqueued_ms, priority, attempts, max_attempts, size = (int(field or 0) for field in fields[:5])
    error = (fields[5] or b"").decode(errors="replace")
    return DeadEntry(
        job_id=cursor[1],
        buried_ms=cursor[0],
        matches=which.task in ("", task) and which.error in error,
        task=task,
        flow=flow,
        flow_type=flow_type,
        size=size,
        priority=priority,
        attempts=attempts,
        max_attempts=max_attempts,
        enqueued_ms=enqueued_ms,
        error=error,
        payload=payload[:payload_bytes],
    )

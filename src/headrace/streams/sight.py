"""Latest status of each watched group, stored in Headrace's own Valkey.

Besides the events for history, a watcher stores the consumers of a group and the ages of its entries, with the time of
the measurement. Readers need no access to the streams server. A number is exact or None. The reason why something is
unknown contains no server address, because tenants read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from headrace.errors import NoSuchGroup, NotAStream, ServiceUnavailable
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.keys import queue_of_part, queue_part
from headrace.queue.state import SCAN_COUNT, escape_glob
from headrace.streams import keys
from headrace.streams.consumers import Consumer, Holders
from headrace.streams.ids import time_of
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import Survey, script
from headrace.valkey.connect import Valkey, available, node_of
from headrace.valkey.scripts import Call

KEEP_MS = 24 * 3600 * 1000
"""The report of a group is deleted if no watcher has checked it for this long."""

STALE_MS = 30_000
"""Minimum age of a stale report; three intervals if the watcher checks less often than every ten seconds."""

MOST_CONSUMERS = 50
MOST_NAME_CHARS = 128

WHY: dict[type[Exception], str] = {
    NoSuchGroup: "The stream does not exist or has no such group.",
    NotAStream: "The key does not hold a stream.",
    ServiceUnavailable: "The streams server is not responding.",
}
REFUSED = "The streams server rejected the request; see the watcher's log."


@dataclass(frozen=True)
class Sight:
    """Status of a group at one instant; its consumers were read right after."""

    undelivered: int | None  # None: unknown
    pending: int
    retrying: int  # part of pending that failed and waits for a retry: no worker has it
    in_backoff: int  # part of retrying that is not due yet
    oldest_undelivered_age_ms: int | None  # None: there is none, or its id is not a time
    oldest_pending_age_ms: int | None
    longest_idle_ms: int | None  # of the oldest pending entries
    consumers: Sequence[Consumer] | None  # the first MAX_CONSUMERS, stuck ones first; None: unknown
    consumers_total: int | None
    stuck: int | None  # number of all stuck consumers
    deliveries: dict[str, int] | None  # of the oldest pending entries: number of deliveries → number of entries
    dead: int | None  # dead letters of Headrace's workers
    counted: bool  # Headrace's workers have served this group: failures, waits and run times are known


@dataclass(frozen=True)
class Seen:
    """Latest report about a group: its status, or why it is unknown."""

    ref: QueueRef  # the group's name in history
    stream: str
    group: str
    sight: Sight | None  # of the last check; None: that check failed
    seen_at_ms: int | None  # time of the last successful check
    looked_at_ms: int
    every_ms: int
    why: str  # why something is unknown; '': everything is known
    since_ms: int | None

    def is_stale(self, now_ms: int) -> bool:
        """Return whether the next check of the watcher is overdue."""
        return now_ms - self.looked_at_ms > max(STALE_MS, 3 * self.every_ms)


def sight_of(survey: Survey, holders: Holders | None, dead: int | None) -> Sight:
    now_ms = survey.now_us // 1000
    consumers = None if holders is None else [each for each in holders.consumers if not each.waiting]
    return Sight(
        undelivered=survey.undelivered,
        pending=survey.pending,
        retrying=survey.waiting,
        in_backoff=max(0, survey.waiting - survey.due),
        oldest_undelivered_age_ms=_age(survey.first_undelivered, now_ms),
        oldest_pending_age_ms=_age(survey.first_pending, now_ms),
        longest_idle_ms=survey.longest_idle_ms,
        consumers=None if consumers is None else sorted(consumers, key=_worst_first)[:MOST_CONSUMERS],
        consumers_total=None if consumers is None else len(consumers),
        stuck=None if holders is None else len(holders.stuck),
        deliveries=None if holders is None else {str(times): n for times, n in holders.deliveries.items()},
        dead=dead,
        counted=survey.counted,
    )


def why_unseen(error: Exception) -> str:
    """Return a reason for tenants. It excludes the message of the driver or server, which may contain addresses."""
    return next((words for kind, words in WHY.items() if isinstance(error, kind)), REFUSED)


def note(shard: int, ref: QueueRef, group: GroupKeys, sight: Sight | None, why: str, every_ms: int) -> Call[int]:
    """Store the latest report about a group."""
    document = "" if sight is None else json.dumps(_document(sight), separators=(",", ":"))
    args = [queue_part(ref), group.stream, group.group, every_ms, document, why, KEEP_MS]
    return Call(script("save_report"), [keys.seen_of(shard, ref), keys.seen(shard)], args, int)


def seen_refs(
    client: Valkey, shards: int, wanted: Callable[[EnvRef], bool] = lambda _: True, prefix: str = ""
) -> list[QueueRef]:
    """Return the groups that have a report, sorted by name. `prefix` selects names as in `queue.state.read_states`."""
    with available():
        parts = {part for shard in range(shards) for part in _read_parts(client, shard, prefix)}
    refs = (queue_of_part(part.decode()) for part in parts)
    return sorted(ref for ref in refs if wanted(ref.environment))


def _read_parts(client: Valkey, shard: int, prefix: str) -> list[bytes]:
    if not prefix:
        return cast(list[bytes], client.zrange(keys.seen(shard), 0, -1))
    members = client.zscan_iter(keys.seen(shard), match=f"{escape_glob(prefix)}*", count=SCAN_COUNT)
    return [part for part, _ in cast(Iterable[tuple[bytes, float]], members)]


def read_seen(client: Valkey, shards: int, refs: Iterable[QueueRef]) -> list[Seen]:
    """Return the reports about groups, in the given order. Groups without a report are left out."""
    groups = list(refs)
    if not groups:
        return []
    with available():
        pipeline = client.pipeline(transaction=False)
        for ref in groups:
            pipeline.hgetall(keys.seen_of(ref.environment.shard(shards), ref))
        answers: list[dict[bytes, bytes]] = pipeline.execute()
    return [_seen(ref, record) for ref, record in zip(groups, answers, strict=True) if record]


def clock_ms(client: Valkey) -> int:
    """Return the time (ms) of Headrace's own server, whose clock dates the reports."""
    with available():
        seconds, microseconds = node_of(client, "").time()
    return seconds * 1000 + microseconds // 1000


def _worst_first(consumer: Consumer) -> tuple[bool, int, str]:
    return not consumer.stuck, -consumer.pending, consumer.name


def _age(entry_id: str, now_ms: int) -> int | None:
    added_ms = time_of(entry_id)
    return None if added_ms is None else max(0, now_ms - added_ms)


def _document(sight: Sight) -> dict[str, Any]:
    document = asdict(sight)
    for consumer in document["consumers"] or ():
        consumer["name"] = consumer["name"][:MOST_NAME_CHARS]
    return document


def _seen(ref: QueueRef, raw: dict[bytes, bytes]) -> Seen:
    record = {name.decode(): value.decode() for name, value in raw.items()}
    checked_at_ms, measured_at_ms, unknown_since_ms = (_number(record, name) for name in ("looked", "at", "since"))
    return Seen(
        ref=ref,
        stream=record["stream"],
        group=record["group"],
        sight=_sight(record["seen"]) if measured_at_ms is not None and measured_at_ms == checked_at_ms else None,
        seen_at_ms=measured_at_ms,
        looked_at_ms=checked_at_ms or 0,
        every_ms=_number(record, "every") or 0,
        why=record.get("why", ""),
        since_ms=unknown_since_ms,
    )


def _number(told: dict[str, str], name: str) -> int | None:
    return int(told[name]) if name in told else None


def _sight(text: str) -> Sight:
    """Parse a stored status. Unknown fields (of another release) are ignored; missing ones become None."""
    values = _told(Sight, json.loads(text))
    if values["consumers"] is not None:
        values["consumers"] = [Consumer(**_told(Consumer, each)) for each in values["consumers"]]
    return Sight(**values)


def _told(kind: type[Sight] | type[Consumer], document: dict[str, Any]) -> dict[str, Any]:
    return {each.name: document.get(each.name) for each in fields(kind)}

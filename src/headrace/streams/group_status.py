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

from headrace.errors import NotAStream, ServiceUnavailable, UnknownGroup
from headrace.model.entry_id import parse_time_ms
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.keys import parse_queue_part, queue_part
from headrace.queue.state import SCAN_COUNT, escape_glob
from headrace.streams import keys
from headrace.streams.consumers import Consumer, GroupConsumers
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import RETRY_CONSUMER, GroupSnapshot, script
from headrace.valkey.connect import Valkey, translate_errors
from headrace.valkey.scripts import ScriptCall

KEEP_MS = 24 * 3600 * 1000
"""The report of a group is deleted if no watcher has checked it for this long."""

STALE_MS = 30_000
"""Minimum age of a stale report; three intervals if the watcher checks less often than every ten seconds."""

MAX_CONSUMERS = 50
MAX_NAME_CHARS = 128

REASONS: dict[type[Exception], str] = {
    UnknownGroup: "The stream does not exist or has no such group.",
    NotAStream: "The key does not hold a stream.",
    ServiceUnavailable: "The streams server is not responding.",
}
REFUSED = "The streams server rejected the request; see the watcher's log."


@dataclass(frozen=True)
class GroupStatus:
    """Status of a group at one instant; its consumers were read right after."""

    undelivered: int | None  # None: unknown
    pending: int
    retrying: int  # part of pending that failed and waits for a retry: no worker has it
    in_backoff: int  # part of retrying that is not due yet
    oldest_undelivered_age_ms: int | None  # None: there is none, or its id is not a time
    oldest_pending_age_ms: int | None
    longest_idle_ms: int | None  # of the oldest pending entries that a consumer holds
    consumers: Sequence[Consumer] | None  # the first MAX_CONSUMERS, stuck ones first; None: unknown
    consumers_total: int | None
    stuck: int | None  # number of all stuck consumers
    deliveries: dict[str, int] | None  # of the oldest pending entries: number of deliveries → number of entries
    dead: int | None  # dead letters of Headrace's workers
    counted: bool  # Headrace's workers have served this group: failures, waits and run times are known
    total_messages: int | None  # length of the stream; None: reported by an earlier release, as is `hard_maxlen`
    hard_maxlen: int | None  # length at which Headrace's producers are refused


@dataclass(frozen=True)
class GroupReport:
    """Latest report about a group: its status, or why it is unknown."""

    ref: QueueRef  # the group's name in history
    stream: str
    group: str
    status: GroupStatus | None  # of the last check; None: that check failed
    measured_at_ms: int | None  # time of the last successful check
    checked_at_ms: int
    interval_ms: int
    unknown_reason: str  # why something is unknown; '': everything is known
    unknown_since_ms: int | None

    def is_stale(self, now_ms: int) -> bool:
        """Return whether the next check of the watcher is overdue."""
        return now_ms - self.checked_at_ms > max(STALE_MS, 3 * self.interval_ms)


def build_status(
    snapshot: GroupSnapshot, group_consumers: GroupConsumers | None, dead: int | None, hard_maxlen: int | None
) -> GroupStatus:
    now_ms = snapshot.now_us // 1000
    consumers = (
        None if group_consumers is None else [each for each in group_consumers.consumers if each.name != RETRY_CONSUMER]
    )
    return GroupStatus(
        undelivered=snapshot.undelivered,
        pending=snapshot.pending,
        retrying=snapshot.waiting,
        in_backoff=max(0, snapshot.waiting - snapshot.due),
        oldest_undelivered_age_ms=_age_ms(snapshot.first_undelivered, now_ms),
        oldest_pending_age_ms=_age_ms(snapshot.first_pending, now_ms),
        longest_idle_ms=snapshot.longest_idle_ms,
        consumers=None if consumers is None else sorted(consumers, key=_stuck_first)[:MAX_CONSUMERS],
        consumers_total=None if consumers is None else len(consumers),
        stuck=None if group_consumers is None else len(group_consumers.stuck),
        deliveries=None
        if group_consumers is None
        else {str(times): n for times, n in group_consumers.deliveries.items()},
        dead=dead,
        counted=snapshot.counted,
        total_messages=snapshot.total_messages,
        hard_maxlen=hard_maxlen,
    )


def explain_failure(error: Exception) -> str:
    """Return a reason for tenants. It excludes the message of the driver or server, which may contain addresses."""
    return next((words for kind, words in REASONS.items() if isinstance(error, kind)), REFUSED)


def save_report(
    shard: int, ref: QueueRef, group: GroupKeys, status: GroupStatus | None, unknown_reason: str, every_ms: int
) -> ScriptCall[int]:
    document = "" if status is None else json.dumps(_to_document(status), separators=(",", ":"))
    args = [queue_part(ref), group.stream, group.group, every_ms, document, unknown_reason, KEEP_MS]
    return ScriptCall(script("save_report"), [keys.report(shard, ref), keys.report_index(shard)], args, int)


def list_reported_groups(
    client: Valkey, shards: int, wanted: Callable[[EnvRef], bool] = lambda _: True, prefix: str = ""
) -> list[QueueRef]:
    """Return the groups that have a report, sorted by name. `prefix` selects names as in `queue.state.read_states`."""
    with translate_errors():
        parts = {part for shard in range(shards) for part in _read_parts(client, shard, prefix)}
    refs = (parse_queue_part(part.decode()) for part in parts)
    return sorted(ref for ref in refs if wanted(ref.environment))


def _read_parts(client: Valkey, shard: int, prefix: str) -> list[bytes]:
    if not prefix:
        return cast(list[bytes], client.zrange(keys.report_index(shard), 0, -1))
    members = client.zscan_iter(keys.report_index(shard), match=f"{escape_glob(prefix)}*", count=SCAN_COUNT)
    return [part for part, _ in cast(Iterable[tuple[bytes, float]], members)]


def read_reports(client: Valkey, shards: int, refs: Iterable[QueueRef]) -> list[GroupReport]:
    """Return the reports about groups, in the given order. Groups without a report are left out."""
    groups = list(refs)
    if not groups:
        return []
    with translate_errors():
        pipeline = client.pipeline(transaction=False)
        for ref in groups:
            pipeline.hgetall(keys.report(ref.environment.shard(shards), ref))
        answers: list[dict[bytes, bytes]] = pipeline.execute()
    return [_parse_report(ref, record) for ref, record in zip(groups, answers, strict=True) if record]


def _stuck_first(consumer: Consumer) -> tuple[bool, int, str]:
    return not consumer.stuck, -consumer.pending, consumer.name


def _age_ms(entry_id: str, now_ms: int) -> int | None:
    added_ms = parse_time_ms(entry_id)
    return None if added_ms is None else max(0, now_ms - added_ms)


def _to_document(status: GroupStatus) -> dict[str, Any]:
    document = asdict(status)
    for consumer in document["consumers"] or ():
        consumer["name"] = consumer["name"][:MAX_NAME_CHARS]
    return document


def _parse_report(ref: QueueRef, raw: dict[bytes, bytes]) -> GroupReport:
    record = {name.decode(): value.decode() for name, value in raw.items()}
    checked_at_ms, measured_at_ms, unknown_since_ms = (_parse_int(record, name) for name in ("looked", "at", "since"))
    return GroupReport(
        ref=ref,
        stream=record["stream"],
        group=record["group"],
        status=_parse_status(record["seen"])
        if measured_at_ms is not None and measured_at_ms == checked_at_ms
        else None,
        measured_at_ms=measured_at_ms,
        checked_at_ms=checked_at_ms or 0,
        interval_ms=_parse_int(record, "every") or 0,
        unknown_reason=record.get("why", ""),
        unknown_since_ms=unknown_since_ms,
    )


def _parse_int(record: dict[str, str], name: str) -> int | None:
    return int(record[name]) if name in record else None


def _parse_status(text: str) -> GroupStatus:
    """Parse a stored status. Unknown fields (of another release) are ignored; missing ones become None."""
    values = _select_fields(GroupStatus, json.loads(text))
    if values["consumers"] is not None:
        values["consumers"] = [Consumer(**_select_fields(Consumer, each)) for each in values["consumers"]]
    return GroupStatus(**values)


def _select_fields(kind: type[GroupStatus] | type[Consumer], document: dict[str, Any]) -> dict[str, Any]:
    return {each.name: document.get(each.name) for each in fields(kind)}

"""What a watcher last saw of each group, kept in Headrace's own Valkey for those who look at it now.

Beside what it tells to history, a watcher notes who holds the entries and how old they are. Whoever reads that measures
nothing, needs no way to the server of the streams, and is told when it was seen. A number is right or None; why
something is not known is said in words that hold no address, because tenants read them.
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
"""A group that no watcher looked at for so long is forgotten."""

STALE_MS = 30_000
"""At least; a watcher that looks less often than every ten seconds is late after three times its pace."""

MOST_CONSUMERS = 50
MOST_NAME_CHARS = 128

WHY: dict[type[Exception], str] = {
    NoSuchGroup: "There is no such stream, or it has no such group.",
    NotAStream: "The key does not hold a stream.",
    ServiceUnavailable: "The server of the streams does not answer.",
}
REFUSED = "The server of the streams refuses to tell; the watcher's log says why."


@dataclass(frozen=True)
class Sight:
    """A group as it was at one instant; its holders were read right after."""

    undelivered: int | None  # None: unknown
    pending: int
    retrying: int  # of those, the ones that failed and are to be tried again: no consumer holds them
    in_backoff: int  # of those, the ones that are not due yet
    oldest_undelivered_age_ms: int | None  # None: there is none, or its id is no time
    oldest_pending_age_ms: int | None
    longest_idle_ms: int | None  # of the oldest pending entries
    consumers: Sequence[Consumer] | None  # the first of them, stuck ones before others; None: unknown
    consumers_total: int | None
    stuck: int | None  # of all of them
    deliveries: dict[str, int] | None  # of the oldest pending entries: how often delivered → how many
    dead: int | None  # letters of Headrace's workers
    counted: bool  # Headrace's own workers have worked here: failures, waits and run times are known


@dataclass(frozen=True)
class Seen:
    """What is kept of a group."""

    ref: QueueRef  # under which it is in history
    stream: str
    group: str
    sight: Sight | None  # as of the last look; None: that one saw nothing
    seen_at_ms: int | None  # when a look last saw something
    looked_at_ms: int
    every_ms: int
    why: str  # something is not known; '': all is
    since_ms: int | None

    def is_stale(self, now_ms: int) -> bool:
        """Whether its watcher should have looked again long ago."""
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
    """Without what a driver or a server said: that may hold addresses."""
    return next((words for kind, words in WHY.items() if isinstance(error, kind)), REFUSED)


def note(shard: int, ref: QueueRef, group: GroupKeys, sight: Sight | None, why: str, every_ms: int) -> Call[int]:
    written = "" if sight is None else json.dumps(_document(sight), separators=(",", ":"))
    args = [queue_part(ref), group.stream, group.group, every_ms, written, why, KEEP_MS]
    return Call(script("save_report"), [keys.seen_of(shard, ref), keys.seen(shard)], args, int)


def seen_refs(
    client: Valkey, shards: int, wanted: Callable[[EnvRef], bool] = lambda _: True, prefix: str = ""
) -> list[QueueRef]:
    """Return the groups that are watched, or were lately, ordered by name. `prefix`: as in queue.state.read_states."""
    with available():
        parts = {part for shard in range(shards) for part in _read_parts(client, shard, prefix)}
    refs = (queue_of_part(part.decode()) for part in parts)
    return sorted(ref for ref in refs if wanted(ref.environment))


def _read_parts(client: Valkey, shard: int, prefix: str) -> list[bytes]:
    if not prefix:
        return cast(list[bytes], client.zrange(keys.seen(shard), 0, -1))
    found = client.zscan_iter(keys.seen(shard), match=f"{escape_glob(prefix)}*", count=SCAN_COUNT)
    return [part for part, _ in cast(Iterable[tuple[bytes, float]], found)]


def read_seen(client: Valkey, shards: int, refs: Iterable[QueueRef]) -> list[Seen]:
    """In this order, without those that are not there."""
    asked = list(refs)
    if not asked:
        return []
    with available():
        pipeline = client.pipeline(transaction=False)
        for ref in asked:
            pipeline.hgetall(keys.seen_of(ref.environment.shard(shards), ref))
        answers: list[dict[bytes, bytes]] = pipeline.execute()
    return [_seen(ref, record) for ref, record in zip(asked, answers, strict=True) if record]


def clock_ms(client: Valkey) -> int:
    """Of the server that dates what is noted: ages are measured by it."""
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


def _seen(ref: QueueRef, record: dict[bytes, bytes]) -> Seen:
    told = {name.decode(): value.decode() for name, value in record.items()}
    looked_at_ms, seen_at_ms, since_ms = (_number(told, name) for name in ("looked", "at", "since"))
    return Seen(
        ref=ref,
        stream=told["stream"],
        group=told["group"],
        sight=_sight(told["seen"]) if seen_at_ms is not None and seen_at_ms == looked_at_ms else None,
        seen_at_ms=seen_at_ms,
        looked_at_ms=looked_at_ms or 0,
        every_ms=_number(told, "every") or 0,
        why=told.get("why", ""),
        since_ms=since_ms,
    )


def _number(told: dict[str, str], name: str) -> int | None:
    return int(told[name]) if name in told else None


def _sight(text: str) -> Sight:
    """What a watcher of another release does not tell, or tells besides, harms nothing."""
    told = _told(Sight, json.loads(text))
    if told["consumers"] is not None:
        told["consumers"] = [Consumer(**_told(Consumer, each)) for each in told["consumers"]]
    return Sight(**told)


def _told(kind: type[Sight] | type[Consumer], document: dict[str, Any]) -> dict[str, Any]:
    return {each.name: document.get(each.name) for each in fields(kind)}

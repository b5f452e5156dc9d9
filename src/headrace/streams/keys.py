"""Valkey keys for jobs on streams, beside the stream itself.

On the stream's server, for each group that Headrace's workers serve; G is the group, percent-encoded. They have the
hash tag of the stream, so that one script can change them together on a cluster.

    {S}:hr:G:retries    zset    entry → when its retry is due
    {S}:hr:G:stats      hash    o:<verb>: totals counted by workers
    {S}:hr:G:samples    stream  waits and run times, until a watcher has emitted them
    {S}:hr:G:deferred   zset    entry → since when it has been deferred without another result
    {S}:hr:G:wake       stream  one entry, added when the next retry became earlier; idle workers wait for it
    {S}:hr:G:dead       stream  dead letters: the entry's fields, and headrace:id, headrace:reason, headrace:deliveries

On Headrace's own server, for each watched stream; E and Q as in queue/keys.py.

    hr:{0}:stream:E:Q   hash    epoch, basis, at, samples, t:<verb> (last emitted total), o:<verb> (odometers), first
                                (epoch), b:<verb> (odometers of earlier epochs)
    hr:{0}:streams      set     E:Q of every stream that was ever watched
    hr:{0}:streams:E    hash    queue → its depth, running, and when that was emitted
    hr:{0}:seen:E:Q     hash    stream, group, every (ms), looked (last check), seen (JSON, see group_status.py), at
                                (when that was measured), why something is unknown, since
    hr:{0}:seen         zset    E:Q → last check of a watcher
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.model.names import QueueRef
from headrace.queue import keys

SIDE = ":hr:"
HEADRACE_STREAM = re.compile(r".*:hr:[^:]+:(samples|dead|wake)|hr:\{\d+\}:metrics", re.DOTALL)
TAGGED = re.compile(r"\{[^}]+\}")


@dataclass(frozen=True)
class GroupKeys:
    stream: str
    group: str

    def list_all(self) -> list[str]:
        """Return all keys, in the order that the scripts expect."""
        return [self.stream, *map(self._side_key, ("retries", "stats", "samples", "dead", "deferred", "wake"))]

    @property
    def samples(self) -> str:
        return self._side_key("samples")

    @property
    def dead(self) -> str:
        return self._side_key("dead")

    @property
    def wake(self) -> str:
        return self._side_key("wake")

    def _side_key(self, what: str) -> str:
        tagged = self.stream if TAGGED.search(self.stream) else f"{{{self.stream}}}"
        return f"{tagged}{SIDE}{keys.encode(self.group)}:{what}"


def event_keys(shard: int, ref: QueueRef) -> list[str]:
    """Return the keys that `emit_events` uses for a watched stream, in the order that the script expects."""
    env = ref.environment
    return [
        f"{keys.prefix(shard)}stream:{keys.queue_part(ref)}",
        *(keys.meta(shard), keys.metrics(shard), keys.metrics_enabled(shard), keys.env(shard, env)),
        f"{keys.prefix(shard)}streams:{keys.env_part(env)}",
        watched_streams(shard),
    ]


def watched_streams(shard: int) -> str:
    return f"{keys.prefix(shard)}streams"


def report_index(shard: int) -> str:
    return f"{keys.prefix(shard)}seen"


def report(shard: int, ref: QueueRef) -> str:
    return f"{report_index(shard)}:{keys.queue_part(ref)}"


def is_headrace_stream(key: str) -> bool:
    """Return whether a stream is internal to Headrace, not one with jobs."""
    return HEADRACE_STREAM.fullmatch(key) is not None

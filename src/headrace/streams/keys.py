"""The keys that jobs on streams need beside the stream itself.

On the stream's server, for each group that Headrace's own workers serve; G is the group, percent-encoded. They carry
the hash tag of the stream, so that one script can change them together on a cluster.

    {S}:hr:G:retries    zset    entry → not before when it may be tried again
    {S}:hr:G:stats      hash    o:<verb>: what workers have counted
    {S}:hr:G:samples    stream  waits and run times, until a watcher has told them
    {S}:hr:G:dead       stream  dead letters: the entry's fields, and headrace:id, headrace:reason, headrace:deliveries

On Headrace's own server, for each stream that is watched; E and Q as in queue/keys.py.

    hr:{0}:stream:E:Q   hash    epoch, basis, at, samples, t:<verb> (as last told), o:<verb> (odometers), first (epoch),
                                b:<verb> (what the epochs before counted)
    hr:{0}:streams      set     E:Q of every stream that was ever told of
    hr:{0}:streams:E    hash    queue → its depth, running, and when that was told
    hr:{0}:seen:E:Q     hash    stream, group, every (ms), looked (when a watcher last did), seen (JSON, see sight.py),
                                at (when that was seen), why something is not known, since
    hr:{0}:seen         zset    E:Q → when a watcher last looked
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.model.names import QueueRef
from headrace.queue import keys

SIDE = ":hr:"
OURS = re.compile(r".*:hr:[^:]+:(samples|dead)|hr:\{\d+\}:metrics", re.DOTALL)
TAGGED = re.compile(r"\{[^}]+\}")


@dataclass(frozen=True)
class GroupKeys:
    """One group of one stream, and what lies beside it."""

    stream: str
    group: str

    def all(self) -> list[str]:
        """In the order in which the scripts expect them."""
        return [self.stream, *map(self._beside, ("retries", "stats", "samples")), self.dead]

    @property
    def samples(self) -> str:
        return self._beside("samples")

    @property
    def dead(self) -> str:
        return self._beside("dead")

    def _beside(self, what: str) -> str:
        tagged = self.stream if TAGGED.search(self.stream) else f"{{{self.stream}}}"
        return f"{tagged}{SIDE}{keys.encode(self.group)}:{what}"


def told(shard: int, ref: QueueRef) -> list[str]:
    """What the telling of a watched stream touches, in the order in which the script expects it."""
    env = ref.environment
    return [
        f"{keys.prefix(shard)}stream:{keys.queue_part(ref)}",
        *(keys.meta(shard), keys.metrics(shard), keys.metrics_enabled(shard), keys.env(shard, env)),
        f"{keys.prefix(shard)}streams:{keys.env_part(env)}",
        told_of(shard),
    ]


def told_of(shard: int) -> str:
    return f"{keys.prefix(shard)}streams"


def seen(shard: int) -> str:
    return f"{keys.prefix(shard)}seen"


def seen_of(shard: int, ref: QueueRef) -> str:
    return f"{seen(shard)}:{keys.queue_part(ref)}"


def is_ours(key: str) -> bool:
    """Whether a stream is one that Headrace itself keeps, rather than one with jobs."""
    return OURS.fullmatch(key) is not None

"""What can be chosen about a spool, and what it tells about itself. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.errors import SettingsError

FullBehavior = Literal["drop_oldest", "drop_newest", "block"]
SyncPolicy = Literal["always", "group", "os"]

KIB, MIB, GIB = 2**10, 2**20, 2**30
LARGEST_SEGMENT = 2 * GIB  # positions in it are kept in 32 bits, and one record may pass its end

FSYNC_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Upper bounds of the fsync histogram's buckets; the last bucket has none."""


@dataclass(frozen=True)
class SpoolOptions:
    """What a put that returned can lose, by policy:

    | sync   | a durable put returns after   | kill -9 | power loss                                         |
    | always | an fsync, alone if need be    | nothing | nothing; puts that are not durable are treated so  |
    | group  | an fsync shared with others   | nothing | nothing                                            |
    | os     | the write to the system       | nothing | what the kernel still held, some 30 s on Linux     |

    A put with `durable=False` (not under `always`) waits in memory: both lose what came in since the last flush, at
    most `stale_flush` seconds and `inmemory_blocks` records.

    `max_bytes` bounds what waits or is in flight, not the disk: a segment's file goes when all of its records are
    finished, so one record that is tried for hours keeps up to `segment_size` (and the largest record) of finished
    neighbours. Beside that, quarantine/ and dead/ grow until somebody empties them.
    """

    path: Path | None = None  # the directory; None only for type "memory"
    type: Literal["disk", "memory"] = "disk"
    max_size: int = 10_000  # records that wait or are in flight
    max_bytes: int = GIB  # of their payloads and extras, as they were put
    full_behavior: FullBehavior = "block"
    block_timeout: float = 30.0  # seconds a put waits for room under "block"
    inmemory_blocks: int = 2048  # records of the memory layer
    inmemory_bytes: int = 64 * MIB  # and their bytes, whichever is reached first
    segment_size: int = 64 * MIB
    sync: SyncPolicy = "group"
    group_ms: float = 5.0  # longest that a put waits for others to share its fsync; alone it does not wait
    stale_flush: float = 30.0  # seconds until a record in memory is written
    write_buffer: int = 256 * KIB  # most that one write call carries, unless one record is larger
    compression: Literal["snappy", "none"] = "snappy"
    max_record: int = 64 * MIB  # largest payload
    meta_sync: float = 1.0  # seconds between writes of spool.meta and fsyncs of journals
    max_attempts: int | None = None  # leases without an end after which a record is dead; None: never

    def __post_init__(self) -> None:
        least = {"max_size": 1, "max_bytes": 1, "inmemory_blocks": 0, "inmemory_bytes": 0, "write_buffer": 1}
        least |= {"segment_size": 4 * KIB, "max_record": 1, "block_timeout": 0, "group_ms": 0, "stale_flush": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise SettingsError(f"spool {name} is {getattr(self, name)}; the least is {bound}.")
        if max(self.segment_size, self.max_record) > LARGEST_SEGMENT:
            raise SettingsError("spool segment_size and max_record can be 2 GiB at most.")
        if self.meta_sync <= 0:
            raise SettingsError(f"spool meta_sync is {self.meta_sync}; it must be more than 0.")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise SettingsError("spool max_attempts must be 1 or more, or none.")
        if self.type == "disk" and self.path is None:
            raise SettingsError("A spool on disk needs a path.")


@dataclass(frozen=True)
class SpoolStats:
    """One consistent answer. Counters start at open; records found on disk then count as pushed once more, so that
    `pushed = acked + sum(dropped) + corrupt + dead + size` holds in every answer."""

    size: int = 0  # records that wait or are in flight
    bytes: int = 0  # of these, as they were put
    max_size: int = 0
    max_bytes: int = 0
    in_flight: int = 0
    delayed: int = 0  # nacked, and their delay is not over
    inmemory_blocks: int = 0  # records that are in memory alone
    inmemory_bytes: int = 0
    disk_bytes: int = 0  # segments and journals, finished records in them included
    quarantine_bytes: int = 0  # in quarantine/, as of the last look, at most half a minute ago; never deleted here
    dead_bytes: int = 0  # in dead/, likewise
    disk_available: int | None = None  # free space for this user; None if it cannot be told
    oldest_put_at: float | None = None  # unix time; None if nothing waits or is in flight
    next_id: int = 1
    durable_id: int = 0  # every record up to this one is on disk
    segments: int = 0
    pushed: int = 0
    recovered: int = 0  # of pushed: were there at open
    acked: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])  # by reason
    corrupt: int = 0  # records that damage took
    dead: int = 0  # moved to dead/
    refused: int = 0  # puts that raised; never accepted, so outside the identity
    retries: int = 0  # leases of a record that was leased before
    replaced: int = 0  # records that were cut into parts; the parts count as pushed, less the one
    quarantined: int = 0  # files written to quarantine/
    torn: int = 0  # unfinished writes found at the end of a segment and cut off
    damaged_notes: int = 0  # journal entries that could not be read
    rotations: int = 0
    flushes: int = 0  # writes of memory blocks to disk
    meta_syncs: int = 0
    disk_full: int = 0  # writes that found no space
    write_errors: int = 0  # writes or fsyncs that failed for another reason
    fsyncs: int = 0
    fsync_seconds: float = 0.0  # in all
    fsync_max_seconds: float = 0.0
    fsync_buckets: tuple[int, ...] = ()  # fsyncs per bucket of FSYNC_BOUNDS_S, not cumulated; one more at the end
    last_error: str = ""

    @property
    def conserved(self) -> bool:
        return self.pushed == self.acked + sum(self.dropped.values()) + self.corrupt + self.dead + self.size

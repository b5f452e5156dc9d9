"""Options and statistics of a spool. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.errors import SettingsError

FullBehavior = Literal["drop_oldest", "drop_newest", "block"]
SyncPolicy = Literal["always", "group", "os"]

KIB, MIB, GIB = 2**10, 2**20, 2**30
LARGEST_SEGMENT = 2 * GIB  # offsets are 32 bits, and one record may extend beyond this size

FSYNC_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Upper bounds in seconds of the buckets of the fsync histogram; the last bucket has none."""


@dataclass(frozen=True)
class SpoolOptions:
    """Options of a spool. What a put that has returned can lose, by sync policy:

    | sync   | a durable put returns after | lost by kill -9 | lost by power loss                           |
    | always | an fsync of its own         | nothing         | nothing; every put is durable                |
    | group  | an fsync shared with others | nothing         | nothing                                      |
    | os     | the write call              | nothing         | what the kernel held, about 30 s on Linux    |

    A put with `durable=False` (except under `always`) waits in memory: kill -9 and power loss lose the records since
    the last flush, at most `stale_flush` seconds and `inmemory_blocks` records.

    `max_bytes` bounds the records that wait or are in flight, not the disk: a segment file is deleted when all of its
    records are finished, so one record that is retried for hours keeps up to `segment_size` (and the largest record) of
    finished ones. In addition, quarantine/ and dead/ grow until an operator empties them.
    """

    path: Path | None = None  # the directory; None only for type "memory"
    type: Literal["disk", "memory"] = "disk"
    max_size: int = 10_000  # records waiting or in flight
    max_bytes: int = GIB  # of their payloads and extras, uncompressed
    full_behavior: FullBehavior = "block"
    block_timeout: float = 30.0  # seconds that a put waits for room under "block"
    inmemory_blocks: int = 2048  # records in the memory layer
    inmemory_bytes: int = 64 * MIB  # bytes in the memory layer; the limit reached first applies
    segment_size: int = 64 * MIB
    sync: SyncPolicy = "group"
    group_ms: float = 5.0  # longest wait in ms for other puts to share an fsync; a single put does not wait
    stale_flush: float = 30.0  # seconds until a record in memory is written
    write_buffer: int = 256 * KIB  # largest write call, unless one record is larger
    compression: Literal["snappy", "none"] = "snappy"
    max_record: int = 64 * MIB  # largest payload
    meta_sync: float = 1.0  # seconds between writes of spool.meta and fsyncs of journals
    max_attempts: int | None = None  # attempts after which a record moves to dead/; None: unlimited

    def __post_init__(self) -> None:
        minimums = {"max_size": 1, "max_bytes": 1, "inmemory_blocks": 0, "inmemory_bytes": 0, "write_buffer": 1}
        minimums |= {"segment_size": 4 * KIB, "max_record": 1, "block_timeout": 0, "group_ms": 0, "stale_flush": 0}
        for name, bound in minimums.items():
            if getattr(self, name) < bound:
                raise SettingsError(f"spool {name} is {getattr(self, name)}; it must be at least {bound}.")
        if max(self.segment_size, self.max_record) > LARGEST_SEGMENT:
            raise SettingsError("spool segment_size and max_record must be at most 2 GiB.")
        if self.meta_sync <= 0:
            raise SettingsError(f"spool meta_sync is {self.meta_sync}; it must be more than 0.")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise SettingsError("spool max_attempts must be 1 or more, or none.")
        if self.type == "disk" and self.path is None:
            raise SettingsError("A spool on disk needs a path.")


@dataclass(frozen=True)
class SpoolStats:
    """A consistent snapshot of a spool. Counters start at open; records found on disk then count as pushed again, so
    that `pushed = acked + sum(dropped) + corrupt + dead + size` always holds."""

    size: int = 0  # records waiting or in flight
    bytes: int = 0  # of these records, uncompressed
    max_size: int = 0
    max_bytes: int = 0
    in_flight: int = 0
    delayed: int = 0  # nacked records whose delay has not passed
    held: int = 0  # records that wait until earlier ones are finished
    inmemory_blocks: int = 0  # records held only in memory
    inmemory_bytes: int = 0
    disk_bytes: int = 0  # segments and journals, including finished records
    quarantine_bytes: int = 0  # in quarantine/, measured within the last 30 s; the spool never deletes them
    dead_bytes: int = 0  # in dead/, likewise
    disk_available: int | None = None  # free space for this user; None if unknown
    oldest_put_at: float | None = None  # unix time; None if nothing waits or is in flight
    next_id: int = 1
    durable_id: int = 0  # every record up to this one is on disk
    segments: int = 0
    pushed: int = 0
    recovered: int = 0  # of pushed: found on disk at open
    acked: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])  # by reason
    corrupt: int = 0  # records lost to corruption
    dead: int = 0  # moved to dead/
    refused: int = 0  # records whose put raised; never accepted, so not part of `pushed`
    retries: int = 0  # leases of records that were leased before
    replaced: int = 0  # records split into parts; the parts count as pushed, minus one
    quarantined: int = 0  # files written to quarantine/
    torn: int = 0  # incomplete writes truncated at the end of a segment
    damaged_notes: int = 0  # unreadable journal notes
    rotations: int = 0
    flushes: int = 0  # writes of batches from memory to disk
    meta_syncs: int = 0
    disk_full: int = 0  # writes that failed because the disk was full
    write_errors: int = 0  # writes or fsyncs that failed for another reason
    fsyncs: int = 0
    fsync_seconds: float = 0.0  # total
    fsync_max_seconds: float = 0.0
    fsync_buckets: tuple[int, ...] = ()  # fsyncs per bucket of FSYNC_BOUNDS_S and one for longer ones, not cumulative
    last_error: str = ""

    @property
    def conserved(self) -> bool:
        """Return True if every record pushed is accounted for."""
        return self.pushed == self.acked + sum(self.dropped.values()) + self.corrupt + self.dead + self.size
